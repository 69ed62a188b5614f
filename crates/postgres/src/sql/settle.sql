-- Moves these records, if their leases have lapsed, where their routes said.
WITH done AS (
    UPDATE {records} AS r
    SET state = CASE r.on_unknown WHEN 'hold' THEN 'held' ELSE 'completed' END,
        answer = CASE r.on_unknown WHEN 'fail' THEN $1 END,
        expires_at = CASE r.on_unknown WHEN 'fail' THEN {expiry} ELSE r.expires_at END,
        lease_until = NULL,
        owner = NULL
    WHERE
        r.digest = ANY ($2)
    AND r.state = 'in_flight'
    AND r.lease_until < {now}
    AND r.on_unknown IN ('hold', 'fail')
    RETURNING r.digest, r.watched
)
SELECT digest, {tell}
FROM done
