 FROM semel_operation WHERE name = ?4 AND key = ?5
