-- Fails where there is a record by now, and where this is not the transaction that took the lock:
-- either undoes everything.
INSERT INTO semel_joint (
    scope, caller, key, fingerprint, fence, answer, recorded_at, expires_at
)
VALUES (
    $1, $2, $3, $4, CASE WHEN pg_current_xact_id()::text::bigint = $6 THEN $5 END, $7,
    statement_timestamp(), statement_timestamp() + $8 * interval '1 millisecond'
)
