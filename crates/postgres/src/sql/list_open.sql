-- Lists a range of the unfinished records, which are few.
WITH RECURSIVE {retentions}, open AS MATERIALIZED (
    {open}
)
SELECT r.digest, {summary}, {now} AS now, r.scope, r.caller, r.key
FROM open AS r
WHERE r.digest > $1
ORDER BY r.digest
LIMIT $2
