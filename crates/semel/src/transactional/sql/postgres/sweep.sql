-- Deletes some records past their retention. Several processes may sweep at the same time.
DELETE FROM semel_transactional
WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM semel_transactional
    WHERE expires_at < statement_timestamp()
    ORDER BY expires_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
))
