-- Deletes some finished records whose retention has passed. Others may sweep at the same time.
WITH gone AS (
    DELETE FROM {records}
    WHERE ctid = ANY (ARRAY(
        SELECT ctid
        FROM {records}
        WHERE owner IS NULL AND expires_at > '-infinity' AND expires_at < {now}
            AND state IN ('completed', 'released')
        ORDER BY expires_at
        LIMIT $1
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*)
FROM gone
