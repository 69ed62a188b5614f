DELETE FROM semel_operation WHERE id IN
    (SELECT id FROM semel_operation WHERE ended_at < ?1 ORDER BY ended_at LIMIT ?2)
