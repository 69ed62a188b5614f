-- One row for each operation that was recorded together with what it wrote.
CREATE TABLE IF NOT EXISTS semel_joint (
    scope       text COLLATE "C" NOT NULL,
    caller      text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    fingerprint bytea            NOT NULL,
    fence       bigint           NOT NULL,
    answer      bytea            NOT NULL,
    recorded_at timestamptz      NOT NULL,
    expires_at  timestamptz      NOT NULL,
    PRIMARY KEY (scope, caller, key)
);
CREATE INDEX IF NOT EXISTS semel_joint_expires_at ON semel_joint (expires_at);
