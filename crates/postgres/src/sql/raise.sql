-- Whatever was cached before this is dropped.
UPDATE {meta}
SET epoch = epoch + 1
