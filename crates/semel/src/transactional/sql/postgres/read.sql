-- Reads the record. This is a separate statement after the lock, so that it sees the commit of the
-- former holder.
SELECT fingerprint, fence, answer, recorded_at, expires_at, statement_timestamp() AS now
FROM semel_transactional
WHERE digest = $1
