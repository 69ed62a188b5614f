-- Whether there is a record, and whether it is past its retention. Asked in a statement of its own,
-- after the lock: who had it before has committed.
SELECT expires_at < statement_timestamp() AS expired
FROM semel_joint
WHERE digest = $1
