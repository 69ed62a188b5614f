-- Settles records whose leases have expired, or that were held for too long, by the policy of their
-- routes, for a claim that may not run them again.
UPDATE {records} AS r
SET {settled}
FROM unnest($2, $3, $4{limits}) AS asked (digest, fingerprint, owner{limit_columns})
WHERE r.digest = asked.digest
    AND r.fingerprint = asked.fingerprint
    AND (
        r.state = 'in_flight' AND r.owner <> asked.owner AND r.lease_until < {now}
            AND r.on_unknown IN ('hold', 'fail')
        OR r.state = 'held' AND r.hold_until < {now}
    )
    AND {limits_as_seen}
RETURNING r.digest, r.state, r.expires_at, {now} AS now, {notify}
