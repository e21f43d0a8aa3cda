UPDATE {schema}.sandbox_leases l
SET rotation_requested_at = now(),
  rotation_reason = 'provider_deadline',
  refcount = counted.total,
  turn_holders = counted.turns,
  viewer_holders = counted.viewers,
  liveness = CASE WHEN l.liveness = 'warm' AND counted.total = 0 THEN 'draining' ELSE l.liveness END,
  expires_at = CASE
    WHEN l.liveness = 'warm' AND counted.total = 0 THEN now() - interval '1 millisecond'
    ELSE l.expires_at
  END,
  updated_at = now()
FROM unnest($1) AS due (id)
CROSS JOIN LATERAL (
  SELECT count(*)::integer AS total,
    count(*) FILTER (WHERE h.kind = 'turn')::integer AS turns,
    count(*) FILTER (WHERE h.kind = 'viewer')::integer AS viewers
  FROM {schema}.sandbox_lease_holders h
  WHERE h.lease_id = due.id
) counted
WHERE l.id = due.id
