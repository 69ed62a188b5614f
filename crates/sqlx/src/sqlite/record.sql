-- Changes nothing where there is a record by now; one past its retention is in nobody's way.
INSERT INTO semel_joint (
    scope, caller, key, fingerprint, fence, answer, recorded_at, expires_at
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (scope, caller, key) DO UPDATE SET
    fingerprint = excluded.fingerprint,
    fence = excluded.fence,
    answer = excluded.answer,
    recorded_at = excluded.recorded_at,
    expires_at = excluded.expires_at
WHERE semel_joint.expires_at < excluded.recorded_at
