-- lease_capture.blocked: while a supervised command is active on a lease, its archive is neither captured nor
-- published and its commands are not drained. (Who wins the race is in the isolation suite.)
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('lease capture');

-- Every lease has something of all that counts.
SELECT '{"workspace_generation": 9, "archive_generation": 1, "archive_capture_published_at": "2030-01-01Z",
  "resume_state": {"backendId": "modal", "sessionState": {"workspaceArchive": "YQ==", "workspaceArchiveMeta": {"revision": "r", "size": 1},
  "workspaceArchiveRef": "ref", "workspaceArchivePrev": "Yg==", "workspaceArchiveAt": 1}, "opengeniRecovery": {}}}' AS contents \gset
SELECT '{"archive_capture_id": "00000000-0000-4000-8000-000000000001", "unobservable_command_drain_ids": ["00000000-0000-4000-8000-000000000001"]}'
  AS contained \gset
CALL fixture.lease('running', :'contents');
CALL fixture.command('running');
CALL fixture.lease('bare');
CALL fixture.command('bare');
CALL fixture.lease('legacy', :'contents');
CALL fixture.command('legacy', supervised => false);
CALL fixture.lease('exited', :'contents');
CALL fixture.command('exited', overrides => jsonb_build_object('supervision_output_captured', true,
  'supervision_receipt', fixture.receipt(), 'state', 'exited', 'exit_code', 3, 'settled_at', '2030-01-01Z',
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.lease('free', :'contents');
-- A capture that an older release began.
CALL fixture.lease('contained', :'contents'::jsonb || :'contained');
CALL fixture.plant($$CALL fixture.command('contained')$$);

CREATE FUNCTION pg_temp.change(name text, change text) RETURNS text LANGUAGE sql
  RETURN fixture.change('sandbox_leases', fixture.id('lease', name), change);

SELECT * FROM fixture.refusal(format('UPDATE sandbox_leases SET archive_capture_id = id WHERE id = %L', fixture.id('lease', 'running'))) \gx
SELECT * FROM fixture.refusal(format($$UPDATE sandbox_leases SET archive_capture_id = id, archive_generation = 2,
  resume_state = '{}' WHERE id = %L$$, fixture.id('lease', 'running'))) \gx

-- The four columns: a new value counts; the same, and NULL, do not.
SELECT change, pg_temp.change('running', change), pg_temp.change('contained', change) FROM (VALUES
  ('archive_capture_id = md5(''new'')::uuid'), ('archive_capture_id = archive_capture_id'), ('archive_capture_id = NULL'),
  ('unobservable_command_drain_ids = ARRAY[id]'), ('unobservable_command_drain_ids = ''{}'''),
  ('unobservable_command_drain_ids = unobservable_command_drain_ids || id'),
  ('unobservable_command_drain_ids = unobservable_command_drain_ids'), ('unobservable_command_drain_ids = NULL'),
  ('unobservable_command_drain_ids = ''[2:2]={00000000-0000-4000-8000-000000000001}'''),
  ('unobservable_command_drain_ids = ''{NULL}'''),
  ('archive_capture_published_at = ''2031-01-01Z'''), ('archive_capture_published_at = ''2030-01-01 01:00+01'''), ('archive_capture_published_at = NULL'),
  ('archive_generation = 2'), ('archive_generation = 0'), ('archive_generation = 1'), ('archive_generation = NULL'),
  ('archive_capture_id = NULL, unobservable_command_drain_ids = NULL'),
  ('archive_capture_id = NULL, archive_generation = 2')
) AS probe(change);

-- The three archive paths: any difference counts, also one to nothing.
SELECT change, pg_temp.change('running', format('resume_state = jsonb_set(resume_state, ''{sessionState,%s}'', %L)', key, change)) FROM (VALUES
  ('workspaceArchive', '"Yw=="'), ('workspaceArchive', '"YQ=="'), ('workspaceArchive', 'null'), ('workspaceArchive', '["YQ=="]'),
  ('workspaceArchiveMeta', '{"size": 1, "revision": "r"}'), ('workspaceArchiveMeta', '{"revision": "r", "size": 1.0}'),
  ('workspaceArchiveMeta', '{"revision": "r", "size": 2}'), ('workspaceArchiveMeta', '{"revision": "r"}'), ('workspaceArchiveMeta', '{}'),
  ('workspaceArchiveRef', '"ref"'), ('workspaceArchiveRef', '"other"'), ('workspaceArchiveRef', 'null'),
  -- these do not count
  ('workspaceArchivePrev', '"Yw=="'), ('workspaceArchivePrevMeta', '{}'), ('workspaceArchiveAt', '2'), ('note', '1')
) AS probe(key, change);
SELECT change, pg_temp.change('running', 'resume_state = ' || change) FROM (VALUES
  ('resume_state #- ''{sessionState,workspaceArchive}'''), ('resume_state #- ''{sessionState,workspaceArchiveMeta}'''),
  ('resume_state #- ''{sessionState,workspaceArchiveRef}'''), ('resume_state #- ''{sessionState,workspaceArchivePrev}'''),
  ('resume_state - ''sessionState'''), ('resume_state - ''opengeniRecovery'''), ('resume_state || ''{"backendId": "other"}'''),
  ('jsonb_set(resume_state, ''{workspaceArchive}'', ''1'')'),
  ('jsonb_set(resume_state, ''{sessionState,deeper}'', ''{"workspaceArchive": 1}'')'),
  ('NULL'), ('''null'''), ('''[]'''), ('resume_state')
) AS probe(change);
-- Where nothing was there.
SELECT change, pg_temp.change('bare', 'resume_state = ' || quote_nullable(change)) FROM unnest(ARRAY[
  '{"sessionState": {"workspaceArchive": "YQ=="}}', '{"sessionState": {"workspaceArchive": null}}', '{"sessionState": {"workspaceArchiveMeta": {}}}',
  '{"sessionState": {"workspaceArchiveRef": false}}', '{"sessionState": {}}', '{"sessionState": null}', '{"sessionState": ["workspaceArchive"]}',
  '{"sessionState": "workspaceArchive"}', '["sessionState"]', '"sessionState"', 'null', NULL]) AS change;

-- What else a lease goes through.
SELECT change, pg_temp.change('running', change) FROM (VALUES
  ('liveness = ''cold'', instance_id = NULL, lease_epoch = 2'), ('refcount = 3, turn_holders = 1'), ('workspace_generation = 10'),
  ('expires_at = now()'), ('rotation_requested_at = now(), rotation_reason = ''operator''')
) AS probe(change);
-- Who blocks: an active supervised command of this lease.
SELECT lease, pg_temp.change(lease, 'archive_capture_id = md5(''new'')::uuid'), pg_temp.change(lease, 'archive_generation = 2'), pg_temp.change(lease, 'resume_state = ''{}''')
FROM unnest(ARRAY['running', 'contained', 'bare', 'legacy', 'exited', 'free']) AS lease;
SELECT change, fixture.change('sandbox_leases', fixture.id('lease', 'running'), 'archive_generation = 2', planted => format(
    'UPDATE sandbox_retained_processes SET %s WHERE id = %L', change, fixture.id('process', 'running')))
FROM (VALUES
  ('state = ''lost'', settled_at = ''2030-01-01Z'''), ('lease_id = md5(''other'')::uuid'), ('provider_command = NULL'),
  ('provider_command = fixture.provider_command()'), ('provider_command = fixture.supervised(''{"supervision": null}'')'),
  -- what is not asked
  ('lease_epoch = 7'), ('provider_instance_id = ''sb-7'', provider_command = provider_command || ''{"sandboxId": "sb-7"}'''),
  ('account_id = md5(''other'')::uuid'), ('workspace_id = md5(''other'')::uuid'), ('sandbox_group_id = md5(''other'')::uuid')
) AS probe(change);
-- One active command among several is enough.
BEGIN;
CALL fixture.admission('exited', 2, jsonb_build_object('actor_kind', 'direct', 'actor_id', fixture.id('actor', 'exited'),
  'holder_kind', 'direct', 'holder_id', 'direct'));
CALL fixture.process('exited', overrides => jsonb_build_object('id', md5('second')::uuid, 'holder_id', 'second',
  'parent_admission_id', fixture.id('admission/2', 'exited')));
SELECT pg_temp.change('exited', 'archive_generation = 2');
ROLLBACK;
-- A new id makes it another lease.
SELECT pg_temp.change('running', 'id = md5(''new'')::uuid, archive_generation = 2');

-- A temporary table of the same name is not asked (D8), and a policy that hides the command hides nothing from
-- the guard (D9).
CREATE TEMP TABLE sandbox_retained_processes (LIKE public.sandbox_retained_processes);
SELECT pg_temp.change('running', 'archive_capture_id = id');
DROP TABLE pg_temp.sandbox_retained_processes;
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_retained_processes AS RESTRICTIVE USING (false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT count(*) FROM sandbox_retained_processes;
SELECT pg_temp.change('running', 'archive_capture_id = id');
ROLLBACK;
