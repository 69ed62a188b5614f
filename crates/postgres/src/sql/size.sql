-- How many pages the table of records has, free ones included.
SELECT pg_relation_size({records_text}) / current_setting('block_size')::bigint
