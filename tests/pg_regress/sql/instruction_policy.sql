-- instruction_policy.*: revisions, heads and activation events name each other exactly, and history goes only with its
-- workspace or account.
\a \t \f ' => '
\set SHOW_CONTEXT never
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('instruction policy');

CALL fixture.revision('first', '{"revision": 101}');
CALL fixture.revision('second', jsonb_build_object('revision', 102, 'supersedes_revision_id', fixture.id('revision', 'first')));
CALL fixture.revision('policy', '{"revision": 103, "kind": "policy"}');
CALL fixture.revision('role', '{"revision": 104, "kind": "policy", "scope": "role", "role_key": "lead"}');
SELECT fixture.id('revision', 'first') AS first \gset

-- What a head, or an event, says of the revision `name`: `prefix` is that of its columns.
CREATE FUNCTION pg_temp.naming(name text, prefix text DEFAULT '') RETURNS jsonb LANGUAGE sql
  RETURN (SELECT jsonb_build_object(prefix || 'revision_id', id, prefix || 'revision', revision, prefix || 'content_hash', content_hash)
    FROM workspace_instruction_policy_revisions WHERE id = fixture.id('revision', name));
CREATE PROCEDURE pg_temp.head(name text, overrides jsonb DEFAULT '{}') LANGUAGE plpgsql AS $$
BEGIN
  CALL fixture.insert('workspace_instruction_policy_heads', fixture.tenant() || pg_temp.naming(name) || jsonb_build_object(
    'id', fixture.id('head', name), 'kind', 'charter', 'scope', 'global', 'activation_version', 1) || overrides);
END $$;
CREATE PROCEDURE pg_temp.event(name text, overrides jsonb DEFAULT '{}') LANGUAGE plpgsql AS $$
BEGIN
  CALL fixture.insert('workspace_instruction_policy_activation_events', fixture.tenant() || pg_temp.naming(name, 'new_') || jsonb_build_object(
    'id', fixture.id('event', name), 'kind', 'charter', 'scope', 'global', 'activation_version', 1, 'type', 'activate',
    'actor_subject_id', 'me', 'reason', 'because') || overrides);
END $$;

-- Link ---------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format($$CALL fixture.revision('third', '{"kind": "policy", "supersedes_revision_id": "%s"}')$$, :'first')) \gx
SELECT superseded, target, fixture.answer(format('CALL fixture.revision(''third'', %L)', target || jsonb_build_object('supersedes_revision_id', fixture.id('revision', superseded))))
FROM unnest(ARRAY['first', 'policy', 'role', 'nothing']) AS superseded,
  unnest(ARRAY[jsonb '{}', '{"kind": "policy"}', '{"kind": "policy", "scope": "role", "role_key": "lead"}', '{"kind": "policy", "scope": "role", "role_key": "other"}']) AS target;
SELECT fixture.answer($$CALL fixture.revision('third', '{"supersedes_revision_id": null}')$$);
-- Itself, before it is there. One of another workspace; the account is not asked.
SELECT fixture.answer(format('CALL fixture.revision(''third'', %L)', jsonb_build_object('supersedes_revision_id', fixture.id('revision', 'third'))));
SELECT scope, fixture.answer(format('CALL fixture.revision(''third'', %L)', jsonb_build_object('supersedes_revision_id', :'first')), planted => format(
    'UPDATE workspace_instruction_policy_revisions SET %s = md5(''other'')::uuid WHERE id = %L', scope, :'first'))
FROM unnest(ARRAY['workspace_id', 'account_id']) AS scope;

-- Head ---------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal($$CALL pg_temp.head('policy')$$) \gx
SELECT name, target, fixture.answer(format('CALL pg_temp.head(%L, %L)', name, target))
FROM unnest(ARRAY['first', 'policy', 'role']) AS name,
  unnest(ARRAY[jsonb '{}', '{"kind": "policy"}', '{"kind": "policy", "scope": "role", "role_key": "lead"}', '{"kind": "policy", "scope": "role", "role_key": "other"}']) AS target;
SELECT overrides, fixture.answer(format('CALL pg_temp.head(''first'', %L)', overrides)) FROM (VALUES
  (jsonb '{"revision": 1000000}'), (pg_temp.naming('second') - 'revision' - 'content_hash'), (pg_temp.naming('second') - 'revision_id' - 'revision'), (pg_temp.naming('second')),
  ('{"revision_id": "00000000-0000-4000-8000-000000000001"}'), ('{"account_id": "00000000-0000-4000-8000-000000000001"}'), ('{"workspace_id": "00000000-0000-4000-8000-000000000001"}'),
  -- NULL
  ('{"revision_id": null}'), ('{"revision": null}'), ('{"content_hash": null}'), ('{"kind": null}'), ('{"scope": null}'), ('{"account_id": null}'),
  -- what is not compared
  ('{"activation_version": 7}'), ('{"activation_version": 0}')
) AS probe(overrides);
CALL pg_temp.head('first');
SELECT change, fixture.change('workspace_instruction_policy_heads', fixture.id('head', 'first'), change) FROM (VALUES
  ('activation_version = 2'), ('revision = 1000000'), ('content_hash = repeat(''0'', 64)'), ('kind = ''policy'''),
  (format('revision_id = %L', fixture.id('revision', 'second'))),
  ((SELECT format('revision_id = %L, revision = %s, content_hash = %L', id, revision, content_hash) FROM workspace_instruction_policy_revisions WHERE id = fixture.id('revision', 'second')))
) AS probe(change);
-- Heads go as they like.
SELECT fixture.removal('workspace_instruction_policy_heads', fixture.id('head', 'first'));

-- Event --------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal($$CALL pg_temp.event('policy')$$) \gx
SELECT * FROM fixture.refusal(format('CALL pg_temp.event(''second'', %L)', pg_temp.naming('policy', 'old_'))) \gx
SELECT overrides, fixture.answer(format('CALL pg_temp.event(''second'', %L)', overrides)) FROM (VALUES
  (jsonb '{}'), (pg_temp.naming('first', 'old_')), (pg_temp.naming('second', 'old_')), (pg_temp.naming('role', 'old_')),
  ('{"new_revision": 1000000}'), ('{"new_content_hash": "0000000000000000000000000000000000000000000000000000000000000000"}'),
  ('{"new_revision_id": "00000000-0000-4000-8000-000000000001"}'), (pg_temp.naming('first', 'new_') - 'new_revision'),
  ('{"kind": "policy"}'), ('{"account_id": "00000000-0000-4000-8000-000000000001"}'), ('{"workspace_id": "00000000-0000-4000-8000-000000000001"}'),
  (pg_temp.naming('first', 'old_') || '{"old_revision": 1000000}'), (pg_temp.naming('first', 'old_') || jsonb_build_object('old_content_hash', repeat('0', 64))),
  (pg_temp.naming('first', 'old_') || '{"old_revision_id": "00000000-0000-4000-8000-000000000001"}'),
  -- both are wrong: the new one speaks
  (pg_temp.naming('policy', 'old_') || '{"new_revision": 1000000}'),
  -- NULL
  ('{"new_revision_id": null}'), ('{"new_revision": null}'), ('{"new_content_hash": null}'), ('{"role_key": ""}'),
  (pg_temp.naming('first', 'old_') || '{"old_revision_id": null}'), (pg_temp.naming('first', 'old_') || '{"old_revision": null}'), (pg_temp.naming('first', 'old_') || '{"old_content_hash": null}'),
  -- what is not compared
  ('{"type": "rollback", "reason": "other", "activation_version": 7}')
) AS probe(overrides);
SELECT fixture.answer(format('CALL pg_temp.event(''role'', %L)', overrides)) FROM unnest(ARRAY[
  jsonb '{"kind": "policy", "scope": "role", "role_key": "lead"}', '{"kind": "policy", "scope": "role", "role_key": "other"}', '{"kind": "policy"}']) AS overrides;

-- Immutable ----------------------------------------------------------------------------------------
CALL pg_temp.event('second', pg_temp.naming('first', 'old_'));
SELECT * FROM fixture.refusal(format('UPDATE workspace_instruction_policy_revisions SET content = content WHERE id = %L', :'first')) \gx
SELECT * FROM fixture.refusal(format('DELETE FROM workspace_instruction_policy_activation_events WHERE id = %L', fixture.id('event', 'second'))) \gx
SELECT change, fixture.change('workspace_instruction_policy_revisions', :'first', change) FROM unnest(ARRAY[
  'content = ''other''', 'created_at = now()', 'id = id', 'workspace_id = NULL', 'provenance_source_id = ''x''']) AS change;
-- It speaks before .link.
SELECT fixture.change('workspace_instruction_policy_revisions', fixture.id('revision', 'second'), 'kind = ''policy''');
SELECT change, fixture.change('workspace_instruction_policy_activation_events', fixture.id('event', 'second'), change) FROM unnest(ARRAY[
  'reason = ''other''', 'id = id', 'new_revision = 1000000', 'old_revision_id = NULL, old_revision = NULL, old_content_hash = NULL']) AS change;
SELECT fixture.removal('workspace_instruction_policy_revisions', fixture.id('revision', name)) FROM unnest(ARRAY['first', 'second', 'policy']) AS name;
SELECT fixture.answer('DELETE FROM workspace_instruction_policy_revisions'), fixture.answer('DELETE FROM workspace_instruction_policy_activation_events');

-- A trigger that deletes history while the workspace is there is no cascade, and a workspace that a policy hides is
-- there (D9); nor does a temporary table without it help (D8).
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE TABLE fixture.bait (id uuid);
GRANT DELETE, SELECT, INSERT ON fixture.bait TO regress_app;
CREATE FUNCTION fixture.cascade() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM public.workspace_instruction_policy_activation_events; RETURN NULL; END $$;
CREATE TRIGGER cascade AFTER DELETE ON fixture.bait FOR EACH ROW EXECUTE FUNCTION fixture.cascade();
INSERT INTO fixture.bait VALUES (NULL);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT fixture.answer('DELETE FROM fixture.bait');
CREATE TEMP TABLE workspaces (LIKE public.workspaces);
CREATE TEMP TABLE managed_accounts (LIKE public.managed_accounts);
SELECT fixture.answer('DELETE FROM fixture.bait');
RESET SESSION AUTHORIZATION;
ALTER TABLE public.workspaces ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE public.managed_accounts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT count(*) FROM public.workspaces;
SELECT fixture.answer('DELETE FROM fixture.bait');
ROLLBACK;

-- With its workspace or account: D7 ------------------------------------------------------------------
-- Another tenant with history of every kind, committed.
SELECT set_config('opengeni.account_id', md5('leaving')::uuid::text, false) <> '', set_config('opengeni.workspace_id', md5('leaving')::uuid::text, false) <> '';
CALL fixture.insert('managed_accounts', jsonb_build_object('id', md5('leaving')::uuid, 'name', 'l'));
CALL fixture.insert('workspaces', jsonb_build_object('id', md5('leaving')::uuid, 'account_id', md5('leaving')::uuid, 'name', 'l'));
SELECT jsonb_build_object('account_id', md5('leaving')::uuid, 'workspace_id', md5('leaving')::uuid) AS leaving \gset
CALL fixture.revision('old', :'leaving');
CALL fixture.revision('new', :'leaving'::jsonb || jsonb_build_object('supersedes_revision_id', fixture.id('revision', 'old')));
CALL pg_temp.event('new', :'leaving'::jsonb || pg_temp.naming('old', 'old_'));

-- What is left of it after a statement.
CREATE FUNCTION pg_temp.left_after(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RETURN concat((SELECT count(*) FROM workspace_instruction_policy_revisions WHERE workspace_id = md5('leaving')::uuid), ' revisions, ',
    (SELECT count(*) FROM workspace_instruction_policy_activation_events WHERE workspace_id = md5('leaving')::uuid), ' events');
EXCEPTION WHEN OTHERS THEN
  RETURN concat(SQLSTATE, ' ', SQLERRM);
END $$;
\set workspace 'DELETE FROM workspaces WHERE id = md5(''leaving'')::uuid'
\set account 'DELETE FROM managed_accounts WHERE id = md5(''leaving'')::uuid'
-- Foreign keys fire in the order of their creation, which a dump and restore changes. What is created again
-- comes last.
CREATE PROCEDURE pg_temp.recreate(child text, parent text) LANGUAGE plpgsql AS $$
DECLARE
  key record;
BEGIN
  SELECT conname, pg_get_constraintdef(oid) AS definition INTO STRICT key FROM pg_constraint
    WHERE conrelid = child::regclass AND confrelid = parent::regclass AND conname NOT LIKE '%\_fk';
  EXECUTE format('ALTER TABLE %1$I DROP CONSTRAINT %2$I, ADD CONSTRAINT %2$I %3$s', child, key.conname, key.definition);
END $$;
CREATE PROCEDURE pg_temp.recreate_history(parent text) LANGUAGE plpgsql AS $$
BEGIN
  CALL pg_temp.recreate('workspace_instruction_policy_revisions', parent);
  CALL pg_temp.recreate('workspace_instruction_policy_heads', parent);
  CALL pg_temp.recreate('workspace_instruction_policy_activation_events', parent);
END $$;
BEGIN; SELECT pg_temp.left_after(:'workspace'); ROLLBACK;
BEGIN; SELECT pg_temp.left_after(:'account'); ROLLBACK;
BEGIN; CALL pg_temp.recreate('workspaces', 'managed_accounts'); SELECT pg_temp.left_after(:'account'); ROLLBACK;
BEGIN; CALL pg_temp.recreate_history('managed_accounts'); SELECT pg_temp.left_after(:'account'); ROLLBACK;
BEGIN; CALL pg_temp.recreate_history('workspaces'); SELECT pg_temp.left_after(:'account'); ROLLBACK;
BEGIN; CALL pg_temp.recreate_history('workspaces'); SELECT pg_temp.left_after(:'workspace'); ROLLBACK;
-- A head goes with its workspace too.
CALL pg_temp.head('new', :'leaving'::jsonb);
BEGIN; SELECT pg_temp.left_after(:'workspace'); ROLLBACK;
BEGIN; SELECT pg_temp.left_after(:'account'); ROLLBACK;
DELETE FROM managed_accounts WHERE id = md5('leaving')::uuid;
