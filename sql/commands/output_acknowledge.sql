UPDATE {schema}.sandbox_retained_processes p
SET provider_command = jsonb_set(p.provider_command, '{streams}', jsonb_build_object(
  'stdout', CASE WHEN $6 THEN $5 ELSE p.provider_command END #> '{streams,stdout}',
  'stderr', CASE WHEN $7 THEN $5 ELSE p.provider_command END #> '{streams,stderr}'
))
WHERE p.account_id = $1 AND p.workspace_id = $2 AND p.session_id = $3 AND p.id = $4
RETURNING p.provider_command
