-- How many operator's acts there were, and in which store.
SELECT epoch, store::text
FROM {meta}
