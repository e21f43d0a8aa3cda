-- The next due processes, and those together with the ones that were looked at before.
SELECT array_agg(due.id), $2 || array_agg(due.id)
FROM (
  SELECT p.id
  FROM {schema}.sandbox_retained_processes p
  WHERE p.state = 'active' AND p.reconcile_after <= now() AND (p.id = ANY ($2)) IS NOT TRUE
  ORDER BY p.reconcile_after, p.started_at, p.id
  LIMIT $1
  FOR UPDATE SKIP LOCKED
) due
