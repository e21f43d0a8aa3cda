-- claim_sandbox_checkpoint_artifacts, settle_…, prune_deleted_…s and sandbox_checkpoint_artifact_inventory: checkpoints on
-- their way out.
\a \t \f ' => '
\set SHOW_CONTEXT never
-- The functions see the whole fleet: only this file's rows are there while it runs.
BEGIN;
CALL fixture.plant('DELETE FROM public.sandbox_checkpoint_artifacts');
CALL fixture.plant('DELETE FROM public.sandbox_leases');
SET LOCAL SESSION AUTHORIZATION regress_app;
CALL fixture.enter('queue artifacts');

CALL fixture.artifact('a', 'pending', '{"state": "delete_pending", "delete_after": "2020-01-02Z"}');
CALL fixture.artifact('a', 'failed', '{"state": "delete_failed", "delete_after": "2020-01-01Z", "last_delete_error": "no"}');
CALL fixture.artifact('a', 'later', '{"state": "delete_pending", "delete_after": "2100-01-01Z"}');
CALL fixture.artifact('a', 'unpublished', '{"created_at": "2020-01-03Z"}');
CALL fixture.artifact('a', 'fresh');
CALL fixture.artifact('a', 'unreferred', '{"state": "current", "created_at": "2020-01-04Z"}');
CALL fixture.artifact('a', 'abandoned', jsonb_build_object('state', 'deleting', 'delete_claim_id', fixture.id('claim', 'old'), 'delete_claimed_at', '2020-01-01Z', 'delete_attempts', 1));
CALL fixture.artifact('a', 'forgotten', '{"state": "deleted", "deleted_at": "2020-01-01Z"}');
CALL fixture.artifact('a', 'remembered', '{"state": "deleted", "deleted_at": "2100-01-01Z"}');
-- Its state says that it may go, a lease that it may not.
CALL fixture.artifact('a', 'referred', '{"state": "delete_pending", "delete_after": "2020-01-01Z"}');
CALL fixture.plant(format('CALL fixture.lease(''a'', %L)', jsonb_build_object('previous_checkpoint_artifact_id', fixture.id('artifact/referred', 'a'))));

CREATE FUNCTION pg_temp.slot(id uuid) RETURNS text LANGUAGE sql RETURN (
  SELECT slot FROM unnest(ARRAY['pending', 'failed', 'later', 'unpublished', 'fresh', 'unreferred', 'abandoned', 'forgotten', 'remembered', 'referred']) AS slot
  WHERE fixture.id('artifact/' || slot, 'a') = id);
CREATE VIEW pg_temp.queue AS
  SELECT pg_temp.slot(id) AS slot, state, delete_attempts AS attempts, CASE WHEN delete_after >= now() THEN delete_after - now() END AS due, last_delete_error AS error
  FROM sandbox_checkpoint_artifacts WHERE delete_attempts > 0 ORDER BY 1;

SELECT * FROM opengeni_private.sandbox_checkpoint_artifact_inventory();
SELECT r.state, r.message, r.hint FROM fixture.refusal('SELECT opengeni_guards.sandbox_checkpoint_artifact_inventory(NULL)') r;

-- Claiming: longest due first, what an earlier claim abandoned last. --------------------------------
SELECT pg_temp.slot(id), provider_backend, provider_binding ->> 'serverUrl', object_kind, object_id = fixture.id('object/' || pg_temp.slot(id), 'a')::text, delete_attempts
FROM opengeni_private.claim_sandbox_checkpoint_artifacts(fixture.id('claim', '1'), 2, 60000);
SELECT pg_temp.slot(id), delete_attempts FROM opengeni_private.claim_sandbox_checkpoint_artifacts(fixture.id('claim', '2'), 500, 60000);
TABLE pg_temp.queue;
SELECT arguments, r.state, r.message, r.hint
FROM unnest(ARRAY['NULL, 1, 1000', 'gen_random_uuid(), 0, 1000', 'gen_random_uuid(), 501, 1000', 'gen_random_uuid(), NULL, 1000', 'gen_random_uuid(), 1, 999',
  'gen_random_uuid(), 1, 3600001', 'gen_random_uuid(), 1, NULL']) AS arguments,
  fixture.refusal(format('SELECT opengeni_private.claim_sandbox_checkpoint_artifacts(%s)', arguments)) r;

-- Settling: by whoever holds the claim, once. ------------------------------------------------------
SELECT slot, claim, deleted, retry, opengeni_private.settle_sandbox_checkpoint_artifact(fixture.id('artifact/' || slot, 'a'), fixture.id('claim', claim), deleted, error, retry)
FROM (VALUES ('failed', '2', true, NULL, 0), ('failed', '1', true, 'kept?', 0), ('failed', '1', true, NULL, 0), ('pending', '1', false, 'gone away', 5000),
  ('unpublished', '2', false, NULL, 0), ('later', '2', true, NULL, 0)) AS probe(slot, claim, deleted, error, retry);
TABLE pg_temp.queue;
SELECT arguments, r.state, r.message, r.hint
FROM unnest(ARRAY['NULL, gen_random_uuid(), true, NULL, 0', 'gen_random_uuid(), NULL, true, NULL, 0', 'gen_random_uuid(), gen_random_uuid(), NULL, NULL, 0',
  'gen_random_uuid(), gen_random_uuid(), true, NULL, -1', 'gen_random_uuid(), gen_random_uuid(), true, NULL, 86400001',
  'gen_random_uuid(), gen_random_uuid(), true, NULL, NULL']) AS arguments,
  fixture.refusal(format('SELECT opengeni_private.settle_sandbox_checkpoint_artifact(%s)', arguments)) r;

-- Pruning: what was deleted long ago. ----------------------------------------------------------------
SELECT opengeni_private.prune_deleted_sandbox_checkpoint_artifacts(86400000, 1000) FROM generate_series(1, 2);
SELECT pg_temp.slot(id) FROM sandbox_checkpoint_artifacts WHERE state = 'deleted' ORDER BY 1;
SELECT arguments, r.state, r.message, r.hint
FROM unnest(ARRAY['86399999, 1', '31536000001, 1', 'NULL, 1', '86400000, 0', '86400000, 1001', '86400000, NULL']) AS arguments,
  fixture.refusal(format('SELECT opengeni_private.prune_deleted_sandbox_checkpoint_artifacts(%s)', arguments)) r;
SELECT * FROM opengeni_private.sandbox_checkpoint_artifact_inventory();
ROLLBACK;
