-- Takes a record that may run again: past its retention, released, or lapsed where the route said
-- `rerun`. Everything is checked once more under the lock of the row.
UPDATE {records} AS r
SET fingerprint = asked.fingerprint,
    -- The row's own fence counts where both the clock and the sequence are behind it.
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
    answer = NULL
FROM (
    SELECT *, {draw} AS drawn
    FROM unnest($1, $2, $3, $4, $5, $6) AS claims (
        digest, fingerprint, owner, lease, retention, on_unknown
    )
) AS asked
WHERE r.digest = asked.digest
    AND (
        r.state IN ('completed', 'released') AND r.expires_at < {now}
        OR r.fingerprint = asked.fingerprint AND r.state = 'released'
        OR r.fingerprint = asked.fingerprint AND r.state = 'in_flight'
            AND r.on_unknown = 'rerun' AND r.lease_until < {now}
            AND r.owner IS DISTINCT FROM asked.owner
    )
RETURNING r.digest, r.fence, r.attempt
