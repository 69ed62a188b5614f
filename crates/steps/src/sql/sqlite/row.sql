id, name, version, key, input, fence, owner, direction, state, attempt, result, refusal, reason,
?1 - created_at AS age_ms,
CASE WHEN boot = ?3 THEN lease_until - ?2 ELSE -1 END AS lease_ms
