-- The same claim once more, because its reply was lost: the same fence, and the lease anew.
UPDATE {records} AS r
SET lease_until = greatest(r.lease_until, {now} + asked.lease * {millisecond})
FROM unnest($1, $2, $3, $4) AS asked (digest, fingerprint, owner, lease)
WHERE r.digest = asked.digest
    AND r.fingerprint = asked.fingerprint
    AND r.state = 'in_flight'
    AND r.owner IS NOT DISTINCT FROM asked.owner
RETURNING r.digest, r.fence, r.attempt
