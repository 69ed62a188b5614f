UPDATE semel_operation SET lease_until = ?3, boot = ?4
WHERE id = ?1 AND fence = ?2 AND state = 'running'
