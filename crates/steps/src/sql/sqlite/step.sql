INSERT INTO semel_step (operation, name, part, state, result, fence, position)
SELECT id, ?3, ?4, ?5, ?6, ?2, ?7
FROM semel_operation WHERE id = ?1 AND fence = ?2 AND state = 'running'
    AND (?4 = 'undo' OR direction = 'forward')
ON CONFLICT (operation, name, part) DO UPDATE
SET state = excluded.state, result = excluded.result, fence = excluded.fence,
    position = excluded.position
WHERE semel_step.state IN ('begun', 'released')
    OR (NOT ?8 AND semel_step.fence = excluded.fence AND semel_step.state = excluded.state)
