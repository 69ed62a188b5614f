-- Sets aside what was claimed a while ago and is still in flight, so that the reaper finds it without
-- going through all that was claimed since. By then a claim has become visible, or nobody was told
-- that it was granted. One process at a time does this, for a bounded number of claims; it goes no
-- further than the first that somebody has locked, unless that is old and stopped it before: then it
-- is found by its key, or when it expires.
WITH RECURSIVE {retentions}, begun AS (
    SELECT {since} AS since
    FROM {meta} AS meta
    FOR UPDATE SKIP LOCKED
), span AS MATERIALIZED (
    SELECT since, least(min(far.claimed_at), {now} - {while}) AS until, count(far) > 0 AS more
    FROM begun
    CROSS JOIN retentions AS kept
    LEFT JOIN LATERAL (
        SELECT expires_at - kept.retention * {millisecond} AS claimed_at
        FROM {records}
        WHERE retention = kept.retention
            AND expires_at > since + kept.retention * {millisecond}
            AND expires_at <= {now} - {while} + kept.retention * {millisecond}
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
        -- So that it is gone by the index.
        ORDER BY expires_at
    ) AS r
    WHERE more OR until > since + {while} / 3
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
                    AND (claimed_at > {now} - {long} OR claimed_at > since + interval '1 second')
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
