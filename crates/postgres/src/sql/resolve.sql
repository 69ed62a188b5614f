-- Resolves a held record for an operator. It raises the fence, so that the former owner is fenced off.
UPDATE {records} AS r
SET state = $3,
    answer = $4,
    fence = greatest({fence}, r.fence + 1),
    reason = $5,
    ended_at = {now},
    expires_at = {expiry},
    lease_until = NULL,
    hold_until = NULL,
    irregular_at = r.claimed_at
FROM (SELECT {draw} AS drawn) AS next
WHERE r.digest = $1
    AND r.fence = $2
    AND (
        r.state = 'held'
        OR r.state = 'in_flight' AND r.on_unknown = 'hold' AND r.lease_until < {now}
    )
RETURNING r.digest, {notify}, r.limits, r.claimed_at
