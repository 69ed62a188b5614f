-- Whoever has the lock runs it, and keeps the lock until the transaction ends.
SELECT CASE WHEN pg_try_advisory_xact_lock($1) THEN txid_current() END AS own
