-- One row for each key that is remembered. The digest stands for scope, caller and key. No column has
-- a check: the server parses the text of checks for every statement, which takes longer than to
-- insert the row. None has a type of its own, which `pg_dump --table` would leave out.
CREATE TABLE {records} (
    digest      uuid        PRIMARY KEY,
    scope       text        NOT NULL,
    caller      text        NOT NULL,
    key         text        NOT NULL,
    fingerprint bytea, -- NULL once it was forgotten
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
    answer      bytea
);
COMMENT ON COLUMN {records}.digest IS 'its first four bytes stand for the key alone';
COMMENT ON COLUMN {records}.retention IS 'milliseconds';
COMMENT ON COLUMN {records}.hold_for IS 'milliseconds';
COMMENT ON COLUMN {records}.irregular_at IS
    'claimed_at of what was released, or expires at another time than the retention after it';
COMMENT ON COLUMN {records}.hold_until IS 'when a held record fails, where its route says so';

-- By the end of its retention, and nothing else: the usual ending changes no column that has an index,
-- so that it need not touch any. What is in flight is found here too: of all that are kept equally
-- long, whatever was claimed last expires last. What does not expire stands apart: what waits for
-- somebody to ask at minus infinity, and what has been in flight for a while at the epoch.
CREATE INDEX "{prefix}expiry" ON {records} (retention, expires_at);

-- Held records that will fail by themselves, and nothing else: no other update touches it.
CREATE INDEX "{prefix}hold_until" ON {records} (hold_until) WHERE hold_until IS NOT NULL;

-- By the time of the claim, of those alone that the index above does not find by it.
CREATE INDEX "{prefix}irregular" ON {records} (irregular_at) WHERE irregular_at IS NOT NULL;

-- Large answers are compressed by the faster way, where this server knows it.
DO $$
BEGIN
    EXECUTE 'ALTER TABLE {records} ALTER COLUMN answer SET COMPRESSION lz4';
EXCEPTION WHEN feature_not_supported OR syntax_error OR invalid_parameter_value THEN
    NULL;
END
$$;

-- A cache would hand out numbers that fall. The sequence is the lower bound of fences: it starts at
-- the wall clock in microseconds, above the fences of every store that was here before.
CREATE SEQUENCE {fences} CACHE 1 NO CYCLE;
SELECT setval({fences_text}, (date_part('epoch', clock_timestamp()) * 1000000)::bigint);

-- One row: which version the tables have, and which the oldest program is that may use them.
CREATE TABLE {meta} (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    oldest  integer NOT NULL,
    epoch   bigint  NOT NULL DEFAULT 0,
    -- Whatever was claimed before this and is still in flight has been set aside.
    aside_until timestamptz NOT NULL DEFAULT 'epoch',
    store   uuid    NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The latest timeline that the store was used on, and of which cluster: a former primary that
    -- comes back has a lower one.
    cluster  bigint,
    timeline bigint,
    -- A print of the secret that callers' credentials are hashed with, if any are.
    caller_secret text
);
INSERT INTO {meta} (version, oldest) VALUES (2, 2);

-- What is remembered beside the records.
CREATE TABLE {metadata} (
    name  text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);
