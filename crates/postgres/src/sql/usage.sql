-- How many records a sample of the pages holds and how many bytes they take: what is stored, compressed
-- as it is, and about as much for each row as its other columns, its header and its index entries take.
-- $1 is how many per cent of the pages are read.
SELECT count(*), coalesce(sum(
    320 + pg_column_size(scope) + pg_column_size(caller) + pg_column_size(key)
    + pg_column_size(about) + pg_column_size(node) + pg_column_size(captured)
    + coalesce(pg_column_size(reason), 0) + coalesce(pg_column_size(answer), 0)
), 0)::bigint
FROM {records} TABLESAMPLE SYSTEM ($1)
