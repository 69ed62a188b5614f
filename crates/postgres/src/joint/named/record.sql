-- Fails where there is a record by now, and where this is not the transaction that took the lock:
-- either undoes everything.
INSERT INTO semel_joint (
    digest, scope, caller, key, fingerprint, fence, answer, recorded_at, expires_at
)
VALUES (
    $1, $2, $3, $4, $5, CASE WHEN txid_current() = $7 THEN $6 END, $8,
    statement_timestamp(), statement_timestamp() + $9 * interval '1 millisecond'
)
