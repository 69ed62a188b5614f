-- Reads the metadata entries whose names have a prefix.
SELECT name, value
FROM {metadata}
WHERE name >= $1 AND starts_with(name, $1)
ORDER BY name
LIMIT $2
