UPDATE semel_operation
SET lease_until = ?3, boot = ?6, owner = 0, attempt = attempt - CASE WHEN ?4 THEN 0 ELSE 1 END,
    reason = coalesce(?5, reason)
WHERE id = ?1 AND fence = ?2 AND state = 'running'
