-- Makes room where a record is past its retention; and the transaction one that writes.
DELETE FROM semel_joint WHERE scope = ?1 AND caller = ?2 AND key = ?3 AND expires_at < ?4
