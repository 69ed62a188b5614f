-- One stretch of what is not finished. There is little of it, and it has an index of its own.
WITH open AS MATERIALIZED (
    SELECT *
    FROM {records}
    WHERE state IN ('in_flight', 'held')
)
SELECT r.digest, {summary}, {now} AS now, r.scope, r.caller, r.key
FROM open AS r
WHERE r.digest > $1
ORDER BY r.digest
LIMIT $2
