-- With these two functions a program in any language puts a record into a transaction of its own. They
-- take the same lock and write the same row as this library. Both use the table of the schema that they
-- were created in.

-- Begins an operation in the current transaction. The outcome is one of:
--   execute      run the operation, then call semel_record(claim, result) in this transaction
--   replay       it has run: `result` is its recorded result
--   in-progress  another transaction runs it
--   key-reused   the key belongs to an operation with another fingerprint
-- The fingerprint is a SHA-256 of what must be equal in a repeat. Without one, the key alone identifies
-- the operation.
CREATE OR REPLACE FUNCTION semel_begin(
    scope text, caller text, key text, fingerprint bytea DEFAULT NULL,
    OUT outcome text, OUT claim text, OUT fence bigint, OUT status integer, OUT result text
)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $semel$
#variable_conflict use_column
DECLARE
    name bytea := '';
    part text;
    wanted bytea;
    own bigint;
    found record;
    parts integer;
    number integer;
    octet integer;
    place integer := 4;
BEGIN
    IF ($1 ~ '^[a-z0-9][a-z0-9._-]{0,63}(~observed)?$') IS NOT TRUE THEN
        RAISE EXCEPTION 'semel_begin: `%` cannot name a scope', $1 USING ERRCODE = '22023',
            HINT = 'Use 1 to 64 of a-z, 0-9, `.`, `_` and `-`, beginning with a letter or a digit.';
    ELSIF (octet_length($2) <= 255 AND $2 !~ '[[:cntrl:]]') IS NOT TRUE THEN
        RAISE EXCEPTION 'semel_begin: the caller is not valid' USING ERRCODE = '22023',
            HINT = 'Use at most 255 bytes without control characters; '''' is the anonymous caller.';
    ELSIF ($3 ~ '^[!-~]{1,255}$' AND octet_length($3) = length($3)) IS NOT TRUE THEN
        RAISE EXCEPTION 'semel_begin: the key is not valid' USING ERRCODE = '22023',
            HINT = 'Use 1 to 255 visible ASCII characters, without spaces.';
    ELSIF octet_length($4) <> 32 THEN
        RAISE EXCEPTION 'semel_begin: the fingerprint is not a SHA-256' USING ERRCODE = '22023',
            HINT = 'Use sha256(convert_to(..., ''UTF8'')), or NULL.';
    END IF;
    -- Version 2 of fingerprints. The second is that of `once` without a fingerprint.
    wanted := coalesce('\x02'::bytea || $4,
        '\x0293b07bce21fdd20071d25488bca9480f4d271af4b31140003cc8b0e3cf2a1608');
    -- With its length, so that different names never have the same bytes.
    FOREACH part IN ARRAY ARRAY[$1, $2, $3] LOOP
        name := name || int8send(octet_length(convert_to(part, 'UTF8'))) || convert_to(part, 'UTF8');
    END LOOP;
    name := substr(sha256(name), 1, 16);
    part := encode(name, 'hex');
    -- The wall clock, read after the lock was taken.
    IF pg_try_advisory_xact_lock(('x' || left(part, 16))::bit(64)::bigint) THEN
        own := txid_current();
        fence := date_part('epoch', clock_timestamp()) * 1000000;
    END IF;
    -- A statement after the lock, so that it sees the commit of the former holder.
    SELECT r.fingerprint, r.fence, r.answer, r.expires_at < statement_timestamp() AS expired INTO found
    FROM semel_transactional AS r WHERE r.digest = part::uuid;
    IF NOT found.expired THEN
        fence := NULL;
        IF found.fingerprint <> wanted THEN
            outcome := 'key-reused';
            RETURN;
        END IF;
        outcome := 'replay';
        fence := found.fence;
        status := get_byte(found.answer, 2) * 256 + get_byte(found.answer, 3);
        IF get_byte(found.answer, 1) = 0 THEN
            -- Headers and trailers are skipped: a count, then names and values with their lengths, all
            -- numbers in LEB128.
            FOR list IN 1 .. 2 LOOP
                parts := NULL;
                LOOP
                    number := 0;
                    FOR digit IN 0 .. 3 LOOP
                        octet := get_byte(found.answer, place);
                        place := place + 1;
                        number := number + ((octet & 127) << (7 * digit));
                        EXIT WHEN octet < 128;
                    END LOOP;
                    place := place + CASE WHEN parts IS NULL THEN 0 ELSE number END;
                    parts := coalesce(parts - 1, 2 * number);
                    EXIT WHEN parts = 0;
                END LOOP;
            END LOOP;
            BEGIN
                result := convert_from(substr(found.answer, place + 1), 'UTF8');
            EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
                -- Bytes of another program, which are no text here.
                result := NULL;
            END;
        END IF;
    ELSIF own IS NULL THEN
        outcome := 'in-progress';
    ELSE
        IF found.expired THEN
            DELETE FROM semel_transactional AS r
            WHERE r.digest = part::uuid AND r.expires_at < statement_timestamp();
        END IF;
        outcome := 'execute';
        claim := json_build_object('digest', part, 'scope', $1, 'caller', $2, 'key', $3, 'fence', fence,
            'fingerprint', encode(wanted, 'hex'), 'transaction', own,
            'table', 'semel_transactional'::regclass::oid::bigint);
    END IF;
END
$semel$;

-- Records the result of an operation, as JSON, in the transaction that has begun it. Status 200 is a
-- value, 422 a refusal. An error means that nothing may be committed. A result above 1 MiB is not
-- retained: a repeat gets `replay` without a result.
CREATE OR REPLACE FUNCTION semel_record(
    claim text, result text DEFAULT 'null', status integer DEFAULT 200,
    retention interval DEFAULT '24 hours'
)
RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $semel$
DECLARE
    begun json := $1;
    body bytea := convert_to(coalesce($2, 'null'), 'UTF8');
BEGIN
    IF ((begun ->> 'transaction')::bigint = txid_current()
        AND (begun ->> 'table')::bigint = 'semel_transactional'::regclass::oid::bigint) IS NOT TRUE
    THEN
        RAISE EXCEPTION 'semel_record: this claim was not begun in this transaction and table'
            USING ERRCODE = '55000', HINT = 'Roll back, and begin the operation again.';
    ELSIF ($3 BETWEEN 200 AND 299 OR $3 BETWEEN 400 AND 499) IS NOT TRUE THEN
        RAISE EXCEPTION 'semel_record: % is not a status of a result', $3 USING ERRCODE = '22023',
            HINT = 'Use 200 for a value and 422 for a refusal.';
    ELSIF ($4 >= '1 millisecond') IS NOT TRUE THEN
        RAISE EXCEPTION 'semel_record: the retention is not positive' USING ERRCODE = '22023',
            HINT = 'Use an interval such as 24 hours.';
    END IF;
    PERFORM $2::json;
    INSERT INTO semel_transactional (
        digest, scope, caller, key, fingerprint, fence, answer, recorded_at, expires_at
    )
    VALUES (
        (begun ->> 'digest')::uuid, begun ->> 'scope', begun ->> 'caller', begun ->> 'key',
        decode(begun ->> 'fingerprint', 'hex'), (begun ->> 'fence')::bigint,
        CASE WHEN length(body) <= 1048576
            THEN '\x0100'::bytea || int2send($3::smallint) || '\x010c' || 'content-type' || '\x10'
                || 'application/json' || '\x00' || body
            ELSE '\x0101'::bytea || int2send($3::smallint)
        END,
        statement_timestamp(), statement_timestamp() + $4
    );
END
$semel$;
