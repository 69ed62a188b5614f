-- Moves some lapsed records where their routes said; what may be rerun waits for a request. Of those
-- that have not been set aside it looks at the oldest: the others will be.
WITH RECURSIVE {retentions}, lapsed AS MATERIALIZED (
    SELECT r.digest
    FROM {meta} AS meta
    CROSS JOIN retentions AS kept
    CROSS JOIN LATERAL (
        SELECT *
        FROM {records}
        WHERE retention = kept.retention AND expires_at = 'epoch'
        UNION ALL
        (
            SELECT *
            FROM {records}
            WHERE retention = kept.retention
                AND expires_at > {since} + kept.retention * {millisecond}
            ORDER BY expires_at
            LIMIT $3
        )
    ) AS r
    WHERE r.state = 'in_flight' AND r.lease_until < {now} AND r.on_unknown IN ('hold', 'fail')
    LIMIT $3
)
UPDATE {records} AS r
SET state = CASE r.on_unknown WHEN 'hold' THEN 'held' ELSE 'completed' END,
    answer = CASE r.on_unknown WHEN 'fail' THEN $1 END,
    expires_at = CASE r.on_unknown WHEN 'hold' THEN '-infinity' ELSE {expiry} END,
    lease_until = NULL,
    owner = NULL
WHERE r.digest = ANY (ARRAY(
        SELECT digest
        FROM {records}
        WHERE digest = ANY (ARRAY(SELECT digest FROM lapsed))
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
    AND r.state = 'in_flight'
    AND r.lease_until < {now}
    AND r.on_unknown IN ('hold', 'fail')
RETURNING r.digest, {tell}
