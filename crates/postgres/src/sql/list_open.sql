-- One stretch of what is not finished. There is little of it, and indexes have it together.
WITH open AS MATERIALIZED (
    SELECT *
    FROM {records}
    WHERE owner IS NOT NULL
    UNION ALL
    SELECT *
    FROM {records}
    WHERE owner IS NULL AND expires_at = '-infinity'
)
SELECT r.digest, {summary}, {now} AS now, r.scope, r.caller, r.key
FROM open AS r
WHERE r.digest > $1
ORDER BY r.digest
LIMIT $2
