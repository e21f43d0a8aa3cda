-- What an expired warming lease's resume state becomes: its archives, and a recovery record that says that no provider
-- sandbox exists. NULL where there is no archive to keep. Keys without a value are left out, at every depth.
CREATE FUNCTION opengeni_guards.warming_reset_resume_state_v2(
  backend text,
  resume_backend_id text,
  resume_state jsonb,
  workspace_generation integer,
  archive_generation integer,
  reset_at timestamp with time zone
) RETURNS jsonb LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT CASE WHEN kept.current <> '' OR kept.previous <> '' THEN jsonb_strip_nulls(jsonb_build_object(
    'backendId', coalesce(resume_state ->> 'backendId', resume_backend_id, backend),
    'sessionState', jsonb_build_object(
      'workspaceArchive', kept.session -> 'workspaceArchive',
      'workspaceArchiveMeta', kept.session -> 'workspaceArchiveMeta',
      'workspaceArchivePrev', kept.session -> 'workspaceArchivePrev',
      'workspaceArchivePrevMeta', kept.session -> 'workspaceArchivePrevMeta',
      'workspaceArchiveAt', kept.session -> 'workspaceArchiveAt'
    ),
    'opengeniRecovery', jsonb_build_object(
      'provider', jsonb_build_object('status', 'not_created', 'observedAt', reset_at),
      'archive', coalesce(
        kept.recovery -> 'archive',
        jsonb_build_object(
          'status', CASE WHEN kept.described THEN 'available' ELSE 'unverified' END,
          'current', kept.session -> 'workspaceArchiveMeta',
          'previous', kept.session -> 'workspaceArchivePrevMeta'
        )
      ),
      'restore', jsonb_build_object(
        'status', CASE WHEN kept.described AND kept.fresh THEN 'pending' ELSE 'degraded' END,
        'selectedRevision', coalesce(
          kept.recovery -> 'archive' -> 'current' ->> 'revision',
          kept.session -> 'workspaceArchiveMeta' ->> 'revision'
        ),
        'completedAt', reset_at,
        'failureCode', CASE WHEN kept.described AND kept.fresh THEN NULL ELSE 'archive_generation_mismatch' END,
        'retryable', CASE WHEN kept.described AND kept.fresh THEN NULL ELSE false END
      ),
      'workspace', jsonb_build_object(
        'status', CASE WHEN kept.described AND kept.fresh THEN 'not_ready' ELSE 'degraded' END
      )
    )
  )) END
  FROM (
    SELECT resume_state -> 'sessionState' AS session,
      resume_state -> 'opengeniRecovery' AS recovery,
      resume_state -> 'sessionState' ->> 'workspaceArchive' AS current,
      resume_state -> 'sessionState' ->> 'workspaceArchivePrev' AS previous,
      resume_state -> 'sessionState' ->> 'workspaceArchive' <> ''
        AND resume_state -> 'sessionState' -> 'workspaceArchiveMeta' IS NOT NULL AS described,
      archive_generation = workspace_generation AS fresh
  ) kept;
END;

