-- protocol_v2.marker: nobody but a superuser session writes the protocol's six tables without saying that he
-- knows the protocol.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
-- Never set in this session.
SELECT fixture.answer('INSERT INTO sandbox_leases DEFAULT VALUES');
CALL fixture.enter('marker');

CALL fixture.command('marker', supervised => false);
-- A lease and an admission that nothing refers to, so that they can be deleted.
CALL fixture.lease('alone');
CALL fixture.admission('marker', 2, '{"actor_kind": "direct", "actor_id": "00000000-0000-4000-8000-000000000001",
  "holder_kind": "direct", "holder_id": "direct"}');
CALL fixture.plant(format($$INSERT INTO sandbox_pty_sessions (id, account_id, workspace_id, session_id, lease_epoch, cols, rows, shell, cwd, opened_by, status)
  VALUES (%L, %L, %L, %L, 1, 80, 24, 'sh', '/', 'me', 'closed')$$, fixture.id('pty', 'marker'),
  fixture.tenant() ->> 'account_id', fixture.tenant() ->> 'workspace_id', fixture.id('session', 'marker')));
CALL fixture.plant(format($$INSERT INTO sandbox_checkpoint_artifacts (id, account_id, workspace_id, sandbox_group_id, source_lease_id,
    source_lease_epoch, provenance, provider_backend, provider_binding_key, provider_binding, object_kind, object_id,
    archive_base64, archive_sha256, archive_bytes, descriptor, descriptor_revision)
  SELECT %L, %L, %L, %L, %L, 1, 'legacy_provider_adopted', 'modal', binding, binding::jsonb, 'modal_directory_snapshot', 'o-1',
    'YQ==', sha, 1, jsonb_build_object('version', 2, 'kind', 'provider_snapshot', 'revision', 'r', 'archiveSha256', sha,
      'archiveBytes', 1, 'snapshotId', 'o-1', 'provider', 'modal_snapshot_directory', 'workspacePersistence', 'snapshot_directory'), 'r'
  FROM (SELECT '{"version":1,"serverUrl":"u","workspaceName":"w","environment":"e"}', encode(sha256('a'), 'hex')) AS v(binding, sha)$$,
  fixture.id('checkpoint', 'marker'), fixture.tenant() ->> 'account_id', fixture.tenant() ->> 'workspace_id',
  fixture.id('group', 'marker'), fixture.id('lease', 'marker')));

CREATE TEMP TABLE protocol (place serial, relation text, id uuid);
INSERT INTO protocol (relation, id) VALUES
  ('sandbox_leases', fixture.id('lease', 'alone')),
  ('sandbox_lease_holders', fixture.id('holder', 'marker')),
  ('sandbox_workspace_mutation_admissions', fixture.id('admission/2', 'marker')),
  ('sandbox_retained_processes', fixture.id('process', 'marker')),
  ('sandbox_pty_sessions', fixture.id('pty', 'marker')),
  ('sandbox_checkpoint_artifacts', fixture.id('checkpoint', 'marker'));

-- The setting --------------------------------------------------------------------------------------
RESET opengeni.sandbox_recovery_protocol_v2;
SELECT * FROM fixture.refusal(format('UPDATE sandbox_leases SET id = id WHERE id = %L', fixture.id('lease', 'marker'))) \gx

SELECT setting, fixture.answer(format('UPDATE sandbox_leases SET id = id WHERE id = %L', fixture.id('lease', 'marker')),
    jsonb_build_object('sandbox_recovery_protocol_v2', setting))
FROM unnest(ARRAY['1', '', '0', '01', ' 1', '1 ', '1.0', 'true', 'on', '2']) AS setting;

-- Six tables, three operations. INSERT meets the marker before any default, constraint or policy.
SELECT operation, message FROM protocol, LATERAL (VALUES
    ('INSERT', format('INSERT INTO %I DEFAULT VALUES', relation)),
    ('UPDATE', format('UPDATE %I SET id = id WHERE id = %L', relation, id)),
    ('DELETE', format('DELETE FROM %I WHERE id = %L', relation, id))
  ) AS s(operation, statement), LATERAL fixture.refusal(statement)
ORDER BY place, operation;

SELECT relation, operation, fixture.answer(statement, '{"sandbox_recovery_protocol_v2": "1"}') FROM protocol, LATERAL (VALUES
    ('INSERT', format('INSERT INTO %1$I SELECT (jsonb_populate_record(t, jsonb_build_object(''id'', gen_random_uuid()))).* FROM %1$I t WHERE id = %2$L', relation, id)),
    ('UPDATE', format('UPDATE %I SET id = id WHERE id = %L', relation, id)),
    ('DELETE', format('DELETE FROM %I WHERE id = %L', relation, id))
  ) AS s(operation, statement)
ORDER BY place, operation;

-- It speaks before the command's own guard.
SELECT fixture.update('marker', 'supervision_retention_xid = NULL');
-- A statement that reaches no row needs no marker.
SELECT fixture.answer('DELETE FROM sandbox_leases WHERE false');

-- A setting of a transaction that is over no longer counts.
BEGIN;
SET LOCAL opengeni.sandbox_recovery_protocol_v2 = '1';
SELECT fixture.update('marker', 'last_reconcile_outcome = ''seen''');
COMMIT;
SELECT fixture.update('marker', 'last_reconcile_outcome = ''seen''');

-- Who ----------------------------------------------------------------------------------------------
-- A temporary pg_roles that calls everyone a superuser convinces nobody (D8).
CREATE TEMP TABLE pg_roles (rolname name, rolsuper boolean);
INSERT INTO pg_temp.pg_roles VALUES ('regress_app', true);
SELECT fixture.update('marker', 'last_reconcile_outcome = ''seen''');
DROP TABLE pg_temp.pg_roles;

-- What counts is who logged in, not the role that is set.
RESET SESSION AUTHORIZATION;
SELECT fixture.update('marker', 'last_reconcile_outcome = ''seen''');
SET ROLE regress_app;
SELECT fixture.update('marker', 'last_reconcile_outcome = ''seen''');
RESET ROLE;
BEGIN;
GRANT regress_owner TO regress_app;
SET LOCAL SESSION AUTHORIZATION regress_app;
SET LOCAL ROLE regress_owner;
SELECT fixture.update('marker', 'last_reconcile_outcome = ''seen''');
ROLLBACK;
