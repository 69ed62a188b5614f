-- Tries the lock of an operation. The transaction that gets it runs the operation, and holds the lock
-- until it ends. The fence is the wall clock in microseconds, read after the lock was taken: a
-- transaction id would repeat after a failover or a restore that lost some. Above read committed, the
-- snapshot of the transaction is older than its lock, so that it may miss a record. The OID of the
-- table is returned because the operation may change its search_path.
SELECT
    CASE WHEN pg_try_advisory_xact_lock($1) THEN txid_current() END AS own,
    (date_part('epoch', clock_timestamp()) * 1000000)::bigint AS fence,
    current_setting('transaction_isolation') LIKE 'read %' AS current,
    'semel_transactional'::regclass::oid::bigint AS home
