SELECT p.provider_command, p.state = 'active',
  p.cancellation_requested_at IS NOT NULL OR p.supervision_receipt IS NOT NULL, p.provider_command_input_index
FROM {schema}.sandbox_retained_processes p
WHERE p.account_id = $1 AND p.workspace_id = $2 AND p.session_id = $3 AND p.id = $4
FOR UPDATE
