-- The same for one claim, without the tables that many need.
WITH fresh AS (
    INSERT INTO {records} (
        digest, scope, caller, key, fingerprint, fence, attempt, on_unknown, retention,
        claimed_at, expires_at, lease_until, owner, state
    )
    SELECT $1, $2, $3, $4, $5, nextval({fences_text}), 1, $9, $8,
        {now}, {now} + $8 * {millisecond}, {now} + $7 * {millisecond}, $6, 'in_flight'
    WHERE NOT EXISTS (SELECT FROM {records} WHERE digest = $1)
    ON CONFLICT DO NOTHING
    RETURNING digest, fence
)
SELECT digest, fence, NULL AS fingerprint, NULL::integer AS attempt, NULL AS on_unknown,
    NULL::bigint AS retention, NULL::timestamptz AS claimed_at, NULL::timestamptz AS expires_at,
    NULL::timestamptz AS lease_until, NULL::uuid AS owner, NULL AS state, NULL::bytea AS answer,
    NULL::timestamptz AS now
FROM fresh
UNION ALL
SELECT r.digest, {record}, {now}
FROM {records} AS r
WHERE r.digest = $1
