CREATE TABLE IF NOT EXISTS semel_operation (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    input TEXT NOT NULL,
    fence INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    -- Milliseconds since the machine was started, and which start that was.
    lease_until INTEGER NOT NULL,
    boot TEXT NOT NULL,
    direction TEXT NOT NULL DEFAULT 'forward' CHECK (direction IN ('forward', 'backward')),
    state TEXT NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'undone', 'parked')),
    attempt INTEGER NOT NULL DEFAULT 0,
    result TEXT,
    refusal TEXT,
    reason TEXT,
    -- Milliseconds since 1970.
    created_at INTEGER NOT NULL,
    ended_at INTEGER,
    UNIQUE (name, key)
);
CREATE INDEX IF NOT EXISTS semel_operation_running ON semel_operation (lease_until)
    WHERE state = 'running';
CREATE INDEX IF NOT EXISTS semel_operation_parked ON semel_operation (id) WHERE state = 'parked';
CREATE INDEX IF NOT EXISTS semel_operation_ended ON semel_operation (ended_at)
    WHERE ended_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS semel_step (
    operation INTEGER NOT NULL,
    name TEXT NOT NULL,
    part TEXT NOT NULL CHECK (part IN ('do', 'undo')),
    state TEXT NOT NULL CHECK (state IN ('begun', 'done', 'refused', 'released')),
    result TEXT,
    fence INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (operation, name, part)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS semel_operation_deleted AFTER DELETE ON semel_operation
BEGIN DELETE FROM semel_step WHERE operation = old.id; END;
