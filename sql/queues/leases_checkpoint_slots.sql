-- Archives that live in a lease's resume state only, from before artifacts had rows of their own.
SELECT l.account_id, l.workspace_id, l.sandbox_group_id, l.id, l.lease_epoch, l.instance_id, l.workspace_generation,
  kept.slot, kept.archive, kept.descriptor
FROM {schema}.sandbox_leases l
CROSS JOIN LATERAL (
  SELECT 'current' AS slot, l.current_checkpoint_artifact_id AS artifact_id,
    l.resume_state -> 'sessionState' ->> 'workspaceArchive' AS archive,
    l.resume_state -> 'sessionState' -> 'workspaceArchiveMeta' AS descriptor
  UNION ALL
  SELECT 'previous', l.previous_checkpoint_artifact_id,
    l.resume_state -> 'sessionState' ->> 'workspaceArchivePrev',
    l.resume_state -> 'sessionState' -> 'workspaceArchivePrevMeta'
) kept
WHERE l.backend = 'modal'
  AND l.liveness IN ('warming', 'warm', 'draining')
  AND l.instance_id IS NOT NULL
  -- Said of the lease as well, so that only those with such a slot are sorted.
  AND (
    l.current_checkpoint_artifact_id IS NULL AND l.resume_state -> 'sessionState' ->> 'workspaceArchive' <> ''
    OR l.previous_checkpoint_artifact_id IS NULL AND l.resume_state -> 'sessionState' ->> 'workspaceArchivePrev' <> ''
  )
  AND kept.artifact_id IS NULL
  AND kept.archive <> ''
  AND kept.descriptor ->> 'version' = '2'
  AND kept.descriptor ->> 'provider' IN ('modal_snapshot_filesystem', 'modal_snapshot_directory')
ORDER BY l.updated_at, l.id, kept.slot
LIMIT $1
