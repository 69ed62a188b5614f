-- One row for each operation that was recorded together with its writes. Times are milliseconds
-- since 1970. WITHOUT ROWID stores a record in one B-tree instead of two.
CREATE TABLE IF NOT EXISTS semel_transactional (
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
CREATE INDEX IF NOT EXISTS semel_transactional_expires_at ON semel_transactional (expires_at);
