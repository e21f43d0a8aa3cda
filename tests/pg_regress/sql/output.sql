-- supervised_command.capture_protocol, .output_regress and .capture_incomplete: output moves inside an open
-- capture, moves forward, and is complete when it is called captured. (What a cursor looks like is in
-- stream_cursor.sql.)
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('output');

CALL fixture.command('reading', overrides => jsonb_build_object('provider_command', fixture.supervised(
  fixture.streams(fixture.cursor('{"byteOffset": 5}'), fixture.cursor('{"byteOffset": 5}')))));
CALL fixture.command('at end', overrides => jsonb_build_object('provider_command', fixture.supervised(
  fixture.streams(fixture.drained('{"exitCode": null}'), fixture.cursor()))));
CALL fixture.command('reader left', overrides => jsonb_build_object('provider_command', fixture.supervised(
  fixture.streams(fixture.drained(), fixture.cursor()))));
CALL fixture.command('reader left early', overrides => jsonb_build_object('provider_command', fixture.supervised(
  fixture.streams(fixture.cursor('{"byteOffset": 5, "exitCode": 1}'), fixture.cursor()))));
CALL fixture.command('drained', overrides => jsonb_build_object('provider_command', fixture.supervised(
  fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.command('no streams', overrides => jsonb_build_object('provider_command', fixture.supervised() - 'streams'));
CALL fixture.command('legacy', supervised => false, overrides => jsonb_build_object('provider_command',
  fixture.provider_command(fixture.streams(fixture.drained()))));

-- The capture protocol ---------------------------------------------------------------------------
-- No setting yet in this session.
SELECT fixture.update('reading', 'provider_command = provider_command - ''streams''');
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET supervision_output_captured = true WHERE id = %L',
  fixture.id('process', 'drained'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('reading', 'provider_command = jsonb_set(provider_command, ''{streams,stdout,byteOffset}'', ''6'')'),
  ('reading', 'provider_command = jsonb_set(provider_command, ''{streams,note}'', ''6'')'),
  ('reading', 'provider_command = provider_command || ''{"streams": null}'''),
  ('reading', 'provider_command = provider_command - ''streams'''),
  ('no streams', 'provider_command = provider_command || ''{"streams": null}'''),
  ('drained', 'supervision_output_captured = true'),
  -- what is equal has not changed
  ('reading', 'provider_command = provider_command'),
  ('reading', 'provider_command = jsonb_set(provider_command, ''{streams,stdout,byteOffset}'', ''5.0'')'),
  ('drained', 'supervision_output_captured = false'),
  ('legacy', 'provider_command = provider_command - ''streams''')
) AS probe(command, change);

-- The setting is compared as text with the id of the row, not read.
SELECT setting, fixture.update('drained', 'supervision_output_captured = true',
    jsonb_build_object('supervised_output_capture_process_id', value)) FROM (VALUES
  ('the id', fixture.id('process', 'drained')::text),
  ('another', fixture.id('process', 'reading')::text),
  ('upper case', upper(fixture.id('process', 'drained')::text)),
  ('spaced', ' ' || fixture.id('process', 'drained')),
  ('braced', '{' || fixture.id('process', 'drained') || '}'),
  ('empty', '')
) AS probe(setting, value);

-- Forward ----------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET provider_command = provider_command || %L WHERE id = %L',
  fixture.streams(fixture.cursor('{"byteOffset": 4}')), fixture.id('process', 'reading')), fixture.capturing('reading')) \gx

SELECT command, stdout, fixture.capture(command, fixture.streams(cursor || stdout::jsonb, stderr)) FROM
  (SELECT name, provider_command #> '{streams,stdout}', provider_command #> '{streams,stderr}'
   FROM sandbox_retained_processes p, unnest(ARRAY['reading', 'at end', 'reader left', 'reader left early']) WITH ORDINALITY AS n(name, place)
   WHERE p.id = fixture.id('process', name) ORDER BY place) AS was(command, cursor, stderr),
  LATERAL (VALUES
    ('{"byteOffset": 4}'), ('{"byteOffset": 5}'), ('{"byteOffset": 6}'), ('{"byteOffset": 9}'), ('{"byteOffset": 10}'),
    ('{"byteOffset": "10"}'),
    ('{"byteOffset": -1}'),
    ('{"byteOffset": null}'),
    ('{"byteOffset": "many"}'),
    ('{"byteOffset": 10.0}'),
    ('{"byteOffset": 9223372036854775808}'),
    ('{"byteOffset": 10, "utf8Remainder": "w"}'),
    ('{"utf8Remainder": "w"}'),
    ('{"eof": true}'), ('{"eof": false}'), ('{"eof": "true"}'), ('{"eof": null}'),
    ('{"exitCode": 0}'), ('{"exitCode": 1}'), ('{"exitCode": null}'), ('{"exitCode": "0"}'),
    ('{"eof": true, "exitCode": 0}'),
    ('{"note": null}')
  ) AS probe(stdout);

SELECT command, 'without ' || key, fixture.capture(command, fixture.streams(cursor - key, stderr)) FROM
  (SELECT name, provider_command #> '{streams,stdout}', provider_command #> '{streams,stderr}'
   FROM sandbox_retained_processes p, unnest(ARRAY['reading', 'at end', 'reader left']) WITH ORDINALITY AS n(name, place)
   WHERE p.id = fixture.id('process', name) ORDER BY place) AS was(command, cursor, stderr),
  LATERAL unnest(ARRAY['byteOffset', 'utf8Remainder', 'eof', 'exitCode']) AS key;

-- Evidence does not vanish: streams, a stream or an offset that is gone would reset the cursor (D11).
SELECT streams, fixture.capture('reading', streams::jsonb) FROM (VALUES
  ('{"streams": null}'),
  ('{"streams": "x"}'),
  ('{"streams": []}'),
  ('{"streams": {}}'),
  ('{"streams": {"stdout": null, "stderr": null}}')
) AS probe(streams);
SELECT 'without streams', fixture.update('reading', 'provider_command = provider_command - ''streams''', fixture.capturing('reading'));
SELECT stream, value, fixture.update('reading', format('provider_command = jsonb_set(provider_command, ''{streams,%s}'', %L)', stream, value),
    fixture.capturing('reading')) FROM (VALUES
  ('stdout', 'null'), ('stdout', '[]'), ('stdout', '5'), ('stdout', '{}'),
  ('stderr', 'null'), ('stderr', '{"eof": true}')
) AS probe(stream, value);
SELECT 'without ' || stream, fixture.update('reading', format('provider_command = provider_command #- ''{streams,%s}''', stream),
    fixture.capturing('reading'))
FROM unnest(ARRAY['stdout', 'stderr']) AS stream;
-- Nothing recorded, nothing lost.
SELECT fixture.capture('no streams', fixture.streams(fixture.cursor()));
SELECT fixture.capture('no streams', '{"streams": {}}');

-- stdout is judged before stderr, and each on its own.
SELECT stdout, stderr, fixture.capture('reading', fixture.streams(fixture.cursor(stdout::jsonb), fixture.cursor(stderr::jsonb))) FROM (VALUES
  ('{"byteOffset": 4}', '{"byteOffset": 4}'),
  ('{"byteOffset": 6}', '{"byteOffset": 4}'),
  ('{"byteOffset": 5}', '{"byteOffset": 6}')
) AS probe(stdout, stderr);

-- Order: .terminal and .capture_protocol speak before it, .cancellation_intent after it.
SELECT fixture.capture('reading', '{"streams": null}');
SELECT fixture.update('reading', 'provider_command = provider_command - ''streams''');
SELECT fixture.update('reading', 'provider_command = provider_command - ''streams'', cancellation_reason = ''bored''', fixture.capturing('reading'));

-- Complete ---------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET supervision_output_captured = true WHERE id = %L',
  fixture.id('process', 'reading')), fixture.capturing('reading')) \gx

SELECT command, fixture.update(command, 'supervision_output_captured = true', fixture.capturing(command))
FROM unnest(ARRAY['drained', 'reader left', 'no streams']) AS command;

SELECT stdout, fixture.answer(format($$CALL fixture.command('new', overrides => jsonb_build_object(
    'supervision_output_captured', true,
    'provider_command', fixture.supervised(fixture.streams(fixture.drained(%L), fixture.drained()))))$$, stdout)) FROM (VALUES
  ('{}'),
  ('{"byteOffset": 0}'),
  ('{"eof": false}'), ('{"eof": null}'), ('{"eof": "TRUE"}'),
  ('{"utf8Remainder": "w"}'), ('{"utf8Remainder": null}'),
  ('{"exitCode": 1}'), ('{"exitCode": null}'), ('{"exitCode": 0.0}'), ('{"exitCode": -0}'),
  -- ->> makes the same text of a string; what refuses it is the cursor's shape
  ('{"eof": "true"}'), ('{"exitCode": "0"}')
) AS probe(stdout);
SELECT 'without ' || key, fixture.answer(format($$CALL fixture.command('new', overrides => jsonb_build_object(
    'supervision_output_captured', true,
    'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained() - %L))))$$, key))
FROM unnest(ARRAY['byteOffset', 'utf8Remainder', 'eof', 'exitCode']) AS key;

-- Order: before .input_settles_first and .loss_fabricated.
SELECT fixture.update('reading', 'supervision_output_captured = true, supervision_receipt = fixture.receipt()',
  fixture.capturing('reading'), $$CALL fixture.child('reading', 2)$$);
SELECT fixture.update('reading', 'supervision_output_captured = true, state = ''lost''', fixture.capturing('reading'));
