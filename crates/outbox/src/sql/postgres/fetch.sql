-- The messages of some buckets that their cursors have not passed, in the order of their numbers, bucket
-- after bucket in the given order. The first row has the snapshot of this statement instead of a message:
-- a bucket without a window begins one with it.
SELECT 0 AS place, NULL::bigint AS number, NULL::uuid AS id, NULL::text AS topic, NULL::text AS key,
    NULL::bytea AS payload, NULL::double precision AS age, pg_current_snapshot()::text AS snapshot
UNION ALL
(SELECT c.place::integer, m.number, m.id, m.topic, m.key, m.payload,
    extract(epoch FROM clock_timestamp() - m.sent_at)::double precision, NULL
FROM (
    SELECT u.place, u.bucket::integer AS bucket, u.seen::pg_snapshot AS seen, u.seen_floor, u.position, u.ceiling,
        coalesce(u.snapshot::pg_snapshot, pg_current_snapshot()) AS snapshot
    FROM unnest($1::smallint[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[])
        WITH ORDINALITY AS u (bucket, seen, seen_floor, snapshot, ceiling, position, place)
    OFFSET 0
) AS c
CROSS JOIN LATERAL (
    -- Transactions that ran when `seen` was taken. Their numbers may be below the floor. Those above the
    -- last one that had ended by then are not listed in the snapshot.
    (SELECT late.* FROM pg_snapshot_xip(c.seen) AS x (xid)
    CROSS JOIN LATERAL (
        SELECT number, id, topic, key, payload, sent_at FROM semel_outbox_message
        WHERE bucket::integer = c.bucket AND xid = x.xid AND number > c.position AND number <= c.seen_floor
        ORDER BY number LIMIT $7
    ) AS late
    WHERE c.position < c.seen_floor AND pg_visible_in_snapshot(x.xid, c.snapshot)
    ORDER BY late.number LIMIT $7)
    UNION ALL
    (SELECT number, id, topic, key, payload, sent_at FROM semel_outbox_message
    WHERE c.position < c.seen_floor AND bucket::integer = c.bucket
        AND xid >= pg_snapshot_xmax(c.seen) AND xid < pg_snapshot_xmax(c.snapshot)
        AND number > c.position AND number <= c.seen_floor AND pg_visible_in_snapshot(xid, c.snapshot)
    ORDER BY number LIMIT $7)
    UNION ALL
    (SELECT number, id, topic, key, payload, sent_at FROM semel_outbox_message
    WHERE bucket = c.bucket::smallint AND number > greatest(c.position, c.seen_floor) AND number <= c.ceiling
        AND NOT pg_visible_in_snapshot(xid, c.seen) AND pg_visible_in_snapshot(xid, c.snapshot)
    ORDER BY number LIMIT $7)
    ORDER BY number LIMIT $7
) AS m
LIMIT $7)
