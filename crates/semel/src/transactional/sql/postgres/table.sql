-- One row for each operation, committed together with its writes. The digest stands for scope, caller
-- and key.
CREATE TABLE IF NOT EXISTS semel_transactional (
    digest      uuid        PRIMARY KEY,
    scope       text        NOT NULL,
    caller      text        NOT NULL,
    key         text        NOT NULL,
    fingerprint bytea       NOT NULL,
    fence       bigint      NOT NULL,
    answer      bytea       NOT NULL,
    recorded_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS semel_transactional_expires_at ON semel_transactional (expires_at);
