-- The same claim once more, because its reply was lost: the same fence, and the lease anew. It may
-- have become visible after others were set aside that were claimed at its time.
UPDATE {records} AS r
SET lease_until = greatest(r.lease_until, {now} + asked.lease * {millisecond}),
    expires_at = {aside}
FROM unnest($1, $2, $3, $4) AS asked (digest, fingerprint, owner, lease)
WHERE r.digest = asked.digest
    AND r.fingerprint = asked.fingerprint
    AND r.state = 'in_flight'
    AND r.owner = asked.owner
RETURNING r.digest, r.fence, r.attempt
