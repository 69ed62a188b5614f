-- Inserts the record. Fails if there is one by now, or if this is not the transaction that took the
-- lock. Either rolls everything back.
INSERT INTO semel_transactional (
    digest, scope, caller, key, fingerprint, fence, answer, recorded_at, expires_at
)
VALUES (
    $1, $2, $3, $4, $5, CASE WHEN txid_current() = $7 THEN $6 END, $8,
    statement_timestamp(), statement_timestamp() + $9 * interval '1 millisecond'
)
