-- A row number is drawn inside the one write transaction, so the order of numbers is the order of
-- commits.
CREATE TABLE IF NOT EXISTS semel_outbox_message (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    topic TEXT NOT NULL CHECK (octet_length(topic) BETWEEN 1 AND 255),
    key TEXT CHECK (octet_length(key) BETWEEN 1 AND 255),
    payload BLOB NOT NULL CHECK (octet_length(payload) <= 1048576),
    sent_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
);
-- One row: the lease of the relay, in milliseconds, and its cursor.
CREATE TABLE IF NOT EXISTS semel_outbox_relay (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    owner TEXT,
    fence INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL DEFAULT 0,
    position INTEGER NOT NULL DEFAULT 0
);
INSERT OR IGNORE INTO semel_outbox_relay (only_row) VALUES (1);
-- Messages whose delivery failed, and the later ones of their keys, in order.
CREATE TABLE IF NOT EXISTS semel_outbox_aside (
    number INTEGER PRIMARY KEY,
    lane TEXT NOT NULL,
    id TEXT NOT NULL,
    topic TEXT NOT NULL,
    key TEXT,
    payload BLOB NOT NULL,
    sent_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL,
    parked INTEGER NOT NULL DEFAULT 0,
    reason TEXT
);
CREATE INDEX IF NOT EXISTS semel_outbox_by_lane ON semel_outbox_aside (lane, number);
CREATE INDEX IF NOT EXISTS semel_outbox_by_id ON semel_outbox_aside (id);
