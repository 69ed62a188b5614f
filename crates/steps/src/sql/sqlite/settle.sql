UPDATE semel_step SET state = CASE WHEN ?4 IS NULL THEN 'released' ELSE 'done' END, result = ?4
WHERE operation = (SELECT id FROM semel_operation WHERE id = ?1 AND fence = ?2 AND state = 'parked')
    AND name = ?3 AND part = 'do' AND state = 'begun'
