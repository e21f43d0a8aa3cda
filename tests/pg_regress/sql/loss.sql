-- supervised_command.loss_fabricated and .typed_loss: a lost provider settles a command only through the typed
-- transition, which names the lost binding exactly, and proves nothing about execution.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('loss');

\set lose 'state = ''lost'', settled_at = ''2030-01-01Z'', settlement_reason = ''provider_instance_lost'''

CALL fixture.command('running');
CALL fixture.command('with receipt', overrides => jsonb_build_object('supervision_receipt', fixture.receipt()));
CALL fixture.command('with child');
CALL fixture.child('with child', 2);
CALL fixture.command('drained', overrides => jsonb_build_object('provider_command', fixture.supervised(
  fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.command('legacy', supervised => false);
CALL fixture.plant($$CALL fixture.command('lost', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_instance_lost"}')$$);
CALL fixture.plant($$CALL fixture.command('rejected', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_start_rejected"}')$$);
CALL fixture.plant($$CALL fixture.command('lost somehow', overrides => '{"state": "lost", "settled_at": "2030-01-01Z"}')$$);

-- The binding of the command `name`, with changes.
CREATE FUNCTION pg_temp.binding(name text, changes jsonb DEFAULT '{}') RETURNS jsonb LANGUAGE sql AS $$
  SELECT jsonb_build_object('supervised_provider_loss_binding', jsonb_build_object(
    'accountId', account_id, 'workspaceId', workspace_id, 'leaseId', lease_id, 'sandboxGroupId', sandbox_group_id,
    'lostEpoch', lease_epoch, 'lostBackend', provider_backend, 'lostInstanceId', provider_instance_id) || changes)
  FROM sandbox_retained_processes WHERE id = fixture.id('process', name)
$$;

-- No setting yet in this session.
SELECT fixture.update('running', :'lose');

-- The binding --------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET %s WHERE id = %L', :'lose',
  fixture.id('process', 'running')), '{"supervised_provider_loss_binding": "{}"}') \gx

SELECT changes, fixture.update('running', :'lose', pg_temp.binding('running', changes::jsonb)) FROM (VALUES
  ('{}'),
  ('{"accountId": "00000000-0000-4000-8000-000000000001"}'),
  ('{"workspaceId": "00000000-0000-4000-8000-000000000001"}'),
  ('{"leaseId": "00000000-0000-4000-8000-000000000001"}'),
  ('{"sandboxGroupId": "00000000-0000-4000-8000-000000000001"}'),
  ('{"lostEpoch": 2}'),
  ('{"lostEpoch": 1.0}'),
  ('{"lostEpoch": 1e0}'),
  ('{"lostEpoch": "1"}'),
  ('{"lostEpoch": 1.5}'),
  ('{"lostEpoch": null}'),
  ('{"lostBackend": "Modal"}'),
  ('{"lostInstanceId": "sb-2"}'),
  ('{"lostInstanceId": null}'),
  ('{"note": null}')
) AS probe(changes);

-- Ids are compared as the text they are in the document.
SELECT key, fixture.update('running', :'lose', jsonb_build_object('supervised_provider_loss_binding',
    binding || jsonb_build_object(key, upper(binding ->> key))))
FROM unnest(ARRAY['accountId', 'workspaceId', 'leaseId', 'sandboxGroupId']) AS key,
  LATERAL (SELECT pg_temp.binding('running') -> 'supervised_provider_loss_binding') AS b(binding);

SELECT 'without ' || key, fixture.update('running', :'lose', jsonb_build_object('supervised_provider_loss_binding',
    (pg_temp.binding('running') -> 'supervised_provider_loss_binding') - key))
FROM unnest(ARRAY['accountId', 'workspaceId', 'leaseId', 'sandboxGroupId', 'lostEpoch', 'lostBackend',
  'lostInstanceId']) AS key;

-- '' is no setting; what is no JSON is an error of its own, and comes before any judgement.
SELECT setting, fixture.update('running', :'lose', jsonb_build_object('supervised_provider_loss_binding', setting))
FROM unnest(ARRAY['', 'null', '[]', '"x"', '{', ' ']) AS setting;
SELECT setting, fixture.update('running', 'state = ''lost'', settled_at = ''2030-01-01Z'', settlement_reason = ''other''',
    jsonb_build_object('supervised_provider_loss_binding', setting))
FROM unnest(ARRAY['', '{']) AS setting;
SELECT command, fixture.update(command, 'last_reconcile_outcome = ''seen''', '{"supervised_provider_loss_binding": "{"}')
FROM unnest(ARRAY['running', 'lost', 'rejected']) AS command;

-- Another command's binding, and the setting that opens a rejection.
SELECT fixture.update('running', :'lose', pg_temp.binding('with child'));
SELECT fixture.update('running', :'lose', jsonb_build_object('supervised_launch_rejection_binding',
  pg_temp.binding('running') -> 'supervised_provider_loss_binding'));

-- The reason ---------------------------------------------------------------------------------------
SELECT reason, fixture.update('running', format('state = ''lost'', settled_at = ''2030-01-01Z'', settlement_reason = %L', reason),
  pg_temp.binding('running'))
FROM unnest(ARRAY['provider_instance_lost', 'Provider_Instance_Lost', 'lost', '', NULL]) AS reason;

-- A command may have a receipt, open input, a cancellation: the provider is gone all the same.
SELECT fixture.update('with receipt', :'lose', pg_temp.binding('with receipt'));
SELECT fixture.update('with child', :'lose', pg_temp.binding('with child'));
SELECT fixture.update('running', :'lose' || ', cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''explicit_stop''',
  pg_temp.binding('running'));
SELECT fixture.update('legacy', :'lose');

-- Nothing else changes -----------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET %s, supervision_receipt = fixture.receipt(), exit_code = 3 WHERE id = %L',
  :'lose', fixture.id('process', 'running')), pg_temp.binding('running')) \gx

SELECT command, change, fixture.update(command, :'lose' || ', ' || change,
    pg_temp.binding(command) || fixture.capturing(command)) FROM (VALUES
  ('running', 'exit_code = 0'),
  ('running', 'supervision_receipt = fixture.receipt()'),
  ('running', 'provider_command = provider_command || fixture.streams(fixture.cursor(''{"byteOffset": 1}''))'),
  ('running', 'supervision_output_captured = true, provider_command = provider_command || fixture.streams(fixture.drained(), fixture.drained())'),
  ('drained', 'supervision_output_captured = true'),
  ('with child', 'provider_command_input_index = 1'),
  ('running', 'last_reconcile_outcome = ''lost''')
) AS probe(command, change);

-- A loss has a time.
SELECT fixture.update('running', 'state = ''lost'', settlement_reason = ''provider_instance_lost''', pg_temp.binding('running'));
-- 1 = 1.0: a command that is equal has not changed.
SELECT fixture.update('running', :'lose' || ', provider_command = provider_command || fixture.streams(fixture.cursor(''{"byteOffset": 0.0}''))',
  pg_temp.binding('running'));
-- No row begins as a loss.
SELECT fixture.answer($$CALL fixture.command('new', overrides => '{"state": "lost", "settled_at": "2030-01-01Z",
  "settlement_reason": "provider_instance_lost"}')$$);
-- Order: before .typed_loss, and .receipt before it.
SELECT fixture.update('running', 'state = ''lost''');
SELECT fixture.update('running', 'state = ''lost'', supervision_receipt = ''{}''');

-- What is lost stays lost for its reason -----------------------------------------------------------
SELECT command, change, fixture.update(command, change, pg_temp.binding(command)) FROM (VALUES
  ('lost', 'last_reconcile_outcome = ''seen'''),
  ('lost', 'settlement_reason = ''provider_instance_lost'''),
  ('lost', 'settlement_reason = ''other'''),
  ('lost', 'settlement_reason = NULL'),
  ('lost', 'supervision_receipt = fixture.receipt()'),
  ('rejected', 'settlement_reason = ''provider_instance_lost'''),
  ('lost somehow', 'last_reconcile_outcome = ''seen'''),
  ('lost somehow', 'settlement_reason = ''provider_instance_lost''')
) AS probe(command, change);
-- Without the setting too: it opens the transition, not the state.
SELECT fixture.update('lost', 'last_reconcile_outcome = ''seen''');
