SELECT l.id, l.workspace_id, l.sandbox_group_id, l.instance_id, l.liveness
FROM {schema}.sandbox_leases l
WHERE l.liveness IN ('warming', 'warm', 'draining')
  AND (l.backend = 'modal' OR l.resume_backend_id = 'modal')
