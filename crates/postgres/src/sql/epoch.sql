-- Reads the epoch, which every operator's action raises, and the identity of the store.
SELECT epoch, store::text
FROM {meta}
