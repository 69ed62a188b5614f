UPDATE semel_outbox_bucket AS b
SET seen = u.seen::pg_snapshot, seen_floor = u.seen_floor, window_snapshot = u.snapshot::pg_snapshot,
    window_floor = u.floor, window_ceiling = u.ceiling, position = u.position,
    lease_until = clock_timestamp() + $10 * interval '1 second'
FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[],
    $9::bigint[]) AS u (bucket, fence, seen, seen_floor, snapshot, floor, ceiling, position)
WHERE b.bucket = u.bucket AND b.owner = $1 AND b.fence = u.fence
RETURNING b.bucket
