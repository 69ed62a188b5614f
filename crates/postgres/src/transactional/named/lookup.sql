-- Whether there is a record, and whether it is past its retention. This is a separate statement after
-- the lock, so that it sees the commit of the former holder.
SELECT expires_at < statement_timestamp() AS expired
FROM semel_transactional
WHERE digest = $1
