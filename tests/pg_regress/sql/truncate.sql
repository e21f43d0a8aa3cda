-- evidence.truncate (D14): row guards do not see a TRUNCATE; this guard refuses it while the schema holds unsettled
-- supervised evidence, on each of the four tables.
\a \t \f ' => '
\set SHOW_CONTEXT never
SET client_min_messages = warning;
-- A schema of its own: TRUNCATE takes all rows, and other suites have theirs in public.
CREATE SCHEMA truncated AUTHORIZATION regress_owner;
SELECT count(*) > 0 FROM opengeni_guards.provision('truncated', 'regress_owner');
CREATE SCHEMA elsewhere AUTHORIZATION regress_owner;
SELECT count(*) > 0 FROM opengeni_guards.provision('elsewhere', 'regress_owner');

-- One process row per statement, in that schema; nothing else is asked.
CREATE FUNCTION pg_temp.evidence(fields jsonb, place text DEFAULT 'truncated') RETURNS text LANGUAGE sql RETURN format(
  'INSERT INTO %I.sandbox_retained_processes SELECT * FROM jsonb_populate_record(NULL::%1$I.sandbox_retained_processes, %L)', place,
  jsonb_build_object('id', md5(fields::text)::uuid, 'account_id', md5('a')::uuid, 'workspace_id', md5('w')::uuid, 'session_id', md5('s')::uuid, 'lease_id', md5('l')::uuid,
    'sandbox_group_id', md5('g')::uuid, 'parent_admission_id', md5(fields::text)::uuid, 'holder_id', md5(fields::text), 'owner_actor_kind', 'direct', 'owner_actor_id', md5('o')::uuid,
    'lease_epoch', 1, 'provider_backend', 'modal', 'provider_instance_id', 'sb-1', 'route_kind', 'home', 'route_epoch', 1, 'provider_session_id', 1,
    'state', 'active', 'started_at', '2030-01-01Z', 'reconcile_after', '2030-01-01Z', 'reconcile_attempts', 0, 'provider_command_input_index', 0,
    'supervision_output_captured', false, 'provider_command', fixture.supervised()) || fields);
-- The answer to a TRUNCATE of a table with everything that refers to it.
CREATE FUNCTION pg_temp.truncation(target text, planted text DEFAULT NULL, behaviour text DEFAULT 'CASCADE') RETURNS text LANGUAGE sql
  RETURN (SELECT CASE state WHEN '00000' THEN 'accepted' ELSE concat_ws(' ', state, nullif("constraint", ''), nullif("table", '')) END
    FROM fixture.refusal(format('TRUNCATE %s %s', target, behaviour), planted => planted));
CREATE TEMP TABLE target AS SELECT name, place FROM unnest(ARRAY['sandbox_retained_processes', 'sandbox_workspace_mutation_admissions', 'sandbox_lease_holders', 'sandbox_leases'])
  WITH ORDINALITY AS t(name, place);
SELECT pg_temp.evidence('{}') AS active \gset

SELECT name, pg_temp.truncation('truncated.' || name) AS empty, pg_temp.truncation('truncated.' || name, :'active') AS active FROM target ORDER BY place;
BEGIN;
CALL fixture.plant(:'active');
SELECT * FROM fixture.refusal('TRUNCATE truncated.sandbox_leases CASCADE') \gx
-- The owner is told the same, and sees it whatever the policies say (D9).
SET LOCAL SESSION AUTHORIZATION regress_owner;
SELECT count(*) FROM truncated.sandbox_retained_processes;
TRUNCATE truncated.sandbox_retained_processes CASCADE;
ROLLBACK;

-- By CASCADE from further up, beside other tables, and one table of no interest.
SELECT target, pg_temp.truncation(target, :'active') FROM unnest(ARRAY['truncated.workspaces', 'truncated.managed_accounts', 'truncated.sessions',
  'truncated.sandbox_pty_sessions', 'truncated.sandbox_pty_sessions, truncated.sandbox_retained_processes', 'truncated.sandbox_checkpoint_artifacts',
  'truncated.workspace_instruction_policy_heads']) AS target;
SELECT target, pg_temp.truncation(target, :'active', 'RESTRICT') FROM unnest(ARRAY['truncated.sandbox_lease_holders', 'truncated.sandbox_leases', 'truncated.sandbox_retained_processes']) AS target;
-- Of this schema.
SELECT place, pg_temp.truncation('truncated.sandbox_lease_holders', pg_temp.evidence('{}', place)) FROM unnest(ARRAY['truncated', 'elsewhere']) AS place;

-- What is unsettled: supervised, and active, or ended otherwise than lost without all its proof.
SELECT fields, pg_temp.truncation('truncated.sandbox_lease_holders', pg_temp.evidence(fields)) FROM (VALUES
  (jsonb '{}'), ('{"supervision_receipt": {}, "supervision_output_captured": true}'),
  ('{"state": "exited", "settled_at": "2030-01-01Z"}'),
  ('{"state": "exited", "settled_at": "2030-01-01Z", "supervision_receipt": {}}'),
  ('{"state": "exited", "settled_at": "2030-01-01Z", "supervision_output_captured": true}'),
  ('{"state": "exited", "settled_at": "2030-01-01Z", "supervision_receipt": {}, "supervision_output_captured": true}'),
  ('{"state": "lost", "settled_at": "2030-01-01Z"}'),
  ('{"provider_command": null}'), (jsonb_build_object('provider_command', fixture.provider_command())),
  (jsonb_build_object('provider_command', fixture.supervised('{"supervision": null}')))
) AS probe(fields);
-- One among many is enough.
SELECT pg_temp.truncation('truncated.sandbox_lease_holders', pg_temp.evidence('{"state": "lost", "settled_at": "2030-01-01Z"}') || '; '
  || pg_temp.evidence('{"provider_command": null, "provider_session_id": 2}') || '; ' || more) FROM unnest(ARRAY['', :'active']) AS more;

-- A temporary table of the same name is not asked (D8).
CREATE TEMP TABLE sandbox_retained_processes (LIKE truncated.sandbox_retained_processes);
SELECT pg_temp.truncation('truncated.sandbox_lease_holders', :'active');
DROP TABLE pg_temp.sandbox_retained_processes;
-- Settled evidence may go.
BEGIN;
CALL fixture.plant(pg_temp.evidence('{"state": "exited", "settled_at": "2030-01-01Z", "supervision_receipt": {}, "supervision_output_captured": true}'));
SET LOCAL SESSION AUTHORIZATION regress_owner;
TRUNCATE truncated.sandbox_leases CASCADE;
RESET SESSION AUTHORIZATION;
SELECT count(*) FROM truncated.sandbox_retained_processes;
ROLLBACK;

DROP SCHEMA truncated CASCADE;
DROP SCHEMA elsewhere CASCADE;
