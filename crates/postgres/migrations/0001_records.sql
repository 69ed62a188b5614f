-- The check is the domain's because the server reads the text of a table's checks anew for every
-- statement, which takes longer than to insert the row.
CREATE DOMAIN {schema}."{prefix}state" AS text
    CHECK (VALUE IN ('in_flight', 'completed', 'released', 'held'));

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
    state       {schema}."{prefix}state" NOT NULL,
    watched     boolean     NOT NULL DEFAULT false,
    answer      bytea
);
COMMENT ON COLUMN {records}.retention IS 'milliseconds';

-- What is not finished, for the reaper and for operators: by the end of the lease, held ones last.
CREATE INDEX "{prefix}open" ON {records} (lease_until, digest)
    WHERE state IN ('in_flight', 'held');

-- What is finished, for the sweep.
CREATE INDEX "{prefix}done" ON {records} (expires_at)
    WHERE state IN ('completed', 'released');

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
