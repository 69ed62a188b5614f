-- Lists a range of the released records, in the order of their claims.
WITH span AS MATERIALIZED (
    SELECT {span}
)
SELECT r.digest, {summary}, {now} AS now, r.scope, r.caller, r.key
FROM span
CROSS JOIN LATERAL (
    SELECT *
    FROM {records}
    WHERE irregular_at >= since
        AND irregular_at <= until
        AND (irregular_at, digest) > (after, $2)
        AND state = 'released'
    ORDER BY irregular_at, digest
    LIMIT $5
) AS r
ORDER BY r.irregular_at, r.digest
