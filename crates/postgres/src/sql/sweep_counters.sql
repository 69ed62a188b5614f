-- Deletes some counters whose windows have passed. There is no index on that, because it would change
-- with every claim: sweeps go around all counters, in the order of their keys.
WITH span AS MATERIALIZED (
    SELECT key, expires_at
    FROM {limit_counters}
    WHERE key > $1
    ORDER BY key
    LIMIT $2
), gone AS (
    DELETE FROM {limit_counters}
    WHERE key = ANY (ARRAY(
            SELECT key
            FROM {limit_counters}
            WHERE key = ANY (ARRAY(SELECT key FROM span WHERE expires_at <= {now_millis}))
                AND expires_at <= {now_millis}
            FOR UPDATE SKIP LOCKED
        ))
        AND expires_at <= {now_millis}
    RETURNING 1
)
SELECT (SELECT key FROM span ORDER BY key DESC LIMIT 1), (SELECT count(*) FROM gone)
