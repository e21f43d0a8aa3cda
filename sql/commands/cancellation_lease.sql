-- The process is locked already: what it says of its lease stays.
SELECT l.id
FROM {schema}.sandbox_retained_processes p
JOIN {schema}.sandbox_leases l ON l.id = p.lease_id
WHERE p.account_id = $1 AND p.workspace_id = $2 AND p.session_id = $3 AND p.id = $4
  AND l.account_id = p.account_id AND l.workspace_id = p.workspace_id
  AND l.sandbox_group_id = p.sandbox_group_id AND l.lease_epoch = p.lease_epoch
  AND l.backend = p.provider_backend AND l.instance_id = p.provider_instance_id
  AND l.rotation_requested_at IS NOT NULL AND l.rotation_reason = 'provider_deadline'
FOR UPDATE OF l
