-- Takes over a record that may run again: past its retention, released, forgotten, or with an expired
-- lease under `rerun`. A duplicate of the released claim takes nothing over. All conditions are
-- checked again under the lock of the row.
UPDATE {records} AS r
SET fingerprint = asked.fingerprint,
    -- The fence of the row is the bound if both the clock and the sequence are behind it.
    fence = greatest({fence}, r.fence + 1),
    attempt = CASE
        WHEN r.state IN ('completed', 'released') AND r.expires_at < {now} THEN 1
        ELSE r.attempt + 1
    END,
    on_unknown = asked.on_unknown,
    retention = asked.retention,
    claimed_at = {now},
    expires_at = {now} + asked.retention * {millisecond},
    lease_until = {now} + asked.lease * {millisecond},
    owner = asked.owner,
    state = 'in_flight',
    watched = r.watched AND r.state = 'in_flight',
    hold_for = asked.hold_for,
    hold_until = NULL,
    irregular_at = NULL,
    ended_at = NULL,
    about = asked.about,
    node = asked.node,
    captured = asked.captured,
    reason = NULL,
    answer = NULL,
    limits = {limits_result}
FROM (
    SELECT *, {draw} AS drawn
    FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10{limits}) AS claims (
        digest, fingerprint, owner, lease, retention, on_unknown, hold_for, about, node, captured{limit_columns}
    )
) AS asked
WHERE r.digest = asked.digest
    AND (r.state <> 'in_flight' OR {limits_as_seen})
    AND (
        r.state IN ('completed', 'released') AND r.expires_at < {now}
        OR r.state = 'released' AND r.owner <> asked.owner
            AND (r.fingerprint = asked.fingerprint OR r.fingerprint IS NULL)
        OR r.fingerprint = asked.fingerprint AND r.state = 'in_flight'
            AND r.on_unknown = 'rerun' AND r.lease_until < {now}
            AND r.owner <> asked.owner
    )
RETURNING r.digest, r.fence, r.attempt
