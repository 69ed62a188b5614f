INSERT INTO semel_operation (name, key, version, input, owner, fence, lease_until)
VALUES ($1, $2, $3, $4, $5, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    clock_timestamp() + $6::bigint * interval '1 millisecond')
ON CONFLICT (name, key) DO NOTHING
RETURNING 
