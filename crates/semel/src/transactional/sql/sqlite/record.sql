-- Changes nothing if there is a record. A record past its retention is replaced.
INSERT INTO semel_transactional (
    scope, caller, key, fingerprint, fence, answer, recorded_at, expires_at
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (scope, caller, key) DO UPDATE SET
    fingerprint = excluded.fingerprint,
    fence = excluded.fence,
    answer = excluded.answer,
    recorded_at = excluded.recorded_at,
    expires_at = excluded.expires_at
WHERE semel_transactional.expires_at < excluded.recorded_at
