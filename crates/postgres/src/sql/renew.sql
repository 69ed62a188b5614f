-- Extends leases, for whoever holds the current fence. A lease never gets shorter.
UPDATE {records} AS r
SET lease_until = greatest(r.lease_until, {now} + asked.lease * {millisecond})
FROM unnest($1, $2, $3) AS asked (digest, fence, lease)
WHERE r.digest = asked.digest
    AND r.fence = asked.fence
    AND r.state = 'in_flight'
RETURNING r.digest
