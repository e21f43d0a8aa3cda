-- A holder that somebody has locked is somebody's who is alive; the next sweep looks again. Process holders leave by
-- the settlement of their process only.
WITH stale AS MATERIALIZED (
  SELECT h.id
  FROM unnest($3) AS due (id)
  JOIN {schema}.sandbox_lease_holders h ON h.lease_id = due.id
  WHERE h.kind IN ('viewer', 'direct') AND h.last_heartbeat_at < now() - make_interval(secs => $1 / 1000.0)
    OR h.kind = 'turn' AND $2 > 0 AND h.last_heartbeat_at < now() - make_interval(secs => greatest($2, 0) / 1000.0)
  FOR UPDATE OF h SKIP LOCKED
)
DELETE FROM {schema}.sandbox_lease_holders h USING stale WHERE h.id = stale.id
