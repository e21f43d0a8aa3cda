-- From 0.1.0 to 0.2.0: attach, detach and shadow mode, the fleet's queues, the retained-command operations, the fences.
-- What provision creates of these is created by its next run.

-- A script never runs with a library that is older than itself.
LOAD 'MODULE_PATHNAME';
DO $library$
BEGIN
  IF pg_catalog.string_to_array(pg_catalog.current_setting('opengeni_guards.library_version', true), '.')::integer[]
     OPERATOR(pg_catalog.>=) '{0,2,0}'::integer[] IS NOT TRUE
  THEN
    RAISE EXCEPTION 'opengeni_guards 0.2.0 needs its library, and an older one is loaded'
      USING ERRCODE = '55000', HINT = 'Install the library of this release and reconnect.';
  END IF;
END
$library$;

CREATE FUNCTION opengeni_guards.reap_sandbox_leases(
  data_schema text, viewer_holder_ttl_ms bigint, turn_holder_ttl_ms bigint, idle_grace_ms bigint
) RETURNS TABLE (workspace_id uuid, sandbox_group_id uuid, instance_id text, lease_epoch integer)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'reap_sandbox_leases_wrapper';

CREATE FUNCTION opengeni_guards.claim_terminal_retained_processes(
  data_schema text, claim_id uuid, claim_limit integer, claim_ttl_ms bigint
) RETURNS TABLE (
    account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, claim_id uuid, owner_state text,
    owner_attempt_outcome text
  )
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'claim_terminal_retained_processes_wrapper';

CREATE FUNCTION opengeni_guards.count_active_retained_processes_by_owner_state(data_schema text)
  RETURNS TABLE (owner_state text, active_count bigint, terminal_owner_count bigint)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'count_active_retained_processes_by_owner_state_wrapper';

CREATE FUNCTION opengeni_guards.count_expired_draining_sandbox_leases(data_schema text)
  RETURNS TABLE (backend text, age_bucket text, count bigint)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'count_expired_draining_sandbox_leases_wrapper';

CREATE FUNCTION opengeni_guards.claim_sandbox_checkpoint_artifacts(
  data_schema text, claim_id uuid, claim_limit integer, claim_ttl_ms bigint
) RETURNS TABLE (
    id uuid, provider_backend text, provider_binding_key text, provider_binding jsonb, object_kind text,
    object_id text, delete_attempts integer
  )
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'claim_sandbox_checkpoint_artifacts_wrapper';

CREATE FUNCTION opengeni_guards.settle_sandbox_checkpoint_artifact(
  data_schema text, artifact_id uuid, claim_id uuid, deleted boolean, error text, retry_after_ms bigint
) RETURNS boolean
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'settle_sandbox_checkpoint_artifact_wrapper';

CREATE FUNCTION opengeni_guards.prune_deleted_sandbox_checkpoint_artifacts(
  data_schema text, retention_ms bigint, prune_limit integer
) RETURNS integer
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'prune_deleted_sandbox_checkpoint_artifacts_wrapper';

CREATE FUNCTION opengeni_guards.list_legacy_modal_checkpoint_slots(data_schema text, slot_limit integer)
  RETURNS TABLE (
    account_id uuid, workspace_id uuid, sandbox_group_id uuid, lease_id uuid, lease_epoch integer, instance_id text,
    workspace_generation integer, slot text, archive_base64 text, descriptor jsonb
  )
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'list_legacy_modal_checkpoint_slots_wrapper';

CREATE FUNCTION opengeni_guards.request_due_sandbox_rotations(data_schema text, lead_ms bigint, batch_limit integer)
  RETURNS integer
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'request_due_sandbox_rotations_wrapper';

CREATE FUNCTION opengeni_guards.sandbox_checkpoint_artifact_inventory(data_schema text)
  RETURNS TABLE (state text, count bigint)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'sandbox_checkpoint_artifact_inventory_wrapper';

CREATE FUNCTION opengeni_guards.sandbox_rotation_backlog(data_schema text)
  RETURNS TABLE (
    requested bigint, overdue bigint, turn_blocked bigint, direct_blocked bigint, process_blocked bigint
  )
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'sandbox_rotation_backlog_wrapper';

CREATE FUNCTION opengeni_guards.list_live_modal_sandbox_leases(data_schema text)
  RETURNS TABLE (lease_id uuid, workspace_id uuid, sandbox_group_id uuid, instance_id text, liveness text)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'list_live_modal_sandbox_leases_wrapper';

CREATE FUNCTION opengeni_guards.modal_inventory_read_capability_active(data_schema text)
  RETURNS boolean
  LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'modal_inventory_read_capability_active_wrapper';

CREATE FUNCTION opengeni_guards.modal_inventory_read_capability_active(data_schema oid)
  RETURNS boolean
  LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'modal_inventory_read_capability_active_by_oid_wrapper';

CREATE FUNCTION opengeni_guards.attach(
  data_schema text DEFAULT NULL, mode text DEFAULT 'enforce', fire text DEFAULT 'origin',
  lock_timeout interval DEFAULT '5s'
) RETURNS TABLE (object text, action text, note text)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'attach_wrapper';

CREATE FUNCTION opengeni_guards.detach(data_schema text DEFAULT NULL, force boolean DEFAULT false)
  RETURNS TABLE (object text, action text, note text)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'detach_wrapper';

CREATE FUNCTION opengeni_guards.shadow_report(data_schema text)
  RETURNS TABLE (rule text, object text, refusals bigint, first_seen timestamptz, last_seen timestamptz)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'shadow_report_wrapper';

CREATE FUNCTION opengeni_guards.record_shadow_refusals()
  RETURNS trigger
  LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'record_shadow_refusals_wrapper';

CREATE FUNCTION opengeni_guards.ready(data_schema text)
  RETURNS boolean
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ready_wrapper';

CREATE FUNCTION opengeni_guards.record_supervision_receipt(
  account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, receipt jsonb,
  data_schema text DEFAULT 'public'
) RETURNS void
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'record_supervision_receipt_wrapper';

CREATE FUNCTION opengeni_guards.load_supervision_receipt(
  account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, data_schema text DEFAULT 'public'
) RETURNS jsonb
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'load_supervision_receipt_wrapper';

CREATE FUNCTION opengeni_guards.request_cancellation(
  account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, reason text, data_schema text DEFAULT 'public'
) RETURNS void
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'request_cancellation_wrapper';

CREATE FUNCTION opengeni_guards.cancellation_requested(
  account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, data_schema text DEFAULT 'public'
) RETURNS boolean
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'cancellation_requested_wrapper';

CREATE FUNCTION opengeni_guards.request_deadline_cancellation(
  account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, data_schema text DEFAULT 'public'
) RETURNS boolean
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'request_deadline_cancellation_wrapper';

CREATE FUNCTION opengeni_guards.reserve_input(
  account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, byte_length bigint DEFAULT NULL,
  data_schema text DEFAULT 'public'
) RETURNS bigint
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'reserve_input_wrapper';

CREATE FUNCTION opengeni_guards.acknowledge_output(
  account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, command jsonb,
  data_schema text DEFAULT 'public'
) RETURNS jsonb
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'acknowledge_output_wrapper';

CREATE FUNCTION opengeni_guards.capture_router_output(
  account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, expected jsonb, command jsonb, stdout text,
  stderr text, data_schema text DEFAULT 'public'
) RETURNS TABLE (command jsonb, captured boolean, events jsonb)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'capture_router_output_wrapper';

CREATE FUNCTION opengeni_guards.supervised_command_protocol_ready(data_schema text DEFAULT 'public')
  RETURNS boolean
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'supervised_command_protocol_ready_wrapper';

CREATE FUNCTION opengeni_guards.enrollment_membership_fence(account_id uuid)
  RETURNS void
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'enrollment_membership_fence_wrapper';

CREATE FUNCTION opengeni_guards.workspace_membership_fence(account_id uuid)
  RETURNS void
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'workspace_membership_fence_wrapper';

CREATE FUNCTION opengeni_guards.install_membership_fences(data_schema text DEFAULT 'public')
  RETURNS TABLE (object text, action text, note text)
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'install_membership_fences_wrapper';

CREATE FUNCTION opengeni_guards.assert_application_roles_stopped(
  roles jsonb, message text DEFAULT 'enrollment membership migration requires stopped application roles'
) RETURNS void
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'assert_application_roles_stopped_wrapper';

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

-- A session's metadata without the identity by which an authority was once selected: new sessions cannot write it.
CREATE FUNCTION opengeni_guards.without_retired_session_create_metadata(metadata jsonb) RETURNS jsonb
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN CASE
    WHEN jsonb_typeof(metadata) = 'object' THEN metadata - '_opengeni_session_create_host_delegations_v1'
    ELSE metadata
  END;

-- Whether metadata still selects an authority: nonempty or malformed selections must not be replayed as native creates.
CREATE FUNCTION opengeni_guards.has_retired_session_create_selection(metadata jsonb) RETURNS boolean
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN coalesce(
    metadata -> '_opengeni_session_create_host_delegations_v1' NOT IN ('null'::jsonb, '[]'::jsonb),
    false
  );

-- As a new installation has it, whatever default privileges say; what is there already keeps its privileges.
GRANT EXECUTE ON FUNCTION
  opengeni_guards.reap_sandbox_leases(text, bigint, bigint, bigint),
  opengeni_guards.claim_terminal_retained_processes(text, uuid, integer, bigint),
  opengeni_guards.count_active_retained_processes_by_owner_state(text),
  opengeni_guards.count_expired_draining_sandbox_leases(text),
  opengeni_guards.claim_sandbox_checkpoint_artifacts(text, uuid, integer, bigint),
  opengeni_guards.settle_sandbox_checkpoint_artifact(text, uuid, uuid, boolean, text, bigint),
  opengeni_guards.prune_deleted_sandbox_checkpoint_artifacts(text, bigint, integer),
  opengeni_guards.list_legacy_modal_checkpoint_slots(text, integer),
  opengeni_guards.request_due_sandbox_rotations(text, bigint, integer),
  opengeni_guards.sandbox_checkpoint_artifact_inventory(text),
  opengeni_guards.sandbox_rotation_backlog(text),
  opengeni_guards.list_live_modal_sandbox_leases(text),
  opengeni_guards.modal_inventory_read_capability_active(text),
  opengeni_guards.modal_inventory_read_capability_active(oid),
  opengeni_guards.attach(text, text, text, interval),
  opengeni_guards.detach(text, boolean),
  opengeni_guards.shadow_report(text),
  opengeni_guards.record_shadow_refusals(),
  opengeni_guards.ready(text),
  opengeni_guards.record_supervision_receipt(uuid, uuid, uuid, uuid, jsonb, text),
  opengeni_guards.load_supervision_receipt(uuid, uuid, uuid, uuid, text),
  opengeni_guards.request_cancellation(uuid, uuid, uuid, uuid, text, text),
  opengeni_guards.cancellation_requested(uuid, uuid, uuid, uuid, text),
  opengeni_guards.request_deadline_cancellation(uuid, uuid, uuid, uuid, text),
  opengeni_guards.reserve_input(uuid, uuid, uuid, uuid, bigint, text),
  opengeni_guards.acknowledge_output(uuid, uuid, uuid, uuid, jsonb, text),
  opengeni_guards.capture_router_output(uuid, uuid, uuid, uuid, jsonb, jsonb, text, text, text),
  opengeni_guards.supervised_command_protocol_ready(text),
  opengeni_guards.enrollment_membership_fence(uuid),
  opengeni_guards.workspace_membership_fence(uuid),
  opengeni_guards.install_membership_fences(text),
  opengeni_guards.assert_application_roles_stopped(jsonb, text),
  opengeni_guards.warming_reset_resume_state_v2(text, text, jsonb, integer, integer, timestamp with time zone),
  opengeni_guards.without_retired_session_create_metadata(jsonb),
  opengeni_guards.has_retired_session_create_selection(jsonb)
  TO PUBLIC;
