-- Once, for PostgreSQL or SQLite:
CREATE TABLE IF NOT EXISTS operation_fence (
    operation text PRIMARY KEY,
    fence bigint NOT NULL
);

-- First in each transaction that writes. No row changed: this attempt is a zombie; roll back.
INSERT INTO operation_fence (operation, fence) VALUES ($1, $2)
ON CONFLICT (operation) DO UPDATE SET fence = excluded.fence
WHERE operation_fence.fence <= excluded.fence;
