DELETE FROM {metadata}
WHERE name = $1
