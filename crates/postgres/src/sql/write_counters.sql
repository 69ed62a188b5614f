-- Writes counters whose locks this transaction holds.
UPDATE {limit_counters} AS c
SET full_until = asked.full_until, expires_at = asked.expires_at, counter = asked.counter
FROM unnest($1, $2, $3, $4) AS asked (key, full_until, expires_at, counter)
WHERE c.key = asked.key
