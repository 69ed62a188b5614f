-- Adds the counters that are missing, for records that claims of this transaction own. In the order of
-- their keys, as all locks on counters are taken.
INSERT INTO {limit_counters} (key, full_until, expires_at, counter)
SELECT DISTINCT asked.key, 0, 0, ''::bytea
FROM unnest($1, $2, $3) AS asked (key, digest, owner)
JOIN {records} AS r ON r.digest = asked.digest AND r.owner = asked.owner AND r.state = 'in_flight'
WHERE NOT EXISTS (SELECT FROM {limit_counters} AS c WHERE c.key = asked.key)
ORDER BY asked.key
ON CONFLICT DO NOTHING
