-- Somebody waits for these: whoever changes them tells it.
UPDATE {records}
SET watched = true
WHERE digest = ANY ($1) AND state NOT IN ('completed', 'released') AND NOT watched
