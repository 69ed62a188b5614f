-- Reads existing records and inserts missing ones. A refused duplicate writes nothing and uses no
-- fence. A claim without a row has lost a race, and is sent again.
WITH {blocked}asked AS MATERIALIZED (
    SELECT asked.*, r.digest AS there, {record}
    FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13{limits}) AS asked (
        digest, scope, caller, key, print, token, lease, keep, unknown, hold, topic, place, values{limit_columns}
    )
    LEFT JOIN {records} AS r ON r.digest = asked.digest
), fresh AS (
    INSERT INTO {records} (
        digest, scope, caller, key, fingerprint, fence, attempt, on_unknown, retention,
        claimed_at, expires_at, lease_until, owner, state, hold_for, about, node, captured{limits_column}
    )
    SELECT digest, scope, caller, key, print, {fence}, 1, unknown, keep,
        {now}, {now} + keep * {millisecond}, {now} + lease * {millisecond}, token, 'in_flight',
        hold, topic, place, values{keys_column}
    FROM (
        SELECT *, {draw} AS drawn
        FROM asked
        WHERE there IS NULL AND NOT {is_blocked}
    ) AS absent
    ON CONFLICT DO NOTHING
    RETURNING digest, fence
)
SELECT digest, fence, NULL AS fingerprint, NULL::integer AS attempt, NULL AS on_unknown,
    NULL::bigint AS retention, NULL::timestamptz AS claimed_at, NULL::timestamptz AS expires_at,
    NULL::timestamptz AS lease_until, NULL::uuid AS owner, NULL AS state, NULL::bytea AS answer,
    NULL::bigint AS hold_for, NULL::timestamptz AS ended_at, NULL AS about, NULL AS node,
    NULL AS captured, NULL AS reason, NULL::bytea AS limits, NULL::timestamptz AS now
FROM fresh
UNION ALL
SELECT digest, fence, fingerprint, attempt, on_unknown, retention, claimed_at, expires_at,
    lease_until, owner, state, answer, hold_for, ended_at, about, node, captured, reason, limits, {now}
FROM asked
WHERE there IS NOT NULL OR {is_blocked}
