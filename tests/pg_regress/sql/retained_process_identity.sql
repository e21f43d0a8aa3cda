-- retained_process.identity: by COMMIT a retained process continues exactly its parent admission; active, with that
-- retained and its holder there; ended, with that settled, nobody holding and no terminal open.
\a \t \f ' => '
\set SHOW_CONTEXT never
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('retained process identity');

CALL fixture.command('running');
CALL fixture.command('legacy', supervised => false);
CALL fixture.command('exited', overrides => jsonb_build_object('supervision_output_captured', true,
  'supervision_receipt', fixture.receipt(), 'state', 'exited', 'exit_code', 3, 'settled_at', '2030-01-01Z',
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.command('proven', overrides => jsonb_build_object('supervision_receipt', fixture.receipt(),
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.command('legacy, exited', supervised => false, overrides => '{"state": "exited", "settled_at": "2030-01-01Z"}');
CALL fixture.parent('new');
CALL fixture.lease('free');
-- What a turn retained.
CALL fixture.plant(format($$CALL fixture.command('turn');
  UPDATE sandbox_workspace_mutation_admissions SET actor_kind = 'turn', actor_id = md5('attempt')::uuid, attempt_id = md5('attempt')::uuid,
    turn_id = md5('turn')::uuid, execution_generation = 1, holder_kind = 'turn' WHERE id = %L;
  UPDATE sandbox_retained_processes SET owner_actor_kind = 'turn', owner_actor_id = md5('attempt')::uuid, owner_attempt_id = md5('attempt')::uuid,
    owner_turn_id = md5('turn')::uuid, owner_execution_generation = 1 WHERE id = %L$$,
  fixture.id('admission/1', 'turn'), fixture.id('process', 'turn')));

-- The answer at COMMIT to a touch of a command after `planted` was left behind in its parent or holder.
CREATE FUNCTION pg_temp.touch(name text, planted text DEFAULT NULL, touch text DEFAULT 'last_reconcile_outcome = ''seen''') RETURNS text LANGUAGE sql
  RETURN fixture.at_commit(format('UPDATE sandbox_retained_processes SET %s WHERE id = %L', touch, fixture.id('process', name)), planted => planted);
CREATE FUNCTION pg_temp.with_parent(name text, change text) RETURNS text LANGUAGE sql
  RETURN pg_temp.touch(name, format('UPDATE sandbox_workspace_mutation_admissions SET %s WHERE id = %L', change, fixture.id('admission/1', name)));
CREATE FUNCTION pg_temp.with_process(name text, change text) RETURNS text LANGUAGE sql
  RETURN pg_temp.touch(name, format('UPDATE sandbox_retained_processes SET %s WHERE id = %L', change, fixture.id('process', name)));
CREATE FUNCTION pg_temp.with_holder(name text, change text) RETURNS text LANGUAGE sql
  RETURN pg_temp.touch(name, format('UPDATE sandbox_lease_holders SET %s WHERE id = %L', change, fixture.id('holder', name)));

SELECT * FROM fixture.refusal(format('CALL fixture.due(%L)', format('UPDATE sandbox_retained_processes SET holder_id = ''other'' WHERE id = %L',
  fixture.id('process', 'legacy')))) \gx
SELECT name, pg_temp.touch(name) FROM unnest(ARRAY['running', 'legacy', 'exited', 'legacy, exited', 'turn']) AS name;

-- The parent ---------------------------------------------------------------------------------------
-- Each column of either side.
SELECT change, pg_temp.with_parent('running', change), pg_temp.with_parent('exited', change) FROM (VALUES
  ('id = md5(''other'')::uuid'), ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'),
  ('lease_id = md5(''other'')::uuid'), ('sandbox_group_id = md5(''other'')::uuid'), ('session_id = md5(''other'')::uuid'),
  ('actor_kind = ''process'', holder_kind = ''process'''), ('actor_id = md5(''other'')::uuid'), ('lease_epoch = 2'),
  ('provider_backend = ''Modal'''), ('provider_instance_id = ''sb-2'''), ('route_kind = ''active'''),
  ('route_kind = ''active'', route_target_id = md5(''other'')::uuid'), ('route_epoch = 2'),
  -- what is not compared
  ('holder_id = ''other'''), ('operation = ''other'''), ('workspace_generation = 9'), ('admitted_at = ''2000-01-01Z''')
) AS probe(change);
SELECT change, pg_temp.with_parent('turn', change), pg_temp.with_process('turn', 'owner_' || change) FROM (VALUES
  ('turn_id = md5(''other'')::uuid'), ('execution_generation = 2')) AS probe(change);
SELECT pg_temp.with_parent('turn', 'attempt_id = md5(''other'')::uuid, actor_id = md5(''other'')::uuid'),
  pg_temp.with_parent('turn', 'actor_kind = ''direct'', holder_kind = ''direct'', turn_id = NULL, attempt_id = NULL, execution_generation = NULL');
SELECT change, pg_temp.with_process('legacy', change) FROM (VALUES
  ('parent_admission_id = md5(''other'')::uuid'), ('account_id = md5(''other'')::uuid'), ('session_id = md5(''other'')::uuid'),
  ('sandbox_group_id = md5(''other'')::uuid'), ('owner_actor_id = md5(''other'')::uuid'), ('lease_epoch = 0'),
  ('provider_instance_id = ''sb-2'', provider_command = NULL'), ('route_kind = ''active'''), ('route_epoch = 7'),
  -- what is not compared
  ('provider_session_id = 7'), ('started_at = ''2000-01-01Z''')
) AS probe(change);
-- A target on both sides, on one, on neither.
SELECT fixture.at_commit(format('UPDATE sandbox_retained_processes SET last_reconcile_outcome = ''seen'' WHERE id = %L', fixture.id('process', 'legacy')),
  planted => format('UPDATE sandbox_retained_processes SET route_kind = ''active'', route_target_id = %s WHERE id = %L;
    UPDATE sandbox_workspace_mutation_admissions SET route_kind = ''active'', route_target_id = %s WHERE id = %L',
    mine, fixture.id('process', 'legacy'), theirs, fixture.id('admission/1', 'legacy')))
FROM (VALUES ('md5(''a'')::uuid', 'md5(''a'')::uuid'), ('md5(''a'')::uuid', 'md5(''b'')::uuid'), ('md5(''a'')::uuid', 'NULL'), ('NULL', 'md5(''a'')::uuid'), ('NULL', 'NULL'))
  AS probe(mine, theirs);
-- Its outcome, by the process's state.
SELECT outcome, pg_temp.with_parent('running', outcome), pg_temp.with_parent('legacy', outcome), pg_temp.with_parent('exited', outcome) FROM (VALUES
  ('provider_outcome = ''retained'', settled_at = NULL'), ('provider_outcome = NULL, settled_at = NULL'),
  ('provider_outcome = NULL, settled_at = ''2030-01-01Z'''),
  ('provider_outcome = ''resolved'', settled_at = ''2030-01-01Z'''), ('provider_outcome = ''rejected'', settled_at = ''2030-01-01Z''')
) AS probe(outcome);

-- The holder ---------------------------------------------------------------------------------------
SELECT change, pg_temp.with_holder('running', change), pg_temp.with_holder('legacy', change) FROM (VALUES
  ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'), ('lease_id = md5(''other'')::uuid'), ('kind = ''direct'''),
  ('holder_id = ''other'''), ('subject_id = md5(''other'')::uuid'), ('subject_id = NULL'),
  -- what is not compared
  ('last_heartbeat_at = ''2000-01-01Z'''), ('id = md5(''other'')::uuid')
) AS probe(change);
SELECT name, pg_temp.touch(name, format('DELETE FROM sandbox_lease_holders WHERE id = %L', fixture.id('holder', name))) FROM unnest(ARRAY['running', 'legacy']) AS name;
-- Once it has ended, nobody's, whatever else they say.
SELECT overrides, pg_temp.touch('exited', format('CALL fixture.insert(''sandbox_lease_holders'', %L)', fixture.tenant() || jsonb_build_object('lease_id', fixture.id('lease', 'exited'),
    'kind', 'process', 'holder_id', 'process', 'subject_id', fixture.id('session', 'exited')) || overrides)) FROM (VALUES
  (jsonb '{}'), ('{"account_id": "00000000-0000-4000-8000-000000000001"}'), ('{"workspace_id": "00000000-0000-4000-8000-000000000001"}'), ('{"subject_id": null}'),
  ('{"kind": "direct"}'), ('{"holder_id": "other"}'), (jsonb_build_object('lease_id', fixture.id('lease', 'free')))
) AS probe(overrides);

-- The terminal -------------------------------------------------------------------------------------
SELECT name, overrides, pg_temp.touch(name, format('CALL fixture.pty(%L, %L)', name, overrides)) FROM (VALUES
  ('exited', '{}'), ('exited', '{"status": "closed"}'), ('exited', '{"lease_id": "00000000-0000-4000-8000-000000000001", "exec_session_id": 7}'),
  ('exited', '{"retained_process_id": "00000000-0000-4000-8000-000000000001"}'), ('running', '{}')
) AS probe(name, overrides);

-- Settlement, in one transaction --------------------------------------------------------------------
\set settle 'UPDATE sandbox_retained_processes SET state = ''exited'', exit_code = 3, settled_at = ''2030-01-01Z'' WHERE id = %1$L; UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = ''resolved'', settled_at = ''2030-01-01Z'' WHERE id = %2$L; DELETE FROM sandbox_lease_holders WHERE id = %3$L'
SELECT step, fixture.at_commit(format(:'settle' || step, fixture.id('process', 'legacy'), fixture.id('admission/1', 'legacy'), fixture.id('holder', 'legacy'))) FROM unnest(ARRAY['',
  '; UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = ''retained'', settled_at = NULL WHERE id = %2$L']) AS step;
SELECT 'without parent', pg_temp.touch('legacy', touch => 'state = ''exited'', settled_at = ''2030-01-01Z''',
  planted => format('DELETE FROM sandbox_lease_holders WHERE id = %L', fixture.id('holder', 'legacy')));
SELECT 'without holder', pg_temp.touch('legacy', touch => 'state = ''exited'', settled_at = ''2030-01-01Z''',
  planted => format('UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = ''resolved'', settled_at = ''2030-01-01Z'' WHERE id = %L', fixture.id('admission/1', 'legacy')));

-- D1: the final row is judged.
SELECT 'touch', fixture.at_commit(format('UPDATE sandbox_retained_processes SET last_reconcile_outcome = ''seen'' WHERE id = %1$L;' || :'settle',
  fixture.id('process', 'legacy'), fixture.id('admission/1', 'legacy'), fixture.id('holder', 'legacy')));
SELECT 'capture', fixture.at_commit(format('UPDATE sandbox_retained_processes SET supervision_output_captured = true WHERE id = %1$L;' || :'settle',
  fixture.id('process', 'proven'), fixture.id('admission/1', 'proven'), fixture.id('holder', 'proven')), fixture.capturing('proven'));
SELECT 'insert', fixture.at_commit(format('CALL fixture.process(''new'', overrides => jsonb_build_object(''supervision_output_captured'', true,
  ''supervision_receipt'', fixture.receipt(), ''provider_command'', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));' || :'settle',
  fixture.id('process', 'new'), fixture.id('admission/1', 'new'), fixture.id('holder', 'new')));
SELECT 'settle, then touch', fixture.at_commit(format(:'settle' || '; UPDATE sandbox_retained_processes SET last_reconcile_outcome = ''seen'' WHERE id = %1$L',
  fixture.id('process', 'legacy'), fixture.id('admission/1', 'legacy'), fixture.id('holder', 'legacy')));
-- Two commands of one lease change holders.
BEGIN;
CALL fixture.admission('legacy', 2, jsonb_build_object('actor_kind', 'direct', 'actor_id', fixture.id('actor', 'legacy'),
  'holder_kind', 'direct', 'holder_id', 'direct', 'provider_outcome', 'retained'));
CALL fixture.insert('sandbox_lease_holders', fixture.tenant() || jsonb_build_object('lease_id', fixture.id('lease', 'legacy'),
  'kind', 'process', 'holder_id', 'second', 'subject_id', fixture.id('session', 'legacy')));
CALL fixture.process('legacy', false, jsonb_build_object('id', md5('second')::uuid, 'holder_id', 'second', 'provider_session_id', 2,
  'parent_admission_id', fixture.id('admission/2', 'legacy')));
UPDATE sandbox_retained_processes SET holder_id = 'third' WHERE id = md5('second')::uuid;
UPDATE sandbox_retained_processes SET holder_id = 'second' WHERE id = fixture.id('process', 'legacy');
UPDATE sandbox_retained_processes SET holder_id = 'process' WHERE id = md5('second')::uuid;
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK;

-- What does not hide a forged row --------------------------------------------------------------------
SELECT fixture.id('process', 'legacy') AS legacy, fixture.id('process', 'legacy, exited') AS exited, fixture.id('holder', 'legacy') AS holder \gset
\set forge 'UPDATE sandbox_retained_processes SET holder_id = ''forged'' WHERE id = %1$L; '
SELECT how, fixture.at_commit(format(:'forge' || statements, :'legacy', :'exited')) FROM (VALUES
  ('alone', ''),
  ('repaired', 'UPDATE sandbox_retained_processes SET holder_id = ''process'' WHERE id = %1$L'),
  ('deleted', 'DELETE FROM sandbox_retained_processes WHERE id = %1$L'),
  ('touched and deleted', 'UPDATE sandbox_retained_processes SET last_reconcile_outcome = ''seen'' WHERE id = %1$L; DELETE FROM sandbox_retained_processes WHERE id = %1$L'),
  ('re-keyed', 'UPDATE sandbox_retained_processes SET id = md5(''re-keyed'')::uuid WHERE id = %1$L'),
  ('re-keyed, key taken', 'UPDATE sandbox_retained_processes SET id = md5(''re-keyed'')::uuid WHERE id = %1$L; UPDATE sandbox_retained_processes SET id = %1$L WHERE id = %2$L'),
  ('deleted, key taken', 'DELETE FROM sandbox_retained_processes WHERE id = %1$L; UPDATE sandbox_retained_processes SET id = %1$L WHERE id = %2$L'),
  ('deleted, inserted again', 'WITH d AS (DELETE FROM sandbox_retained_processes WHERE id = %1$L RETURNING *) SELECT 1 FROM d; CALL fixture.process(''legacy'', false)'),
  ('repaired, deleted', 'UPDATE sandbox_retained_processes SET holder_id = ''process'' WHERE id = %1$L; DELETE FROM sandbox_retained_processes WHERE id = %1$L')
) AS probe(how, statements);
-- A settlement without release, and DELETE.
SELECT fixture.at_commit(format('UPDATE sandbox_retained_processes SET state = ''exited'', settled_at = ''2030-01-01Z'' WHERE id = %1$L; DELETE FROM sandbox_retained_processes WHERE id = %1$L', :'legacy'));
-- ON CONFLICT, both ways, MERGE and COPY are UPDATE and INSERT.
SELECT fixture.at_commit(format('INSERT INTO sandbox_retained_processes SELECT * FROM sandbox_retained_processes WHERE id = %L ON CONFLICT (id) DO UPDATE SET %s', :'legacy', change))
FROM unnest(ARRAY['holder_id = ''forged''', 'last_reconcile_outcome = ''seen''']) AS change;
SELECT fixture.at_commit(format('INSERT INTO sandbox_retained_processes SELECT * FROM sandbox_retained_processes WHERE id = %L ON CONFLICT DO NOTHING;' || :'forge', :'legacy'));
SELECT fixture.at_commit(format('MERGE INTO sandbox_retained_processes p USING (SELECT %1$L::uuid AS id) s ON p.id = s.id WHEN MATCHED THEN UPDATE SET holder_id = ''forged''', :'legacy'));
-- An INSERT without its surroundings.
SELECT fixture.at_commit('CALL fixture.process(''new'', false, ''{"route_epoch": 2}'')'), fixture.at_commit('CALL fixture.process(''new'', false)'),
  fixture.at_commit('CALL fixture.process(''new'', false, ''{"state": "exited", "settled_at": "2030-01-01Z"}'')');

-- Savepoints: what is rolled back is not followed.
BEGIN;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
SAVEPOINT s;
UPDATE sandbox_retained_processes SET holder_id = 'process' WHERE id = :'legacy';
ROLLBACK TO s;
COMMIT;
BEGIN;
UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'first' WHERE id = :'legacy';
SAVEPOINT s;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
ROLLBACK TO s;
COMMIT;
BEGIN;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
SAVEPOINT s;
DELETE FROM sandbox_retained_processes WHERE id = :'legacy';
ROLLBACK TO s;
COMMIT;
BEGIN;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
SAVEPOINT s;
UPDATE sandbox_retained_processes SET holder_id = 'process' WHERE id = :'legacy';
RELEASE s;
COMMIT;
BEGIN;
SAVEPOINT s;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
ROLLBACK TO s;
UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'third' WHERE id = :'legacy';
COMMIT;
-- A lock on the way makes xmax a multixact.
BEGIN;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
SAVEPOINT s;
SELECT count(*) FROM (SELECT FROM sandbox_retained_processes WHERE id = :'legacy' FOR UPDATE) AS locked;
SAVEPOINT t;
UPDATE sandbox_retained_processes SET holder_id = 'process' WHERE id = :'legacy';
ROLLBACK TO t;
COMMIT;
BEGIN;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
SAVEPOINT s;
SELECT count(*) FROM (SELECT FROM sandbox_retained_processes WHERE id = :'legacy' FOR KEY SHARE) AS locked;
SAVEPOINT t;
UPDATE sandbox_retained_processes SET holder_id = 'process' WHERE id = :'legacy';
COMMIT;
SELECT holder_id, last_reconcile_outcome FROM sandbox_retained_processes WHERE id = :'legacy';

-- What COMMIT finds around it -----------------------------------------------------------------------
-- No tenant (D2), no marker.
BEGIN;
UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'tenant' WHERE id = :'legacy';
SELECT set_config('opengeni.' || key, '', true) = '' AS gone FROM unnest(ARRAY['account_id', 'workspace_id', 'sandbox_recovery_protocol_v2']) AS key;
COMMIT;
BEGIN;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
SELECT set_config('opengeni.account_id', '', true) = '' AS gone;
COMMIT;
-- Another role, who may read nothing.
RESET SESSION AUTHORIZATION;
BEGIN;
SET LOCAL ROLE regress_app;
UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'role' WHERE id = :'legacy';
SET LOCAL ROLE pg_monitor;
COMMIT;
BEGIN;
SET LOCAL ROLE regress_app;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
SET LOCAL ROLE pg_monitor;
COMMIT;
SET SESSION AUTHORIZATION regress_app;
-- Another search_path.
BEGIN;
UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'path' WHERE id = :'legacy';
SET LOCAL search_path = '';
COMMIT;
-- PREPARE TRANSACTION is where the check is due.
BEGIN;
UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'prepared' WHERE id = :'legacy';
PREPARE TRANSACTION 'retained_process_identity';
COMMIT PREPARED 'retained_process_identity';
BEGIN;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
PREPARE TRANSACTION 'retained_process_identity';
-- Sooner, when asked for; deferred again, at COMMIT.
BEGIN;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
SET CONSTRAINTS sandbox_retained_processes_identity_v2 IMMEDIATE;
ROLLBACK;
BEGIN;
SET CONSTRAINTS sandbox_retained_processes_identity_v2 IMMEDIATE;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
ROLLBACK;
BEGIN;
SET CONSTRAINTS sandbox_retained_processes_identity_v2 IMMEDIATE;
SET CONSTRAINTS sandbox_retained_processes_identity_v2 DEFERRED;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'legacy';
SELECT 'deferred';
COMMIT;
SELECT holder_id, last_reconcile_outcome FROM sandbox_retained_processes WHERE id = :'legacy';

-- Temporary tables of the same names are not asked (D8), and policies that hide the surroundings hide nothing from
-- the guard (D9).
CREATE TEMP TABLE sandbox_lease_holders AS SELECT * FROM public.sandbox_lease_holders WHERE id = :'holder';
UPDATE pg_temp.sandbox_lease_holders SET holder_id = 'forged';
CREATE TEMP TABLE sandbox_workspace_mutation_admissions (LIKE public.sandbox_workspace_mutation_admissions);
SELECT fixture.at_commit(format(:'forge', :'legacy')), pg_temp.touch('legacy'), pg_temp.touch('exited');
DROP TABLE pg_temp.sandbox_lease_holders, pg_temp.sandbox_workspace_mutation_admissions;
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_workspace_mutation_admissions AS RESTRICTIVE USING (false);
CREATE POLICY hidden ON sandbox_lease_holders AS RESTRICTIVE USING (false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT pg_temp.touch('legacy'), pg_temp.touch('exited'), pg_temp.touch('running');
ROLLBACK;
