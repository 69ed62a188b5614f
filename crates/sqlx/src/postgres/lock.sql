-- Whoever has the lock runs it, and keeps the lock until the transaction ends.
SELECT got, CASE WHEN got THEN txid_current() END AS own
FROM pg_try_advisory_xact_lock($1) AS got
