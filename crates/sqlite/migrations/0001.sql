-- Version 4, the first. Claims and answers are appended, nearly in the order of their ids;
-- only rare events (a renewal, a release, an unknown outcome, an operator's act, the sweep) write
-- anything else.

-- One row for each record. Its id is its fence: assigned by the writer, rising, never reused. The
-- row with the greatest id is never deleted, so that the numbers survive the sweep. Each opening of
-- the file continues from the wall clock in microseconds if that is greater, so that the numbers
-- also rise after the file was lost or replaced by an older copy. All times are in milliseconds,
-- instants by the store's own clock.
CREATE TABLE claims (
    id          INTEGER PRIMARY KEY,
    retention   INTEGER NOT NULL,
    claimed_at  INTEGER NOT NULL,
    lease       INTEGER NOT NULL, -- how long after claimed_at it lasts
    attempt     INTEGER NOT NULL,
    on_unknown  INTEGER NOT NULL, -- 0 hold, 1 rerun, 2 fail
    owner       BLOB    NOT NULL,
    fingerprint BLOB,             -- NULL once it was forgotten
    scope       TEXT    NOT NULL,
    caller      TEXT    NOT NULL, -- empty for the anonymous caller
    key         TEXT    NOT NULL,
    about       TEXT    NOT NULL, -- what the operation is about, for people
    node        TEXT    NOT NULL, -- the process that claimed
    captured    TEXT    NOT NULL, -- what the route captured: name=value&name=value
    hold_for    INTEGER,          -- how long it may be held
    limits      BLOB              -- keys of limit_counters, 16 bytes each; NULL without limits
) STRICT;

-- The few claims whose ids are not in the order of claimed_at: an operator's act gives a record a new
-- id and leaves claimed_at. Their ids rise with resolved_at.
CREATE TABLE resolved (
    id          INTEGER PRIMARY KEY,
    resolved_at INTEGER NOT NULL
) STRICT;

-- The answer of a completed record. A claim with an answer is completed.
CREATE TABLE answers (
    id         INTEGER PRIMARY KEY,
    expires_at INTEGER, -- if retention restarted; else claimed_at + retention
    ended_at   INTEGER NOT NULL,
    reason     TEXT,    -- why the execution did not complete, if an answer stands for that
    answer     BLOB NOT NULL
) STRICT;

-- Every other state. A claim with neither an answer nor a row here is in flight. Claims that stay in
-- flight for long get a row too (see 'settled' below).
CREATE TABLE states (
    id         INTEGER PRIMARY KEY,
    state      INTEGER NOT NULL, -- 0 in flight, 2 released, 3 held, 4 deleted
    expires_at INTEGER,          -- as in answers
    ended_at   INTEGER,          -- when the execution ended, or its lease
    reason     TEXT,
    hold_until INTEGER           -- when a held record fails, if its route says so
) STRICT;

CREATE INDEX states_by_state ON states (state, id);

-- The few records that a sweep does not meet in the order of their ids.
CREATE INDEX answers_retention_restarted ON answers (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX states_retention_restarted ON states (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX states_held_until ON states (hold_until) WHERE hold_until IS NOT NULL;

-- How often an operation ran, for the velocity limits of claims. A counter with a reservation does
-- not expire.
CREATE TABLE limit_counters (
    key        BLOB PRIMARY KEY,
    expires_at INTEGER NOT NULL,
    counter    BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

-- Metadata: named values beside the records.
CREATE TABLE metadata (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO meta VALUES
    ('file_id', randomblob(16)),
    ('created_at', 0),  -- when the file was created, by the wall clock
    ('backup_at', 0),   -- when this copy was made, by the wall clock; 0 in a file that is in use
    ('epoch', 0),       -- the number of operators' acts
    ('deleted', 0),     -- the number of deleted claims
    ('fence_floor', 0), -- every issued number is greater than this
    ('settled', 0),     -- claims up to this id that are in flight have a row in states
    ('seen_at', 0),     -- the latest known instant
    ('boot_id', ''),    -- the boot that boot_offset belongs to
    ('boot_offset', 0); -- the store's clock minus the boot clock
