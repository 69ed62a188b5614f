-- How many operator's acts there were.
SELECT epoch
FROM {meta}
