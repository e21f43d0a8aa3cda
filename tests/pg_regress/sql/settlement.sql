-- supervised_command.settlement and .terminal: a supervised command leaves `active` only with its receipt, its
-- captured output and the leader's exit code, and stays as it left.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('settlement');

CALL fixture.command('running');
CALL fixture.command('receipt only', overrides => jsonb_build_object('supervision_receipt', fixture.receipt()));
CALL fixture.command('capture only', overrides => jsonb_build_object('supervision_output_captured', true,
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.command('proven', overrides => jsonb_build_object('supervision_output_captured', true,
  'supervision_receipt', fixture.receipt(),
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.command('proven, 7e1', overrides => jsonb_build_object('supervision_output_captured', true,
  'supervision_receipt', fixture.receipt('{"leaderExitCode": 7e1}'),
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.command('exited', overrides => jsonb_build_object('supervision_output_captured', true,
  'supervision_receipt', fixture.receipt(), 'state', 'exited', 'exit_code', 3, 'settled_at', '2030-01-01Z',
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.plant($$CALL fixture.command('lost', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_instance_lost"}')$$);
CALL fixture.command('legacy', supervised => false);
CALL fixture.command('legacy, exited', supervised => false, overrides => '{"state": "exited", "settled_at": "2030-01-01Z"}');

-- Settlement -------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format(
  'UPDATE sandbox_retained_processes SET state = ''exited'', exit_code = 4, settled_at = ''2030-01-01Z'' WHERE id = %L',
  fixture.id('process', 'receipt only'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('proven', 'state = ''exited'', exit_code = 3, settled_at = ''2030-01-01Z'''),
  ('proven', 'state = ''exited'', exit_code = 4, settled_at = ''2030-01-01Z'''),
  ('proven', 'state = ''exited'', exit_code = NULL, settled_at = ''2030-01-01Z'''),
  ('proven, 7e1', 'state = ''exited'', exit_code = 70, settled_at = ''2030-01-01Z'''),
  ('receipt only', 'state = ''exited'', exit_code = 3, settled_at = ''2030-01-01Z'''),
  ('capture only', 'state = ''exited'', exit_code = 3, settled_at = ''2030-01-01Z'''),
  ('running', 'state = ''exited'', exit_code = 3, settled_at = ''2030-01-01Z'''),
  ('running', 'state = ''exited'', exit_code = NULL, settled_at = ''2030-01-01Z'''),
  -- a settlement time alone is a settlement
  ('running', 'settled_at = ''2030-01-01Z'''),
  ('proven', 'settled_at = ''2030-01-01Z'''),
  -- states the protocol does not know
  ('proven', 'state = ''Exited'', exit_code = 3, settled_at = ''2030-01-01Z'''),
  ('proven', 'state = '''', exit_code = 3, settled_at = ''2030-01-01Z'''),
  ('running', 'state = ''paused'''),
  -- NULL is not "not active"; with a settlement time it is a settlement
  ('running', 'state = NULL'),
  ('proven', 'state = NULL, exit_code = 3, settled_at = ''2030-01-01Z'''),
  -- what the rule leaves to the table's CHECK
  ('proven', 'state = ''exited'', exit_code = 3'),
  ('running', 'exit_code = 3')
) AS probe(command, change);

-- Receipt, capture and exit in one statement.
SELECT fixture.update('running', format('supervision_receipt = fixture.receipt(), supervision_output_captured = true,
  state = ''exited'', exit_code = 3, settled_at = ''2030-01-01Z'', provider_command = provider_command || %L',
  fixture.streams(fixture.drained(), fixture.drained())), fixture.capturing('running'));

-- A row may be inserted settled, if it has all the proof.
SELECT fixture.answer(format($$CALL fixture.command('new', overrides => %L::jsonb || jsonb_build_object(
    'state', 'exited', 'settled_at', '2030-01-01Z',
    'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))))$$, proof)) FROM (VALUES
  (jsonb_build_object('exit_code', 3, 'supervision_output_captured', true, 'supervision_receipt', fixture.receipt())),
  (jsonb_build_object('exit_code', 4, 'supervision_output_captured', true, 'supervision_receipt', fixture.receipt())),
  (jsonb_build_object('exit_code', 3, 'supervision_output_captured', false, 'supervision_receipt', fixture.receipt())),
  (jsonb_build_object('exit_code', 3, 'supervision_output_captured', true))
) AS probe(proof);

-- A legacy command settles as it likes.
SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('legacy', 'state = ''exited'', settled_at = ''2030-01-01Z'''),
  ('legacy', 'state = ''exited'', exit_code = 9, settled_at = ''2030-01-01Z'''),
  ('legacy', 'state = ''lost'', settled_at = ''2030-01-01Z'''),
  ('legacy, exited', 'state = ''active'', settled_at = NULL'),
  ('legacy, exited', 'exit_code = 1')
) AS probe(command, change);

-- Terminal ---------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format(
  'UPDATE sandbox_retained_processes SET state = ''active'', exit_code = NULL, settled_at = NULL WHERE id = %L',
  fixture.id('process', 'exited'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('exited', 'state = ''active'''),
  ('exited', 'state = ''lost'''),
  ('exited', 'state = NULL'),
  ('exited', 'exit_code = 4'),
  ('exited', 'exit_code = NULL'),
  ('exited', 'settled_at = ''2030-01-02Z'''),
  ('exited', 'settled_at = NULL'),
  ('lost', 'state = ''active'', settled_at = NULL'),
  ('lost', 'state = ''exited'''),
  ('lost', 'exit_code = 3'),
  ('lost', 'settled_at = ''infinity'''),
  ('exited', 'state = ''exited'', exit_code = 3, settled_at = ''2030-01-01Z'''),
  ('lost', 'settled_at = settled_at'),
  -- bookkeeping goes on
  ('exited', 'settlement_reason = ''later'', last_reconcile_outcome = ''seen'''),
  ('exited', 'cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''explicit_stop'''),
  -- speaks before supervised_command.capture_protocol
  ('exited', 'exit_code = 4, provider_command = provider_command - ''streams''')
) AS probe(command, change);
