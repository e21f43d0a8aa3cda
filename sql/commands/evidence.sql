SELECT p.supervision_receipt, p.cancellation_requested_at IS NOT NULL
FROM {schema}.sandbox_retained_processes p
WHERE p.account_id = $1 AND p.workspace_id = $2 AND p.session_id = $3 AND p.id = $4
