-- supervised_command.descriptor: the shape of `supervision` in provider_command, and of the command around it.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('descriptor');

-- All attachments are tried in the transaction that retained the command.
BEGIN;
CALL fixture.command('fresh', supervised => false);

SELECT * FROM fixture.refusal(format($$UPDATE sandbox_retained_processes
  SET provider_command = fixture.supervised() || '{"supervision": {"protocol": "native-subreaper-v1", "note": 1}}' WHERE id = %L$$,
  fixture.id('process', 'fresh'))) \gx

-- An object --------------------------------------------------------------------------------------
SELECT descriptor, fixture.update('fresh', format('provider_command = provider_command || %L',
  jsonb_build_object('supervision', descriptor)))
FROM unnest(ARRAY['null', '{}', '[]', '"native-subreaper-v1"', '7', 'true']::jsonb[]) AS descriptor;

-- Each member ------------------------------------------------------------------------------------
SELECT member, fixture.update('fresh', format('provider_command = provider_command || %L',
  jsonb_build_object('supervision', fixture.descriptor(member::jsonb)))) FROM (VALUES
  ('{}'),
  ('{"protocol": "Native-Subreaper-v1"}'),
  ('{"protocol": "native-subreaper-v2"}'),
  ('{"protocol": "native-subreaper-v1 "}'),
  ('{"protocol": ""}'),
  ('{"protocol": null}'),
  ('{"protocol": ["native-subreaper-v1"]}'),
  ('{"invocationId": "0A1B2C3D-0000-4000-8000-00000000000F"}'),
  ('{"invocationId": "0a1B2c3D-0000-0000-0000-00000000000F"}'),
  ('{"invocationId": "0a1b2c3d000040008000000000000000000f"}'),
  ('{"invocationId": "{0a1b2c3d-0000-4000-8000-00000000000f}"}'),
  ('{"invocationId": "0a1b2c3d-0000-4000-8000-00000000000"}'),
  ('{"invocationId": "0a1b2c3d-0000-4000-8000-00000000000ff"}'),
  ('{"invocationId": "0g1b2c3d-0000-4000-8000-00000000000f"}'),
  ('{"invocationId": "0a1b2c3d_0000-4000-8000-00000000000f"}'),
  ('{"invocationId": " 0a1b2c3d-0000-4000-8000-00000000000f"}'),
  ('{"invocationId": "0a1b2c3d-0000-4000-8000-00000000000f\n"}'),
  ('{"invocationId": null}'),
  ('{"invocationId": 7}'),
  ('{"nonce": "000000000000000000000000000000000000000000000000000000000000000"}'),
  ('{"nonce": "00000000000000000000000000000000000000000000000000000000000000000"}'),
  ('{"nonce": "abcdefabcdefabcdefabcdefabcdefabcdefabcdefabcdefabcdefabcdefabcd"}'),
  ('{"nonce": "ABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCD"}'),
  ('{"nonce": "000000000000000000000000000000000000000000000000000000000000000g"}'),
  ('{"nonce": "0000000000000000000000000000000000000000000000000000000000000000\n"}'),
  ('{"nonce": null}'),
  ('{"nonce": {}}'),
  -- ->> makes text of a number: 64 digits of it are a nonce
  ('{"nonce": 1234567890123456789012345678901234567890123456789012345678901234}'),
  ('{"nonce": 1e63}'),
  ('{"nonce": 1e64}'),
  ('{"nonce": -123456789012345678901234567890123456789012345678901234567890123}'),
  ('{"controlPath": "/tmp/opengeni-supervision/------------------------------------.sock"}'),
  ('{"controlPath": "/tmp/opengeni-supervision/0a1b2c3d00004000800000000000000f----.sock"}'),
  ('{"controlPath": "/tmp/opengeni-supervision/0A1B2C3D-0000-4000-8000-00000000000F.sock"}'),
  ('{"controlPath": "/tmp/opengeni-supervision/0a1b2c3d-0000-4000-8000-00000000000.sock"}'),
  ('{"controlPath": "/tmp/opengeni-supervision/0a1b2c3d-0000-4000-8000-00000000000ff.sock"}'),
  ('{"controlPath": "/tmp/opengeni-supervision/../../3d-0000-4000-8000-000000000000.sock"}'),
  ('{"controlPath": "/tmp/opengeni-supervision/0a1b2c3d-0000-4000-8000-00000000000f_sock"}'),
  ('{"controlPath": "/tmp/opengeni-supervision/0a1b2c3d-0000-4000-8000-00000000000f.sock.old"}'),
  ('{"controlPath": "/tmp/opengeni-supervision/0a1b2c3d-0000-4000-8000-00000000000f.sock\n"}'),
  ('{"controlPath": "/var/opengeni-supervision/0a1b2c3d-0000-4000-8000-00000000000f.sock"}'),
  ('{"controlPath": "tmp/opengeni-supervision/0a1b2c3d-0000-4000-8000-00000000000f.sock"}'),
  ('{"controlPath": null}'),
  -- no other key, whatever it holds
  ('{"note": "x"}'),
  ('{"note": null}'),
  ('{"Protocol": "native-subreaper-v1"}'),
  ('{"": ""}'),
  -- what is wrong is named; the chain goes on past an absent member and stops at a wrong one
  ('{"protocol": null, "invocationId": null, "nonce": "x", "controlPath": "x", "note": 1}')
) AS probe(member);

SELECT 'without ' || key, fixture.update('fresh', format('provider_command = provider_command || %L',
  jsonb_build_object('supervision', fixture.descriptor() - key)))
FROM unnest(ARRAY['protocol', 'invocationId', 'nonce', 'controlPath', 'absent']) AS key;

-- The command around it --------------------------------------------------------------------------
SELECT command, fixture.update('fresh', format('provider_command = fixture.supervised() || %L', command)) FROM (VALUES
  ('{"kind": "modal-router-v1"}'),
  ('{"kind": "modal-control-v1"}'),
  ('{"kind": "Modal-Router-v1"}'),
  ('{"kind": null}'),
  ('{"pty": true}'),
  ('{"pty": false}'),
  ('{"pty": null}'),
  -- pty is whatever the server can read as a boolean
  ('{"pty": "off"}'),
  ('{"pty": " FALSE "}'),
  ('{"pty": "n"}'),
  ('{"pty": 0}'),
  ('{"pty": "on"}'),
  ('{"pty": "Yes"}'),
  ('{"pty": 1}'),
  ('{"pty": "abc"}'),
  ('{"pty": ""}'),
  ('{"pty": 2}'),
  ('{"pty": 1.0}'),
  ('{"pty": {}}'),
  -- a wrong kind ends the chain before pty is read; an unknown one does not
  ('{"pty": "abc", "kind": "modal-control-v1"}'),
  ('{"pty": "abc", "kind": null}'),
  ('{"pty": "abc", "supervision": null}'),
  ('{"pty": "abc", "supervision": {}}'),
  -- other keys are the application's own
  ('{"note": 1e400}'),
  ('{"streams": null}'),
  ('{"sandboxId": "sb-2"}')
) AS probe(command);

SELECT 'without ' || key, fixture.update('fresh', format('provider_command = fixture.supervised() - %L', key))
FROM unnest(ARRAY['kind', 'pty', 'taskId']) AS key;
ROLLBACK;

-- INSERT asks the same ---------------------------------------------------------------------------
SELECT command, fixture.answer(format($$CALL fixture.command('new',
  overrides => jsonb_build_object('provider_command', fixture.supervised(%L)))$$, command)) FROM (VALUES
  ('{}'),
  ('{"supervision": null}'),
  ('{"pty": true}'),
  ('{"pty": "abc"}')
) AS probe(command);

-- Every write asks -------------------------------------------------------------------------------
-- A descriptor that got in behind the guard's back lets no later write pass.
BEGIN;
CALL fixture.plant($$CALL fixture.command('null descriptor', overrides => jsonb_build_object(
  'provider_command', fixture.supervised('{"supervision": null}')))$$);
CALL fixture.plant($$CALL fixture.command('bad nonce', overrides => jsonb_build_object(
  'provider_command', fixture.supervised(jsonb_build_object('supervision', fixture.descriptor('{"nonce": "0"}')))))$$);
CALL fixture.plant($$CALL fixture.command('bad pty', overrides => jsonb_build_object(
  'provider_command', fixture.supervised('{"pty": "abc"}')))$$);
SELECT command, fixture.update(command, 'last_reconcile_outcome = ''seen''')
FROM unnest(ARRAY['null descriptor', 'bad nonce', 'bad pty']) AS command;

-- Order: after supervised_command.containment (see there), before .receipt and .capture_incomplete.
SELECT fixture.update('bad nonce', 'supervision_receipt = ''{}'', supervision_output_captured = true',
  fixture.capturing('bad nonce'));
ROLLBACK;
