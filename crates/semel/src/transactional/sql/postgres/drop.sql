-- Deletes a record that is past its retention, so that a new one can be inserted.
DELETE FROM semel_transactional
WHERE digest = $1 AND expires_at < statement_timestamp()
