UPDATE semel_operation
SET state = CASE WHEN ?3 = 'park' THEN 'parked' ELSE 'running' END,
    direction = CASE WHEN ?3 = 'undo' THEN 'backward' ELSE direction END,
    fence = max(fence + 1, ?5), owner = 0, attempt = 0, lease_until = 0, boot = '', reason = ?4
WHERE id = ?1 AND fence = ?2
    AND (state = 'parked' AND ?3 IN ('resume', 'undo')
        OR state = 'running' AND ?3 IN ('park', 'undo'))
