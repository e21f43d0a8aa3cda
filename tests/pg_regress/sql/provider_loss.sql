-- provider_loss.recovery_truth: a supervised command is lost with its provider only if, at COMMIT, its lease is cold
-- at the next epoch and knows which instance is missing.
\a \t \f ' => '
\set SHOW_CONTEXT never
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('provider loss');

SELECT fixture.missing() AS truth \gset
CALL fixture.command('one');
CALL fixture.command('two');
CALL fixture.command('legacy', supervised => false);

-- Process, parent and holder of a lost command.
CREATE PROCEDURE pg_temp.lose(name text, reason text DEFAULT 'provider_instance_lost') LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('opengeni.supervised_provider_loss_binding', jsonb_build_object(
      'accountId', account_id, 'workspaceId', workspace_id, 'leaseId', lease_id, 'sandboxGroupId', sandbox_group_id,
      'lostEpoch', lease_epoch, 'lostBackend', provider_backend, 'lostInstanceId', provider_instance_id)::text, true),
    set_config('opengeni.supervised_launch_rejection_binding',
      jsonb_build_object('processId', id, 'command', provider_command)::text, true)
  FROM sandbox_retained_processes WHERE id = fixture.id('process', name);
  UPDATE sandbox_retained_processes SET state = 'lost', settled_at = '2030-01-01Z', settlement_reason = reason
    WHERE id = fixture.id('process', name);
  UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'rejected', settled_at = '2030-01-01Z'
    WHERE id = fixture.id('admission/1', name);
  DELETE FROM sandbox_lease_holders WHERE id = fixture.id('holder', name);
END $$;
-- What its lease comes to know. `change` is applied on top.
CREATE PROCEDURE pg_temp.know(name text, truth jsonb, change text DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
  UPDATE sandbox_leases SET liveness = 'cold', instance_id = NULL, lease_epoch = 2, resume_state = truth
    WHERE id = fixture.id('lease', name);
  IF change IS NOT NULL THEN
    EXECUTE format('UPDATE sandbox_leases SET %s WHERE id = %L', change, fixture.id('lease', name));
  END IF;
END $$;
-- The answer to both at COMMIT.
CREATE FUNCTION pg_temp.lost(name text, truth jsonb, change text DEFAULT NULL, reason text DEFAULT 'provider_instance_lost') RETURNS text LANGUAGE sql
  RETURN fixture.at_commit(format('CALL pg_temp.lose(%1$L, %4$L); CALL pg_temp.know(%1$L, %2$L, %3$L)', name, truth, change, reason));

SELECT * FROM fixture.refusal($$CALL fixture.due('CALL pg_temp.lose(''one'')')$$) \gx
SELECT pg_temp.lost('one', :'truth');

-- The lease ----------------------------------------------------------------------------------------
SELECT change, pg_temp.lost('one', :'truth', change) FROM (VALUES
  ('backend = ''Modal'''), ('lease_epoch = 1'), ('lease_epoch = 3'), ('lease_epoch = -1'),
  ('liveness = ''warming'''), ('liveness = ''warm'''), ('liveness = ''draining'''),
  ('instance_id = ''sb-1'''), ('instance_id = ''sb-2'''), ('instance_id = '''''), ('resume_state = NULL'),
  -- what is not asked
  ('refcount = 3'), ('resume_backend_id = ''other'''), ('expires_at = ''2000-01-01Z'''), ('workspace_generation = 7')
) AS probe(change);
-- Its scope, planted: the tenant's keys hold it in place.
SELECT change, fixture.at_commit(format('CALL pg_temp.know(''one'', %L); CALL pg_temp.lose(''one'')', :'truth'), planted => format(
    'UPDATE sandbox_leases SET %s WHERE id = %L', change, fixture.id('lease', 'one')))
FROM (VALUES
  ('sandbox_group_id = md5(''other'')::uuid'), ('updated_at = now()')) AS probe(change);
-- The last epoch has no next one.
SELECT fixture.at_commit('CALL pg_temp.lose(''one'')', planted => format(
  'UPDATE sandbox_retained_processes SET lease_epoch = 2147483647 WHERE id = %1$L;
   UPDATE sandbox_workspace_mutation_admissions SET lease_epoch = 2147483647 WHERE id = %2$L;
   UPDATE sandbox_leases SET lease_epoch = -2147483648, liveness = ''cold'', instance_id = NULL, resume_state = %3$L WHERE id = %4$L',
  fixture.id('process', 'one'), fixture.id('admission/1', 'one'), :'truth', fixture.id('lease', 'one')));

-- Its recovery -------------------------------------------------------------------------------------
SELECT path, value, pg_temp.lost('one', jsonb_set(:'truth', ('{opengeniRecovery,' || path || '}')::text[], value)) FROM (VALUES
  ('provider,status', jsonb '"running"'), ('provider,status', '"Missing"'), ('provider,status', 'null'), ('provider,status', '["missing"]'),
  ('provider,instanceId', '"sb-2"'), ('provider,instanceId', '""'), ('provider,instanceId', 'null'), ('provider,instanceId', '"sb-1"'),
  ('restore,status', '"pending"'), ('restore,status', '"degraded"'), ('restore,status', '"unrecoverable"'),
  ('restore,status', '"completed"'), ('restore,status', '"not_ready"'), ('restore,status', 'null'),
  ('workspace,status', '"not_ready"'), ('workspace,status', '"degraded"'), ('workspace,status', '"unrecoverable"'),
  ('workspace,status', '"ready"'), ('workspace,status', '"pending"'), ('workspace,status', 'null'),
  ('note', '1')
) AS probe(path, value);
SELECT path, pg_temp.lost('one', :'truth'::jsonb #- path::text[]) FROM unnest(ARRAY['{opengeniRecovery}', '{opengeniRecovery,provider}',
  '{opengeniRecovery,provider,status}', '{opengeniRecovery,provider,instanceId}', '{opengeniRecovery,restore}', '{opengeniRecovery,restore,status}',
  '{opengeniRecovery,workspace}', '{opengeniRecovery,workspace,status}']) AS path;
SELECT truth, pg_temp.lost('one', truth) FROM unnest(ARRAY[jsonb 'null', '[]', '"missing"', '{"opengeniRecovery": "missing"}',
  '{"opengeniRecovery": ["provider"]}', '{"opengeniRecovery": {"provider": "missing", "restore": "degraded", "workspace": "degraded"}}']) AS truth;
-- As #>> has it, an array is entered by number, and a number is its text.
SELECT pg_temp.lost('one', jsonb_set(:'truth', '{opengeniRecovery,provider,instanceId}', '1'));

-- Which losses are asked ---------------------------------------------------------------------------
SELECT command, reason, fixture.at_commit(format('CALL pg_temp.lose(%L, %L)', command, reason)) FROM (VALUES
  ('one', 'provider_instance_lost'), ('one', 'provider_start_rejected'), ('legacy', 'provider_instance_lost'), ('legacy', 'whatever')
) AS probe(command, reason);
-- A row that was lost before may be touched.
SELECT fixture.at_commit(format('UPDATE sandbox_retained_processes SET last_reconcile_outcome = ''seen'' WHERE id = %L', fixture.id('process', 'one')),
  planted => format('UPDATE sandbox_retained_processes SET state = ''lost'', settled_at = ''2030-01-01Z'', settlement_reason = ''provider_instance_lost'' WHERE id = %1$L;
    UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = ''rejected'', settled_at = ''2030-01-01Z'' WHERE id = %2$L;
    DELETE FROM sandbox_lease_holders WHERE id = %3$L',
    fixture.id('process', 'one'), fixture.id('admission/1', 'one'), fixture.id('holder', 'one')));

-- When ---------------------------------------------------------------------------------------------
-- In whatever order, until COMMIT.
SELECT fixture.at_commit(format('CALL pg_temp.know(''one'', %L); CALL pg_temp.lose(''one'')', :'truth'));
-- DELETE after the loss hides nothing: the row is judged as it was lost.
SELECT fixture.at_commit(format('CALL pg_temp.lose(''one''); DELETE FROM sandbox_retained_processes WHERE id = %L', fixture.id('process', 'one')));
SELECT fixture.at_commit(format('CALL pg_temp.lose(''one''); CALL pg_temp.know(''one'', %L); DELETE FROM sandbox_retained_processes WHERE id = %L',
  :'truth', fixture.id('process', 'one')));
-- Nor does another touch, or a lease that knew and forgot.
SELECT fixture.at_commit(format('CALL pg_temp.lose(''one''); UPDATE sandbox_retained_processes SET last_reconcile_outcome = ''seen'' WHERE id = %L', fixture.id('process', 'one')));
SELECT fixture.at_commit(format('CALL pg_temp.lose(''one''); CALL pg_temp.know(''one'', %L); CALL pg_temp.know(''one'', ''{}'')', :'truth'));
SELECT fixture.at_commit(format('CALL pg_temp.lose(''one''); DELETE FROM sandbox_retained_processes WHERE id = %L;
  DELETE FROM sandbox_leases WHERE id = %L', fixture.id('process', 'one'), fixture.id('lease', 'one')));
-- Of two losses, each is asked.
SELECT fixture.at_commit(format('CALL pg_temp.lose(''two''); CALL pg_temp.lose(''one''); CALL pg_temp.know(''one'', %L)', :'truth'));

-- At a real COMMIT.
BEGIN;
CALL pg_temp.lose('one');
COMMIT;
SELECT state FROM sandbox_retained_processes WHERE id = fixture.id('process', 'one');
-- Sooner, when asked for.
BEGIN;
CALL pg_temp.lose('one');
SET CONSTRAINTS supervised_provider_loss_commit_guard IMMEDIATE;
ROLLBACK;
BEGIN;
SET CONSTRAINTS supervised_provider_loss_commit_guard IMMEDIATE;
CALL pg_temp.lose('one');
ROLLBACK;
-- What a savepoint takes back was no loss.
BEGIN;
SAVEPOINT s;
CALL pg_temp.lose('one');
ROLLBACK TO s;
COMMIT;
SELECT state FROM sandbox_retained_processes WHERE id = fixture.id('process', 'one');
-- A knowledge that is taken back is none.
BEGIN;
CALL pg_temp.lose('one');
SAVEPOINT s;
CALL pg_temp.know('one', :'truth');
ROLLBACK TO s;
COMMIT;
-- The tenant's settings are not needed at COMMIT (D2).
BEGIN;
CALL pg_temp.lose('two');
CALL pg_temp.know('two', :'truth');
SELECT set_config('opengeni.account_id', '', true), set_config('opengeni.workspace_id', '', true);
COMMIT;
SELECT state FROM sandbox_retained_processes WHERE id = fixture.id('process', 'two');

-- A temporary table of the same name is not asked (D8), and a policy that hides the lease hides nothing from
-- the guard (D9).
CREATE TEMP TABLE sandbox_leases AS SELECT * FROM public.sandbox_leases WHERE id = fixture.id('lease', 'two');
UPDATE pg_temp.sandbox_leases SET id = fixture.id('lease', 'one'), sandbox_group_id = fixture.id('group', 'one');
SELECT fixture.at_commit('CALL pg_temp.lose(''one'')');
DROP TABLE pg_temp.sandbox_leases;
RESET SESSION AUTHORIZATION;
BEGIN;
CALL pg_temp.know('one', :'truth');
CREATE POLICY hidden ON sandbox_leases AS RESTRICTIVE USING (false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT count(*) FROM sandbox_leases;
SELECT fixture.at_commit('CALL pg_temp.lose(''one'')');
ROLLBACK;
