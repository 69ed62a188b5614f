-- The lock holder runs it, and keeps the lock until the transaction ends. The fence is the wall
-- clock in microseconds, read after the lock was taken: the number of a transaction would repeat
-- after a failover or a restore that lost some. The snapshot of a transaction above read committed is
-- older than its lock, so that it may miss a record. The table is named too: what runs may change
-- where its name leads.
SELECT
    CASE WHEN pg_try_advisory_xact_lock($1) THEN txid_current() END AS own,
    (date_part('epoch', clock_timestamp()) * 1000000)::bigint AS fence,
    current_setting('transaction_isolation') LIKE 'read %' AS current,
    'semel_joint'::regclass::oid::bigint AS home
