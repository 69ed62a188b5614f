-- Locks and reads counters in the order of their keys, for records with these owners; a record that was
-- settled without its owner has any. Records come first, then counters, so that no two transactions wait for each other.
SELECT c.key, c.counter, {now} AS now
FROM {limit_counters} AS c
WHERE c.key = ANY (ARRAY(
        SELECT asked.key
        FROM unnest($1, $2, $3) AS asked (key, digest, owner)
        JOIN {records} AS r
            ON r.digest = asked.digest AND r.owner = coalesce(asked.owner, r.owner)
    ))
ORDER BY c.key
FOR UPDATE
