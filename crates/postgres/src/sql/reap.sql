-- Settles some records whose leases have expired, or that were held for too long, by the policy of
-- their routes. Records that may be rerun wait for a request. Of the records that have not been set
-- aside it scans the oldest; the others will be set aside.
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
), overdue AS MATERIALIZED (
    SELECT digest
    FROM {records}
    WHERE hold_until < {now}
    ORDER BY hold_until
    LIMIT $2
)
UPDATE {records} AS r
SET {settled}
WHERE r.digest = ANY (ARRAY(
        SELECT digest
        FROM {records}
        WHERE digest = ANY (ARRAY(SELECT digest FROM lapsed UNION ALL SELECT digest FROM overdue))
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
    AND (
        r.state = 'in_flight' AND r.lease_until < {now} AND r.on_unknown IN ('hold', 'fail')
        OR r.state = 'held' AND r.hold_until < {now}
    )
RETURNING r.digest, {notify}, r.limits, r.claimed_at, r.state
