-- Claims whose holder went away without settling them.
WITH abandoned AS MATERIALIZED (
  SELECT a.id
  FROM {schema}.sandbox_checkpoint_artifacts a
  WHERE a.state = 'deleting' AND a.delete_claimed_at < now() - $2 * interval '1 millisecond'
  ORDER BY a.delete_claimed_at, a.id
  LIMIT $1
  FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.sandbox_checkpoint_artifacts a
SET state = 'delete_failed',
  delete_after = now(),
  delete_claim_id = NULL,
  delete_claimed_at = NULL,
  last_delete_error = coalesce(a.last_delete_error, 'stale delete claim recovered'),
  updated_at = now()
FROM abandoned
WHERE a.id = abandoned.id
