-- Whether a part of the table has a message that is not saved as delivered. While nothing runs that wrote
-- to the part, a message is undelivered if its transaction began after `seen`, or ran at that time.
SELECT EXISTS (
    SELECT FROM semel_outbox_bucket AS b
    WHERE EXISTS (
        SELECT FROM semel_outbox_message AS m
        WHERE m.part = $1 AND m.bucket::integer = b.bucket::integer AND m.xid >= pg_snapshot_xmax(b.seen)
    ) OR EXISTS (
        SELECT FROM pg_snapshot_xip(b.seen) AS x (xid), semel_outbox_message AS m
        WHERE m.part = $1 AND m.bucket::integer = b.bucket::integer AND m.xid = x.xid
    )
) AS undelivered
