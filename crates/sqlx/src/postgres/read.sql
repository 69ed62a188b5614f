-- The record. Asked in a statement of its own, after the lock: who had it before has committed.
SELECT fingerprint, fence, answer, recorded_at, expires_at, statement_timestamp() AS now
FROM semel_joint
WHERE digest = $1
