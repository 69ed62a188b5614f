-- Inserts one record if it does not exist. An existing record is not waited for, also while another
-- transaction changes it, and uses no fence. All other cases are left to `claim.sql`, which reads as
-- well and takes twice as long to execute.
INSERT INTO {records} (
    digest, scope, caller, key, fingerprint, fence, attempt, on_unknown, retention,
    claimed_at, expires_at, lease_until, owner, state, hold_for, about, node, captured
)
SELECT $1, $2, $3, $4, $5, {fence}, 1, $9, $8,
    {now}, {now} + $8 * {millisecond}, {now} + $7 * {millisecond}, $6, 'in_flight',
    $10, $11, $12, $13
FROM (SELECT {draw} AS drawn) AS next
WHERE NOT EXISTS (SELECT FROM {records} WHERE digest = $1)
ON CONFLICT DO NOTHING
RETURNING fence
