-- The command's guard meets a row however it is written.
\a \t \f ' => '
\set VERBOSITY terse
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('writes');

CALL fixture.command('one');
CALL fixture.command('two');
CALL fixture.command('legacy', supervised => false);
CALL fixture.parent('new');

-- A command like 'one', in the place that 'new' has prepared.
CREATE TEMP TABLE draft AS SELECT * FROM sandbox_retained_processes WHERE id = fixture.id('process', 'one');
UPDATE draft SET id = fixture.id('process', 'new'), session_id = fixture.id('session', 'new'),
  lease_id = fixture.id('lease', 'new'), sandbox_group_id = fixture.id('group', 'new'),
  parent_admission_id = fixture.id('admission/1', 'new'), owner_actor_id = fixture.id('actor', 'new');

SELECT statement, fixture.answer(statement) FROM (VALUES
  -- several rows: one that may not is enough
  ('UPDATE sandbox_retained_processes SET last_reconcile_outcome = ''seen'''),
  ('UPDATE sandbox_retained_processes SET route_epoch = 2 WHERE id = fixture.id(''process'', ''legacy'')'),
  ('UPDATE sandbox_retained_processes SET route_epoch = 2 WHERE id IN (fixture.id(''process'', ''legacy''), fixture.id(''process'', ''two''))'),
  ('UPDATE sandbox_retained_processes p SET lease_epoch = d.lease_epoch + 1 FROM draft d WHERE p.id = fixture.id(''process'', ''one'')'),
  ('WITH done AS (DELETE FROM sandbox_retained_processes WHERE id = fixture.id(''process'', ''one'') RETURNING id) SELECT id FROM done'),
  ('WITH done AS (UPDATE sandbox_retained_processes SET route_epoch = 2 WHERE id = fixture.id(''process'', ''one'')) SELECT 1'),
  -- INSERT … SELECT
  ('INSERT INTO sandbox_retained_processes SELECT * FROM draft'),
  ('INSERT INTO sandbox_retained_processes SELECT (jsonb_populate_record(d, ''{"state": "lost", "settled_at": "2030-01-01Z"}'')).* FROM draft d'),
  ('INSERT INTO sandbox_retained_processes SELECT (jsonb_populate_record(d, ''{"supervision_receipt": {}}'')).* FROM draft d'),
  -- ON CONFLICT: the row is judged as an INSERT before the conflict is known, then as the UPDATE it becomes
  ('INSERT INTO sandbox_retained_processes SELECT (jsonb_populate_record(d, jsonb_build_object(''id'', fixture.id(''process'', ''two'')))).* FROM draft d ON CONFLICT (id) DO UPDATE SET last_reconcile_outcome = ''again'''),
  ('INSERT INTO sandbox_retained_processes SELECT (jsonb_populate_record(d, jsonb_build_object(''id'', fixture.id(''process'', ''two'')))).* FROM draft d ON CONFLICT (id) DO UPDATE SET lease_id = excluded.lease_id'),
  ('INSERT INTO sandbox_retained_processes SELECT (jsonb_populate_record(d, jsonb_build_object(''id'', fixture.id(''process'', ''two''), ''supervision_receipt'', 7))).* FROM draft d ON CONFLICT DO NOTHING'),
  ('INSERT INTO sandbox_retained_processes SELECT (jsonb_populate_record(d, jsonb_build_object(''id'', fixture.id(''process'', ''two'')))).* FROM draft d ON CONFLICT DO NOTHING'),
  -- MERGE
  ('MERGE INTO sandbox_retained_processes p USING draft d ON p.id = fixture.id(''process'', ''two'') WHEN MATCHED THEN UPDATE SET last_reconcile_outcome = ''merged'''),
  ('MERGE INTO sandbox_retained_processes p USING draft d ON p.id = fixture.id(''process'', ''two'') WHEN MATCHED THEN UPDATE SET holder_id = ''other'''),
  ('MERGE INTO sandbox_retained_processes p USING draft d ON p.id = fixture.id(''process'', ''two'') WHEN MATCHED THEN DELETE'),
  ('MERGE INTO sandbox_retained_processes p USING draft d ON p.id = d.id WHEN NOT MATCHED THEN INSERT (id, state) VALUES (d.id, ''active'')')
) AS probe(statement);

-- COPY. What passes the guard meets the foreign keys.
COPY sandbox_retained_processes (account_id, workspace_id, session_id, lease_id, sandbox_group_id, parent_admission_id, holder_id,
  owner_actor_kind, owner_actor_id, lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch,
  provider_session_id, provider_command) FROM stdin;
f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	h	direct	f5a7b4c2-0000-4000-8000-000000000001	1	modal	sb-1	home	1	1	{"kind": "modal-router-v1", "sandboxId": "sb-1", "taskId": "t", "execId": "e", "supervision": {}}
\.
RESET SESSION AUTHORIZATION;
COPY sandbox_retained_processes (account_id, workspace_id, session_id, lease_id, sandbox_group_id, parent_admission_id, holder_id,
  owner_actor_kind, owner_actor_id, lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch,
  provider_session_id, provider_command) FROM stdin;
f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	f5a7b4c2-0000-4000-8000-000000000001	h	direct	f5a7b4c2-0000-4000-8000-000000000001	1	modal	sb-1	home	1	1	{"kind": "modal-router-v1", "sandboxId": "sb-1", "taskId": "t", "execId": "e"}
\.

-- Through a view.
BEGIN;
CREATE VIEW commands AS SELECT * FROM sandbox_retained_processes;
GRANT ALL ON commands TO regress_app;
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT fixture.answer('UPDATE commands SET last_reconcile_outcome = ''seen'' WHERE id = fixture.id(''process'', ''one'')');
SELECT fixture.answer('UPDATE commands SET route_epoch = 2 WHERE id = fixture.id(''process'', ''one'')');
ROLLBACK;
