-- The leases among these that never got an instance in time.
SELECT array_agg(l.id ORDER BY l.id)
FROM unnest($1) AS due (id)
JOIN {schema}.sandbox_leases l ON l.id = due.id
WHERE l.liveness = 'warming' AND l.expires_at < now() AND l.instance_id IS NULL
