-- Deletes a record for an operator, if it is not running and still in the state that was seen.
DELETE FROM {records} AS r
WHERE r.digest = $1
    AND r.fence = $2
    AND CASE r.state
        WHEN 'in_flight' THEN r.lease_until < {now}
            AND $3 = CASE r.on_unknown WHEN 'hold' THEN 'held' ELSE 'in_flight' END
        WHEN 'held' THEN $3 = 'held'
        ELSE $3 = r.state AND r.expires_at >= {now}
    END
RETURNING r.digest, {notify},
    CASE WHEN r.state IN ('in_flight', 'held') THEN r.limits END, r.claimed_at
