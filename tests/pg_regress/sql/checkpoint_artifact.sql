-- checkpoint_artifact.vanished, .state and .immutable: by COMMIT an artifact says of itself what its lease refers to it
-- as; and what it is never changes.
\a \t \f ' => '
\set SHOW_CONTEXT never
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('checkpoint artifact');

CALL fixture.checkpoints('lease');
CALL fixture.lease('bare', '{"workspace_generation": 4, "archive_generation": 3}');
CALL fixture.artifact('bare', 'current');
SELECT fixture.id('lease', 'lease') AS lease, fixture.id('lease', 'bare') AS bare, fixture.id('artifact/current', 'bare') AS candidate,
  fixture.id('artifact/current', 'lease') AS current, fixture.id('artifact/previous', 'lease') AS previous \gset

CREATE FUNCTION pg_temp.change(id uuid, change text, planted text DEFAULT NULL) RETURNS text LANGUAGE sql
  RETURN fixture.at_commit(format('UPDATE sandbox_checkpoint_artifacts SET %s WHERE id = %L', change, id), planted => planted);

-- State ----------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('CALL fixture.due(%L)', format('UPDATE sandbox_checkpoint_artifacts SET state = ''previous'' WHERE id = %L', :'current'))) \gx
SELECT state, pg_temp.change(:'current', change), pg_temp.change(:'previous', change), pg_temp.change(:'candidate', change)
FROM unnest(ARRAY['candidate', 'current', 'previous', 'delete_pending', 'deleting', 'delete_failed', 'deleted', 'unknown']) AS state,
  LATERAL (VALUES (format('state = %L', state) || CASE state WHEN 'deleting' THEN ', delete_claim_id = md5(''claim'')::uuid, delete_claimed_at = ''2030-01-01Z''' ELSE '' END)) AS probe(change);
SELECT pg_temp.change(:'candidate', 'state = NULL');
-- On insertion too.
SELECT state, fixture.at_commit(format('CALL fixture.artifact(''bare'', ''previous'', %L)', jsonb_build_object('state', state)))
FROM unnest(ARRAY['candidate', 'current', 'previous', 'deleted']) AS state;
-- Columns that fire nothing ask nothing, however wrong the row was left.
SELECT change, pg_temp.change(:'candidate', change, format('UPDATE sandbox_checkpoint_artifacts SET state = ''current'' WHERE id = %L', :'candidate'))
FROM unnest(ARRAY['delete_attempts = 1', 'state = state', 'published_at = now()', 'source_lease_id = source_lease_id']) AS change;

-- Whose reference it is: the lease it came from, of its scope and backend.
SELECT change, pg_temp.change(:'current', 'state = state', format('UPDATE sandbox_leases SET %s WHERE id = %L', change, :'lease')),
  pg_temp.change(:'previous', 'state = state', format('UPDATE sandbox_leases SET %s WHERE id = %L', change, :'lease')),
  pg_temp.change(:'current', 'state = ''candidate''', format('UPDATE sandbox_leases SET %s WHERE id = %L', change, :'lease'))
FROM (VALUES
  ('id = md5(''other'')::uuid'), ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'), ('sandbox_group_id = md5(''other'')::uuid'), ('backend = ''Modal'''),
  ('current_checkpoint_artifact_id = NULL'), ('previous_checkpoint_artifact_id = NULL'),
  ('current_checkpoint_artifact_id = previous_checkpoint_artifact_id, previous_checkpoint_artifact_id = current_checkpoint_artifact_id'),
  -- what is not asked
  ('archive_generation = 0'), ('resume_state = NULL'), ('lease_epoch = 7'), ('instance_id = NULL')
) AS probe(change);
-- Referred to as both, by two leases: one of them is exact.
SELECT fixture.change('sandbox_checkpoint_artifacts', :'current', 'state = state', planted => format(
  'UPDATE sandbox_leases SET previous_checkpoint_artifact_id = %L WHERE id = %L', :'current', :'bare'));
SELECT state, pg_temp.change(:'current', format('state = %L', state), format('UPDATE sandbox_leases SET previous_checkpoint_artifact_id = %L WHERE id = %L', :'current', :'bare'))
FROM unnest(ARRAY['current', 'previous', 'candidate']) AS state;
-- Referred to as both, by its own lease.
SELECT state, pg_temp.change(:'current', format('state = %L', state), format('ALTER TABLE sandbox_leases DROP CONSTRAINT sandbox_leases_checkpoint_distinct_check;
  UPDATE sandbox_leases SET previous_checkpoint_artifact_id = %L WHERE id = %L', :'current', :'lease'))
FROM unnest(ARRAY['current', 'previous', 'candidate']) AS state;

-- Rotation, in one transaction: a new current, the old one is previous, the oldest goes.
SELECT fixture.at_commit(format($$
  CALL fixture.artifact('lease', 'next', '{"state": "current"}');
  UPDATE sandbox_checkpoint_artifacts SET state = 'previous' WHERE id = %2$L;
  UPDATE sandbox_checkpoint_artifacts SET state = %4$L WHERE id = %3$L;
  UPDATE sandbox_leases SET current_checkpoint_artifact_id = fixture.id('artifact/next', 'lease'), previous_checkpoint_artifact_id = %2$L,
    resume_state = jsonb_build_object('sessionState', jsonb_build_object('workspaceArchive', fixture.archive('lease', 'next'), 'workspaceArchiveMeta', '{"revision": "next"}'::jsonb,
      'workspaceArchivePrev', fixture.archive('lease', 'current'), 'workspaceArchivePrevMeta', '{"revision": "current"}'::jsonb)) WHERE id = %1$L$$,
  :'lease', :'current', :'previous', state)) FROM unnest(ARRAY['delete_pending', 'previous', 'current']) AS state;
-- D1: the final row is judged, by its own chain. A row deleted in the end is judged as it was deleted: it vanished.
SELECT how, fixture.at_commit(format('UPDATE sandbox_checkpoint_artifacts SET state = ''previous'' WHERE id = %1$L; ' || statements, :'candidate')) FROM (VALUES
  ('alone', ''), ('repaired', 'UPDATE sandbox_checkpoint_artifacts SET state = ''candidate'' WHERE id = %1$L'),
  ('touched', 'UPDATE sandbox_checkpoint_artifacts SET delete_attempts = 1 WHERE id = %1$L'),
  ('deleted', 'DELETE FROM sandbox_checkpoint_artifacts WHERE id = %1$L'),
  ('repaired and deleted', 'UPDATE sandbox_checkpoint_artifacts SET state = ''candidate'' WHERE id = %1$L; DELETE FROM sandbox_checkpoint_artifacts WHERE id = %1$L')
) AS probe(how, statements);

-- Vanished -------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('CALL fixture.due(%L)', format('UPDATE sandbox_checkpoint_artifacts SET state = state WHERE id = %1$L; DELETE FROM sandbox_checkpoint_artifacts WHERE id = %1$L',
  :'candidate'))) \gx
SELECT statements, fixture.at_commit(format(statements, :'candidate', :'current')) FROM unnest(ARRAY[
  'DELETE FROM sandbox_checkpoint_artifacts WHERE id = %1$L',
  'UPDATE sandbox_checkpoint_artifacts SET delete_attempts = 1 WHERE id = %1$L; DELETE FROM sandbox_checkpoint_artifacts WHERE id = %1$L',
  'CALL fixture.artifact(''bare'', ''previous''); DELETE FROM sandbox_checkpoint_artifacts WHERE state = ''candidate''',
  'DELETE FROM sandbox_checkpoint_artifacts WHERE id = %2$L']) AS statements;
BEGIN;
UPDATE sandbox_checkpoint_artifacts SET state = 'delete_pending' WHERE id = :'candidate';
SAVEPOINT s;
DELETE FROM sandbox_checkpoint_artifacts WHERE id = :'candidate';
ROLLBACK TO s;
COMMIT;
SELECT state FROM sandbox_checkpoint_artifacts WHERE id = :'candidate';
BEGIN;
UPDATE sandbox_checkpoint_artifacts SET state = 'candidate' WHERE id = :'candidate';
DELETE FROM sandbox_checkpoint_artifacts WHERE id = :'candidate';
COMMIT;
-- No tenant at COMMIT (D2).
BEGIN;
UPDATE sandbox_checkpoint_artifacts SET state = 'candidate' WHERE id = :'candidate';
SELECT set_config('opengeni.account_id', '', true) = '' AS gone;
COMMIT;
SELECT state FROM sandbox_checkpoint_artifacts WHERE id = :'candidate';

-- Immutable ------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_checkpoint_artifacts SET archive_bytes = 1, id = md5(''other'')::uuid WHERE id = %L', :'candidate')) \gx
SELECT change, fixture.change('sandbox_checkpoint_artifacts', :'candidate', change) FROM (VALUES
  ('id = md5(''other'')::uuid'), ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'), ('sandbox_group_id = md5(''other'')::uuid'),
  ('source_lease_id = md5(''other'')::uuid'), ('source_lease_epoch = 2'), ('source_instance_id = ''sb-2'''), ('source_workspace_generation = 2'),
  ('provenance = ''legacy_provider_adopted'''), ('provider_backend = ''Modal'''), ('provider_binding_key = ''{}'''), ('provider_binding = ''{}'''),
  ('object_kind = ''modal_directory_snapshot'''), ('object_id = ''other'''), ('archive_base64 = ''YQ=='''), ('archive_sha256 = repeat(''0'', 64)'), ('archive_bytes = 1'),
  ('descriptor = ''{}'''), ('descriptor_revision = ''other'''), ('created_at = ''2000-01-01Z'''),
  -- what may change
  ('delete_after = now()'), ('delete_attempts = 1'), ('last_delete_error = ''x'''), ('published_at = now()'), ('deleted_at = now()'), ('updated_at = now()'),
  ('state = ''deleting'', delete_claim_id = md5(''claim'')::uuid, delete_claimed_at = ''2030-01-01Z'''),
  -- as jsonb has it, the same
  ('descriptor = jsonb_set(descriptor, ''{version}'', ''2.0'')'), ('provider_binding = provider_binding || ''{"version": 1.00}''')
) AS probe(change);
SELECT name, fixture.change('sandbox_checkpoint_artifacts', :'candidate', name || ' = NULL') FROM unnest(ARRAY['id', 'account_id', 'workspace_id', 'sandbox_group_id',
  'source_lease_id', 'source_lease_epoch', 'source_instance_id', 'source_workspace_generation', 'provenance', 'provider_backend', 'provider_binding_key', 'provider_binding',
  'object_kind', 'object_id', 'archive_base64', 'archive_sha256', 'archive_bytes', 'descriptor', 'descriptor_revision', 'created_at', 'state', 'delete_after']) AS name;
-- NULL that was NULL, and NULL no more.
SELECT change, fixture.change('sandbox_checkpoint_artifacts', :'candidate', change, planted => format('UPDATE sandbox_checkpoint_artifacts SET provenance = ''legacy_provider_adopted'',
    source_workspace_generation = NULL, source_instance_id = NULL WHERE id = %L', :'candidate'))
FROM unnest(ARRAY['source_instance_id = NULL, source_workspace_generation = NULL', 'source_instance_id = ''sb-1''', 'source_workspace_generation = 0', 'delete_attempts = 1']) AS change;
-- A column that came later may change.
RESET SESSION AUTHORIZATION;
BEGIN;
ALTER TABLE sandbox_checkpoint_artifacts ADD COLUMN note json DEFAULT '{}';
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT fixture.change('sandbox_checkpoint_artifacts', :'candidate', 'note = ''{"a": 1}'''), fixture.change('sandbox_checkpoint_artifacts', :'candidate', 'archive_bytes = 1');
ROLLBACK;
SET SESSION AUTHORIZATION regress_app;

-- A temporary table of the same name is not asked (D8), and a policy that hides the lease hides nothing from the
-- guard (D9).
CREATE TEMP TABLE sandbox_leases (LIKE public.sandbox_leases);
SELECT pg_temp.change(:'current', 'state = ''current'''), pg_temp.change(:'current', 'state = ''candidate''');
DROP TABLE pg_temp.sandbox_leases;
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_leases AS RESTRICTIVE USING (false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT pg_temp.change(:'current', 'state = ''current'''), pg_temp.change(:'current', 'state = ''candidate''');
ROLLBACK;
