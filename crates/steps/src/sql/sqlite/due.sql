SELECT id FROM semel_operation
WHERE state = 'running' AND (boot <> ?2 OR lease_until < ?1)
    AND EXISTS (SELECT 1 FROM json_each(?3) AS known
        WHERE known.value ->> 0 = name AND known.value ->> 1 = version)
ORDER BY lease_until LIMIT ?4
