 FROM semel_operation
WHERE (?4 IS NULL OR state = ?4) AND (?5 IS NULL OR name = ?5) AND (?6 IS NULL OR id < ?6)
ORDER BY id DESC LIMIT ?7
