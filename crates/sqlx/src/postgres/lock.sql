-- Whoever has the lock runs it, and keeps the lock until the transaction ends. The table is named
-- too: what runs may change where its name leads.
SELECT
    CASE WHEN pg_try_advisory_xact_lock($1) THEN txid_current() END AS own,
    'semel_joint'::regclass::oid::bigint AS home
