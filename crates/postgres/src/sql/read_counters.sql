-- Reads counters as they are committed, to refuse by them.
SELECT key, counter, {now} AS now
FROM {limit_counters}
WHERE key = ANY ($1)
