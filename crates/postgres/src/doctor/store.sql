-- Grants, size and vacuum state of the store: one row, or none if the store does not exist.
SELECT
    has_schema_privilege(records.relnamespace, 'USAGE') AS may_use_schema,
    has_table_privilege(records.oid, 'SELECT') AS records_select,
    has_table_privilege(records.oid, 'INSERT') AS records_insert,
    has_table_privilege(records.oid, 'UPDATE') AS records_update,
    has_table_privilege(records.oid, 'DELETE') AS records_delete,
    has_table_privilege(meta.oid, 'SELECT') AS meta_select,
    has_table_privilege(meta.oid, 'UPDATE') AS meta_update,
    has_table_privilege(metadata.oid, 'SELECT') AS metadata_select,
    has_table_privilege(metadata.oid, 'INSERT') AS metadata_insert,
    has_table_privilege(metadata.oid, 'UPDATE') AS metadata_update,
    has_table_privilege(metadata.oid, 'DELETE') AS metadata_delete,
    has_sequence_privilege(fences.oid, 'USAGE') AS fences_usage,
    has_sequence_privilege(fences.oid, 'UPDATE') AS fences_update,
    greatest(records.reltuples, coalesce(counted.n_live_tup, 0))::bigint AS rows,
    coalesce(counted.n_dead_tup, 0) AS dead_rows,
    pg_table_size(records.oid) AS table_bytes,
    pg_indexes_size(records.oid) AS index_bytes,
    coalesce(greatest(counted.last_vacuum, counted.last_autovacuum)::text, '') AS vacuumed,
    coalesce(
        records.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off'], false
    ) AS autovacuum_off
FROM pg_class AS records
JOIN pg_namespace AS schema ON schema.oid = records.relnamespace
JOIN pg_class AS meta ON meta.relnamespace = schema.oid AND meta.relname = '{prefix}meta'
JOIN pg_class AS metadata
    ON metadata.relnamespace = schema.oid AND metadata.relname = '{prefix}metadata'
JOIN pg_class AS fences ON fences.relnamespace = schema.oid AND fences.relname = '{prefix}fences'
LEFT JOIN pg_stat_all_tables AS counted ON counted.relid = records.oid
WHERE schema.nspname = '{schema_name}' AND records.relname = '{prefix}records'
