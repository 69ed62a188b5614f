UPDATE semel_operation
SET lease_until = clock_timestamp() + $3::bigint * interval '1 millisecond', owner = 0,
    attempt = attempt - CASE WHEN $4::boolean THEN 0 ELSE 1 END,
    reason = coalesce($5, reason)
WHERE id = $1 AND fence = $2 AND state = 'running'
