-- Takes free buckets, and those whose lease has lapsed.
UPDATE semel_outbox_bucket AS b
SET owner = $1, fence = b.fence + 1, lease_until = clock_timestamp() + $2 * interval '1 second'
FROM (
    SELECT bucket FROM semel_outbox_bucket
    WHERE owner IS NULL OR lease_until < clock_timestamp()
    ORDER BY bucket LIMIT $3 FOR UPDATE SKIP LOCKED
) AS free
WHERE b.bucket = free.bucket
