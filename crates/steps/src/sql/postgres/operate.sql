UPDATE semel_operation
SET state = CASE WHEN $3 = 'park' THEN 'parked' ELSE 'running' END,
    direction = CASE WHEN $3 = 'undo' THEN 'backward' ELSE direction END,
    fence = greatest(fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    owner = 0, attempt = 0, lease_until = clock_timestamp(), reason = $4
WHERE id = $1 AND fence = $2
    AND (state = 'parked' AND $3 IN ('resume', 'undo')
        OR state = 'running' AND $3 IN ('park', 'undo'))
