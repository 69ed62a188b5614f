-- One row for each key. The digest stands for scope, caller and key. No column has a CHECK: the server
-- parses the text of checks for every statement, which takes longer than inserting the row. No column
-- has a custom type, which `pg_dump --table` would leave out.
CREATE TABLE {records} (
    digest      uuid        PRIMARY KEY,
    scope       text        NOT NULL,
    caller      text        NOT NULL,
    key         text        NOT NULL,
    fingerprint bytea, -- NULL after the record was forgotten
    fence       bigint      NOT NULL,
    attempt     integer     NOT NULL,
    on_unknown  text        NOT NULL,
    retention   bigint      NOT NULL,
    claimed_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    lease_until timestamptz,
    owner       uuid        NOT NULL,
    state       text        NOT NULL COLLATE "C",
    watched     boolean     NOT NULL DEFAULT false,
    hold_for    bigint,
    hold_until  timestamptz,
    ended_at    timestamptz,
    irregular_at timestamptz,
    about       text        NOT NULL,
    node        text        NOT NULL,
    captured    text        NOT NULL,
    reason      text,
    answer      bytea,
    limits      bytea
);
COMMENT ON COLUMN {records}.digest IS 'the first four bytes depend on the key only';
COMMENT ON COLUMN {records}.retention IS 'milliseconds';
COMMENT ON COLUMN {records}.hold_for IS 'milliseconds';
COMMENT ON COLUMN {records}.limits IS
    'keys of limit_counters, 16 bytes each; settled once the record has ended';
COMMENT ON COLUMN {records}.irregular_at IS
    'claimed_at of a record that was released, or does not expire one retention after its claim';
COMMENT ON COLUMN {records}.hold_until IS 'when a held record fails, if its route has a limit';

-- The usual completion changes no indexed column, so that it updates no index. Records in flight are
-- found here too: of all records with one retention, the last claimed expires last. Records that do
-- not expire are kept apart: those that wait for a request at minus infinity, and those that have been
-- in flight for a while at the epoch.
CREATE INDEX "{prefix}expiry" ON {records} (retention, expires_at);

-- Held records with a time limit only, so that other updates do not touch this index.
CREATE INDEX "{prefix}hold_until" ON {records} (hold_until) WHERE hold_until IS NOT NULL;

-- By the time of the claim: the records that the first index does not find by it.
CREATE INDEX "{prefix}irregular" ON {records} (irregular_at) WHERE irregular_at IS NOT NULL;

-- Compresses large answers with lz4, which is faster, if this server supports it.
DO $$
BEGIN
    EXECUTE 'ALTER TABLE {records} ALTER COLUMN answer SET COMPRESSION lz4';
EXCEPTION WHEN feature_not_supported OR syntax_error OR invalid_parameter_value THEN
    NULL;
END
$$;

-- No cache: cached numbers would be issued out of order. The sequence is the lower bound of fences: it
-- starts at the wall clock in microseconds, above the fences of every earlier store in this place.
CREATE SEQUENCE {fences} CACHE 1 NO CYCLE;
SELECT setval({fences_text}, (date_part('epoch', clock_timestamp()) * 1000000)::bigint);

-- One row: the version of the tables, and the version of the oldest program that may use them.
CREATE TABLE {meta} (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    oldest  integer NOT NULL,
    epoch   bigint  NOT NULL DEFAULT 0,
    -- All records in flight that were claimed before this have been set aside.
    aside_until timestamptz NOT NULL DEFAULT 'epoch',
    store   uuid    NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The cluster and the latest timeline that the store was used on: a former primary has a lower
    -- timeline.
    cluster  bigint,
    timeline bigint,
    -- A hash of the secret with which callers' credentials are hashed, if there is one.
    caller_secret text
);
INSERT INTO {meta} (version, oldest) VALUES (3, 3);

-- The counters of velocity limits. Times are in milliseconds since 1970. No column but the key has an
-- index, so that an update writes none.
CREATE TABLE {limit_counters} (
    key        uuid   PRIMARY KEY,
    full_until bigint NOT NULL,
    expires_at bigint NOT NULL,
    counter    bytea  NOT NULL
) WITH (fillfactor = 50);
COMMENT ON COLUMN {limit_counters}.full_until IS 'no other operation is admitted before; the largest number while all units are reserved';

-- Metadata entries of the engine.
CREATE TABLE {metadata} (
    name  text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);
