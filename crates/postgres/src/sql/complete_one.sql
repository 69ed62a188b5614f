-- The same for one answer.
UPDATE {records} AS r
SET state = 'completed',
    answer = $3,
    expires_at = {expiry},
    lease_until = NULL,
    owner = NULL
WHERE r.digest = $1
    AND r.fence = $2
    AND r.state NOT IN ('completed', 'released')
RETURNING r.digest, {tell}
