-- Moves records whose leases have lapsed where their routes said, on behalf of a claim that may not
-- run them again.
UPDATE {records} AS r
SET state = CASE r.on_unknown WHEN 'hold' THEN 'held' ELSE 'completed' END,
    answer = CASE r.on_unknown WHEN 'fail' THEN $1 END,
    expires_at = CASE r.on_unknown WHEN 'hold' THEN '-infinity' ELSE {expiry} END,
    lease_until = NULL,
    owner = NULL
FROM unnest($2, $3, $4) AS asked (digest, fingerprint, owner)
WHERE r.digest = asked.digest
    AND r.fingerprint = asked.fingerprint
    AND r.state = 'in_flight'
    AND r.owner IS DISTINCT FROM asked.owner
    AND r.lease_until < {now}
    AND r.on_unknown IN ('hold', 'fail')
RETURNING r.digest, r.state, r.expires_at, {now} AS now, {tell}
