-- claim_terminal_retained_processes and count_active_retained_processes_by_owner_state: commands whose owner has ended.
\a \t \f ' => '
\set SHOW_CONTEXT never
-- The functions see the whole fleet: only this file's rows are there while it runs.
BEGIN;
CALL fixture.plant('DELETE FROM public.sandbox_retained_processes');
SET LOCAL SESSION AUTHORIZATION regress_app;
CALL fixture.enter('queue processes');

CALL fixture.command('direct', false, '{"reconcile_after": "2020-01-03Z"}');
CALL fixture.command('turn ended', false, '{"reconcile_after": "2020-01-02Z"}');
CALL fixture.command('turn runs', false, '{"reconcile_after": "2020-01-01Z"}');
CALL fixture.command('attempt unknown', false, '{"reconcile_after": "2020-01-01Z", "started_at": "2020-01-01Z"}');
CALL fixture.command('not due', false, '{"reconcile_after": "2100-01-01Z"}');
CALL fixture.command('exited', false, '{"reconcile_after": "2020-01-01Z", "state": "exited", "settled_at": "2030-01-01Z"}');
-- Three of them belong to a turn's attempt.
CALL fixture.plant(format($$
  UPDATE sandbox_workspace_mutation_admissions SET actor_kind = 'turn', actor_id = md5(lease_id::text)::uuid, holder_kind = 'turn',
    turn_id = lease_id, attempt_id = md5(lease_id::text)::uuid, execution_generation = 1 WHERE lease_id = ANY (%1$L);
  UPDATE sandbox_retained_processes SET owner_actor_kind = 'turn', owner_actor_id = md5(lease_id::text)::uuid,
    owner_turn_id = lease_id, owner_attempt_id = md5(lease_id::text)::uuid, owner_execution_generation = 1 WHERE lease_id = ANY (%1$L);
  INSERT INTO session_turns (id, session_id, trigger_event_id, temporal_workflow_id, status, position, prompt, model, reasoning_effort,
      sandbox_backend, account_id, workspace_id)
    SELECT lease_id, session_id, lease_id, 'w', CASE WHEN lease_id = %2$L THEN 'completed' ELSE 'running' END, 1, '', 'm', 'low', 'modal',
      account_id, workspace_id FROM sandbox_retained_processes WHERE lease_id = ANY (%1$L) AND lease_id <> %3$L;
  INSERT INTO session_turn_attempts (id, account_id, workspace_id, session_id, turn_id, execution_generation, state, outcome, closed_at,
      temporal_workflow_id, temporal_workflow_run_id, temporal_activity_id, verified_control_revision, mcp_approval_policies)
    SELECT md5(lease_id::text)::uuid, account_id, workspace_id, session_id, lease_id, 1, CASE WHEN lease_id = %2$L THEN 'closed' ELSE 'running' END,
      CASE WHEN lease_id = %2$L THEN 'completed' END, CASE WHEN lease_id = %2$L THEN timestamptz '2030-01-01Z' END, 'w', lease_id, 'a', 1, '{}'
    FROM sandbox_retained_processes WHERE lease_id = ANY (%1$L) AND lease_id <> %3$L
$$, ARRAY[fixture.id('lease', 'turn ended'), fixture.id('lease', 'turn runs'), fixture.id('lease', 'attempt unknown')],
  fixture.id('lease', 'turn ended'), fixture.id('lease', 'attempt unknown')));

CREATE FUNCTION pg_temp.name(id uuid) RETURNS text LANGUAGE sql RETURN (
  SELECT name FROM unnest(ARRAY['direct', 'turn ended', 'turn runs', 'attempt unknown', 'not due', 'exited']) AS name
  WHERE fixture.id('process', name) = id);
CREATE VIEW pg_temp.queue AS
  SELECT pg_temp.name(id) AS process, reconcile_after - now() AS due, reconcile_claim_id = fixture.id('claim', '1') AS claimed,
    reconcile_attempts AS attempts, last_reconcile_outcome AS outcome
  FROM sandbox_retained_processes WHERE last_reconcile_outcome IS NOT NULL ORDER BY 1;

-- Counting ---------------------------------------------------------------------------------------
\t
SELECT * FROM opengeni_private.count_active_retained_processes_by_owner_state() ORDER BY 1;
\t
-- Of no tenant, the application sees nothing by itself.
SELECT set_config('opengeni.account_id', '', true) = '' AS no_tenant;
SELECT count(*) FROM opengeni_guards.count_active_retained_processes_by_owner_state('public');
SELECT sum(active_count) FROM opengeni_private.count_active_retained_processes_by_owner_state();
SELECT * FROM fixture.refusal('SELECT opengeni_guards.count_active_retained_processes_by_owner_state(NULL)') \gx
SELECT * FROM fixture.refusal('SELECT opengeni_guards.count_active_retained_processes_by_owner_state(''nowhere'')') \gx
CALL fixture.enter('queue processes');

-- Claiming ---------------------------------------------------------------------------------------
-- The limit is on what is looked at: whoever is still at work is put off, not claimed.
SELECT pg_temp.name(process_id), claim_id = fixture.id('claim', '1'), owner_state, owner_attempt_outcome
FROM opengeni_private.claim_terminal_retained_processes(fixture.id('claim', '1'), 2, 60000);
TABLE pg_temp.queue;
-- Oldest first.
SELECT pg_temp.name(process_id), owner_state, owner_attempt_outcome
FROM opengeni_private.claim_terminal_retained_processes(fixture.id('claim', '1'), 100, 60000);
\t
TABLE pg_temp.queue;
\t
-- They are with somebody now.
SELECT count(*) FROM opengeni_private.claim_terminal_retained_processes(fixture.id('claim', '2'), 100, 60000);

SELECT arguments, r.state, r.message, r.hint
FROM unnest(ARRAY['NULL, 1, 0', 'gen_random_uuid(), 0, 0', 'gen_random_uuid(), 101, 0', 'gen_random_uuid(), NULL, 0', 'gen_random_uuid(), 1, -1',
  'gen_random_uuid(), 1, 3600001', 'gen_random_uuid(), 1, NULL']) AS arguments,
  fixture.refusal(format('SELECT opengeni_private.claim_terminal_retained_processes(%s)', arguments)) r;

-- One that lost its holder to a repair is left; the others are claimed, and somebody is told.
CALL fixture.plant('UPDATE sandbox_retained_processes SET reconcile_after = ''2020-01-01Z'' WHERE state = ''active''');
CALL fixture.plant(format('DELETE FROM sandbox_lease_holders WHERE id = %L', fixture.id('holder', 'direct')));
SELECT pg_temp.name(process_id), owner_state FROM opengeni_private.claim_terminal_retained_processes(fixture.id('claim', '3'), 100, 60000) ORDER BY 1;
ROLLBACK;
