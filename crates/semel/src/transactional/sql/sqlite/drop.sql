-- Deletes a record past its retention, and makes the transaction a write transaction.
DELETE FROM semel_transactional WHERE scope = ?1 AND caller = ?2 AND key = ?3 AND expires_at < ?4
