-- Lists a range of all records, in the order of their digests.
SELECT r.digest, {summary}, {now} AS now, r.scope, r.caller, r.key
FROM {records} AS r
WHERE r.digest > $1 AND r.digest <= $2
ORDER BY r.digest
LIMIT $3
