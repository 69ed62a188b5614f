UPDATE semel_operation
SET fence = max(fence + 1, ?2), owner = ?3, attempt = attempt + 1, lease_until = ?4, boot = ?5
WHERE id = ?1
