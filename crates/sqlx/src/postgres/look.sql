-- The record, or else whether somebody has the lock; without taking it.
SELECT
    EXISTS (
        SELECT FROM pg_locks AS l
        JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND l.classid::bigint = ($1::bigint >> 32) & 4294967295
            AND l.objid::bigint = $1::bigint & 4294967295
    ) AS running,
    r.fingerprint, r.fence, r.answer, r.recorded_at, r.expires_at, statement_timestamp() AS now
FROM (SELECT) AS always
LEFT JOIN semel_joint AS r ON r.digest = $2
