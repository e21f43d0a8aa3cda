-- The leases among these that never got an instance in time, and whether their checkpoints are checked at COMMIT.
SELECT array_agg(l.id ORDER BY l.id),
  bool_or(EXISTS (
    SELECT FROM pg_constraint k
    WHERE k.conrelid = l.tableoid AND k.conname = 'sandbox_checkpoint_refs_guard' AND k.condeferrable
  ))
FROM unnest($1) AS due (id)
JOIN {schema}.sandbox_leases l ON l.id = due.id
WHERE l.liveness = 'warming' AND l.expires_at < now() AND l.instance_id IS NULL
