-- An instance came up too late for whoever waited for it: it drains, and nobody counts any more.
UPDATE {schema}.sandbox_leases l
SET liveness = 'draining',
  refcount = 0,
  turn_holders = 0,
  viewer_holders = 0,
  data_plane_url = NULL,
  terminal_data_plane_url = NULL,
  lease_epoch = l.lease_epoch + 1,
  expires_at = now() - interval '1 millisecond',
  updated_at = now()
FROM unnest($1) AS due (id)
WHERE l.id = due.id AND l.liveness = 'warming' AND l.expires_at < now() AND l.instance_id IS NOT NULL
