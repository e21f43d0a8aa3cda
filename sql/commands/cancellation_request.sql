-- When it was requested, which may be long after the transaction began.
UPDATE {schema}.sandbox_retained_processes p
SET cancellation_requested_at = clock_timestamp(), cancellation_reason = $5
WHERE p.account_id = $1 AND p.workspace_id = $2 AND p.session_id = $3 AND p.id = $4
