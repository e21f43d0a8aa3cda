SELECT array_agg(due.id)
FROM (
  SELECT p.id
  FROM {schema}.sandbox_retained_processes p
  WHERE p.state = 'active' AND p.reconcile_after <= now()
  ORDER BY p.reconcile_after, p.started_at, p.id
  LIMIT $1
  FOR UPDATE SKIP LOCKED
) due
