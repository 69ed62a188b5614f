-- Extends leases, for the owner of the record by fence and token. It never shortens one.
UPDATE {records} AS r
SET lease_until = greatest(r.lease_until, {now} + asked.lease * {millisecond})
FROM unnest($1, $2, $3, $4) AS asked (digest, fence, owner, lease)
WHERE r.digest = asked.digest
    AND r.fence = asked.fence
    AND r.owner = asked.owner
    AND r.state = 'in_flight'
RETURNING r.digest
