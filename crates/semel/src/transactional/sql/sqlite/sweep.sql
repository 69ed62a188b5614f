-- Deletes some records past their retention.
DELETE FROM semel_transactional
WHERE (scope, caller, key) IN (
    SELECT scope, caller, key
    FROM semel_transactional
    WHERE expires_at < ?1
    ORDER BY expires_at
    LIMIT ?2
)
