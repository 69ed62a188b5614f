UPDATE semel_operation
SET state = $3, result = $4, reason = $5, owner = 0,
    ended_at = CASE WHEN $3 = 'parked' THEN NULL ELSE clock_timestamp() END
WHERE id = $1 AND fence = $2 AND state IN ('running', $3)
