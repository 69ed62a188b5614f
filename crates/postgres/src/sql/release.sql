-- Releases keys, for the owner of the record by fence and token. `not_sent` and `forget` count no
-- attempt; a record without an attempt accepts any request. A record that was released before the
-- work began is kept for an hour at most.
UPDATE {records} AS r
SET state = 'released',
    attempt = CASE asked.kind
        WHEN 'forget' THEN 0
        WHEN 'not_sent' THEN greatest(r.attempt - 1, 0)
        ELSE r.attempt
    END,
    fingerprint = CASE
        WHEN asked.kind = 'forget' OR asked.kind = 'not_sent' AND r.attempt <= 1 THEN NULL
        ELSE r.fingerprint
    END,
    reason = asked.reason,
    ended_at = {now},
    expires_at = CASE asked.kind
        WHEN 'rerun' THEN {expiry}
        ELSE least({expiry}, {now} + {released_max})
    END,
    lease_until = NULL,
    hold_until = NULL,
    irregular_at = r.claimed_at
FROM unnest($1, $2, $3, $4, $5{limits}) AS asked (
        digest, fence, owner, kind, reason{limit_columns}
    )
WHERE r.digest = asked.digest
    AND r.fence = asked.fence
    AND r.owner = asked.owner
    AND r.state NOT IN ('completed', 'released')
    AND {limits_as_seen}
RETURNING r.digest, {notify}{limits_result}
