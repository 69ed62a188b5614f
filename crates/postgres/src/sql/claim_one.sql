-- One claim of a record that is not there. One that is burns no fence, and refuses the row; if it goes
-- in that moment, the row has the fence that nobody is given, and waits for another. Whatever else it
-- may meet is for the statement that reads as well, which takes twice as long to get ready.
INSERT INTO {records} (
    digest, scope, caller, key, fingerprint, fence, attempt, on_unknown, retention,
    claimed_at, expires_at, lease_until, owner, state
)
VALUES (
    $1, $2, $3, $4, $5,
    coalesce((SELECT {unissued} FROM {records} WHERE digest = $1), nextval({fences_text})), 1, $9, $8,
    {now}, {now} + $8 * {millisecond}, {now} + $7 * {millisecond}, $6, 'in_flight'
)
ON CONFLICT DO NOTHING
RETURNING nullif(fence, {unissued})
