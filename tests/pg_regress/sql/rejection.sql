-- supervised_command.launch_rejection: a provider that says "never started" settles only a launch that nothing
-- has touched.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('rejection');

\set reject 'state = ''lost'', settled_at = ''2030-01-01Z'', settlement_reason = ''provider_start_rejected'''

CALL fixture.command('launched');
CALL fixture.command('other');
CALL fixture.plant($$CALL fixture.command('lost', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_instance_lost"}')$$);
CALL fixture.plant($$CALL fixture.command('rejected', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_start_rejected"}')$$);

-- The binding of the command `name`, with changes.
CREATE FUNCTION pg_temp.binding(name text, changes jsonb DEFAULT '{}') RETURNS jsonb LANGUAGE sql AS $$
  SELECT jsonb_build_object('supervised_launch_rejection_binding',
    jsonb_build_object('processId', id, 'command', provider_command) || changes)
  FROM sandbox_retained_processes WHERE id = fixture.id('process', name)
$$;

-- A command with the streams that an expression gives.
CREATE FUNCTION pg_temp.evaluated(streams text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE command jsonb;
BEGIN
  EXECUTE format('SELECT fixture.supervised(%s)', streams) INTO command;
  RETURN command;
END $$;

-- No setting yet in this session.
SELECT fixture.update('launched', :'reject');

-- The binding --------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET %s WHERE id = %L', :'reject',
  fixture.id('process', 'launched')), '{"supervised_launch_rejection_binding": "{}"}') \gx

SELECT changes, fixture.update('launched', :'reject', pg_temp.binding('launched', changes::jsonb)) FROM (VALUES
  ('{}'),
  ('{"processId": "00000000-0000-4000-8000-000000000001"}'),
  ('{"processId": null}'),
  ('{"command": {}}'),
  ('{"command": null}'),
  ('{"note": null}')
) AS probe(changes);

SELECT 'without ' || key, fixture.update('launched', :'reject', jsonb_build_object('supervised_launch_rejection_binding',
    (pg_temp.binding('launched') -> 'supervised_launch_rejection_binding') - key))
FROM unnest(ARRAY['processId', 'command']) AS key;

-- The id is text in the document; the command is compared as jsonb.
SELECT fixture.update('launched', :'reject', pg_temp.binding('launched',
  jsonb_build_object('processId', upper(fixture.id('process', 'launched')::text))));
SELECT fixture.update('launched', :'reject', pg_temp.binding('launched', jsonb_build_object('command',
    fixture.supervised(fixture.streams(fixture.cursor(cursor)))))) FROM (VALUES
  (jsonb '{"byteOffset": 0.00}'), ('{"byteOffset": 1}')) AS probe(cursor);
SELECT fixture.update('launched', :'reject', pg_temp.binding('other'));

-- '' is no setting; what is no JSON is an error of its own, and comes before any judgement.
SELECT setting, fixture.update('launched', :'reject', jsonb_build_object('supervised_launch_rejection_binding', setting))
FROM unnest(ARRAY['', 'null', '[]', '{', ' ']) AS setting;
SELECT command, fixture.update(command, 'last_reconcile_outcome = ''seen''', '{"supervised_launch_rejection_binding": "{"}')
FROM unnest(ARRAY['launched', 'rejected', 'lost']) AS command;
SELECT fixture.update('rejected', 'last_reconcile_outcome = ''seen''', '{"supervised_provider_loss_binding": "{"}');

-- Pristine -----------------------------------------------------------------------------------------
-- Each is planted as the only thing that has happened to the launch.
SELECT happened, fixture.update('launched', :'reject',
    pg_temp.binding('launched'),
    format('UPDATE sandbox_retained_processes SET %s WHERE id = %L', happened, fixture.id('process', 'launched')))
FROM (VALUES
  ('settlement_reason = ''noted'''),
  ('supervision_receipt = fixture.receipt()'),
  ('provider_command_input_index = 1'),
  ('reconcile_proof_outcome = ''lost'', reconcile_proof_reason = ''provider_instance_not_found'', reconcile_proof_observed_at = ''2030-01-01Z''')
) AS probe(happened);

-- Here the binding holds the command as it then is: only the pristine streams are missing.
SELECT streams, fixture.update('launched', :'reject',
    pg_temp.binding('launched', jsonb_build_object('command', command)),
    format('UPDATE sandbox_retained_processes SET provider_command = %L WHERE id = %L', command, fixture.id('process', 'launched')))
FROM (VALUES
  ('fixture.streams(fixture.cursor())'),
  ('fixture.streams(fixture.cursor(''{"byteOffset": 0.0}''), fixture.cursor(''{"byteOffset": -0}''))'),
  ('fixture.streams(fixture.cursor(''{"byteOffset": 1}''))'),
  ('fixture.streams(fixture.cursor(''{"byteOffset": "0"}''))'),
  ('fixture.streams(fixture.cursor(''{"utf8Remainder": "w"}''))'),
  ('fixture.streams(fixture.cursor(''{"eof": true}''))'),
  ('fixture.streams(fixture.cursor(''{"eof": null}''))'),
  ('fixture.streams(fixture.cursor(''{"exitCode": 0}''))'),
  ('fixture.streams(fixture.cursor() - ''exitCode'')'),
  ('fixture.streams(fixture.cursor(''{"note": 1}''))'),
  ('fixture.streams(fixture.cursor(), fixture.cursor(''{"byteOffset": 1}''))'),
  ('fixture.streams(fixture.cursor()) #- ''{streams,stderr}'''),
  ('jsonb_set(fixture.streams(fixture.cursor()), ''{streams,stdin}'', ''0'')'),
  ('''{"streams": {}}'''),
  ('''{"streams": null}''')
) AS probe(streams), LATERAL pg_temp.evaluated(streams) AS command;
SELECT 'without streams', fixture.update('launched', :'reject',
    pg_temp.binding('launched', jsonb_build_object('command', fixture.supervised() - 'streams')),
    format('UPDATE sandbox_retained_processes SET provider_command = provider_command - ''streams'' WHERE id = %L',
      fixture.id('process', 'launched')));
SELECT 'captured', fixture.update('launched', :'reject',
    pg_temp.binding('launched', jsonb_build_object('command',
      fixture.supervised(fixture.streams(fixture.drained(), fixture.drained())))),
    format('UPDATE sandbox_retained_processes SET supervision_output_captured = true, provider_command = %L WHERE id = %L',
      fixture.supervised(fixture.streams(fixture.drained(), fixture.drained())), fixture.id('process', 'launched')));

-- Any child admission, settled or not, on whatever lease; not another command's.
CALL fixture.lease('elsewhere');
SELECT child, fixture.update('launched', :'reject', pg_temp.binding('launched'),
    format('CALL fixture.child(''launched'', 2, %L)', replace(child, 'elsewhere', fixture.id('lease', 'elsewhere')::text)))
FROM (VALUES
  ('{}'),
  ('{"settled_at": "2030-01-01Z", "provider_outcome": "rejected"}'),
  ('{"lease_id": "elsewhere"}'),
  ('{"account_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"workspace_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"actor_kind": "direct", "holder_kind": "direct"}'),
  ('{"actor_id": "00000000-0000-4000-8000-000000000001"}')
) AS probe(child);

-- A temporary table of the same name is not asked (D8), and a policy that hides the child hides nothing
-- from the guard (D9).
CREATE TEMP TABLE sandbox_workspace_mutation_admissions (LIKE public.sandbox_workspace_mutation_admissions);
SELECT fixture.update('launched', :'reject', pg_temp.binding('launched'), $$CALL fixture.child('launched', 2)$$);
DROP TABLE pg_temp.sandbox_workspace_mutation_admissions;

RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_workspace_mutation_admissions AS RESTRICTIVE USING (actor_kind <> 'process');
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT fixture.update('launched', :'reject', pg_temp.binding('launched'), $$CALL fixture.child('launched', 2)$$);
ROLLBACK;
SET SESSION AUTHORIZATION regress_app;

-- Order: .loss_fabricated speaks first.
SELECT fixture.update('launched', :'reject' || ', supervision_receipt = fixture.receipt()', pg_temp.binding('launched'));

-- What is rejected stays rejected ------------------------------------------------------------------
SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('rejected', 'last_reconcile_outcome = ''seen'''),
  ('rejected', 'settlement_reason = ''provider_start_rejected'''),
  ('rejected', 'settlement_reason = NULL'),
  ('lost', 'settlement_reason = ''provider_start_rejected''')
) AS probe(command, change);
SELECT fixture.update('rejected', 'last_reconcile_outcome = ''seen''', planted => $$CALL fixture.child('rejected', 2)$$);
