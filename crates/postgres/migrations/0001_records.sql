-- One row for each key that is remembered. The digest stands for scope, caller and key.
CREATE TABLE {records} (
    digest      uuid        PRIMARY KEY,
    scope       text        NOT NULL,
    caller      text        NOT NULL,
    key         text        NOT NULL,
    fingerprint bytea       NOT NULL,
    fence       bigint      NOT NULL CHECK (fence > 0),
    attempt     integer     NOT NULL CHECK (attempt >= 0),
    on_unknown  text        NOT NULL CHECK (on_unknown IN ('hold', 'rerun', 'fail')),
    retention   bigint      NOT NULL CHECK (retention >= 0),
    claimed_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    lease_until timestamptz,
    owner       uuid,
    state       text        NOT NULL
        CHECK (state IN ('in_flight', 'completed', 'released', 'held')),
    watched     boolean     NOT NULL DEFAULT false,
    answer      bytea,
    CHECK ((state = 'in_flight') = (owner IS NOT NULL)),
    CHECK ((state = 'in_flight') = (lease_until IS NOT NULL)),
    CHECK ((state = 'completed') = (answer IS NOT NULL))
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
    store   uuid    NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO {meta} (version, oldest) VALUES (1, 1);
