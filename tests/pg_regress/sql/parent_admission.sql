-- parent_admission.*: the admission that a supervised command continues stays open while it runs, and as it was
-- settled afterwards.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('parent admission');

CALL fixture.command('running');
CALL fixture.command('legacy', supervised => false);
CALL fixture.command('legacy, exited', supervised => false, overrides => '{"state": "exited", "settled_at": "2030-01-01Z"}');
CALL fixture.command('exited', overrides => jsonb_build_object('supervision_output_captured', true,
  'supervision_receipt', fixture.receipt(), 'state', 'exited', 'exit_code', 3, 'settled_at', '2030-01-01Z',
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
-- In the middle of a settlement the process has ended and its parent has not.
CALL fixture.plant($$CALL fixture.command('lost', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_instance_lost"}')$$);
CALL fixture.plant($$CALL fixture.command('lost, open', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_instance_lost"}')$$);
CALL fixture.plant($$CALL fixture.command('exited, open', overrides => '{"state": "exited", "settled_at": "2030-01-01Z"}')$$);
CALL fixture.plant(format($$UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'retained', settled_at = NULL
  WHERE id IN (%L, %L)$$, fixture.id('admission/1', 'lost, open'), fixture.id('admission/1', 'exited, open')));
CALL fixture.lease('free');
CALL fixture.admission('free', 1, jsonb_build_object('actor_kind', 'direct', 'actor_id', fixture.id('actor', 'free'),
  'holder_kind', 'direct', 'holder_id', 'direct'));

-- The answer to a change, or to the DELETE, of the parent of a command.
CREATE FUNCTION pg_temp.change(command text, change text) RETURNS text LANGUAGE sql
  RETURN fixture.change('sandbox_workspace_mutation_admissions', fixture.id('admission/1', command), change);
CREATE FUNCTION pg_temp.removal(command text) RETURNS text LANGUAGE sql
  -- A RESTRICT that is violated has a state of its own from 18 on.
  RETURN replace(fixture.removal('sandbox_workspace_mutation_admissions', fixture.id('admission/1', command)), '23001', '23503');

\set resolve 'provider_outcome = ''resolved'', settled_at = ''2030-01-01Z'''
\set reject 'provider_outcome = ''rejected'', settled_at = ''2030-01-01Z'''
\set later 'settled_at = ''2030-01-02Z'''
\set reopen 'provider_outcome = ''retained'', settled_at = NULL'

-- Retained -----------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_workspace_mutation_admissions SET %s WHERE id = %L', :'resolve',
  fixture.id('admission/1', 'running'))) \gx
SELECT * FROM fixture.refusal(format('DELETE FROM sandbox_workspace_mutation_admissions WHERE id = %L',
  fixture.id('admission/1', 'running'))) \gx

SELECT change, pg_temp.change('running', change) FROM (VALUES
  (:'resolve'), (:'reject'), ('provider_outcome = NULL'), ('provider_outcome = provider_outcome'), ('operation = ''exec''')
) AS probe(change);
-- Every column counts, and NULL is a change.
SELECT change, pg_temp.change('running', change) FROM (VALUES
  ('id = md5(''other'')::uuid'), ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'),
  ('lease_id = md5(''other'')::uuid'), ('sandbox_group_id = md5(''other'')::uuid'), ('session_id = md5(''other'')::uuid'),
  ('actor_kind = ''process'''), ('actor_id = md5(''other'')::uuid'),
  ('turn_id = md5(''other'')::uuid'), ('attempt_id = md5(''other'')::uuid'), ('execution_generation = 1'),
  ('holder_kind = ''process'''), ('holder_id = ''other'''), ('lease_epoch = 2'),
  ('provider_backend = ''Modal'''), ('provider_instance_id = ''sb-2'''),
  ('route_kind = ''active'''), ('route_target_id = md5(''other'')::uuid'), ('route_epoch = 2'),
  ('workspace_generation = 9'), ('operation = ''stdin'''), ('admitted_at = ''2029-12-31Z'''), ('settled_at = ''2029-12-31Z'''),
  ('id = NULL'), ('actor_kind = NULL'), ('operation = NULL'), ('turn_id = NULL')
) AS probe(change);

-- Whose parent it is, the process says by id alone.
SELECT command, pg_temp.change(command, 'operation = ''stdin'''), pg_temp.change(command, :'resolve'), pg_temp.removal(command)
FROM unnest(ARRAY['running', 'legacy', 'legacy, exited', 'exited', 'exited, open', 'lost', 'lost, open', 'free']) AS command;
SELECT column_name, fixture.answer(format('UPDATE sandbox_workspace_mutation_admissions SET operation = ''stdin'' WHERE id = %L',
    fixture.id('admission/1', 'running')), planted => format(
    'UPDATE sandbox_retained_processes SET %s = md5(''other'')::uuid WHERE id = %L', column_name, fixture.id('process', 'running')))
FROM unnest(ARRAY['parent_admission_id', 'account_id', 'workspace_id', 'lease_id']) AS column_name;
SELECT command, fixture.answer(format('UPDATE sandbox_workspace_mutation_admissions SET operation = ''stdin'' WHERE id = %L',
    fixture.id('admission/1', 'running')), planted => format(
    'UPDATE sandbox_retained_processes SET provider_command = %s WHERE id = %L', command, fixture.id('process', 'running')))
FROM unnest(ARRAY['NULL', 'fixture.provider_command()', 'fixture.supervised(''{"supervision": null}'')']) AS command;

-- Lost -------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_workspace_mutation_admissions SET %s WHERE id = %L', :'resolve',
  fixture.id('admission/1', 'lost, open'))) \gx
SELECT command, change, pg_temp.change(command, change) FROM (VALUES
  ('lost, open', :'reject'), ('lost, open', :'resolve'), ('lost, open', 'provider_outcome = NULL'),
  ('lost, open', 'operation = operation'), ('lost, open', 'operation = ''stdin'''),
  ('lost, open', 'provider_outcome = ''rejected'''),
  ('lost', :'reject'), ('lost', :'resolve'), ('lost', :'reopen')
) AS probe(command, change);

-- Immutable: D13 -----------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_workspace_mutation_admissions SET %s WHERE id = %L', :'later',
  fixture.id('admission/1', 'exited'))) \gx
SELECT command, change, pg_temp.change(command, change) FROM (VALUES
  ('exited', :'reject'), ('exited', :'resolve'), ('exited', :'later'), ('exited', :'reopen'),
  ('exited', 'provider_outcome = NULL, settled_at = NULL'), ('exited', 'operation = ''stdin'''), ('exited', 'operation = NULL'),
  ('lost', :'later'), ('lost', 'operation = ''stdin'''),
  ('exited, open', :'reject'), ('exited, open', :'resolve'), ('exited, open', 'operation = ''stdin'''),
  ('legacy, exited', :'resolve'), ('legacy, exited', :'later'), ('legacy, exited', :'reopen')
) AS probe(command, change);
-- DELETE stays what it was: the process's foreign key holds on to its parent; without a process, nobody does.
SELECT pg_temp.removal('exited');
SELECT fixture.answer(format('DELETE FROM sandbox_workspace_mutation_admissions WHERE id = %L', fixture.id('admission/1', 'exited')),
  planted => format('DELETE FROM sandbox_retained_processes WHERE id = %L', fixture.id('process', 'exited')));

-- Settlement: the process first ---------------------------------------------------------------------
SELECT fixture.answer(format($$
  WITH process AS (UPDATE sandbox_retained_processes SET state = 'exited', settled_at = '2030-01-01Z' WHERE id = %L RETURNING parent_admission_id)
  UPDATE sandbox_workspace_mutation_admissions a SET %s FROM process WHERE a.id = process.parent_admission_id$$,
  fixture.id('process', 'legacy'), :'resolve'));

-- A child of one command, parent of another: both are asked, the child's rules first.
SELECT change, fixture.answer(format('UPDATE sandbox_workspace_mutation_admissions SET %s WHERE id = %L', change, fixture.id('admission/1', 'running')),
  planted => format('UPDATE sandbox_workspace_mutation_admissions SET actor_kind = ''process'', holder_kind = ''process'', actor_id = %L WHERE id = %L',
    fixture.id('process', 'exited'), fixture.id('admission/1', 'running')))
FROM (VALUES ('operation = ''stdin'''), (:'resolve'), ('operation = operation')) AS probe(change);

-- Columns that came later ----------------------------------------------------------------------------
RESET SESSION AUTHORIZATION;
BEGIN;
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD COLUMN gone text DEFAULT 'x', ADD COLUMN note text DEFAULT 'a', ADD COLUMN amount numeric DEFAULT 1.0,
  ADD COLUMN span interval DEFAULT '1 day', ADD COLUMN document jsonb DEFAULT '{"a": 1}';
ALTER TABLE sandbox_workspace_mutation_admissions DROP COLUMN gone;
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT change, pg_temp.change('running', change) FROM (VALUES
  ('note = ''b'''), ('note = NULL'), ('note = note'), ('amount = 1.5'), ('span = ''2 days'''), ('document = ''{"a": 2}'''),
  -- as the types' own equality has it
  ('amount = 1.00'), ('span = ''24 hours'''), ('document = ''{"a": 1.0}''')
) AS probe(change);
-- D6: a generated column moves with what it is generated from.
RESET SESSION AUTHORIZATION;
ALTER TABLE sandbox_workspace_mutation_admissions ADD COLUMN settled boolean GENERATED ALWAYS AS (settled_at IS NOT NULL) STORED;
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT command, change, pg_temp.change(command, change) FROM (VALUES
  ('running', 'note = note'), ('running', 'note = ''b'''), ('lost', 'note = note'), ('exited, open', :'resolve'), ('lost, open', :'reject')
) AS probe(command, change);
ROLLBACK;
SET SESSION AUTHORIZATION regress_app;

-- A temporary table of the same name is not asked (D8), and a policy that hides the process hides nothing from
-- the guard (D9).
CREATE TEMP TABLE sandbox_retained_processes (LIKE public.sandbox_retained_processes);
SELECT pg_temp.change('running', :'resolve'), pg_temp.change('lost, open', :'resolve'), pg_temp.change('exited', :'later'), pg_temp.removal('running');
DROP TABLE pg_temp.sandbox_retained_processes;
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_retained_processes AS RESTRICTIVE USING (false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT count(*) FROM sandbox_retained_processes;
SELECT pg_temp.change('running', :'resolve'), pg_temp.change('lost, open', :'resolve'), pg_temp.change('exited', :'later'), pg_temp.removal('running');
ROLLBACK;
