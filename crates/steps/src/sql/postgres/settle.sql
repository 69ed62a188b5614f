UPDATE semel_step
SET state = CASE WHEN $4::text IS NULL THEN 'released' ELSE 'done' END, result = $4
FROM (SELECT id FROM semel_operation WHERE id = $1 AND fence = $2 AND state = 'parked' FOR SHARE)
    AS seen
WHERE operation = seen.id AND name = $3 AND part = 'do' AND semel_step.state = 'begun'
