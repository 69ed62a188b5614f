-- Whoever has the lock runs it, and keeps the lock until the transaction ends. What is read here is
-- as old as this statement: who committed since is found when the record is added.
SELECT
    pg_try_advisory_xact_lock($1) AS got, txid_current() AS own,
    r.fingerprint, r.fence, r.answer, r.recorded_at, r.expires_at, statement_timestamp() AS now
FROM (SELECT) AS always
LEFT JOIN semel_joint AS r ON r.digest = $2
