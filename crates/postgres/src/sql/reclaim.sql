-- Repeats a claim of the same owner whose reply was lost: the fence stays, the lease is renewed. The
-- record is set aside here, because its commit may have become visible after the records that were
-- claimed at the same time were set aside.
UPDATE {records} AS r
SET lease_until = greatest(r.lease_until, {now} + asked.lease * {millisecond}),
    expires_at = {aside}
FROM unnest($1, $2, $3, $4) AS asked (digest, fingerprint, owner, lease)
WHERE r.digest = asked.digest
    AND r.fingerprint = asked.fingerprint
    AND r.state = 'in_flight'
    AND r.owner = asked.owner
RETURNING r.digest, r.fence, r.attempt
