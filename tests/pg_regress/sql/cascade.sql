-- A workspace, an account or a lease goes with the evidence below it once that is settled, and stays while a supervised
-- command is not (hazard 11).
\a \t \f ' => '
CALL fixture.enter('cascade');
-- What is left in each table after a statement, at COMMIT.
CREATE FUNCTION pg_temp.left_after(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  counts text;
BEGIN
  EXECUTE statement;
  SET CONSTRAINTS ALL IMMEDIATE;
  SELECT concat_ws(', ', (SELECT count(*) FROM sandbox_leases WHERE workspace_id = md5('leaving')::uuid), (SELECT count(*) FROM sandbox_lease_holders WHERE workspace_id = md5('leaving')::uuid),
    (SELECT count(*) FROM sandbox_workspace_mutation_admissions WHERE workspace_id = md5('leaving')::uuid), (SELECT count(*) FROM sandbox_retained_processes WHERE workspace_id = md5('leaving')::uuid)) INTO counts;
  RAISE EXCEPTION USING ERRCODE = 'OK000', MESSAGE = counts;
EXCEPTION WHEN OTHERS THEN
  RETURN CASE SQLSTATE WHEN 'OK000' THEN SQLERRM WHEN '55000' THEN SQLERRM ELSE 'a foreign key' END;
END $$;
CREATE FUNCTION pg_temp.leave(what text) RETURNS text LANGUAGE sql RETURN pg_temp.left_after(format('DELETE FROM %I WHERE id = %L', what,
  CASE what WHEN 'sandbox_leases' THEN fixture.id('lease', 'command') ELSE md5('leaving')::uuid END));

SELECT set_config('opengeni.account_id', md5('leaving')::uuid::text, false) <> '', set_config('opengeni.workspace_id', md5('leaving')::uuid::text, false) <> '';
CALL fixture.insert('managed_accounts', jsonb_build_object('id', md5('leaving')::uuid, 'name', 'l'));
CALL fixture.insert('workspaces', jsonb_build_object('id', md5('leaving')::uuid, 'account_id', md5('leaving')::uuid, 'name', 'l'));
BEGIN;
CREATE OR REPLACE FUNCTION fixture.tenant() RETURNS jsonb LANGUAGE sql IMMUTABLE
  RETURN jsonb_build_object('account_id', md5('leaving')::uuid, 'workspace_id', md5('leaving')::uuid);
CALL fixture.lease('command');
SELECT what, pg_temp.leave(what) FROM unnest(ARRAY['sandbox_leases', 'workspaces', 'managed_accounts']) AS what;
CALL fixture.command('command');
CALL fixture.child('command', 2, '{"provider_outcome": "resolved", "settled_at": "2030-01-01Z"}');
SELECT what, pg_temp.leave(what) FROM unnest(ARRAY['sandbox_leases', 'workspaces', 'managed_accounts']) AS what;
-- Nothing may be pending: a check that is judges its row as it was written.
SET CONSTRAINTS ALL IMMEDIATE;
SET CONSTRAINTS ALL DEFERRED;
CALL fixture.plant('UPDATE sandbox_retained_processes SET state = ''exited'', settled_at = ''2030-01-01Z'', supervision_receipt = ''{}'', supervision_output_captured = true;
  UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = ''resolved'', settled_at = ''2030-01-01Z''; DELETE FROM sandbox_lease_holders');
SELECT what, pg_temp.leave(what) FROM unnest(ARRAY['sandbox_leases', 'workspaces', 'managed_accounts']) AS what;
ROLLBACK;
DELETE FROM managed_accounts WHERE id = md5('leaving')::uuid;
