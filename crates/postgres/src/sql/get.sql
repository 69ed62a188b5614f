-- Reads records.
SELECT r.digest, {record}, {now} AS now
FROM {records} AS r
WHERE r.digest = ANY ($1)
