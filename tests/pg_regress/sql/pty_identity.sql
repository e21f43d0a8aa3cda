-- pty.identity: by COMMIT an open terminal copies an active retained process exactly.
\a \t \f ' => '
\set SHOW_CONTEXT never
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('pty identity');

CALL fixture.command('running');
CALL fixture.command('legacy', supervised => false);
CALL fixture.command('exited', overrides => jsonb_build_object('supervision_output_captured', true,
  'supervision_receipt', fixture.receipt(), 'state', 'exited', 'exit_code', 3, 'settled_at', '2030-01-01Z',
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.plant($$CALL fixture.command('lost', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_instance_lost"}')$$);
CALL fixture.command('open');
CALL fixture.pty('open');
CALL fixture.command('closed');
CALL fixture.pty('closed', '{"status": "closed"}');

CREATE FUNCTION pg_temp.opened(name text, overrides jsonb DEFAULT '{}', planted text DEFAULT NULL) RETURNS text LANGUAGE sql
  RETURN fixture.at_commit(format('CALL fixture.pty(%L, %L)', name, overrides), planted => planted);

SELECT * FROM fixture.refusal($$CALL fixture.due('CALL fixture.pty(''running'', ''{"route_epoch": 2}'')')$$) \gx

-- The process: active, supervised or not.
SELECT name, pg_temp.opened(name), pg_temp.opened(name, '{"status": "closed"}')
FROM unnest(ARRAY['running', 'legacy', 'exited', 'lost', 'open']) AS name;

-- Each column of the terminal. What the keys refuse at once is theirs.
SELECT overrides, pg_temp.opened('running', overrides), pg_temp.opened('running', overrides || '{"status": "closed"}') FROM (VALUES
  (jsonb '{"sandbox_group_id": "00000000-0000-4000-8000-000000000001"}'), ('{"open_admission_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"lease_epoch": 0}'), ('{"provider_backend": "Modal"}'), ('{"provider_instance_id": "sb-2"}'), ('{"route_kind": "active"}'),
  ('{"route_kind": "active", "route_target_id": "00000000-0000-4000-8000-000000000001"}'), ('{"route_epoch": 0}'), ('{"exec_session_id": 2}'),
  ('{"retained_process_id": "00000000-0000-4000-8000-000000000001"}'), ('{"lease_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"session_id": "00000000-0000-4000-8000-000000000001"}'),
  -- NULL
  ('{"sandbox_group_id": null}'), ('{"open_admission_id": null}'), ('{"exec_session_id": null}'), ('{"provider_backend": null}'),
  ('{"provider_instance_id": null}'), ('{"route_kind": null}'), ('{"route_epoch": null}'), ('{"lease_id": null}'), ('{"retained_process_id": null}'),
  ('{"status": null}'),
  -- what is not compared
  ('{"cols": 1, "rows": 1, "shell": "zsh", "cwd": "/tmp", "opened_by": "you"}')
) AS probe(overrides);
-- Each column of the process, where the terminal's key is the same.
SELECT change, fixture.at_commit(format('UPDATE sandbox_pty_sessions SET cols = 81 WHERE id = %L', fixture.id('pty', 'open')),
  planted => format('UPDATE sandbox_retained_processes SET %s WHERE id = %L', change, fixture.id('process', 'open'))) FROM (VALUES
  ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'), ('session_id = md5(''other'')::uuid'), ('lease_id = md5(''other'')::uuid'),
  ('sandbox_group_id = md5(''other'')::uuid'), ('parent_admission_id = md5(''other'')::uuid'), ('lease_epoch = 2'),
  ('provider_backend = ''other'', provider_command = NULL'), ('provider_instance_id = ''sb-2'', provider_command = NULL'),
  ('route_kind = ''active'''), ('route_epoch = 2'), ('provider_session_id = 2'), ('state = ''exited'', settled_at = ''2030-01-01Z'''), ('id = md5(''other'')::uuid'),
  -- what is not compared
  ('holder_id = ''other'''), ('owner_actor_id = md5(''other'')::uuid'), ('provider_command = NULL')
) AS probe(change);
SELECT fixture.at_commit(format('CALL fixture.pty(''running'', %L)', pty), planted => format(
    'UPDATE sandbox_retained_processes SET route_kind = ''active'', route_target_id = %s WHERE id = %L', target, fixture.id('process', 'running')))
FROM (VALUES
  ('md5(''a'')::uuid', jsonb_build_object('route_kind', 'active', 'route_target_id', md5('a')::uuid)),
  ('md5(''a'')::uuid', jsonb_build_object('route_kind', 'active', 'route_target_id', md5('b')::uuid)),
  ('md5(''a'')::uuid', '{"route_kind": "active"}'), ('NULL', '{"route_kind": "active"}'),
  ('NULL', jsonb_build_object('route_kind', 'active', 'route_target_id', md5('a')::uuid))
) AS probe(target, pty);

-- UPDATE: touch, close, open again.
SELECT name, change, fixture.at_commit(format('UPDATE sandbox_pty_sessions SET %s WHERE id = %L', change, fixture.id('pty', name))) FROM (VALUES
  ('open', 'last_input_at = now()'), ('open', 'route_epoch = 2'), ('open', 'status = ''closed'', closed_at = now()'), ('open', 'status = ''closed'', route_epoch = 2'),
  ('closed', 'status = ''open'''), ('closed', 'status = ''open'', route_epoch = 2'), ('closed', 'route_epoch = 2')
) AS probe(name, change);

-- D1: the final row is judged, by its own chain.
SELECT fixture.id('pty', 'open') AS open, fixture.id('pty', 'closed') AS closed \gset
SELECT how, fixture.at_commit(format('UPDATE sandbox_pty_sessions SET route_epoch = 2 WHERE id = %1$L; ' || statements, :'open', :'closed')) FROM (VALUES
  ('alone', ''),
  ('repaired', 'UPDATE sandbox_pty_sessions SET route_epoch = 1 WHERE id = %1$L'),
  ('closed', 'UPDATE sandbox_pty_sessions SET status = ''closed'' WHERE id = %1$L'),
  ('deleted', 'DELETE FROM sandbox_pty_sessions WHERE id = %1$L'),
  ('repaired and deleted', 'UPDATE sandbox_pty_sessions SET route_epoch = 1 WHERE id = %1$L; DELETE FROM sandbox_pty_sessions WHERE id = %1$L'),
  ('re-keyed, key taken', 'UPDATE sandbox_pty_sessions SET id = md5(''re-keyed'')::uuid WHERE id = %1$L; UPDATE sandbox_pty_sessions SET id = %1$L WHERE id = %2$L')
) AS probe(how, statements);
-- A terminal closes with its command, in one transaction.
SELECT order_, fixture.at_commit(format(order_, fixture.id('process', 'open'), fixture.id('admission/1', 'open'), fixture.id('holder', 'open'), :'open'),
  planted => format('UPDATE sandbox_retained_processes SET provider_command = NULL WHERE id = %L', fixture.id('process', 'open')))
FROM (VALUES
  ('UPDATE sandbox_pty_sessions SET cols = 81 WHERE id = %4$L; UPDATE sandbox_retained_processes SET state = ''exited'', settled_at = ''2030-01-01Z'' WHERE id = %1$L; UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = ''resolved'', settled_at = ''2030-01-01Z'' WHERE id = %2$L; DELETE FROM sandbox_lease_holders WHERE id = %3$L; UPDATE sandbox_pty_sessions SET status = ''closed'' WHERE id = %4$L'),
  ('UPDATE sandbox_pty_sessions SET cols = 81 WHERE id = %4$L; UPDATE sandbox_retained_processes SET state = ''exited'', settled_at = ''2030-01-01Z'' WHERE id = %1$L; UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = ''resolved'', settled_at = ''2030-01-01Z'' WHERE id = %2$L; DELETE FROM sandbox_lease_holders WHERE id = %3$L')
) AS probe(order_);

BEGIN;
UPDATE sandbox_pty_sessions SET route_epoch = 2 WHERE id = :'open';
SAVEPOINT s;
UPDATE sandbox_pty_sessions SET status = 'closed' WHERE id = :'open';
ROLLBACK TO s;
COMMIT;
-- No tenant at COMMIT (D2).
BEGIN;
UPDATE sandbox_pty_sessions SET cols = 82 WHERE id = :'open';
SELECT set_config('opengeni.account_id', '', true) = '' AS gone;
COMMIT;
SELECT cols, route_epoch FROM sandbox_pty_sessions WHERE id = :'open';

-- A temporary table of the same name is not asked (D8), and a policy that hides the process hides nothing from
-- the guard (D9).
CREATE TEMP TABLE sandbox_retained_processes AS SELECT * FROM public.sandbox_retained_processes WHERE id = fixture.id('process', 'open');
UPDATE pg_temp.sandbox_retained_processes SET route_epoch = 2;
SELECT route_epoch, fixture.at_commit(format('UPDATE sandbox_pty_sessions SET route_epoch = %s WHERE id = %L', route_epoch, :'open')) FROM generate_series(1, 2) AS route_epoch;
DROP TABLE pg_temp.sandbox_retained_processes;
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_retained_processes AS RESTRICTIVE USING (false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT route_epoch, fixture.at_commit(format('UPDATE sandbox_pty_sessions SET route_epoch = %s WHERE id = %L', route_epoch, :'open')) FROM generate_series(1, 2) AS route_epoch;
ROLLBACK;
