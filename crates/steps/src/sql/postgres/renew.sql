UPDATE semel_operation AS mine
SET lease_until = clock_timestamp() + $3::bigint * interval '1 millisecond'
FROM unnest($1::bigint[], $2::bigint[]) AS owned (id, fence)
WHERE mine.id = owned.id AND mine.fence = owned.fence AND mine.state = 'running'
RETURNING mine.id
