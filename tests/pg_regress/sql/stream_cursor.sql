-- supervised_command.stream_cursor: what a cursor looks like, and what can still be done with a row whose
-- cursors do not (D3).
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('stream_cursor');

-- At attachment ----------------------------------------------------------------------------------
SELECT * FROM fixture.refusal($$CALL fixture.command('new', overrides => jsonb_build_object(
  'provider_command', fixture.supervised('{"streams": {"stdout": {}, "stderr": null}}')))$$) \gx

SELECT streams, fixture.answer(format($$CALL fixture.command('new', overrides => jsonb_build_object(
    'provider_command', fixture.supervised() - 'streams' || %L))$$, streams)) FROM (VALUES
  ('{}'),
  ('{"streams": {}}'),
  ('{"streams": null}'),
  ('{"streams": []}'),
  ('{"streams": "none"}'),
  ('{"streams": {"stdout": null}}'),
  ('{"streams": {"stderr": []}}'),
  ('{"streams": {"stderr": 0}}'),
  ('{"streams": {"stderr": {"byteOffset": 0, "utf8Remainder": "", "eof": false}}}'),
  ('{"streams": {"stdin": 7}}')
) AS probe(streams);

SELECT stdout, fixture.answer(format($$CALL fixture.command('new', overrides => jsonb_build_object(
    'provider_command', fixture.supervised(fixture.streams(fixture.cursor(%L)))))$$, stdout)) FROM (VALUES
  ('{"byteOffset": 9223372036854775807}'),
  ('{"byteOffset": 9223372036854775808}'),
  ('{"byteOffset": -1}'),
  ('{"byteOffset": 1.0}'),
  ('{"byteOffset": 1e2}'),
  ('{"byteOffset": 1e400}'),
  -- an offset is what the server can read as bigint
  ('{"byteOffset": "7"}'),
  ('{"byteOffset": " 7 "}'),
  ('{"byteOffset": "+7"}'),
  ('{"byteOffset": "7 7"}'),
  ('{"byteOffset": ""}'),
  ('{"byteOffset": null}'),
  ('{"byteOffset": true}'),
  ('{"byteOffset": [7]}'),
  ('{"utf8Remainder": "w"}'),
  ('{"utf8Remainder": null}'),
  ('{"utf8Remainder": 0}'),
  ('{"eof": true}'),
  ('{"eof": "true"}'),
  ('{"eof": null}'),
  ('{"eof": 0}'),
  ('{"exitCode": 0}'),
  ('{"exitCode": -1}'),
  ('{"exitCode": 2147483647}'),
  ('{"exitCode": 2147483648}'),
  ('{"exitCode": 7e1}'),
  ('{"exitCode": 1.0}'),
  ('{"exitCode": "0"}'),
  ('{"exitCode": false}'),
  ('{"exitCode": {}}'),
  ('{"note": 1}'),
  ('{"byteOffset": -1, "utf8Remainder": 0, "eof": 0, "exitCode": "0"}')
) AS probe(stdout);

BEGIN;
CALL fixture.command('fresh', supervised => false, overrides => jsonb_build_object('provider_command',
  fixture.provider_command(fixture.streams(fixture.cursor('{"eof": "no"}')))));
-- A legacy command's cursors are not judged, until supervision is attached.
SELECT fixture.update('fresh', 'provider_command = jsonb_set(provider_command, ''{streams,stdout}'', ''7'')');
SELECT fixture.update('fresh', format('provider_command = provider_command || %L', jsonb_build_object('supervision', fixture.descriptor())));
SELECT fixture.update('fresh', 'provider_command = fixture.supervised()');
ROLLBACK;

-- Last of all: .settlement and .capture_incomplete speak before it.
SELECT fixture.answer($$CALL fixture.command('new', overrides => jsonb_build_object('state', 'exited', 'settled_at', '2030-01-01Z',
  'provider_command', fixture.supervised('{"streams": null}')))$$);
SELECT fixture.answer($$CALL fixture.command('new', overrides => jsonb_build_object('supervision_output_captured', true,
  'provider_command', fixture.supervised('{"streams": null}')))$$);

-- When streams change ----------------------------------------------------------------------------
CALL fixture.command('reading', overrides => jsonb_build_object('provider_command', fixture.supervised(
  fixture.streams(fixture.cursor('{"byteOffset": 5}')))));
SELECT stdout, fixture.capture('reading', fixture.streams(fixture.cursor(stdout::jsonb))) FROM (VALUES
  ('{"byteOffset": 6}'),
  ('{"byteOffset": "6"}'),
  ('{"byteOffset": 6, "utf8Remainder": null}'),
  ('{"byteOffset": 6, "eof": "true"}'),
  ('{"byteOffset": 6, "exitCode": "0"}')
) AS probe(stdout);
SELECT fixture.capture('reading', fixture.streams(fixture.cursor('{"byteOffset": 5}'), fixture.cursor('{"byteOffset": "many"}')));

-- Poisoned rows ----------------------------------------------------------------------------------
-- Each of these was once stored; the originals answer most of their later writes with 22P02.
CREATE TEMP TABLE poison (place serial, command text, streams jsonb);
INSERT INTO poison (command, streams) VALUES
  ('streams null', '{"streams": null}'),
  ('streams text', '{"streams": "x"}'),
  ('stdout null', '{"streams": {"stdout": null}}'),
  ('stdout number', '{"streams": {"stdout": 7}}'),
  ('offset absent', fixture.streams(fixture.cursor() - 'byteOffset')),
  ('offset null', fixture.streams(fixture.cursor('{"byteOffset": null}'))),
  ('offset text', fixture.streams(fixture.cursor('{"byteOffset": "many"}'))),
  ('offset float', fixture.streams(fixture.cursor('{"byteOffset": 1.5}'))),
  ('offset huge', fixture.streams(fixture.cursor('{"byteOffset": 9223372036854775808}'))),
  ('offset negative', fixture.streams(fixture.cursor('{"byteOffset": -5}'))),
  ('offset "7"', fixture.streams(fixture.cursor('{"byteOffset": "7"}'))),
  ('remainder null', fixture.streams(fixture.cursor('{"utf8Remainder": null}'))),
  ('eof text', fixture.streams(fixture.cursor('{"eof": "perhaps"}'))),
  ('eof "true"', fixture.streams(fixture.cursor('{"eof": "true"}'))),
  ('eof "false"', fixture.streams(fixture.cursor('{"eof": "false"}'))),
  ('exit "0"', fixture.streams(fixture.cursor('{"exitCode": "0"}'))),
  ('exit 1.5', fixture.streams(fixture.cursor('{"exitCode": 1.5}'))),
  ('at end, remainder null', fixture.streams(fixture.drained('{"utf8Remainder": null, "exitCode": null}'))),
  ('at end, offset text', fixture.streams(fixture.drained('{"byteOffset": "many", "exitCode": null}'))),
  ('reader left, eof text', fixture.streams(fixture.drained('{"eof": "perhaps"}')));
-- The privileged half of the fixture reads no temporary table: each row is handed over.
DO $$
DECLARE p record;
BEGIN
  FOR p IN SELECT * FROM poison LOOP
    CALL fixture.plant(format('CALL fixture.command(%L, overrides => %L)', p.command,
      jsonb_build_object('provider_command', fixture.supervised(p.streams))));
  END LOOP;
END $$;

-- They can be kept alive, claimed and cancelled, and their provider can be lost.
SELECT command, fixture.update(command, 'last_reconcile_outcome = ''seen''') FROM poison ORDER BY place;
SELECT command, fixture.update(command, 'cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''explicit_stop''')
FROM poison ORDER BY place;
SELECT command, fixture.update(command,
    'state = ''lost'', settled_at = ''2030-01-01Z'', settlement_reason = ''provider_instance_lost''',
    (SELECT jsonb_build_object('supervised_provider_loss_binding', jsonb_build_object('accountId', account_id,
      'workspaceId', workspace_id, 'leaseId', lease_id, 'sandboxGroupId', sandbox_group_id, 'lostEpoch', lease_epoch,
      'lostBackend', provider_backend, 'lostInstanceId', provider_instance_id))
     FROM sandbox_retained_processes WHERE id = fixture.id('process', command)))
FROM poison ORDER BY place;

-- They can be repaired, in an open capture, to a whole cursor and not below what can still be read of the old.
SELECT command, fixture.capture(command, fixture.streams(fixture.cursor('{"byteOffset": 7}'))) FROM poison ORDER BY place;
SELECT command, fixture.capture(command, fixture.streams(fixture.cursor('{"byteOffset": 6}'))) FROM poison ORDER BY place;
SELECT command, fixture.update(command, format('provider_command = provider_command || %L', fixture.streams(fixture.cursor('{"byteOffset": 7}'))))
FROM poison ORDER BY place;

-- End of file stays end of file, and what it ended stays as it is.
SELECT stdout, fixture.capture('eof "true"', fixture.streams(fixture.cursor(stdout::jsonb))) FROM (VALUES
  ('{"eof": true}'),
  ('{"eof": true, "exitCode": 0}'),
  ('{"eof": false}'),
  ('{"eof": "t"}'),
  ('{"eof": null}'),
  ('{"eof": true, "byteOffset": 1}'),
  ('{"eof": true, "utf8Remainder": "w"}')
) AS probe(stdout);
SELECT stdout, fixture.capture('exit "0"', fixture.streams(fixture.cursor(stdout::jsonb))) FROM (VALUES
  ('{"exitCode": 0}'),
  ('{"exitCode": null}'),
  ('{"exitCode": 1}'),
  ('{"exitCode": "1"}')
) AS probe(stdout);

SELECT command, stdout, fixture.capture(command, fixture.streams(fixture.drained(stdout::jsonb))) FROM (VALUES
  ('at end, remainder null', '{"exitCode": null}'),
  ('at end, remainder null', '{"exitCode": null, "utf8Remainder": "w"}'),
  ('at end, remainder null', '{"exitCode": null, "byteOffset": 10}'),
  ('at end, offset text', '{"exitCode": null}'),
  ('at end, offset text', '{"exitCode": null, "eof": false}'),
  ('reader left, eof text', '{}'),
  ('reader left, eof text', '{"eof": false}'),
  ('reader left, eof text', '{"exitCode": 1}')
) AS probe(command, stdout);

-- Half a repair is none: every cursor is judged when one changes.
CALL fixture.plant($$CALL fixture.command('both', overrides => jsonb_build_object('provider_command', fixture.supervised(
  fixture.streams(fixture.cursor('{"byteOffset": "many"}'), fixture.cursor('{"eof": null}')))))$$);
SELECT fixture.capture('both', fixture.streams(fixture.cursor(), fixture.cursor('{"eof": null}')));
SELECT fixture.capture('both', fixture.streams(fixture.cursor('{"byteOffset": "many"}'), fixture.cursor()));
SELECT fixture.capture('both', fixture.streams(fixture.cursor(), fixture.cursor()));
