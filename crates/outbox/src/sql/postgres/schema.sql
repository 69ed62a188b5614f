-- Messages are only appended. A row is delivered once the cursor of its bucket is past it, and
-- deleted by TRUNCATE with its part of the table.
CREATE SEQUENCE IF NOT EXISTS semel_outbox_number;

CREATE TABLE IF NOT EXISTS semel_outbox_message (
    number bigint NOT NULL,
    part smallint NOT NULL,
    bucket smallint NOT NULL,
    xid xid8 NOT NULL,
    id uuid NOT NULL,
    topic text NOT NULL,
    key text,
    payload bytea NOT NULL,
    sent_at timestamptz NOT NULL
) PARTITION BY LIST (part);
CREATE TABLE IF NOT EXISTS semel_outbox_message_0
    PARTITION OF semel_outbox_message FOR VALUES IN (0);
CREATE TABLE IF NOT EXISTS semel_outbox_message_1
    PARTITION OF semel_outbox_message FOR VALUES IN (1);
CREATE TABLE IF NOT EXISTS semel_outbox_message_2
    PARTITION OF semel_outbox_message FOR VALUES IN (2);
CREATE INDEX IF NOT EXISTS semel_outbox_by_number ON semel_outbox_message (bucket, number);
-- Its first column is an expression, so that each query can use one of the two indexes only.
CREATE INDEX IF NOT EXISTS semel_outbox_by_transaction
    ON semel_outbox_message ((bucket::integer), xid, number);

-- One row: the part that takes new messages, and the database cluster that the cursors belong to.
CREATE TABLE IF NOT EXISTS semel_outbox_state (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    part smallint NOT NULL DEFAULT 0,
    rotated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    system_identifier bigint NOT NULL
);
INSERT INTO semel_outbox_state (system_identifier)
SELECT system_identifier FROM pg_control_system() ON CONFLICT DO NOTHING;

-- The lease and the cursor of each bucket. `seen` is the snapshot whose messages are delivered. While
-- `window_snapshot` is set, its messages up to `position` are delivered as well. The floors and the
-- ceiling bound the numbers that a scan has to look at.
CREATE TABLE IF NOT EXISTS semel_outbox_bucket (
    bucket smallint PRIMARY KEY,
    owner uuid,
    fence bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    seen pg_snapshot NOT NULL DEFAULT '4:4:',
    seen_floor bigint NOT NULL DEFAULT 0,
    window_snapshot pg_snapshot,
    window_floor bigint NOT NULL DEFAULT 0,
    window_ceiling bigint NOT NULL DEFAULT 0,
    position bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO semel_outbox_bucket (bucket) SELECT generate_series(0, 63) ON CONFLICT DO NOTHING;

-- The relays, so that each takes its share of the buckets.
CREATE TABLE IF NOT EXISTS semel_outbox_relay (
    owner uuid PRIMARY KEY,
    lease_until timestamptz NOT NULL
);

-- Messages whose delivery failed, and the later ones of their keys, in order. The head of a lane is
-- its lowest number. A lane is a key, or a single message without one.
CREATE TABLE IF NOT EXISTS semel_outbox_aside (
    number bigint PRIMARY KEY,
    bucket smallint NOT NULL,
    lane text NOT NULL,
    id uuid NOT NULL,
    topic text NOT NULL,
    key text,
    payload bytea NOT NULL,
    sent_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    parked boolean NOT NULL DEFAULT false,
    reason text
);
CREATE INDEX IF NOT EXISTS semel_outbox_by_lane ON semel_outbox_aside (bucket, lane, number);
CREATE INDEX IF NOT EXISTS semel_outbox_by_id ON semel_outbox_aside (id);

-- Sends a message with the commit of the current transaction. The lock of the key is taken before the
-- number is drawn and held until the commit, so the order of numbers of one key is the order of its
-- commits. The transaction id is assigned before the number as well: a number that was drawn before a
-- snapshot belongs to a transaction that this snapshot knows.
CREATE OR REPLACE FUNCTION semel_send(
    topic text, key text, payload bytea, id uuid DEFAULT gen_random_uuid()
)
RETURNS uuid LANGUAGE plpgsql SET search_path FROM CURRENT AS $semel$
DECLARE
    own xid8 := pg_current_xact_id();
    hash integer;
    number bigint;
BEGIN
    IF (octet_length($1) BETWEEN 1 AND 255) IS NOT TRUE THEN
        RAISE EXCEPTION 'semel_send: the topic is not valid' USING ERRCODE = '22023',
            HINT = 'Use 1 to 255 bytes.';
    ELSIF (octet_length($2) BETWEEN 1 AND 255) IS FALSE THEN
        RAISE EXCEPTION 'semel_send: the key is not valid' USING ERRCODE = '22023',
            HINT = 'Use 1 to 255 bytes, or NULL for a message without an order.';
    ELSIF (octet_length($3) <= 1048576) IS NOT TRUE THEN
        RAISE EXCEPTION 'semel_send: the payload is not valid' USING ERRCODE = '22023',
            HINT = 'Use at most 1 MiB; store what is larger elsewhere and send its address.';
    END IF;
    IF $2 IS NOT NULL THEN
        hash := ('x' || left(encode(sha256(convert_to($2, 'UTF8')), 'hex'), 8))::bit(32)::integer;
        PERFORM pg_advisory_xact_lock(1397050437, hash);
    END IF;
    number := nextval('semel_outbox_number');
    INSERT INTO semel_outbox_message
    VALUES (number, (SELECT part FROM semel_outbox_state), coalesce(hash, number) & 63, own, $4, $1, $2, $3,
        clock_timestamp());
    RETURN $4;
END
$semel$;
