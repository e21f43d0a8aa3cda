-- provision, grant_usage, status and rules: a schema gets the data model and its guards, once.
\a \t \f ' => '
CALL fixture.enter('provision');
CREATE SCHEMA elsewhere AUTHORIZATION regress_owner;

-- The first time ---------------------------------------------------------------------------------
CREATE TEMP TABLE first_time AS
  SELECT * FROM opengeni_guards.provision('elsewhere', 'regress_owner') WITH ORDINALITY AS line(object, action, note, place);
SELECT object, action, note FROM first_time ORDER BY place LIMIT 5;
SELECT object, action FROM first_time WHERE object LIKE 'table %' OR object LIKE 'trigger %' ORDER BY place;
SELECT count(DISTINCT object) = count(*) FROM first_time;
-- The contract's functions serve the schema that came first; this one's callers have the natives.
SELECT object, action, note FROM first_time WHERE object LIKE 'function %' AND action <> 'present' ORDER BY place;
DELETE FROM first_time WHERE note = 'serves schema public';

-- The second: everything is there, and nothing is touched.
SELECT bool_and(second.action = 'present'), count(*) = (SELECT count(*) FROM first_time), count(first_time) = count(*)
FROM opengeni_guards.provision('elsewhere', 'regress_owner') WITH ORDINALITY AS second(object, action, note, place)
LEFT JOIN first_time USING (object) WHERE second.note IS DISTINCT FROM 'serves schema public';

-- What is missing comes back, and only that.
ALTER TABLE elsewhere.sandbox_leases DROP CONSTRAINT sandbox_leases_refcount_check;
DROP INDEX elsewhere.sandbox_leases_reaper_idx;
DROP TRIGGER supervised_command_guard ON elsewhere.sandbox_retained_processes;
DROP POLICY workspace_isolation ON elsewhere.sandbox_leases;
SELECT object, action FROM opengeni_guards.provision('elsewhere', 'regress_owner') WHERE action <> 'present' AND note IS DISTINCT FROM 'serves schema public';

-- All of it belongs to the owner; nothing became a member of the extension.
SELECT DISTINCT relowner::regrole FROM pg_class WHERE relnamespace = 'elsewhere'::regnamespace;
SELECT count(*) FROM pg_depend WHERE deptype = 'e' AND classid = 'pg_class'::regclass
  AND objid IN (SELECT oid FROM pg_class WHERE relnamespace IN ('elsewhere'::regnamespace, 'public'::regnamespace));

-- The guards work there, and say where.
SELECT opengeni_guards.grant_usage('regress_app', 'elsewhere');
SET SESSION AUTHORIZATION regress_app;
SELECT * FROM fixture.refusal('INSERT INTO elsewhere.sandbox_leases DEFAULT VALUES', '{"sandbox_recovery_protocol_v2": ""}') \gx
SELECT * FROM fixture.refusal('INSERT INTO elsewhere.sandbox_retained_processes (cancellation_reason) VALUES (''bored'')') \gx
RESET SESSION AUTHORIZATION;

-- Who may, and where -----------------------------------------------------------------------------
SET SESSION AUTHORIZATION regress_app;
SELECT state, message, hint FROM fixture.refusal('SELECT opengeni_guards.provision(''elsewhere'')') \gx
SELECT state, message, hint FROM fixture.refusal('SELECT opengeni_guards.grant_usage(''regress_app'', ''elsewhere'')') \gx
RESET SESSION AUTHORIZATION;
SET SESSION AUTHORIZATION regress_owner;
SELECT fixture.answer('SELECT opengeni_guards.provision(''elsewhere'')');
RESET SESSION AUTHORIZATION;
-- A schema that a superuser owns: said, and done.
BEGIN;
CREATE SCHEMA supers AUTHORIZATION postgres;
SELECT count(*) > 0 FROM opengeni_guards.provision('supers');
ROLLBACK;
SELECT call, state, message FROM (VALUES
    ('provision(''nowhere'')'),
    ('provision(NULL)'),
    ('provision(''elsewhere'', ''regress_nobody'')'),
    ('provision(''elsewhere'', ''regress_app'')'),
    ('grant_usage(''regress_nobody'', ''elsewhere'')'),
    ('grant_usage(NULL, ''elsewhere'')'),
    ('grant_usage(''regress_app'', ''nowhere'')')
  ) AS probe(call), LATERAL fixture.refusal('SELECT opengeni_guards.' || call);

-- A table of another shape stands in the way: nothing is changed.
BEGIN;
CREATE SCHEMA taken AUTHORIZATION regress_owner;
SET LOCAL ROLE regress_owner;
CREATE TABLE taken.sandbox_leases (id text);
RESET ROLE;
SELECT state, message, detail, hint FROM fixture.refusal('SELECT opengeni_guards.provision(''taken'')') \gx
SELECT count(*) FROM pg_class WHERE relnamespace = 'taken'::regnamespace;
DROP TABLE taken.sandbox_leases;
CREATE VIEW taken.sandbox_leases AS SELECT * FROM elsewhere.sandbox_leases;
SELECT state, message, detail, hint FROM fixture.refusal('SELECT opengeni_guards.provision(''taken'')') \gx
ROLLBACK;

-- Status -----------------------------------------------------------------------------------------
SELECT object, state, detail FROM opengeni_guards.status('elsewhere') WHERE object LIKE 'trigger %';
SELECT object, state, detail FROM opengeni_guards.status('elsewhere') WHERE object LIKE 'function %';
SELECT DISTINCT state, detail FROM opengeni_guards.status('public') WHERE object LIKE 'function opengeni_private.%' ORDER BY 1;
SELECT object, state, detail FROM opengeni_guards.status('elsewhere') WHERE state NOT IN ('native', 'present') AND detail IS DISTINCT FROM 'serves schema public' AND object <> 'mode';
SELECT DISTINCT data_schema FROM opengeni_guards.status() ORDER BY 1;

BEGIN;
SET LOCAL client_min_messages = warning;
ALTER TABLE elsewhere.sandbox_leases DISABLE TRIGGER sandbox_recovery_protocol_v2_lease_guard;
ALTER TABLE elsewhere.sandbox_lease_holders ENABLE REPLICA TRIGGER sandbox_recovery_protocol_v2_holder_guard;
ALTER TABLE elsewhere.sandbox_pty_sessions ENABLE ALWAYS TRIGGER sandbox_recovery_protocol_v2_pty_guard;
DROP TRIGGER sandbox_recovery_protocol_v2_process_guard ON elsewhere.sandbox_retained_processes;
DROP TRIGGER supervised_command_guard ON elsewhere.sandbox_retained_processes;
CREATE TRIGGER supervised_command_guard BEFORE UPDATE ON elsewhere.sandbox_retained_processes
  FOR EACH ROW EXECUTE FUNCTION opengeni_guards.supervised_command_guard();
DROP TRIGGER sandbox_recovery_protocol_v2_admission_guard ON elsewhere.sandbox_workspace_mutation_admissions;
CREATE FUNCTION elsewhere.passes() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END';
CREATE TRIGGER sandbox_recovery_protocol_v2_admission_guard BEFORE INSERT OR DELETE OR UPDATE
  ON elsewhere.sandbox_workspace_mutation_admissions FOR EACH ROW EXECUTE FUNCTION elsewhere.passes();
DROP INDEX elsewhere.sandbox_workspace_mutation_admissions_actor_idx;
SELECT object, state FROM opengeni_guards.status('elsewhere') WHERE state NOT IN ('native', 'present') AND detail IS DISTINCT FROM 'serves schema public' AND object <> 'mode';
-- What is missing comes back; what stands there is left standing.
SELECT object, action, note FROM opengeni_guards.provision('elsewhere', 'regress_owner') WHERE action <> 'present' AND note IS DISTINCT FROM 'serves schema public';
ALTER TABLE elsewhere.sandbox_leases ALTER COLUMN image TYPE varchar;
ALTER TABLE elsewhere.sandbox_pty_sessions DROP COLUMN shell;
DROP TABLE elsewhere.sandbox_checkpoint_artifacts CASCADE;
SELECT object, state, detail FROM opengeni_guards.status('elsewhere') WHERE object LIKE 'table %';
ROLLBACK;

-- Rules ------------------------------------------------------------------------------------------
SELECT count(*) >= 26, count(DISTINCT rule) = count(*), count(hint) = count(*), bool_and(sqlstate IN ('55000', '23514', '22023', 'P0002', '55P03'))
FROM opengeni_guards.rules();
SELECT rule, sqlstate, message FROM opengeni_guards.rules()
WHERE guard IN ('enforce_sandbox_recovery_protocol_v2', 'supervised_command_guard');

SET client_min_messages = warning;
DROP SCHEMA elsewhere CASCADE;
