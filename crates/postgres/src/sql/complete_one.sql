-- The same as `complete` for a single one.
UPDATE {records} AS r
SET state = 'completed',
    answer = $3,
    expires_at = {expiry},
    lease_until = NULL,
    owner = NULL
WHERE r.digest = $1 AND r.fence = $2 AND r.state IN ('in_flight', 'held')
RETURNING r.digest, {tell}
