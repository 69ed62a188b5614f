-- Raises the epoch, which invalidates all caches.
UPDATE {meta}
SET epoch = epoch + 1
