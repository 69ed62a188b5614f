-- Whoever has the lock runs it, and keeps the lock until the transaction ends. What is read here is
-- as old as this statement: who committed since is found when the record is added.
SELECT
    pg_try_advisory_xact_lock($1) AS got,
    CASE WHEN r.digest IS NULL THEN txid_current() END AS own,
    r.fingerprint, r.fence, r.answer,
    (extract(epoch FROM statement_timestamp() - r.recorded_at) * 1000)::bigint AS age,
    (extract(epoch FROM r.expires_at - statement_timestamp()) * 1000)::bigint AS left
FROM (SELECT) AS always
LEFT JOIN semel_joint AS r ON r.digest = $2
