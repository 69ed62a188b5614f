-- Sets aside the records that were claimed a while ago and are still in flight, so that the reaper
-- finds them without a scan of all later claims. By then a claim that was granted has become visible.
-- One process at a time does this, for a bounded number of claims. It stops at the first locked
-- record, unless that is old and has stopped it before; such a record is found by its key, or when it
-- expires.
WITH RECURSIVE {retentions}, begun AS (
    SELECT {since} AS since
    FROM {meta} AS meta
    FOR UPDATE SKIP LOCKED
), span AS MATERIALIZED (
    SELECT since, least(min(far.claimed_at), {now} - {aside_after}) AS until, count(far) > 0 AS more
    FROM begun
    CROSS JOIN retentions AS kept
    LEFT JOIN LATERAL (
        SELECT expires_at - kept.retention * {millisecond} AS claimed_at
        FROM {records}
        WHERE retention = kept.retention
            AND expires_at > since + kept.retention * {millisecond}
            AND expires_at <= {now} - {aside_after} + kept.retention * {millisecond}
        ORDER BY expires_at
        OFFSET $1
        LIMIT 1
    ) AS far ON true
    GROUP BY since
), seen AS MATERIALIZED (
    SELECT r.digest, r.claimed_at, r.state = 'in_flight' AS open
    FROM span
    CROSS JOIN retentions AS kept
    CROSS JOIN LATERAL (
        SELECT *
        FROM {records}
        WHERE retention = kept.retention
            AND expires_at > since + kept.retention * {millisecond}
            AND expires_at <= until + kept.retention * {millisecond}
        -- So that the index is used.
        ORDER BY expires_at
    ) AS r
    WHERE more OR until > since + {aside_after} / 3
), aside AS (
    UPDATE {records} AS r
    SET expires_at = {aside}
    WHERE r.digest = ANY (ARRAY(
            SELECT digest
            FROM {records}
            WHERE digest = ANY (ARRAY(SELECT digest FROM seen WHERE open))
            FOR UPDATE SKIP LOCKED
        ))
        AND r.state = 'in_flight'
    RETURNING r.digest
), reached AS MATERIALIZED (
    SELECT since, more, least(
            until,
            (
                SELECT min(claimed_at) - interval '1 microsecond'
                FROM seen
                WHERE open AND digest NOT IN (SELECT digest FROM aside)
                    AND (claimed_at > {now} - {lock_wait_max} OR claimed_at > since + interval '1 second')
            )
        ) AS until
    FROM span
    WHERE EXISTS (SELECT FROM seen)
)
UPDATE {meta}
SET aside_until = reached.until
FROM reached
WHERE reached.until > since
RETURNING reached.more
