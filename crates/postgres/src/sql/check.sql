-- Finds out why a fenced write changed nothing. The lock makes this transaction wait for the standby
-- at its commit: the record may be a write of the same command whose wait for a standby was
-- cancelled.
SELECT r.digest, {record}, {now} AS now
FROM {records} AS r
WHERE r.digest = ANY ($1)
FOR UPDATE
