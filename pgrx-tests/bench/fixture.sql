-- One workspace with :commands supervised commands, each on a lease of its own with a history of settled
-- child admissions, one open child and a spare admission; as many legacy commands; and among :others that
-- nobody measures, so that the tables have the size and the statistics of tables in use.
CREATE SCHEMA bench;

CREATE FUNCTION bench.id(kind text, n integer) RETURNS uuid IMMUTABLE LANGUAGE sql
  AS $$ SELECT md5(kind || n)::uuid $$;

CREATE FUNCTION bench.command(n integer, supervised boolean, stage text) RETURNS jsonb IMMUTABLE LANGUAGE sql AS $$
  SELECT jsonb_build_object('kind', 'modal-router-v1', 'sandboxId', 'sb-' || n, 'taskId', 'ta', 'execId', 'ex-' || n,
      'streams', CASE stage WHEN 'read' THEN
          '{"stdout": {"byteOffset": 10, "utf8Remainder": "", "eof": true, "exitCode": 0},
            "stderr": {"byteOffset": 0, "utf8Remainder": "", "eof": true, "exitCode": 0}}'::jsonb
        ELSE '{"stdout": {"byteOffset": 0, "utf8Remainder": "", "eof": false, "exitCode": null},
            "stderr": {"byteOffset": 0, "utf8Remainder": "", "eof": false, "exitCode": null}}' END)
    || CASE WHEN supervised THEN jsonb_build_object('supervision', jsonb_build_object(
         'protocol', 'native-subreaper-v1', 'invocationId', bench.id('invocation', n), 'nonce', repeat('0f', 32),
         'controlPath', '/tmp/opengeni-supervision/' || bench.id('path', n) || '.sock')) ELSE '{}' END
$$;

CREATE TABLE bench.step (n integer PRIMARY KEY, kind text NOT NULL, nth integer NOT NULL,
  process uuid NOT NULL, lease uuid NOT NULL, spare uuid NOT NULL);
INSERT INTO bench.step
  SELECT n, kind, row_number() OVER (PARTITION BY kind ORDER BY n),
    bench.id('process', n), bench.id('lease', n), bench.id('spare', n)
  FROM (SELECT n, coalesce((ARRAY['supervised', 'legacy', 'read'])[1 + (n - 1) / :commands], 'other') AS kind
        FROM generate_series(1, 3 * :commands + :others) n) numbered;
CREATE INDEX ON bench.step (kind, nth);
ANALYZE bench.step;

SELECT set_config('opengeni.account_id', bench.id('account', 1)::text, false),
       set_config('opengeni.workspace_id', bench.id('workspace', 1)::text, false),
       set_config('opengeni.sandbox_recovery_protocol_v2', '1', false);
-- Room for new versions on the same page, so that what is measured is the trigger and not index maintenance.
ALTER TABLE sandbox_leases SET (fillfactor = 45);
ALTER TABLE sandbox_retained_processes SET (fillfactor = 45);
INSERT INTO managed_accounts (id, name) VALUES (bench.id('account', 1), 'bench');
INSERT INTO workspaces (id, account_id, name) VALUES (bench.id('workspace', 1), bench.id('account', 1), 'bench');
INSERT INTO sessions (id, initial_message, model, sandbox_backend, account_id, workspace_id, sandbox_group_id)
  VALUES (bench.id('session', 1), '', 'm', 'modal', bench.id('account', 1), bench.id('workspace', 1), bench.id('group', 1));
INSERT INTO sandbox_leases (id, account_id, workspace_id, sandbox_group_id, liveness, instance_id, backend, lease_epoch, expires_at, workspace_generation)
  SELECT lease, bench.id('account', 1), bench.id('workspace', 1), bench.id('group', n), 'warm', 'sb-' || n, 'modal', 3, now() + '1 day', 30
  FROM bench.step;
INSERT INTO sandbox_workspace_mutation_admissions
    (id, account_id, workspace_id, lease_id, sandbox_group_id, session_id, actor_kind, actor_id, holder_kind, holder_id,
     lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, workspace_generation, operation, provider_outcome, settled_at)
  SELECT CASE g WHEN 1 THEN bench.id('parent', n) WHEN 2 THEN spare ELSE gen_random_uuid() END,
    bench.id('account', 1), bench.id('workspace', 1), lease, bench.id('group', n), bench.id('session', 1),
    CASE WHEN g > 2 THEN 'process' ELSE 'direct' END, CASE WHEN g > 2 THEN process ELSE bench.id('actor', n) END,
    CASE WHEN g > 2 THEN 'process' ELSE 'direct' END, 'h-' || n,
    3, 'modal', 'sb-' || n, 'home', 0, g, 'exec',
    CASE WHEN g <= 2 THEN 'retained' WHEN g > 3 OR kind = 'read' THEN 'resolved' END,
    CASE WHEN g > 3 OR g = 3 AND kind = 'read' THEN now() END
  FROM bench.step, generate_series(1, CASE kind WHEN 'other' THEN 3 ELSE 12 END) g;
INSERT INTO sandbox_retained_processes
    (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id, parent_admission_id, holder_id, owner_actor_kind, owner_actor_id,
     lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, provider_session_id, provider_command,
     supervision_receipt, supervision_output_captured)
  SELECT process, bench.id('account', 1), bench.id('workspace', 1), bench.id('session', 1), lease, bench.id('group', n),
    bench.id('parent', n), 'h-' || n, 'direct', bench.id('actor', n), 3, 'modal', 'sb-' || n, 'home', 0, 1,
    bench.command(n, kind = 'supervised' OR kind = 'read' OR kind = 'other' AND n % 2 = 0, kind),
    CASE kind WHEN 'read' THEN jsonb_build_object('protocol', 'native-subreaper-v1', 'invocationId', bench.id('invocation', n),
      'receiptId', bench.id('receipt', n), 'leaderExitCode', 0) END, kind = 'read'
  FROM bench.step;
INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
  SELECT bench.id('account', 1), bench.id('workspace', 1), lease, 'process', 'h-' || n, bench.id('session', 1) FROM bench.step;
INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
  SELECT bench.id('account', 1), bench.id('workspace', 1), lease, held, held || '-' || n, bench.id('session', 1)
  FROM bench.step, unnest(ARRAY['turn', 'viewer', 'direct']) held;
INSERT INTO sandbox_pty_sessions
    (account_id, workspace_id, session_id, exec_session_id, lease_epoch, cols, rows, shell, cwd, opened_by,
     lease_id, sandbox_group_id, retained_process_id, open_admission_id, provider_backend, provider_instance_id, route_kind, route_epoch)
  SELECT bench.id('account', 1), bench.id('workspace', 1), bench.id('session', 1), 1, 3, 80, 24, 'sh', '/', 'me',
    lease, bench.id('group', n), process, bench.id('parent', n), 'modal', 'sb-' || n, 'home', 0
  FROM bench.step;
INSERT INTO sandbox_checkpoint_artifacts
    (id, account_id, workspace_id, sandbox_group_id, source_lease_id, source_lease_epoch, source_instance_id, source_workspace_generation,
     provenance, provider_backend, provider_binding_key, provider_binding, object_kind, object_id, archive_base64, archive_sha256, archive_bytes,
     descriptor, descriptor_revision, state)
  SELECT bench.id('artifact', n), bench.id('account', 1), bench.id('workspace', 1), bench.id('group', n), lease, 3, 'sb-' || n, 30,
    'native_capture', 'modal', '{"version":1,"serverUrl":"s","workspaceName":"w","environment":"e"}',
    '{"version":1,"serverUrl":"s","workspaceName":"w","environment":"e"}', 'modal_filesystem_snapshot', 'im-' || n,
    encode(archive, 'base64'), encode(sha256(archive), 'hex'), length(archive),
    jsonb_build_object('version', 2, 'kind', 'provider_snapshot', 'revision', 'r' || n, 'archiveSha256', encode(sha256(archive), 'hex'),
      'archiveBytes', length(archive), 'snapshotId', 'im-' || n, 'provider', 'modal_snapshot_filesystem', 'workspacePersistence', 'snapshot_filesystem'),
    'r' || n, 'current'
  FROM bench.step, convert_to('archive ' || n, 'UTF8') archive;
UPDATE sandbox_leases l SET current_checkpoint_artifact_id = a.id, archive_generation = 30,
    resume_state = jsonb_build_object('sessionState', jsonb_build_object('workspaceArchive', a.archive_base64,
      'workspaceArchiveMeta', jsonb_build_object('revision', a.descriptor_revision)))
  FROM sandbox_checkpoint_artifacts a WHERE a.source_lease_id = l.id;
INSERT INTO workspace_instruction_policy_revisions
    (id, account_id, workspace_id, kind, scope, role_key, content, content_hash, provenance_source, created_by_subject_id, supersedes_revision_id)
  SELECT bench.id('revision' || g, n), bench.id('account', 1), bench.id('workspace', 1), 'policy', 'role', 'role-' || n, 'do ' || g,
    encode(sha256(convert_to('do ' || g, 'UTF8')), 'hex'), 'human', 'me', CASE g WHEN 2 THEN bench.id('revision1', n) END
  FROM bench.step, generate_series(1, 2) g WHERE kind <> 'other';
INSERT INTO workspace_instruction_policy_heads
    (account_id, workspace_id, kind, scope, role_key, revision_id, revision, content_hash, activation_version)
  SELECT account_id, workspace_id, kind, scope, role_key, id, revision, content_hash, 1
  FROM workspace_instruction_policy_revisions WHERE supersedes_revision_id IS NOT NULL;
