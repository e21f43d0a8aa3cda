-- What the worker has to tear down.
SELECT l.workspace_id, l.sandbox_group_id, l.instance_id, l.lease_epoch
FROM {schema}.sandbox_leases l
WHERE l.liveness = 'draining' AND l.expires_at < now() AND l.refcount = 0
ORDER BY l.expires_at, l.id
