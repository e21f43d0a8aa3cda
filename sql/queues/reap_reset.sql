-- A lease that never got an instance is cold again; what its archive says is kept for the next one.
UPDATE {schema}.sandbox_leases l
SET liveness = 'cold',
  instance_id = NULL,
  lease_epoch = l.lease_epoch + 1,
  resume_state = opengeni_guards.warming_reset_resume_state_v2(
    l.backend, l.resume_backend_id, l.resume_state, l.workspace_generation, l.archive_generation, clock_timestamp()
  ),
  resume_backend_id = CASE
    WHEN l.resume_state -> 'sessionState' ->> 'workspaceArchive' <> ''
      OR l.resume_state -> 'sessionState' ->> 'workspaceArchivePrev' <> ''
    THEN coalesce(l.resume_backend_id, l.backend)
  END,
  data_plane_url = NULL,
  terminal_data_plane_url = NULL,
  updated_at = now()
FROM unnest($1) AS unborn (id)
WHERE l.id = unborn.id
