-- The leases that a sweep has to write, in the order in which it locks them. Leases that are cold and count nobody are
-- not read unless somebody holds them.
WITH held AS (
  SELECT h.lease_id,
    count(*) AS total,
    count(*) FILTER (WHERE h.kind = 'turn') AS turns,
    count(*) FILTER (WHERE h.kind = 'viewer') AS viewers
  FROM {schema}.sandbox_lease_holders h
  GROUP BY h.lease_id
), live AS (
  SELECT l.id, l.liveness, l.refcount, l.turn_holders, l.viewer_holders, l.expires_at
  FROM {schema}.sandbox_leases l
  WHERE l.liveness <> 'cold' OR l.refcount <> 0 OR l.turn_holders <> 0 OR l.viewer_holders <> 0
), due (id) AS (
  SELECT coalesce(live.id, held.lease_id)
  FROM live FULL JOIN held ON held.lease_id = live.id
  WHERE coalesce(live.refcount, 0) <> coalesce(held.total, 0)
    OR coalesce(live.turn_holders, 0) <> coalesce(held.turns, 0)
    OR coalesce(live.viewer_holders, 0) <> coalesce(held.viewers, 0)
    OR live.liveness = 'warm' AND held.total IS NULL
    OR live.liveness = 'warming' AND live.expires_at < now()
  UNION
  SELECT h.lease_id
  FROM {schema}.sandbox_lease_holders h
  WHERE h.kind IN ('viewer', 'direct')
    AND h.last_heartbeat_at < now() - make_interval(secs => $1 / 1000.0)
  UNION
  SELECT h.lease_id
  FROM {schema}.sandbox_lease_holders h
  WHERE h.kind = 'turn'
    AND $2 > 0
    AND h.last_heartbeat_at < now() - make_interval(secs => greatest($2, 0) / 1000.0)
)
SELECT array_agg(due.id ORDER BY due.id) FROM due
