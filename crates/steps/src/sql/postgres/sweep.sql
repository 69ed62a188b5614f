DELETE FROM semel_operation WHERE id IN (
    SELECT id FROM semel_operation
    WHERE ended_at < clock_timestamp() - $1::bigint * interval '1 millisecond'
    ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
