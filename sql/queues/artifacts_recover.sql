-- Claims whose holder went away without settling them. One that a lease refers to is left as it is: its state would be
-- refused at COMMIT, and everything else with it.
WITH abandoned AS MATERIALIZED (
  SELECT a.id
  FROM {schema}.sandbox_checkpoint_artifacts a
  WHERE a.state = 'deleting' AND a.delete_claimed_at < now() - $2 * interval '1 millisecond'
    AND NOT EXISTS (
      SELECT FROM {schema}.sandbox_leases l
      WHERE l.current_checkpoint_artifact_id = a.id AND l.current_checkpoint_artifact_id IS NOT NULL
    )
    AND NOT EXISTS (
      SELECT FROM {schema}.sandbox_leases l
      WHERE l.previous_checkpoint_artifact_id = a.id AND l.previous_checkpoint_artifact_id IS NOT NULL
    )
  ORDER BY a.delete_claimed_at, a.id
  LIMIT $1
  FOR UPDATE OF a SKIP LOCKED
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
