-- process_holder.*: a running supervised command holds its lease, and one that has ended holds nothing.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('process holder');

CALL fixture.command('running');
CALL fixture.command('legacy', supervised => false);
CALL fixture.command('legacy, exited', supervised => false, overrides => '{"state": "exited", "settled_at": "2030-01-01Z"}');
CALL fixture.command('exited', overrides => jsonb_build_object('supervision_output_captured', true,
  'supervision_receipt', fixture.receipt(), 'state', 'exited', 'exit_code', 3, 'settled_at', '2030-01-01Z',
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.plant($$CALL fixture.command('lost', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_instance_lost"}')$$);
CALL fixture.command('in settlement');
CALL fixture.lease('free');

-- A holder of the lease of `name`.
CREATE PROCEDURE pg_temp.hold(name text, overrides jsonb DEFAULT '{}') LANGUAGE plpgsql AS $$
BEGIN
  CALL fixture.insert('sandbox_lease_holders', fixture.tenant() || jsonb_build_object(
    'id', fixture.id('holder/new', name), 'lease_id', fixture.id('lease', name), 'kind', 'process',
    'holder_id', 'process', 'subject_id', fixture.id('session', name)) || overrides);
END $$;
CREATE FUNCTION pg_temp.held(name text, overrides jsonb DEFAULT '{}') RETURNS text LANGUAGE sql
  RETURN fixture.answer(format('CALL pg_temp.hold(%L, %L)', name, jsonb_build_object('id', fixture.id('holder/probe', name)) || overrides));
-- The answer to a change, or to the DELETE, of the holder of a command.
CREATE FUNCTION pg_temp.change(name text, change text, what text DEFAULT 'holder') RETURNS text LANGUAGE sql
  RETURN fixture.change('sandbox_lease_holders', fixture.id(what, name), change);
CREATE FUNCTION pg_temp.removal(name text, what text DEFAULT 'holder') RETURNS text LANGUAGE sql
  RETURN fixture.removal('sandbox_lease_holders', fixture.id(what, name));

CALL pg_temp.hold('running', '{"kind": "direct"}');
CALL pg_temp.hold('exited', '{"kind": "direct"}');
CALL pg_temp.hold('free');
-- A holder that an older release left behind.
CALL fixture.plant(format($$INSERT INTO sandbox_lease_holders (id, account_id, workspace_id, lease_id, kind, holder_id)
  SELECT md5('left')::uuid, account_id, workspace_id, id, 'process', 'process' FROM sandbox_leases WHERE id = %L$$, fixture.id('lease', 'lost')));
CALL fixture.plant(format($$UPDATE sandbox_retained_processes SET state = 'exited', settled_at = '2030-01-01Z' WHERE id = %L$$,
  fixture.id('process', 'in settlement')));

-- Retained -----------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('DELETE FROM sandbox_lease_holders WHERE id = %L', fixture.id('holder', 'running'))) \gx
SELECT * FROM fixture.refusal(format('UPDATE sandbox_lease_holders SET subject_id = NULL, holder_id = ''other'' WHERE id = %L',
  fixture.id('holder', 'running'))) \gx
-- Every column counts, the heartbeat too; the same values are no change.
SELECT change, pg_temp.change('running', change) FROM (VALUES
  ('id = md5(''other'')::uuid'), ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'),
  ('lease_id = md5(''other'')::uuid'), ('kind = ''direct'''), ('holder_id = ''other'''), ('subject_id = md5(''other'')::uuid'),
  ('last_heartbeat_at = ''2030-01-01Z'''), ('created_at = ''2030-01-01Z'''),
  ('id = NULL'), ('lease_id = NULL'), ('kind = NULL'), ('holder_id = NULL'), ('subject_id = NULL'), ('last_heartbeat_at = NULL'),
  ('kind = kind, holder_id = holder_id, last_heartbeat_at = last_heartbeat_at')
) AS probe(change);
-- Whose holder it is: kind, lease and name.
SELECT command, what, pg_temp.change(command, 'last_heartbeat_at = ''2030-01-01Z''', what), pg_temp.removal(command, what)
FROM (VALUES ('running', 'holder'), ('running', 'holder/new'), ('legacy', 'holder'), ('in settlement', 'holder'),
  ('exited', 'holder/new'), ('free', 'holder/new')) AS probe(command, what);
SELECT change, fixture.answer(format('DELETE FROM sandbox_lease_holders WHERE id = %L', fixture.id('holder', 'running')), planted => format(
    'UPDATE sandbox_retained_processes SET %s WHERE id = %L', change, fixture.id('process', 'running')))
FROM (VALUES
  ('holder_id = ''other'''), ('lease_id = md5(''other'')::uuid'), ('provider_command = NULL'),
  ('provider_command = fixture.provider_command()'), ('provider_command = fixture.supervised(''{"supervision": null}'')'),
  -- what is not asked
  ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'), ('session_id = md5(''other'')::uuid'), ('lease_epoch = 2')
) AS probe(change);
-- Its lease does not go either.
SELECT state, message FROM fixture.refusal(format('DELETE FROM sandbox_leases WHERE id = %L', fixture.id('lease', 'running')),
  planted => format('UPDATE sandbox_retained_processes SET parent_admission_id = md5(''other'')::uuid WHERE id = %L', fixture.id('process', 'running')));

-- Released: D13 ------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal($$CALL pg_temp.hold('exited', '{"id": "00000000-0000-4000-8000-000000000001"}')$$) \gx
SELECT * FROM fixture.refusal(format('UPDATE sandbox_lease_holders SET kind = ''process'' WHERE id = %L', fixture.id('holder/new', 'exited'))) \gx
SELECT command, pg_temp.held(command, '{"holder_id": "process"}'), pg_temp.held(command, '{"holder_id": "other"}')
FROM unnest(ARRAY['exited', 'lost', 'legacy, exited', 'in settlement', 'legacy', 'free']) AS command;
SELECT overrides, pg_temp.held('exited', overrides::jsonb) FROM unnest(ARRAY['{"kind": "turn"}', '{"kind": "viewer"}', '{"kind": "direct"}', '{"kind": "direct", "holder_id": "x"}',
  '{"kind": null}', '{"holder_id": null}', '{"lease_id": null}', '{"subject_id": null}', '{"account_id": "00000000-0000-4000-8000-000000000001"}']) AS overrides;
-- An UPDATE into one: by kind, name or lease. What stays what it was is let be.
SELECT command, what, change, pg_temp.change(command, change, what) FROM (VALUES
  ('exited', 'holder/new', 'kind = ''process'''),
  ('exited', 'holder/new', 'last_heartbeat_at = ''2030-01-01Z'''),
  ('free', 'holder/new', format('lease_id = %L', fixture.id('lease', 'exited'))),
  ('free', 'holder/new', format('lease_id = %L', fixture.id('lease', 'lost'))),
  ('free', 'holder/new', format('lease_id = %L', fixture.id('lease', 'legacy, exited'))),
  ('free', 'holder/new', format('lease_id = %L, holder_id = ''other''', fixture.id('lease', 'exited'))),
  ('free', 'holder/new', format('lease_id = %L, kind = ''direct'', holder_id = ''other''', fixture.id('lease', 'exited'))),
  ('free', 'holder/new', 'holder_id = ''other'''),
  -- the holder of a running command stays where it is first of all
  ('running', 'holder', format('lease_id = %L', fixture.id('lease', 'exited')))
) AS probe(command, what, change);
SELECT change, fixture.change('sandbox_lease_holders', md5('left')::uuid, change) FROM unnest(ARRAY[
  'last_heartbeat_at = ''2030-01-01Z''', 'holder_id = holder_id', 'subject_id = NULL', 'holder_id = ''other''']) AS change;
SELECT fixture.removal('sandbox_lease_holders', md5('left')::uuid);
-- Re-insertion by ON CONFLICT.
SELECT fixture.answer(format($$INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id)
  SELECT account_id, workspace_id, id, 'process', 'process' FROM sandbox_leases WHERE id = %L
  ON CONFLICT (lease_id, kind, holder_id) DO UPDATE SET last_heartbeat_at = now()$$, fixture.id('lease', command)))
FROM unnest(ARRAY['running', 'exited', 'legacy, exited', 'free']) AS command;

-- Columns that came later ----------------------------------------------------------------------------
RESET SESSION AUTHORIZATION;
BEGIN;
ALTER TABLE sandbox_lease_holders ADD COLUMN gone text DEFAULT 'x', ADD COLUMN note text DEFAULT 'a', ADD COLUMN amount numeric DEFAULT 1.0;
ALTER TABLE sandbox_lease_holders DROP COLUMN gone;
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT change, pg_temp.change('running', change) FROM (VALUES
  ('note = ''b'''), ('note = NULL'), ('note = note'), ('amount = 1.5'), ('amount = 1.00')) AS probe(change);
SELECT pg_temp.change('legacy', 'note = ''b'''), pg_temp.removal('running'), pg_temp.held('exited');
-- D6: a generated column is what it is generated from.
RESET SESSION AUTHORIZATION;
ALTER TABLE sandbox_lease_holders ADD COLUMN long boolean GENERATED ALWAYS AS (length(holder_id) > 9) STORED;
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT change, pg_temp.change('running', change) FROM (VALUES ('note = note'), ('note = ''b'''), ('holder_id = ''a longer name''')) AS probe(change);
ROLLBACK;
SET SESSION AUTHORIZATION regress_app;

-- A temporary table of the same name is not asked (D8), and a policy that hides the process hides nothing from
-- the guard (D9).
CREATE TEMP TABLE sandbox_retained_processes (LIKE public.sandbox_retained_processes);
SELECT pg_temp.removal('running'), pg_temp.change('running', 'subject_id = NULL'), pg_temp.held('exited');
DROP TABLE pg_temp.sandbox_retained_processes;
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_retained_processes AS RESTRICTIVE USING (false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT count(*) FROM sandbox_retained_processes;
SELECT pg_temp.removal('running'), pg_temp.change('running', 'subject_id = NULL'), pg_temp.held('exited');
ROLLBACK;
