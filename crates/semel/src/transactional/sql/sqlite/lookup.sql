-- A record past its retention counts as absent.
SELECT fingerprint, fence, answer, recorded_at, expires_at
FROM semel_transactional
WHERE scope = ?1 AND caller = ?2 AND key = ?3 AND expires_at >= ?4
