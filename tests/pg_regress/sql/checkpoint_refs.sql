-- checkpoint_refs.current and .previous: by COMMIT the artifact that a lease refers to is its own, in the state that
-- the reference gives it, and what the lease would resume from.
\a \t \f ' => '
\set SHOW_CONTEXT never
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('checkpoint refs');

CALL fixture.checkpoints('lease');
CALL fixture.checkpoints('other');
CALL fixture.lease('bare', '{"workspace_generation": 4, "archive_generation": 3}');
CALL fixture.artifact('bare', 'current');
SELECT fixture.id('lease', 'lease') AS lease, fixture.id('lease', 'bare') AS bare,
  fixture.id('artifact/current', 'lease') AS current, fixture.id('artifact/previous', 'lease') AS previous \gset

CREATE FUNCTION pg_temp.change(change text, planted text DEFAULT NULL) RETURNS text LANGUAGE sql
  RETURN fixture.at_commit(format('UPDATE sandbox_leases SET %s WHERE id = %L', change, fixture.id('lease', 'lease')), planted => planted);
-- The answer to a touch of the lease where an artifact of it was left in another shape.
CREATE FUNCTION pg_temp.with_artifact(slot text, change text) RETURNS text LANGUAGE sql
  RETURN pg_temp.change('workspace_generation = workspace_generation', format(
    'ALTER TABLE sandbox_checkpoint_artifacts DROP CONSTRAINT sandbox_checkpoint_artifacts_archive_check, DROP CONSTRAINT sandbox_checkpoint_artifacts_source_check,
       DROP CONSTRAINT sandbox_checkpoint_artifacts_provider_check; UPDATE sandbox_checkpoint_artifacts SET %s WHERE id = %L', change, fixture.id('artifact/' || slot, 'lease')));

SELECT * FROM fixture.refusal(format('CALL fixture.due(%L)', format('UPDATE sandbox_leases SET archive_generation = 2 WHERE id = %L', :'lease'))) \gx
SELECT * FROM fixture.refusal(format('CALL fixture.due(%L)',
  format('UPDATE sandbox_leases SET resume_state = resume_state #- ''{sessionState,workspaceArchivePrev}'' WHERE id = %L', :'lease'))) \gx

-- The artifact -------------------------------------------------------------------------------------
SELECT change, pg_temp.with_artifact('current', change), pg_temp.with_artifact('previous', change) FROM (VALUES
  ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'), ('sandbox_group_id = md5(''other'')::uuid'),
  ('source_lease_id = md5(''other'')::uuid'), ('provider_backend = ''Modal'''), ('archive_base64 = ''other'''), ('descriptor_revision = ''other'''),
  ('state = ''candidate'''), ('state = ''current'''), ('state = ''previous'''), ('state = ''deleted'''),
  ('source_workspace_generation = 2'), ('source_workspace_generation = 4'), ('source_workspace_generation = NULL'),
  ('provenance = ''legacy_provider_adopted'', source_workspace_generation = NULL'), ('provenance = ''whatever'', source_workspace_generation = 9'),
  -- what is not compared
  ('source_lease_epoch = 7'), ('source_instance_id = ''sb-7'''), ('object_id = ''other'''), ('descriptor = ''{}''')
) AS probe(change);
-- None of that id: the foreign key is first, where nobody skipped it.
SELECT pg_temp.change('current_checkpoint_artifact_id = md5(''nothing'')::uuid');
SELECT pg_temp.change('archive_generation = archive_generation', format('UPDATE sandbox_leases SET %s_checkpoint_artifact_id = md5(''nothing'')::uuid WHERE id = %L', slot, :'lease'))
FROM unnest(ARRAY['current', 'previous']) AS slot;
-- Adopted from a provider, it is as old as the workspace itself.
SELECT generations, pg_temp.change(generations, format('UPDATE sandbox_checkpoint_artifacts SET provenance = ''legacy_provider_adopted'',
    source_workspace_generation = NULL, source_instance_id = NULL WHERE id = %L', :'current')) FROM (VALUES
  ('archive_generation = 4'), ('archive_generation = 3'), ('archive_generation = NULL'), ('archive_generation = 0, workspace_generation = 0')) AS probe(generations);

-- The lease ----------------------------------------------------------------------------------------
SELECT change, pg_temp.change(change) FROM (VALUES
  ('archive_generation = 3'), ('archive_generation = 2'), ('archive_generation = NULL'), ('workspace_generation = 9'), ('backend = ''Modal'''), ('backend = NULL'),
  ('current_checkpoint_artifact_id = NULL'), ('previous_checkpoint_artifact_id = NULL'),
  ('current_checkpoint_artifact_id = NULL, previous_checkpoint_artifact_id = NULL'),
  ('current_checkpoint_artifact_id = previous_checkpoint_artifact_id, previous_checkpoint_artifact_id = NULL'),
  ('current_checkpoint_artifact_id = previous_checkpoint_artifact_id, previous_checkpoint_artifact_id = current_checkpoint_artifact_id'),
  (format('current_checkpoint_artifact_id = %L', fixture.id('artifact/current', 'other'))),
  (format('previous_checkpoint_artifact_id = %L', fixture.id('artifact/previous', 'other'))),
  ('resume_state = NULL'), ('resume_state = ''null'''), ('resume_state = ''[]'''), ('resume_state = resume_state - ''sessionState'''),
  ('resume_state = resume_state #- ''{sessionState,workspaceArchive}'''), ('resume_state = resume_state #- ''{sessionState,workspaceArchiveMeta}'''),
  ('resume_state = resume_state #- ''{sessionState,workspaceArchiveMeta,revision}'''), ('resume_state = resume_state #- ''{sessionState,workspaceArchivePrev}'''),
  ('resume_state = resume_state #- ''{sessionState,workspaceArchivePrevMeta,revision}'''),
  ('resume_state = jsonb_set(resume_state, ''{sessionState,workspaceArchiveMeta}'', ''"current"'')'),
  ('resume_state = jsonb_set(resume_state, ''{sessionState,workspaceArchiveMeta,revision}'', ''null'')'),
  ('resume_state = jsonb_set(resume_state, ''{sessionState,workspaceArchiveMeta,revision}'', ''"other"'')'),
  ('resume_state = jsonb_set(resume_state, ''{sessionState,workspaceArchiveMeta,more}'', ''1'')'),
  ('resume_state = jsonb_set(resume_state, ''{sessionState,workspaceArchive}'', to_jsonb(ARRAY[resume_state #>> ''{sessionState,workspaceArchive}'']))'),
  -- columns that fire nothing
  ('refcount = 3'), ('liveness = ''cold'', instance_id = NULL, lease_epoch = 7'), ('expires_at = now()')
) AS probe(change);
-- Columns that fire nothing ask nothing, however wrong the row was left.
SELECT change, pg_temp.change(change, format('UPDATE sandbox_leases SET archive_generation = 2 WHERE id = %L', :'lease')) FROM unnest(ARRAY['refcount = 3', 'backend = backend']) AS change;
-- As #>> has it, a number is its text.
SELECT fixture.at_commit(format('UPDATE sandbox_leases SET resume_state = jsonb_set(resume_state, ''{sessionState,workspaceArchiveMeta,revision}'', ''1.50'') WHERE id = %L', :'lease'),
  planted => format('UPDATE sandbox_checkpoint_artifacts SET descriptor_revision = %L, descriptor = descriptor || jsonb_build_object(''revision'', %1$L) WHERE id = %L', revision, :'current'))
FROM unnest(ARRAY['1.50', '1.5']) AS revision;

-- Publication, in one transaction -------------------------------------------------------------------
SELECT fixture.at_commit(format('UPDATE sandbox_leases SET current_checkpoint_artifact_id = %L, resume_state = %L::jsonb #- ''{sessionState,workspaceArchivePrev}'' WHERE id = %L',
    fixture.id('artifact/current', 'bare'), fixture.checkpointed('bare') -> 'resume_state', :'bare') || more)
FROM unnest(ARRAY['', format('; UPDATE sandbox_checkpoint_artifacts SET state = ''current'' WHERE id = %L', fixture.id('artifact/current', 'bare'))]) AS more;
-- D1: the final row is judged, by its own chain (hazard 30).
SELECT how, fixture.at_commit(format('UPDATE sandbox_leases SET archive_generation = 2 WHERE id = %1$L; ' || statements, :'lease', :'bare')) FROM (VALUES
  ('alone', ''),
  ('repaired', 'UPDATE sandbox_leases SET archive_generation = 3 WHERE id = %1$L'),
  ('repaired by columns that fire nothing', 'UPDATE sandbox_leases SET refcount = 3 WHERE id = %1$L'),
  ('cleared', 'UPDATE sandbox_leases SET current_checkpoint_artifact_id = NULL, previous_checkpoint_artifact_id = NULL WHERE id = %1$L; UPDATE sandbox_checkpoint_artifacts SET state = ''candidate'' WHERE source_lease_id = %1$L'),
  ('re-keyed', 'UPDATE sandbox_leases SET id = md5(''re-keyed'')::uuid WHERE id = %1$L'),
  ('re-keyed, key taken', 'UPDATE sandbox_leases SET id = md5(''re-keyed'')::uuid WHERE id = %1$L; UPDATE sandbox_leases SET id = %1$L WHERE id = %2$L'),
  ('deleted', 'DELETE FROM sandbox_leases WHERE id = %1$L')
) AS probe(how, statements);
-- Two swaps.
\set swap 'UPDATE sandbox_leases SET current_checkpoint_artifact_id = previous_checkpoint_artifact_id, previous_checkpoint_artifact_id = current_checkpoint_artifact_id WHERE id = %1$L; '
SELECT fixture.at_commit(format(:'swap' || :'swap', :'lease')), fixture.at_commit(format(:'swap', :'lease'));
-- A new id makes it another lease's artifact, though no column of the trigger's changed: as the reference, asked only where one did.
SELECT change, pg_temp.change(change) FROM unnest(ARRAY['id = md5(''new'')::uuid', 'id = md5(''new'')::uuid, backend = backend']) AS change;

BEGIN;
UPDATE sandbox_leases SET archive_generation = 2 WHERE id = :'lease';
SAVEPOINT s;
UPDATE sandbox_leases SET archive_generation = 3 WHERE id = :'lease';
ROLLBACK TO s;
COMMIT;
-- No tenant at COMMIT (D2).
BEGIN;
UPDATE sandbox_leases SET workspace_generation = 5 WHERE id = :'lease';
SELECT set_config('opengeni.account_id', '', true) = '' AS gone;
COMMIT;
SELECT workspace_generation, archive_generation FROM sandbox_leases WHERE id = :'lease';

-- A temporary table of the same name is not asked (D8), and a policy that hides the artifact hides nothing from
-- the guard (D9).
CREATE TEMP TABLE sandbox_checkpoint_artifacts AS SELECT * FROM public.sandbox_checkpoint_artifacts;
UPDATE pg_temp.sandbox_checkpoint_artifacts SET source_workspace_generation = 2;
SELECT pg_temp.change('archive_generation = 2'), pg_temp.change('archive_generation = 3');
DROP TABLE pg_temp.sandbox_checkpoint_artifacts;
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_checkpoint_artifacts AS RESTRICTIVE USING (false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT pg_temp.change('archive_generation = 2'), pg_temp.change('archive_generation = 3');
ROLLBACK;
