-- Records answers, for whoever holds the current fence.
UPDATE {records} AS r
SET state = 'completed',
    answer = asked.answer,
    expires_at = {expiry},
    lease_until = NULL,
    owner = NULL
FROM unnest($1, $2, $3) AS asked (digest, fence, answer)
WHERE r.digest = asked.digest
    AND r.fence = asked.fence
    AND r.state NOT IN ('completed', 'released')
RETURNING r.digest, {tell}
