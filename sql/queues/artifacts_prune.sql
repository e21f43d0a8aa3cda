WITH forgotten AS MATERIALIZED (
  SELECT a.id
  FROM {schema}.sandbox_checkpoint_artifacts a
  WHERE a.state = 'deleted' AND a.deleted_at < now() - $1 * interval '1 millisecond'
    AND NOT EXISTS (
      SELECT FROM {schema}.sandbox_leases l
      WHERE l.current_checkpoint_artifact_id = a.id AND l.current_checkpoint_artifact_id IS NOT NULL
    )
    AND NOT EXISTS (
      SELECT FROM {schema}.sandbox_leases l
      WHERE l.previous_checkpoint_artifact_id = a.id AND l.previous_checkpoint_artifact_id IS NOT NULL
    )
  ORDER BY a.deleted_at, a.id
  LIMIT $2
  FOR UPDATE OF a SKIP LOCKED
)
DELETE FROM {schema}.sandbox_checkpoint_artifacts a USING forgotten WHERE a.id = forgotten.id
