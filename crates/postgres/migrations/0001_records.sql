-- A type of its own holds the states: the server reads the text of a table's checks anew for every
-- statement, which takes longer than to insert the row.
CREATE TYPE {state} AS ENUM ('in_flight', 'completed', 'released', 'held');

-- One row for each key that is remembered. The digest stands for scope, caller and key.
CREATE TABLE {records} (
    digest      uuid        PRIMARY KEY,
    scope       text        NOT NULL,
    caller      text        NOT NULL,
    key         text        NOT NULL,
    fingerprint bytea       NOT NULL,
    fence       bigint      NOT NULL,
    attempt     integer     NOT NULL,
    on_unknown  text        NOT NULL,
    retention   bigint      NOT NULL,
    claimed_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    lease_until timestamptz,
    owner       uuid,
    state       {state} NOT NULL,
    watched     boolean     NOT NULL DEFAULT false,
    answer      bytea
);
COMMENT ON COLUMN {records}.retention IS 'milliseconds';

-- What somebody runs, for the reaper and for operators: by the end of the lease.
CREATE INDEX "{prefix}running" ON {records} (lease_until) WHERE owner IS NOT NULL;

-- What nobody runs, for the sweep, and for operators what is held: it never expires, and stands at
-- minus infinity to be found together. At the other end it would be in the way of what expires later
-- than all before, which fills pages better and is added faster.
CREATE INDEX "{prefix}ended" ON {records} (expires_at) WHERE owner IS NULL;

-- Large answers are compressed by the faster way, where this server knows it.
DO $$
BEGIN
    EXECUTE 'ALTER TABLE {records} ALTER COLUMN answer SET COMPRESSION lz4';
EXCEPTION WHEN feature_not_supported OR syntax_error OR invalid_parameter_value THEN
    NULL;
END
$$;

-- A cache would hand out numbers that fall.
CREATE SEQUENCE {fences} CACHE 1 NO CYCLE;

-- One row: which version the tables have, and which the oldest program is that may use them.
CREATE TABLE {meta} (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    oldest  integer NOT NULL,
    epoch   bigint  NOT NULL DEFAULT 0,
    store   uuid    NOT NULL DEFAULT gen_random_uuid(),
    -- A print of the secret that callers' credentials are hashed with, if any are.
    caller_secret text
);
INSERT INTO {meta} (version, oldest) VALUES (1, 1);
