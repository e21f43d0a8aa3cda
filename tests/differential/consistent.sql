SELECT
  (SELECT count(*) FROM public.sandbox_retained_processes process
   WHERE process.workspace_id = :workspace AND process.xmin::text::bigint >= :floor AND NOT EXISTS (
     SELECT FROM public.sandbox_workspace_mutation_admissions admission
     WHERE admission.id = process.parent_admission_id
       AND (admission.account_id, admission.workspace_id, admission.session_id, admission.lease_id,
            admission.sandbox_group_id, admission.actor_kind, admission.actor_id, admission.lease_epoch,
            admission.provider_backend, admission.provider_instance_id, admission.route_kind, admission.route_epoch)
         = (process.account_id, process.workspace_id, process.session_id, process.lease_id,
            process.sandbox_group_id, process.owner_actor_kind, process.owner_actor_id, process.lease_epoch,
            process.provider_backend, process.provider_instance_id, process.route_kind, process.route_epoch)
       AND ROW(admission.turn_id, admission.attempt_id, admission.execution_generation, admission.route_target_id)
         IS NOT DISTINCT FROM ROW(process.owner_turn_id, process.owner_attempt_id,
            process.owner_execution_generation, process.route_target_id)
       AND CASE WHEN process.state = 'active'
         THEN admission.provider_outcome = 'retained' AND admission.settled_at IS NULL AND EXISTS (
           SELECT FROM public.sandbox_lease_holders holder
           WHERE holder.kind = 'process'
             AND (holder.lease_id, holder.account_id, holder.workspace_id, holder.holder_id, holder.subject_id)
               = (process.lease_id, process.account_id, process.workspace_id, process.holder_id, process.session_id))
         ELSE admission.provider_outcome IN ('resolved', 'rejected') AND admission.settled_at IS NOT NULL
           AND NOT EXISTS (SELECT FROM public.sandbox_lease_holders holder
             WHERE holder.kind = 'process' AND holder.lease_id = process.lease_id
               AND holder.holder_id = process.holder_id)
           AND NOT EXISTS (SELECT FROM public.sandbox_pty_sessions pty
             WHERE pty.retained_process_id = process.id AND pty.status = 'open')
         END))
  +
  (SELECT count(*) FROM public.sandbox_pty_sessions pty
   WHERE pty.workspace_id = :workspace AND pty.xmin::text::bigint >= :floor AND pty.status = 'open' AND NOT EXISTS (
     SELECT FROM public.sandbox_retained_processes process
     WHERE process.state = 'active' AND process.id = pty.retained_process_id
       AND process.route_target_id IS NOT DISTINCT FROM pty.route_target_id
       AND (process.account_id, process.workspace_id, process.session_id, process.lease_id,
            process.sandbox_group_id, process.parent_admission_id, process.lease_epoch, process.provider_backend,
            process.provider_instance_id, process.route_kind, process.route_epoch, process.provider_session_id)
         = (pty.account_id, pty.workspace_id, pty.session_id, pty.lease_id,
            pty.sandbox_group_id, pty.open_admission_id, pty.lease_epoch, pty.provider_backend,
            pty.provider_instance_id, pty.route_kind, pty.route_epoch, pty.exec_session_id)))
  +
  (SELECT count(*) FROM public.sandbox_leases lease
   WHERE lease.workspace_id = :workspace AND lease.xmin::text::bigint >= :floor
     AND (lease.current_checkpoint_artifact_id IS NOT NULL AND NOT EXISTS (
       SELECT FROM public.sandbox_checkpoint_artifacts artifact
       WHERE artifact.id = lease.current_checkpoint_artifact_id AND artifact.state = 'current'
         AND artifact.source_lease_id = lease.id AND artifact.sandbox_group_id = lease.sandbox_group_id
         AND artifact.archive_base64 = lease.resume_state #>> '{sessionState,workspaceArchive}'
         AND artifact.descriptor_revision = lease.resume_state #>> '{sessionState,workspaceArchiveMeta,revision}')
     OR lease.previous_checkpoint_artifact_id IS NOT NULL AND NOT EXISTS (
       SELECT FROM public.sandbox_checkpoint_artifacts artifact
       WHERE artifact.id = lease.previous_checkpoint_artifact_id AND artifact.state = 'previous'
         AND artifact.source_lease_id = lease.id AND artifact.sandbox_group_id = lease.sandbox_group_id
         AND artifact.archive_base64 = lease.resume_state #>> '{sessionState,workspaceArchivePrev}'
         AND artifact.descriptor_revision
           = lease.resume_state #>> '{sessionState,workspaceArchivePrevMeta,revision}')))
