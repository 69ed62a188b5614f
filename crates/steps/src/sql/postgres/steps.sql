SELECT name, part, state, result, position FROM semel_step WHERE operation = $1 ORDER BY position
