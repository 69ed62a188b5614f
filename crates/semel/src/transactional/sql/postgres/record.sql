-- Inserts the record. Fails if there is one by now, if this is not the transaction that took the lock,
-- or if this is not the table in which the record was looked up. Each rolls everything back.
INSERT INTO semel_transactional (
    digest, scope, caller, key, fingerprint, fence, answer, recorded_at, expires_at
)
VALUES (
    $1, $2, $3, $4, $5,
    CASE WHEN txid_current() = $7 AND 'semel_transactional'::regclass::oid::bigint = $10 THEN $6 END, $8,
    statement_timestamp(), statement_timestamp() + $9 * interval '1 millisecond'
)
