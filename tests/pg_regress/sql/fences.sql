-- Membership fences, the drain check before a migration, and session metadata.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_owner;
CREATE SCHEMA fenced;
SET search_path = fenced;

-- Fences taken by another session are in tests/cases: here nobody holds them.
BEGIN;
SELECT opengeni_guards.enrollment_membership_fence('0a1b2c3d-0000-4000-8000-000000000001');
SELECT opengeni_guards.workspace_membership_fence('0a1b2c3d-0000-4000-8000-000000000001');
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND (classid::bigint << 32) + objid::bigint =
  hashtextextended('organization-membership:0a1b2c3d-0000-4000-8000-000000000001', 0);
COMMIT;
SELECT * FROM fixture.refusal('SELECT opengeni_guards.enrollment_membership_fence(NULL)') \gx
SELECT * FROM fixture.refusal('SELECT opengeni_guards.workspace_membership_fence(NULL)') \gx

-- Nothing to fence.
SELECT * FROM fixture.refusal('SELECT opengeni_guards.install_membership_fences(''fenced'')') \gx

CREATE TABLE organization_memberships (account_id uuid, subject_id text, status text, revoked_at timestamptz);
CREATE TABLE workspaces (id uuid, account_id uuid);
CREATE FUNCTION finalize_scoped_enrollment(p_account_id uuid, uuid, p_scope text, text, boolean, boolean, text, text, text, boolean)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = fenced, pg_temp SET work_mem = '8MB' AS $body$
DECLARE
  caller_subject text := 'me';
  owner_membership organization_memberships%ROWTYPE;
BEGIN
  IF p_scope = 'organization' THEN
    RETURN 'organization';
  ELSIF p_scope = 'user' THEN
    SELECT membership.* INTO STRICT owner_membership
    FROM organization_memberships membership
    WHERE membership.account_id = p_account_id AND membership.subject_id = caller_subject
      AND membership.status = 'active' AND membership.revoked_at IS NULL FOR SHARE;
  END IF;
  RETURN 'user';
END
$body$;
REVOKE ALL ON FUNCTION finalize_scoped_enrollment FROM PUBLIC;
GRANT EXECUTE ON FUNCTION finalize_scoped_enrollment TO regress_app;
CREATE FUNCTION prepare_workspace_membership_removal_settlements(p_command jsonb) RETURNS jsonb LANGUAGE plpgsql AS $body$
DECLARE
  account_id_value uuid := p_command ->> 'account';
  workspace_id_value uuid := p_command ->> 'workspace';
BEGIN
  perform 1 FROM workspaces workspace   -- laid out otherwise
    WHERE workspace.account_id = account_id_value
      AND workspace.id = workspace_id_value; IF NOT FOUND THEN
    RETURN '[]';
  END IF;
  RETURN '[true]';
END
$body$;

SELECT object, action, note FROM opengeni_guards.install_membership_fences('fenced');
SELECT p.proname, p.proowner::regrole, p.prosecdef, p.proconfig, p.proacl FROM pg_proc p
WHERE p.pronamespace = 'fenced'::regnamespace ORDER BY 1;
SELECT prosrc FROM pg_proc WHERE pronamespace = 'fenced'::regnamespace ORDER BY proname;
-- A second run changes nothing.
SELECT object, action, note FROM opengeni_guards.install_membership_fences('fenced');
-- Nor does it keep others from changing something.
BEGIN;
SELECT count(*) FROM opengeni_guards.install_membership_fences('fenced');
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND classid = 'pg_extension'::regclass;
COMMIT;
SELECT sum(regexp_count) FROM pg_proc, LATERAL (SELECT count(*) AS regexp_count FROM regexp_matches(prosrc, 'membership_fence', 'g')) n
WHERE pronamespace = 'fenced'::regnamespace;

-- They work: nobody is there to find.
INSERT INTO organization_memberships VALUES ('0a1b2c3d-0000-4000-8000-000000000001', 'me', 'active', NULL);
SELECT finalize_scoped_enrollment('0a1b2c3d-0000-4000-8000-000000000001', NULL, 'user', '', false, false, '', '', '', false);
SELECT prepare_workspace_membership_removal_settlements('{"account": "0a1b2c3d-0000-4000-8000-000000000001"}');

-- Another meaning, or no owner's right: neither function is changed.
CREATE OR REPLACE FUNCTION prepare_workspace_membership_removal_settlements(p_command jsonb) RETURNS jsonb LANGUAGE plpgsql AS $body$
BEGIN
  PERFORM 1 FROM workspaces workspace WHERE workspace.account_id = account_id_value;
  IF NOT FOUND THEN RETURN NULL; END IF;
END
$body$;
SELECT * FROM fixture.refusal('SELECT opengeni_guards.install_membership_fences(''fenced'')') \gx
SELECT * FROM fixture.refusal('SELECT opengeni_guards.install_membership_fences(NULL)') \gx

-- The drain check ----------------------------------------------------------------------------------
SELECT opengeni_guards.assert_application_roles_stopped('["regress_nobody"]');
SELECT * FROM fixture.refusal('SELECT opengeni_guards.assert_application_roles_stopped(NULL)') \gx
SELECT * FROM fixture.refusal($$SELECT opengeni_guards.assert_application_roles_stopped('[]', 'cut-over needs stopped workers')$$) \gx
SELECT roles, fixture.answer(format('SELECT opengeni_guards.assert_application_roles_stopped(%L)', roles)) FROM (VALUES
  ('{}'), ('"regress_app"'), ('[1]'), ('[""]'), ('[" a"]'), ('["a "]'), ('[null]'),
  (jsonb_build_array(repeat('x', 64))::text), (jsonb_build_array(repeat('x', 63))::text),
  ((SELECT jsonb_agg(n)::text FROM generate_series(1, 17) n))
) AS probe(roles);

-- Session metadata ---------------------------------------------------------------------------------
SELECT metadata, opengeni_guards.without_retired_session_create_metadata(metadata),
  opengeni_guards.has_retired_session_create_selection(metadata)
FROM (VALUES
  (NULL::jsonb), ('{}'), ('{"a": 1}'), ('[]'), ('"_opengeni_session_create_host_delegations_v1"'),
  ('{"_opengeni_session_create_host_delegations_v1": []}'),
  ('{"_opengeni_session_create_host_delegations_v1": null, "a": 1}'),
  ('{"_opengeni_session_create_host_delegations_v1": {}}'),
  ('{"_opengeni_session_create_host_delegations_v1": [1], "a": 1}'),
  ('{"_opengeni_session_create_host_delegations_v1": false}')
) AS probe(metadata);
SELECT proname, provolatile, proparallel FROM pg_proc WHERE pronamespace = 'opengeni_guards'::regnamespace
  AND proname ~ 'retired' ORDER BY 1;

RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA fenced CASCADE;
