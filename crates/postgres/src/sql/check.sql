-- Why a write with a fence changed nothing. The lock makes the commit wait until what is read here
-- is as durable as a write: it may be our own, whose wait for a standby was cut short.
SELECT r.digest, {record}, {now} AS now
FROM {records} AS r
WHERE r.digest = ANY ($1)
FOR UPDATE
