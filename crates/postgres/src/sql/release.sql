-- Frees keys for another try, for whoever holds the current fence.
UPDATE {records} AS r
SET state = 'released',
    attempt = greatest(r.attempt - asked.uncounted, 0),
    expires_at = {expiry},
    lease_until = NULL,
    owner = NULL
FROM unnest($1, $2, $3) AS asked (digest, fence, uncounted)
WHERE r.digest = asked.digest
    AND r.fence = asked.fence
    AND r.state NOT IN ('completed', 'released')
RETURNING r.digest, {tell}
