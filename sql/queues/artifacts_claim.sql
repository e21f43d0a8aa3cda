-- Whatever its state says, an artifact that a lease refers to is not for deletion. Those that leases may refer to are
-- compared with the leases' references index by index; of those that are due already, no more are looked at than are
-- claimed. What somebody else has changed meanwhile is judged again once it is locked.
WITH due AS MATERIALIZED (
  SELECT a.id, ripe.due_at
  FROM (
    (
      SELECT k.id, coalesce(k.delete_after, k.created_at) AS due_at
      FROM {schema}.sandbox_checkpoint_artifacts k
      WHERE k.state IN ('candidate', 'current', 'previous') AND k.created_at < now() - interval '15 minutes'
        AND NOT EXISTS (
          SELECT FROM {schema}.sandbox_leases l
          WHERE l.current_checkpoint_artifact_id = k.id AND l.current_checkpoint_artifact_id IS NOT NULL
        )
        AND NOT EXISTS (
          SELECT FROM {schema}.sandbox_leases l
          WHERE l.previous_checkpoint_artifact_id = k.id AND l.previous_checkpoint_artifact_id IS NOT NULL
        )
      ORDER BY due_at, k.id
    )
    UNION ALL
    (
      SELECT k.id, coalesce(k.delete_after, k.created_at) AS due_at
      FROM {schema}.sandbox_checkpoint_artifacts k
      WHERE k.state IN ('delete_pending', 'delete_failed') AND coalesce(k.delete_after, k.created_at) <= now()
        AND NOT EXISTS (
          SELECT FROM {schema}.sandbox_leases l
          WHERE l.current_checkpoint_artifact_id = k.id AND l.current_checkpoint_artifact_id IS NOT NULL
        )
        AND NOT EXISTS (
          SELECT FROM {schema}.sandbox_leases l
          WHERE l.previous_checkpoint_artifact_id = k.id AND l.previous_checkpoint_artifact_id IS NOT NULL
        )
      ORDER BY due_at, k.id
    )
  ) ripe
  JOIN {schema}.sandbox_checkpoint_artifacts a ON a.id = ripe.id
  WHERE a.state IN ('candidate', 'current', 'previous') AND a.created_at < now() - interval '15 minutes'
    OR a.state IN ('delete_pending', 'delete_failed') AND coalesce(a.delete_after, a.created_at) <= now()
  ORDER BY ripe.due_at, ripe.id
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
