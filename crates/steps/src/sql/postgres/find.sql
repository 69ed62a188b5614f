 FROM semel_operation WHERE name = $1 AND key = $2
