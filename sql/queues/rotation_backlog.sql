SELECT count(*),
  count(*) FILTER (WHERE l.provider_deadline_at <= now()),
  count(*) FILTER (WHERE held.turn),
  count(*) FILTER (WHERE held.direct),
  count(*) FILTER (WHERE held.process)
FROM {schema}.sandbox_leases l
CROSS JOIN LATERAL (
  SELECT bool_or(h.kind = 'turn') AS turn, bool_or(h.kind = 'direct') AS direct, bool_or(h.kind = 'process') AS process
  FROM {schema}.sandbox_lease_holders h
  WHERE h.lease_id = l.id
) held
WHERE l.backend = 'modal'
  AND l.liveness IN ('warming', 'warm', 'draining')
  AND l.rotation_requested_at IS NOT NULL
