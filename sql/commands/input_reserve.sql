UPDATE {schema}.sandbox_retained_processes p
SET provider_command_input_index = $5
WHERE p.account_id = $1 AND p.workspace_id = $2 AND p.session_id = $3 AND p.id = $4
