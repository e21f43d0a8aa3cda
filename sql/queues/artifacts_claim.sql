-- Whatever its state says, an artifact that a lease refers to is not for deletion.
WITH due AS MATERIALIZED (
  SELECT a.id, coalesce(a.delete_after, a.created_at) AS due_at
  FROM {schema}.sandbox_checkpoint_artifacts a
  WHERE (
      a.state IN ('candidate', 'current', 'previous') AND a.created_at < now() - interval '15 minutes'
      OR a.state IN ('delete_pending', 'delete_failed') AND coalesce(a.delete_after, a.created_at) <= now()
    )
    AND NOT EXISTS (
      SELECT FROM {schema}.sandbox_leases l
      WHERE l.current_checkpoint_artifact_id = a.id AND l.current_checkpoint_artifact_id IS NOT NULL
    )
    AND NOT EXISTS (
      SELECT FROM {schema}.sandbox_leases l
      WHERE l.previous_checkpoint_artifact_id = a.id AND l.previous_checkpoint_artifact_id IS NOT NULL
    )
  ORDER BY coalesce(a.delete_after, a.created_at), a.id
  LIMIT $2
  FOR UPDATE OF a SKIP LOCKED
), claimed AS (
  UPDATE {schema}.sandbox_checkpoint_artifacts a
  SET state = 'deleting',
    delete_attempts = a.delete_attempts + 1,
    delete_claim_id = $1,
    delete_claimed_at = now(),
    updated_at = now()
  FROM due
  WHERE a.id = due.id
  RETURNING a.id, a.provider_backend, a.provider_binding_key, a.provider_binding, a.object_kind, a.object_id,
    a.delete_attempts, due.due_at
)
SELECT id, provider_backend, provider_binding_key, provider_binding, object_kind, object_id, delete_attempts
FROM claimed
ORDER BY due_at, id
