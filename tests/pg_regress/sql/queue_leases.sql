-- reap_sandbox_leases, request_due_sandbox_rotations and what counts and lists leases.
\a \t \f ' => '
\set SHOW_CONTEXT never
-- The functions see the whole fleet: only this file's rows are there while it runs.
BEGIN;
CALL fixture.plant('DELETE FROM public.sandbox_retained_processes');
CALL fixture.plant('DELETE FROM public.sandbox_lease_holders');
CALL fixture.plant('DELETE FROM public.sandbox_leases');
SET LOCAL SESSION AUTHORIZATION regress_app;
CALL fixture.enter('queue leases');

CREATE FUNCTION pg_temp.name(id uuid) RETURNS text LANGUAGE sql RETURN (
  SELECT name FROM unnest(ARRAY['cold', 'held', 'watched', 'left', 'unborn', 'late', 'drained', 'blocked', 'other']) AS name
  WHERE id IN (fixture.id('lease', name), fixture.id('group', name)));
CREATE PROCEDURE pg_temp.holder(lease text, kind text, heartbeat timestamptz DEFAULT now()) LANGUAGE sql
BEGIN ATOMIC
  INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, last_heartbeat_at)
  SELECT account_id, workspace_id, id, kind, kind, heartbeat FROM sandbox_leases WHERE id = fixture.id('lease', lease);
END;
CREATE VIEW pg_temp.leases AS
  SELECT pg_temp.name(id) AS lease, liveness, concat_ws('/', refcount, turn_holders, viewer_holders) AS holders, lease_epoch AS epoch, instance_id AS instance,
    CASE WHEN expires_at BETWEEN now() - interval '1 second' AND '2090-01-01Z' THEN expires_at - now() END AS expires, resume_state
  FROM sandbox_leases ORDER BY 1;
CALL fixture.lease('cold', '{"liveness": "cold", "instance_id": null}');
CALL fixture.lease('held', '{"refcount": 9}');
CALL fixture.lease('watched', '{"refcount": 1, "viewer_holders": 1}');
CALL fixture.lease('left');
CALL fixture.lease('unborn', '{"liveness": "warming", "instance_id": null, "expires_at": "2020-01-01Z", "resume_state": {"sessionState": {"workspaceArchive": "YQ=="}, "more": 1}}');
CALL fixture.lease('late', '{"liveness": "warming", "expires_at": "2020-01-01Z", "data_plane_url": "x"}');
CALL fixture.lease('drained', '{"liveness": "draining", "expires_at": "2020-01-01Z", "backend": "docker"}');
CALL pg_temp.holder('held', 'turn');
CALL pg_temp.holder('held', 'direct');
CALL pg_temp.holder('held', 'viewer', '2020-01-01Z');
CALL pg_temp.holder('watched', 'viewer', '2020-01-01Z');

-- The sweep ----------------------------------------------------------------------------------------
SELECT pg_temp.name(sandbox_group_id), instance_id, lease_epoch FROM opengeni_private.reap_sandbox_leases(60000, 60000, 30000);
\t
SELECT lease, liveness, holders, epoch, instance, expires FROM pg_temp.leases;
\t
SELECT jsonb_pretty(resume_state #- '{opengeniRecovery,provider,observedAt}' #- '{opengeniRecovery,restore,completedAt}') FROM pg_temp.leases WHERE lease = 'unborn';
SELECT pg_temp.name(lease_id), kind FROM sandbox_lease_holders ORDER BY 1, 2;
-- A turn's holder goes stale only where a limit is given.
UPDATE sandbox_lease_holders SET last_heartbeat_at = '2020-01-01Z' WHERE kind = 'turn';
SELECT count(*) FROM opengeni_private.reap_sandbox_leases(60000, 0, 30000);
SELECT kind FROM sandbox_lease_holders WHERE lease_id = fixture.id('lease', 'held') ORDER BY 1;
SELECT count(*) FROM opengeni_private.reap_sandbox_leases(60000, 60000, 30000);
SELECT kind FROM sandbox_lease_holders WHERE lease_id = fixture.id('lease', 'held') ORDER BY 1;
SELECT arguments, r.state, r.message, r.hint FROM unnest(ARRAY['NULL, 0, 0', '0, NULL, 0', '0, 0, NULL']) AS arguments,
  fixture.refusal(format('SELECT opengeni_private.reap_sandbox_leases(%s)', arguments)) r;
-- An archive's reference would go with the reset of this one, under a running command: it is left, and somebody is told.
CALL fixture.command('blocked');
CALL fixture.plant(format($$UPDATE sandbox_leases SET liveness = 'warming', instance_id = NULL, expires_at = '2020-01-01Z',
  resume_state = '{"sessionState": {"workspaceArchive": "YQ==", "workspaceArchiveRef": "r"}}' WHERE id = %L$$, fixture.id('lease', 'blocked')));
SELECT count(*) FROM opengeni_private.reap_sandbox_leases(60000, 60000, 30000);
SELECT lease, liveness, holders, epoch FROM pg_temp.leases WHERE lease = 'blocked';

-- What an expired warm-up leaves of its resume state --------------------------------------------------
SELECT state, opengeni_private.warming_reset_resume_state_v2('modal', NULL, state, 3, 3, '2030-01-01Z') FROM (VALUES
  (jsonb '{"sessionState": {"workspaceArchive": "", "workspaceArchiveAt": 1}}'),
  ('{"backendId": "b", "sessionState": {"workspaceArchive": "YQ==", "workspaceArchiveMeta": {"revision": "r", "none": null}}}')) AS probe(state);
SELECT r.state, r.message FROM fixture.refusal('SELECT opengeni_private.warming_reset_resume_state_v2(''modal'', NULL, ''{'', 3, 3, now())') r;

-- Counts and lists -----------------------------------------------------------------------------------
SELECT * FROM opengeni_private.count_expired_draining_sandbox_leases() ORDER BY 1, 2;
SELECT r.state, r.message, r.hint FROM fixture.refusal('SELECT opengeni_guards.count_expired_draining_sandbox_leases(NULL)') r;
SELECT pg_temp.name(lease_id), instance_id, liveness FROM opengeni_private.list_live_modal_sandbox_leases() ORDER BY 1;
SELECT modal_inventory_read_capability_active();
SELECT r.state, r.message, r.hint FROM fixture.refusal('SELECT opengeni_guards.list_live_modal_sandbox_leases(''nowhere'')') r;
-- The owner sees it through this function alone.
RESET SESSION AUTHORIZATION;
SET LOCAL SESSION AUTHORIZATION regress_owner;
SELECT set_config('opengeni.account_id', '', true) = '' AS no_tenant;
SELECT (SELECT count(*) FROM opengeni_private.list_live_modal_sandbox_leases()), (SELECT count(*) FROM sandbox_leases), modal_inventory_read_capability_active();
RESET SESSION AUTHORIZATION;
SET LOCAL SESSION AUTHORIZATION regress_app;
CALL fixture.enter('queue leases');

CALL fixture.lease('other', '{"resume_state": {"sessionState": {"workspaceArchive": "YQ==", "workspaceArchiveMeta": {"version": 2, "provider": "modal_snapshot_filesystem"},
  "workspaceArchivePrev": "Yg==", "workspaceArchivePrevMeta": {"version": 1, "provider": "modal_snapshot_filesystem"}}}}');
SELECT pg_temp.name(lease_id), lease_epoch, instance_id, workspace_generation, slot, archive_base64, descriptor FROM opengeni_private.list_legacy_modal_checkpoint_slots(500);
SELECT arguments, r.state, r.message, r.hint FROM unnest(ARRAY['NULL', '0', '501']) AS arguments,
  fixture.refusal(format('SELECT opengeni_private.list_legacy_modal_checkpoint_slots(%s)', arguments)) r;

-- Rotation ---------------------------------------------------------------------------------------------
UPDATE sandbox_leases SET provider_created_at = '2020-01-01Z', provider_deadline_at = '2020-01-02Z', liveness = 'warm' WHERE id IN (fixture.id('lease', 'held'), fixture.id('lease', 'other'));
UPDATE sandbox_leases SET provider_created_at = '2020-01-01Z', provider_deadline_at = '2100-01-02Z', liveness = 'warm' WHERE id = fixture.id('lease', 'watched');
CALL pg_temp.holder('held', 'viewer');
CALL pg_temp.holder('other', 'viewer');
SELECT opengeni_private.request_due_sandbox_rotations(60000, 1) FROM generate_series(1, 3);
\t
SELECT pg_temp.name(id) AS lease, rotation_reason, liveness, concat_ws('/', refcount, turn_holders, viewer_holders) AS holders FROM sandbox_leases
WHERE rotation_requested_at IS NOT NULL ORDER BY 1;
SELECT * FROM opengeni_private.sandbox_rotation_backlog();
\t
SELECT r.state, r.message, r.hint FROM fixture.refusal('SELECT opengeni_guards.sandbox_rotation_backlog(NULL)') r;
SELECT arguments, r.state, r.message, r.hint FROM unnest(ARRAY['NULL, 1', '-1, 1', '86400001, 1', '0, 0', '0, 501', '0, NULL']) AS arguments,
  fixture.refusal(format('SELECT opengeni_private.request_due_sandbox_rotations(%s)', arguments)) r;
ROLLBACK;
