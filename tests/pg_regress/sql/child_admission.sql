-- child_admission.*: what a supervised command's input is admitted as, and what becomes of that evidence.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('child admission');

CALL fixture.command('running');
CALL fixture.child('running', 2);
CALL fixture.child('running', 3, '{"provider_outcome": "resolved", "settled_at": "2030-01-01Z"}');
CALL fixture.child('running', 4, '{"provider_outcome": "retained"}');
CALL fixture.admission('running', 5, jsonb_build_object('actor_kind', 'direct', 'actor_id', fixture.id('actor', 'other'),
  'holder_kind', 'direct', 'holder_id', 'direct'));
CALL fixture.command('legacy', supervised => false);
CALL fixture.child('legacy', 2);
CALL fixture.child('legacy', 3, '{"provider_outcome": "resolved", "settled_at": "2030-01-01Z"}');
CALL fixture.command('no command', overrides => '{"provider_command": null}');
CALL fixture.child('no command', 2);
CALL fixture.command('cancelled');
CALL fixture.child('cancelled', 2);
SELECT fixture.id('process', 'cancelled') AS cancelled \gset
UPDATE sandbox_retained_processes SET cancellation_requested_at = '2030-01-01Z', cancellation_reason = 'explicit_stop'
  WHERE id = :'cancelled';
CALL fixture.command('legacy, cancelled', supervised => false, overrides => '{
  "cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}');
CALL fixture.command('with receipt', overrides => jsonb_build_object('supervision_receipt', fixture.receipt()));
-- A lost command may still have a child to settle; an exited one was left so by an older release.
CALL fixture.plant($$CALL fixture.command('lost', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_instance_lost"}')$$);
CALL fixture.plant($$CALL fixture.command('exited', overrides => '{"state": "exited", "settled_at": "2030-01-01Z"}')$$);
DO $$ BEGIN
  CALL fixture.plant($s$CALL fixture.child('lost', 2)$s$);
  CALL fixture.plant($s$CALL fixture.child('lost', 3, '{"provider_outcome": "rejected", "settled_at": "2030-01-01Z"}')$s$);
  CALL fixture.plant($s$CALL fixture.child('exited', 2)$s$);
  CALL fixture.plant($s$CALL fixture.child('exited', 3, '{"provider_outcome": "rejected", "settled_at": "2030-01-01Z"}')$s$);
END $$;

-- The answer to a change, or to the DELETE, of the child `generation` of a command.
CREATE FUNCTION pg_temp.change(command text, generation integer, change text) RETURNS text LANGUAGE sql
  RETURN fixture.change('sandbox_workspace_mutation_admissions', fixture.id('admission/' || generation, command), change);
CREATE FUNCTION pg_temp.removal(command text, generation integer) RETURNS text LANGUAGE sql
  RETURN fixture.removal('sandbox_workspace_mutation_admissions', fixture.id('admission/' || generation, command));

\set resolve 'provider_outcome = ''resolved'', settled_at = ''2030-01-01Z'''
\set reject 'provider_outcome = ''rejected'', settled_at = ''2030-01-01Z'''

-- Immutable ----------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_workspace_mutation_admissions SET operation = ''exec'', route_epoch = 2 WHERE id = %L',
  fixture.id('admission/2', 'running'))) \gx

-- Unsettled, it settles; settled, it stays.
SELECT generation, change, pg_temp.change('running', generation, change) FROM (VALUES
  (2, :'resolve'), (2, :'reject'), (2, 'provider_outcome = ''retained'''), (2, 'operation = operation'),
  (4, :'resolve'), (4, 'provider_outcome = NULL'),
  (3, 'operation = operation'), (3, :'resolve'), (3, :'reject'),
  (3, 'settled_at = ''2030-01-02Z'''), (3, 'settled_at = NULL'), (3, 'provider_outcome = NULL, settled_at = NULL'),
  -- what the rule leaves to the table's CHECK
  (2, 'settled_at = ''2030-01-01Z'''), (2, 'provider_outcome = ''resolved'''), (2, 'provider_outcome = ''done''')
) AS probe(generation, change);

-- Every other column counts, with a settlement or without.
SELECT change, pg_temp.change('running', 2, change), pg_temp.change('running', 2, change || ', ' || :'resolve'),
  pg_temp.change('running', 3, change)
FROM (VALUES
  ('id = md5(''other'')::uuid'), ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'),
  ('lease_id = md5(''other'')::uuid'), ('sandbox_group_id = md5(''other'')::uuid'), ('session_id = md5(''other'')::uuid'),
  ('actor_kind = ''direct'''), ('actor_id = md5(''other'')::uuid'),
  ('turn_id = md5(''other'')::uuid'), ('attempt_id = md5(''other'')::uuid'), ('execution_generation = 1'),
  ('holder_kind = ''direct'''), ('holder_id = ''other'''), ('lease_epoch = 2'),
  ('provider_backend = ''Modal'''), ('provider_instance_id = ''sb-2'''),
  ('route_kind = ''active'''), ('route_target_id = md5(''other'')::uuid'), ('route_epoch = 2'),
  ('workspace_generation = 9'), ('operation = ''stdin'''), ('admitted_at = ''2029-12-31Z''')
) AS probe(change);
-- NULL is a change like any other.
SELECT name, pg_temp.change('running', 2, name || ' = NULL') FROM unnest(ARRAY['id', 'account_id', 'actor_kind', 'actor_id',
  'lease_epoch', 'operation', 'admitted_at', 'turn_id']) AS name;

-- Whose child it is, is asked of the row that was: by id, account and workspace.
SELECT command, pg_temp.change(command, 2, 'operation = ''stdin'''), pg_temp.change(command, 2, :'resolve')
FROM unnest(ARRAY['running', 'legacy', 'no command', 'cancelled', 'lost', 'exited']) AS command;
SELECT command, pg_temp.change(command, 3, 'operation = ''stdin'''), pg_temp.change(command, 3, :'resolve')
FROM unnest(ARRAY['running', 'legacy', 'lost', 'exited']) AS command;
SELECT column_name, fixture.answer(format('UPDATE sandbox_workspace_mutation_admissions SET operation = ''stdin'' WHERE workspace_generation = 2 AND lease_id = %L',
    fixture.id('lease', 'running')), planted => format(
    'UPDATE sandbox_retained_processes SET %s = md5(''other'')::uuid WHERE id = %L', column_name, fixture.id('process', 'running')))
FROM unnest(ARRAY['id', 'account_id', 'workspace_id']) AS column_name;

-- DELETE: when the command has ended and the child is settled.
SELECT command, generation, pg_temp.removal(command, generation) FROM (VALUES
  ('running', 2), ('running', 3), ('lost', 2), ('lost', 3), ('exited', 2), ('exited', 3), ('legacy', 2), ('no command', 2)
) AS probe(command, generation);
SELECT * FROM fixture.refusal(format('DELETE FROM sandbox_workspace_mutation_admissions WHERE id = %L',
  fixture.id('admission/3', 'running'))) \gx

-- Lost -------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_workspace_mutation_admissions SET %s WHERE id = %L', :'resolve',
  fixture.id('admission/2', 'lost'))) \gx
-- It speaks before .immutable, and also where the outcome is no settlement.
SELECT change, pg_temp.change('lost', 2, change) FROM (VALUES
  (:'reject'), (:'resolve'), ('provider_outcome = ''retained'''), ('provider_outcome = provider_outcome'),
  ('operation = ''stdin'''), ('operation = ''stdin'', ' || :'reject'), ('provider_outcome = ''rejected''')
) AS probe(change);
SELECT change, pg_temp.change('lost', 3, change) FROM (VALUES
  (:'reject'), (:'resolve'), ('provider_outcome = NULL'), ('operation = operation')
) AS probe(change);

-- Initial insert -----------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format(
  'UPDATE sandbox_workspace_mutation_admissions SET actor_kind = ''process'', holder_kind = ''process'', actor_id = %L WHERE id = %L',
  fixture.id('process', 'running'), fixture.id('admission/5', 'running'))) \gx
SELECT command, pg_temp.change('running', 5, format('actor_kind = ''process'', holder_kind = ''process'', actor_id = %L',
    fixture.id('process', command))),
  pg_temp.change('legacy', 2, format('actor_id = %L', fixture.id('process', command)))
FROM unnest(ARRAY['running', 'cancelled', 'lost', 'exited', 'legacy', 'no command', 'nobody']) AS command;
-- The scope is part of the key.
SELECT column_name, fixture.answer(format('UPDATE sandbox_workspace_mutation_admissions SET %s = %L WHERE id = %L',
      column_name, fixture.tenant() ->> column_name, fixture.id('admission/2', 'legacy')),
    planted => format('ALTER TABLE sandbox_workspace_mutation_admissions NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY;
      UPDATE sandbox_workspace_mutation_admissions SET %s = md5(''other'')::uuid, actor_id = %L WHERE id = %L',
      column_name, fixture.id('process', 'running'), fixture.id('admission/2', 'legacy')))
FROM unnest(ARRAY['account_id', 'workspace_id']) AS column_name;
-- A child of nobody's may change as it likes, except into one.
SELECT change, pg_temp.change('legacy', 2, change) FROM (VALUES
  ('operation = ''stdin'''), ('lease_epoch = 2'), ('actor_id = NULL'), ('actor_kind = NULL')) AS probe(change);

-- Closed -------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal($$CALL fixture.child('cancelled', 7)$$) \gx
SELECT command, fixture.answer(format('CALL fixture.child(%L, 7)', command))
FROM unnest(ARRAY['running', 'cancelled', 'with receipt', 'legacy', 'legacy, cancelled', 'no command', 'lost', 'exited']) AS command;
-- It speaks before .identity, and for a legacy command too.
SELECT fixture.answer($$CALL fixture.child('cancelled', 7, '{"lease_epoch": 2}')$$);
SELECT fixture.answer($$CALL fixture.child('legacy', 7)$$, planted => format(
  'UPDATE sandbox_retained_processes SET supervision_receipt = ''{}'' WHERE id = %L', fixture.id('process', 'legacy')));
-- Another key names another process, and one that is not there closes nothing.
SELECT change, fixture.answer(format('CALL fixture.child(''cancelled'', 7, %L)', change)) FROM (VALUES
  ('{"actor_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"actor_id": null}'), ('{"actor_kind": null}'), ('{"account_id": null}'),
  ('{"actor_kind": "direct", "holder_kind": "direct"}')
) AS probe(change);

-- Identity -----------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal($$CALL fixture.child('running', 7, '{"lease_epoch": 2, "holder_id": "other"}')$$) \gx
SELECT * FROM fixture.refusal($$CALL fixture.child('exited', 7)$$) \gx
SELECT change, fixture.answer(format('CALL fixture.child(''running'', 7, %L)', change)),
  fixture.answer(format('CALL fixture.child(''legacy'', 7, %L)', change))
FROM (VALUES
  ('{"session_id": "00000000-0000-4000-8000-000000000001"}'), ('{"session_id": null}'),
  ('{"lease_id": "00000000-0000-4000-8000-000000000001"}'), ('{"lease_id": null}'),
  ('{"lease_epoch": 0}'), ('{"lease_epoch": null}'),
  ('{"provider_backend": "Modal"}'), ('{"provider_backend": null}'),
  ('{"provider_instance_id": "sb-1 "}'), ('{"provider_instance_id": null}'),
  ('{"holder_kind": "direct"}'), ('{"holder_kind": null}'),
  ('{"holder_id": "Process"}'), ('{"holder_id": null}'),
  ('{"route_kind": "active"}'), ('{"route_kind": null}'),
  ('{"route_target_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"route_epoch": 2}'), ('{"route_epoch": null}'),
  -- what is not compared
  ('{"operation": "stdin"}'), ('{"provider_outcome": "resolved", "settled_at": "2030-01-01Z"}'),
  ('{"sandbox_group_id": "00000000-0000-4000-8000-000000000001"}')
) AS probe(change);
-- A target that is there on both sides, and on one only.
SELECT child, fixture.answer(format('CALL fixture.child(''running'', 7, %L)', child), planted => format(
    'UPDATE sandbox_retained_processes SET route_kind = ''active'', route_target_id = md5(''target'')::uuid WHERE id = %L',
    fixture.id('process', 'running')))
FROM (VALUES
  (jsonb_build_object('route_kind', 'active', 'route_target_id', md5('target')::uuid)),
  ('{"route_kind": "active"}')
) AS probe(child);

-- The word in an array or a scalar supervises as well ------------------------------------------------
RESET SESSION AUTHORIZATION;
BEGIN;
ALTER TABLE sandbox_retained_processes DROP CONSTRAINT sandbox_retained_processes_provider_command_chk;
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT command, fixture.answer($$CALL fixture.child('legacy', 7, '{"lease_epoch": 2}')$$,
    planted => format('UPDATE sandbox_retained_processes SET provider_command = %L WHERE id = %L', command, fixture.id('process', 'legacy')))
FROM unnest(ARRAY['["supervision"]', '"supervision"', '["streams"]', '{"supervision": null}', 'null']) AS command;
ROLLBACK;

-- Columns that came later ----------------------------------------------------------------------------
BEGIN;
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD COLUMN gone text DEFAULT 'x', ADD COLUMN note text DEFAULT 'a', ADD COLUMN document jsonb DEFAULT '{"a": 1}',
  ADD COLUMN amount numeric DEFAULT 1.0, ADD COLUMN span interval DEFAULT '1 day';
ALTER TABLE sandbox_workspace_mutation_admissions DROP COLUMN gone;
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT change, pg_temp.change('running', 2, change), pg_temp.change('running', 3, change) FROM (VALUES
  ('note = ''b'''), ('note = NULL'), ('note = note'),
  ('document = ''{"a": 2}'''), ('document = ''{"a": 1}'''), ('document = NULL'),
  ('amount = 1.5'), ('span = ''2 days''')
) AS probe(change);
-- As to_jsonb shows them: jsonb and numeric by value, an interval by its text.
SELECT change, pg_temp.change('running', 2, change) FROM (VALUES
  ('document = ''{ "a" : 1.0 }'''), ('amount = 1.00'), ('span = ''24 hours''')) AS probe(change);
-- An admission that is nobody's changes as it likes.
SELECT change, pg_temp.change('running', 5, change) FROM (VALUES
  ('document = ''{"a": 2}'''), ('span = ''24 hours'''), ('note = NULL')) AS probe(change);
-- D6: a generated column moves with what it is generated from.
RESET SESSION AUTHORIZATION;
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD COLUMN settled boolean GENERATED ALWAYS AS (settled_at IS NOT NULL) STORED;
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT generation, change, pg_temp.change('running', generation, change) FROM (VALUES
  (2, :'resolve'), (2, 'note = note'), (3, 'note = note'), (2, 'note = ''b'''), (2, 'settled = DEFAULT')) AS probe(generation, change);
ROLLBACK;
SET SESSION AUTHORIZATION regress_app;

-- A temporary table of the same name is not asked (D8), and a policy that hides the process hides nothing from
-- the guard (D9).
CREATE TEMP TABLE sandbox_retained_processes (LIKE public.sandbox_retained_processes);
SELECT pg_temp.change('running', 2, 'operation = ''stdin'''), pg_temp.removal('running', 2),
  fixture.answer($$CALL fixture.child('cancelled', 7)$$), pg_temp.change('legacy', 2, format('actor_id = %L', fixture.id('process', 'running')));
DROP TABLE pg_temp.sandbox_retained_processes;
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_retained_processes AS RESTRICTIVE USING (false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT count(*) FROM sandbox_retained_processes;
SELECT pg_temp.change('running', 2, 'operation = ''stdin'''), pg_temp.removal('running', 2),
  fixture.answer($$CALL fixture.child('cancelled', 7)$$), pg_temp.change('legacy', 2, format('actor_id = %L', fixture.id('process', 'running')));
ROLLBACK;
