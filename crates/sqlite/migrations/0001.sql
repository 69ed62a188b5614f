-- Version 1. Claims, endings and answers are appended in the order of their ids; only the rare turns
-- (a renewal, a late truth, an operator's act, the sweep) touch a row again.

-- One row for each record that is there. Its id is its fence: assigned by the writer, rising, never
-- used again. The row with the greatest id is never deleted, so that the numbers survive the sweep.
CREATE TABLE claims (
    id          INTEGER PRIMARY KEY,
    hash        INTEGER NOT NULL, -- the first 64 bits of the digest of (scope, caller, key)
    retention   INTEGER NOT NULL, -- milliseconds
    lease_until INTEGER NOT NULL, -- milliseconds of the store's clock, as every instant here
    claimed_at  INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    on_unknown  INTEGER NOT NULL, -- 0 hold, 1 rerun, 2 fail
    owner       BLOB    NOT NULL,
    fingerprint BLOB    NOT NULL,
    scope       TEXT    NOT NULL,
    caller      TEXT    NOT NULL, -- empty for the anonymous caller
    key         TEXT    NOT NULL
) STRICT;

-- A claim without a row here is in flight. Small rows apart from the answers, so that opening a file
-- reads them and not the answers.
CREATE TABLE ends (
    id         INTEGER PRIMARY KEY,
    state      INTEGER NOT NULL, -- 1 completed, 2 released, 3 held, 4 forgotten
    expires_at INTEGER           -- where retention began anew; else claimed_at + retention
) STRICT;

CREATE INDEX ends_that_wait ON ends (state, id) WHERE state <> 1;

CREATE TABLE answers (
    id     INTEGER PRIMARY KEY,
    answer BLOB NOT NULL
) STRICT;

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO meta VALUES ('epoch', 0), ('swept', 0), ('seen_at', 0), ('boot_id', ''), ('boot_offset', 0);
