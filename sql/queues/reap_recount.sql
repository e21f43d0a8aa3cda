-- Counters follow the holders; a warm lease that nobody holds drains after the grace.
UPDATE {schema}.sandbox_leases l
SET refcount = counted.total,
  turn_holders = counted.turns,
  viewer_holders = counted.viewers,
  liveness = CASE WHEN l.liveness = 'warm' AND counted.total = 0 THEN 'draining' ELSE l.liveness END,
  expires_at = CASE
    WHEN l.liveness = 'warm' AND counted.total = 0 THEN now() + make_interval(secs => $2 / 1000.0)
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
  AND (
    l.refcount <> counted.total
    OR l.turn_holders <> counted.turns
    OR l.viewer_holders <> counted.viewers
    OR l.liveness = 'warm' AND counted.total = 0
  )
