 FROM semel_operation
WHERE ($1::text IS NULL OR state = $1) AND ($2::text IS NULL OR name = $2)
    AND ($3::bigint IS NULL OR id < $3)
ORDER BY id DESC LIMIT $4
