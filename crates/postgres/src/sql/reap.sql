-- Moves some lapsed records where their routes said; what may be rerun waits for a request.
UPDATE {records} AS r
SET state = CASE r.on_unknown WHEN 'hold' THEN 'held'::{state} ELSE 'completed' END,
    answer = CASE r.on_unknown WHEN 'fail' THEN $1 END,
    expires_at = CASE r.on_unknown WHEN 'hold' THEN '-infinity' ELSE {expiry} END,
    lease_until = NULL,
    owner = NULL
WHERE r.digest = ANY (ARRAY(
        SELECT digest
        FROM {records}
        WHERE owner IS NOT NULL AND lease_until < {now} AND on_unknown IN ('hold', 'fail')
        ORDER BY lease_until
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
    AND r.state = 'in_flight'
    AND r.lease_until < {now}
    AND r.on_unknown IN ('hold', 'fail')
RETURNING r.digest, {tell}
