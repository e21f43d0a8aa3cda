SELECT array_agg(due.id ORDER BY due.id)
FROM (
  SELECT l.id
  FROM {schema}.sandbox_leases l
  WHERE l.backend = 'modal'
    AND l.liveness IN ('warming', 'warm')
    AND l.provider_deadline_at <= now() + $1 * interval '1 millisecond'
    AND l.rotation_requested_at IS NULL
  ORDER BY l.provider_deadline_at, l.id
  LIMIT $2
  FOR UPDATE SKIP LOCKED
) due
