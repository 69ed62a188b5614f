id, name, version, key, input, fence, owner, direction, state, attempt, result, refusal, reason,
(extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint AS age_ms,
(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint AS lease_ms
