-- Says that outcomes are unknown, for whoever holds the current fence.
UPDATE {records} AS r
SET state = 'held',
    expires_at = '-infinity',
    lease_until = NULL,
    owner = NULL
FROM unnest($1, $2) AS asked (digest, fence)
WHERE r.digest = asked.digest
    AND r.fence = asked.fence
    AND r.state = 'in_flight'
RETURNING r.digest, {tell}
