-- Whether a transaction holds the lock, without taking it.
SELECT EXISTS (
    SELECT FROM pg_locks AS l
    JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
        AND l.classid::bigint = ($1::bigint >> 32) & 4294967295
        AND l.objid::bigint = $1::bigint & 4294967295
) AS running
