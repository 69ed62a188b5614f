-- After a restore into another cluster, transaction ids and snapshots mean nothing. Numbers up to the
-- highest floor were drawn before the backup, and their old ids and snapshots still say whether they were
-- delivered. Everything else is one window: transaction 3 is seen by the snapshot 4:4:, and 4 is not.
WITH known AS (
    SELECT max(greatest(seen_floor, window_floor)) AS floor FROM semel_outbox_bucket
)
UPDATE semel_outbox_message AS m
SET xid = CASE
    WHEN m.number <= known.floor AND (
        pg_visible_in_snapshot(m.xid, b.seen)
        OR (m.number <= b.position AND pg_visible_in_snapshot(m.xid, b.window_snapshot))
    ) THEN '3'::xid8 ELSE '4'::xid8 END
FROM semel_outbox_bucket AS b, known
WHERE b.bucket = m.bucket;
UPDATE semel_outbox_bucket SET owner = NULL, fence = fence + 1, lease_until = NULL, seen = '4:4:',
    seen_floor = 0, window_snapshot = NULL, window_floor = 0, window_ceiling = 0, position = 0;
UPDATE semel_outbox_state SET system_identifier = c.system_identifier FROM pg_control_system() AS c;
