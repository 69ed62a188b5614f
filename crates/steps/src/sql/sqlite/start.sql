INSERT INTO semel_operation
    (name, key, version, input, owner, fence, lease_until, boot, created_at)
VALUES (?4, ?5, ?6, ?7, ?8, ?1 * 1000, ?2 + ?9, ?3, ?1)
ON CONFLICT (name, key) DO NOTHING
