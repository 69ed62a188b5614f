-- What waits, by the saved cursors. Each bucket is counted up to the limit.
SELECT coalesce(sum(m.messages), 0)::bigint + a.aside AS waiting, a.aside, a.parked,
    extract(epoch FROM greatest(clock_timestamp() - least(min(m.oldest), a.oldest), interval '0'))
        ::double precision AS age
FROM semel_outbox_bucket AS b
CROSS JOIN LATERAL (
    SELECT count(*) AS messages, min(w.sent_at) AS oldest FROM (
        (SELECT late.sent_at FROM pg_snapshot_xip(b.seen) AS x (xid)
        CROSS JOIN LATERAL (
            SELECT sent_at FROM semel_outbox_message
            WHERE bucket::integer = b.bucket::integer AND xid = x.xid AND number > b.position AND number <= b.seen_floor
            LIMIT $1
        ) AS late)
        UNION ALL
        (SELECT sent_at FROM semel_outbox_message
        WHERE bucket = b.bucket AND number > greatest(b.seen_floor,
                CASE WHEN b.window_snapshot IS NULL THEN 0 ELSE b.position END)
            AND NOT pg_visible_in_snapshot(xid, b.seen)
        ORDER BY number LIMIT $1)
        LIMIT $1
    ) AS w
) AS m
CROSS JOIN (
    SELECT count(*) AS aside, count(*) FILTER (WHERE parked) AS parked, min(sent_at) AS oldest
    FROM semel_outbox_aside
) AS a
GROUP BY a.aside, a.parked, a.oldest
