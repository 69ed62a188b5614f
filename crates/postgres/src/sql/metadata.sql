-- What is remembered beside the records below a prefix.
SELECT name, value
FROM {metadata}
WHERE name >= $1 AND starts_with(name, $1)
ORDER BY name
LIMIT $2
