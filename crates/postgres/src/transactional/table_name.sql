-- The qualified name of the table, which does not depend on the search_path.
SELECT format('%I.%I', n.nspname, c.relname) AS name
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = 'semel_transactional'::regclass
