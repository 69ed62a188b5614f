-- Holds records with an unknown outcome, for the owner of the record by fence and token.
UPDATE {records} AS r
SET state = 'held',
    reason = asked.reason,
    ended_at = {now},
    hold_until = {now} + r.hold_for * {millisecond},
    expires_at = '-infinity',
    lease_until = NULL
FROM unnest($1, $2, $3, $4) AS asked (digest, fence, owner, reason)
WHERE r.digest = asked.digest
    AND r.fence = asked.fence
    AND r.owner = asked.owner
    AND r.state = 'in_flight'
RETURNING r.digest, {notify}
