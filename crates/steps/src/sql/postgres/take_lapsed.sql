WITH due AS (
    SELECT id FROM semel_operation
    WHERE state = 'running' AND lease_until < clock_timestamp()
        AND (name, version) IN (SELECT * FROM unnest($1::text[], $2::integer[]))
    ORDER BY lease_until LIMIT $5
    FOR UPDATE SKIP LOCKED
)
UPDATE semel_operation AS taken
SET fence = greatest(fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    owner = $3, attempt = attempt + 1,
    lease_until = clock_timestamp() + $4::bigint * interval '1 millisecond'
FROM due WHERE taken.id = due.id
RETURNING taken.
