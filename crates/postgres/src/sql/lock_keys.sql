-- Locks and reads counters in the order of their keys, for records that this transaction has ended.
SELECT key, counter, {now} AS now
FROM {limit_counters}
WHERE key = ANY ($1)
ORDER BY key
FOR UPDATE
