UPDATE semel_operation SET direction = 'backward', refusal = ?3, attempt = 0, reason = NULL
WHERE id = ?1 AND fence = ?2 AND state = 'running'
