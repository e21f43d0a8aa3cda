SELECT p.provider_command, p.provider_backend = 'modal', p.supervision_output_captured
FROM {schema}.sandbox_retained_processes p
WHERE p.account_id = $1 AND p.workspace_id = $2 AND p.session_id = $3 AND p.id = $4
FOR UPDATE
