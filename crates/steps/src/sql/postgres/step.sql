WITH mine AS (
    SELECT id, direction FROM semel_operation
    WHERE id = $1 AND fence = $2 AND state = 'running' FOR SHARE
)
INSERT INTO semel_step (operation, name, part, state, result, fence, position)
SELECT mine.id, row.name, row.part, row.state, row.result, $2, row.position
FROM mine, unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[])
    AS row (name, part, state, result, position)
WHERE row.part = 'undo' OR mine.direction = 'forward'
ON CONFLICT (operation, name, part) DO UPDATE
SET state = excluded.state, result = excluded.result, fence = excluded.fence,
    position = excluded.position, written_at = excluded.written_at
WHERE semel_step.state IN ('begun', 'released')
    OR (NOT $8::boolean AND semel_step.fence = excluded.fence
        AND semel_step.state = excluded.state)
RETURNING name
