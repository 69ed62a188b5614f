-- Lists a range of the records that were claimed within a period, in the order of their claims. Most
-- expire one retention after their claim, and are found by their expiry. Those that expire at another
-- time have an index of their own. Unfinished records are few.
WITH RECURSIVE {retentions}, span AS MATERIALIZED (
    SELECT {span}
), found AS MATERIALIZED (
    SELECT r.digest, r.claimed_at
    FROM span
    CROSS JOIN retentions AS kept
    CROSS JOIN LATERAL (
        (
            SELECT digest, claimed_at
            FROM {records}
            WHERE retention = kept.retention
                AND expires_at > 'epoch'
                AND expires_at >= since + kept.retention * {millisecond}
                AND expires_at <= until + kept.retention * {millisecond}
                AND irregular_at IS NULL
            ORDER BY expires_at
            LIMIT $5
        )
        UNION ALL
        SELECT digest, claimed_at
        FROM {records}
        WHERE retention = kept.retention
            AND expires_at <= 'epoch'
            AND claimed_at >= since
            AND claimed_at <= until
    ) AS r
    UNION ALL
    SELECT r.digest, r.claimed_at
    FROM span
    CROSS JOIN LATERAL (
        SELECT digest, claimed_at
        FROM {records}
        WHERE irregular_at >= since AND irregular_at <= until
        ORDER BY irregular_at
        LIMIT $5
    ) AS r
), page AS MATERIALIZED (
    SELECT found.digest
    FROM span
    CROSS JOIN found
    WHERE (found.claimed_at, found.digest) > (span.after, $2)
    ORDER BY found.claimed_at, found.digest
    LIMIT $5
)
SELECT r.digest, {summary}, {now} AS now, r.scope, r.caller, r.key
FROM page
JOIN {records} AS r ON r.digest = page.digest
ORDER BY r.claimed_at, r.digest
