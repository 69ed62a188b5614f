-- One row for each operation that was recorded together with what it wrote. Times are milliseconds
-- since 1970. Without a row number, a record is one entry of one tree, and not of two.
CREATE TABLE IF NOT EXISTS semel_joint (
    scope       TEXT    NOT NULL,
    caller      TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    fence       INTEGER NOT NULL,
    answer      BLOB    NOT NULL,
    recorded_at INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (scope, caller, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS semel_joint_expires_at ON semel_joint (expires_at);
