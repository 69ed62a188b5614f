-- Deletes some finished records whose retention has passed. Several processes may sweep at the same
-- time. Records that are still in flight are set aside, out of the scanned range.
WITH RECURSIVE {retentions}, due AS MATERIALIZED (
    SELECT r.*
    FROM retentions AS kept
    CROSS JOIN LATERAL (
        SELECT ctid, state
        FROM {records}
        WHERE retention = kept.retention AND expires_at > 'epoch' AND expires_at < {now}
        ORDER BY expires_at
        LIMIT $1
        FOR UPDATE SKIP LOCKED
    ) AS r
    LIMIT $1
), aside AS (
    UPDATE {records} AS r
    SET expires_at = {aside}
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM due WHERE state = 'in_flight'))
), gone AS (
    DELETE FROM {records}
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM due WHERE state IN ('completed', 'released')))
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM due)
