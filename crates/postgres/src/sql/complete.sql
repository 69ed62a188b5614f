-- Stores answers, for the owner of the record by fence and token.
UPDATE {records} AS r
SET state = 'completed',
    answer = asked.answer,
    reason = asked.reason,
    ended_at = {now},
    expires_at = {expiry},
    lease_until = NULL,
    hold_until = NULL,
    irregular_at = CASE WHEN {late} THEN r.claimed_at END
FROM unnest($1, $2, $3, $4, $5{limits}) AS asked (
        digest, fence, owner, answer, reason{limit_columns}
    )
WHERE r.digest = asked.digest
    AND r.fence = asked.fence
    AND r.owner = asked.owner
    AND r.state NOT IN ('completed', 'released')
    AND {limits_as_seen}
RETURNING r.digest, {notify}{limits_result}
