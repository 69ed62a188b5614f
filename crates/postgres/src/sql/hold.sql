-- Says that outcomes are unknown, for whoever holds the current fence.
UPDATE {records} AS r
SET state = 'held',
    lease_until = NULL,
    owner = NULL
FROM unnest($1, $2) AS asked (digest, fence)
WHERE r.digest = asked.digest
    AND r.fence = asked.fence
    AND r.owner IS NOT NULL
RETURNING r.digest, {tell}
