-- Stores one answer of an execution that is not watched and that took less than half of its
-- retention. All other cases are left to `complete.sql`.
UPDATE {records} AS r
SET state = 'completed',
    answer = $4,
    ended_at = {now},
    lease_until = NULL
WHERE r.digest = $1
    AND r.fence = $2
    AND r.owner = $3
    AND r.state = 'in_flight'
    AND NOT r.watched
    AND r.limits IS NULL
    AND r.expires_at >= {now} + r.retention * interval '500 microseconds'
