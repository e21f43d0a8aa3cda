-- A fleet of :leases leases in one of the states `cold` (without artifacts), `live` and `mixed` (:state). Loaded as a replica would, so that
-- guards and foreign keys do not look at it. The ids are spread as random ones are.
SET session_replication_role = replica;

CREATE OR REPLACE FUNCTION pg_temp.id(kind text, n integer) RETURNS uuid IMMUTABLE LANGUAGE sql
  RETURN md5(kind || n)::uuid;

TRUNCATE managed_accounts, workspaces, sessions, session_turns, session_turn_attempts, sandbox_leases, sandbox_lease_holders,
  sandbox_workspace_mutation_admissions, sandbox_retained_processes, sandbox_pty_sessions, sandbox_checkpoint_artifacts CASCADE;

CREATE TEMP TABLE fleet AS
  SELECT n, pg_temp.id('account', 1) AS account, pg_temp.id('workspace', n / 100) AS workspace,
    pg_temp.id('session', n) AS session, pg_temp.id('group', n) AS sandbox_group, pg_temp.id('lease', n) AS lease,
    CASE
      WHEN ':state' <> 'mixed' THEN ':state'
      WHEN n % 2 = 1 THEN 'cold'
      WHEN n % 50 = 0 THEN 'draining'
      WHEN n % 100 = 14 THEN 'warming'
      ELSE 'live'
    END AS stage,
    ':state' = 'mixed' AND n % 10 = 2 AS process,
    -- A checkpoint from before artifacts had rows.
    ':state' = 'mixed' AND n % 100 = 18 AS legacy
  FROM generate_series(1, :leases) n;
ANALYZE fleet;

INSERT INTO managed_accounts (id, name) VALUES (pg_temp.id('account', 1), 'fleet');
INSERT INTO workspaces (id, account_id, name) SELECT DISTINCT workspace, account, 'w' FROM fleet;
INSERT INTO sessions (id, initial_message, model, sandbox_backend, account_id, workspace_id, sandbox_group_id)
  SELECT session, '', 'm', 'modal', account, workspace, sandbox_group FROM fleet WHERE process;

INSERT INTO sandbox_leases
    (id, account_id, workspace_id, sandbox_group_id, liveness, refcount, turn_holders, instance_id, backend, lease_epoch,
     resume_backend_id, resume_state, expires_at, updated_at, workspace_generation, archive_generation,
     provider_created_at, provider_deadline_at, rotation_requested_at, rotation_reason, current_checkpoint_artifact_id)
  SELECT lease, account, workspace, sandbox_group, CASE stage WHEN 'live' THEN 'warm' ELSE stage END,
    CASE stage WHEN 'live' THEN 1 ELSE 0 END + process::integer, CASE stage WHEN 'live' THEN 1 ELSE 0 END,
    CASE WHEN stage IN ('live', 'draining') THEN 'sb-' || n END, 'modal', 3, 'modal',
    jsonb_build_object('sessionState', jsonb_build_object('workspaceArchive', encode(sha256(n::text::bytea), 'base64'),
      'workspaceArchiveMeta', jsonb_build_object('version', 2, 'provider', 'modal_snapshot_filesystem', 'revision', 'r' || n))),
    now() + CASE stage WHEN 'draining' THEN -interval '2 hours' WHEN 'cold' THEN -interval '1 day' ELSE interval '1 day' END,
    now() - n * interval '1 second', 30, 30,
    CASE stage WHEN 'live' THEN now() - interval '2 days' END,
    CASE stage WHEN 'live' THEN now() - interval '1 hour' + n % 1000 * interval '90 seconds' END,
    CASE WHEN stage = 'live' AND n % 100 = 6 AND ':state' = 'mixed' THEN now() END,
    CASE WHEN stage = 'live' AND n % 100 = 6 AND ':state' = 'mixed' THEN 'provider_deadline' END,
    CASE WHEN NOT legacy AND ':state' <> 'cold' THEN pg_temp.id('artifact', n) END
  FROM fleet;
INSERT INTO sandbox_lease_holders (id, account_id, workspace_id, lease_id, kind, holder_id, subject_id, last_heartbeat_at)
  SELECT pg_temp.id('holder', n), account, workspace, lease, 'turn', 'h-' || n, session, now() + interval '1 day'
  FROM fleet WHERE stage = 'live';

-- Every tenth lease has a process whose reconciliation is due: half of them direct ones, a quarter of an attempt that has
-- ended, a quarter of one at work.
INSERT INTO sandbox_lease_holders (id, account_id, workspace_id, lease_id, kind, holder_id, subject_id)
  SELECT pg_temp.id('process holder', n), account, workspace, lease, 'process', 'p-' || n, session
  FROM fleet WHERE process;
INSERT INTO session_turns
    (id, session_id, trigger_event_id, temporal_workflow_id, status, position, prompt, model, reasoning_effort, sandbox_backend,
     account_id, workspace_id)
  SELECT pg_temp.id('turn', n), session, session, 'w', CASE n % 40 WHEN 12 THEN 'completed' ELSE 'running' END, n, '', 'm', '',
    'modal', account, workspace
  FROM fleet WHERE process AND n % 20 = 12;
INSERT INTO session_turn_attempts
    (id, account_id, workspace_id, session_id, turn_id, execution_generation, state, outcome, closed_at,
     temporal_workflow_id, temporal_workflow_run_id, temporal_activity_id, verified_control_revision, mcp_approval_policies)
  SELECT pg_temp.id('attempt', n), account, workspace, session, pg_temp.id('turn', n), 1,
    CASE n % 40 WHEN 12 THEN 'closed' ELSE 'running' END, CASE n % 40 WHEN 12 THEN 'completed' END,
    CASE n % 40 WHEN 12 THEN now() END, 'w', 'r' || n, 'a', 1, '{}'
  FROM fleet WHERE process AND n % 20 = 12;
INSERT INTO sandbox_workspace_mutation_admissions
    (id, account_id, workspace_id, lease_id, sandbox_group_id, session_id, actor_kind, actor_id, turn_id, attempt_id,
     execution_generation, holder_kind, holder_id, lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch,
     workspace_generation, operation, provider_outcome)
  SELECT pg_temp.id('parent', n), account, workspace, lease, sandbox_group, session, actor.kind, actor.id, actor.turn, actor.attempt,
    actor.generation, actor.kind, 'a-' || n, 3, 'modal', 'sb-' || n, 'home', 0, 1, 'exec', 'retained'
  FROM fleet, LATERAL (
    SELECT CASE n % 20 WHEN 12 THEN 'turn' ELSE 'direct' END AS kind,
      CASE n % 20 WHEN 12 THEN pg_temp.id('attempt', n) ELSE pg_temp.id('actor', n) END AS id,
      CASE n % 20 WHEN 12 THEN pg_temp.id('turn', n) END AS turn,
      CASE n % 20 WHEN 12 THEN pg_temp.id('attempt', n) END AS attempt,
      CASE n % 20 WHEN 12 THEN 1 END AS generation
  ) actor
  WHERE process;
INSERT INTO sandbox_retained_processes
    (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id, parent_admission_id, holder_id,
     owner_actor_kind, owner_actor_id, owner_turn_id, owner_attempt_id, owner_execution_generation,
     lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, provider_session_id, reconcile_after, started_at)
  SELECT pg_temp.id('process', f.n), a.account_id, a.workspace_id, a.session_id, a.lease_id, a.sandbox_group_id, a.id, 'p-' || f.n,
    a.actor_kind, a.actor_id, a.turn_id, a.attempt_id, a.execution_generation,
    3, 'modal', 'sb-' || f.n, 'home', 0, 1, now() - f.n * interval '1 second', now() - interval '1 day'
  FROM fleet f JOIN sandbox_workspace_mutation_admissions a ON a.lease_id = f.lease;

-- An artifact for every lease that refers to one; in a mixed fleet also such as are due for deletion, under deletion, and deleted.
INSERT INTO sandbox_checkpoint_artifacts
    (id, account_id, workspace_id, sandbox_group_id, source_lease_id, source_lease_epoch, source_instance_id, source_workspace_generation,
     provenance, provider_backend, provider_binding_key, provider_binding, object_kind, object_id, archive_base64, archive_sha256, archive_bytes,
     descriptor, descriptor_revision, state, delete_after, delete_claim_id, delete_claimed_at, deleted_at, created_at)
  SELECT CASE kind.name WHEN 'current' THEN pg_temp.id('artifact', f.n) ELSE pg_temp.id(kind.name, f.n) END,
    f.account, f.workspace, f.sandbox_group, f.lease, 3, 'sb-' || f.n, 30,
    'native_capture', 'modal', '{"version":1,"serverUrl":"s","workspaceName":"w","environment":"e"}',
    '{"version":1,"serverUrl":"s","workspaceName":"w","environment":"e"}', 'modal_filesystem_snapshot', kind.name || f.n,
    encode(archive, 'base64'), encode(sha256(archive), 'hex'), length(archive),
    jsonb_build_object('version', 2, 'kind', 'provider_snapshot', 'revision', 'r' || f.n, 'archiveSha256', encode(sha256(archive), 'hex'),
      'archiveBytes', length(archive), 'snapshotId', kind.name || f.n, 'provider', 'modal_snapshot_filesystem',
      'workspacePersistence', 'snapshot_filesystem'),
    'r' || f.n, kind.name,
    CASE kind.name WHEN 'delete_pending' THEN now() - f.n * interval '1 second' END,
    CASE kind.name WHEN 'deleting' THEN pg_temp.id('claim', 1) END,
    CASE kind.name WHEN 'deleting' THEN now() + interval '1 day' END,
    CASE kind.name WHEN 'deleted' THEN now() - interval '100 days' - f.n * interval '1 second' END,
    now() - interval '30 days' - f.n * interval '1 second'
  FROM fleet f
  CROSS JOIN LATERAL unnest(ARRAY[
    CASE WHEN NOT f.legacy AND ':state' <> 'cold' THEN 'current' END,
    CASE WHEN ':state' = 'mixed' AND f.n <= greatest(200, :leases / 100) THEN 'delete_pending' END,
    CASE WHEN ':state' = 'mixed' AND f.n <= 20 THEN 'candidate' END,
    CASE WHEN ':state' = 'mixed' AND f.n = 1 THEN 'deleting' END,
    CASE WHEN ':state' = 'mixed' AND f.n <= greatest(200, :leases / 50) THEN 'deleted' END
  ]) kind (name)
  CROSS JOIN convert_to('archive ' || f.n, 'UTF8') archive
  WHERE kind.name IS NOT NULL;

DROP TABLE fleet;
SET session_replication_role = origin;
