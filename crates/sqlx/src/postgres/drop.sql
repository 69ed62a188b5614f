-- Makes room where a record is past its retention.
DELETE FROM semel_joint
WHERE digest = $1 AND expires_at < statement_timestamp()
