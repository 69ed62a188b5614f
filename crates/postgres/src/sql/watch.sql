-- Marks records as watched: the statement that changes one sends a notification.
UPDATE {records}
SET watched = true
WHERE digest = ANY ($1) AND state NOT IN ('completed', 'released') AND NOT watched
