-- Somebody waits for these: whoever changes them tells it.
UPDATE {records}
SET watched = true
WHERE digest = ANY ($1) AND state IN ('in_flight', 'held') AND NOT watched
