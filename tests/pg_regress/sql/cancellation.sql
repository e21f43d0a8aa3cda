-- supervised_command.cancellation_intent, .cancellation_monotonic and .adoption: a cancellation has a time and
-- a reason, is given once, and ends adoption. All three hold for legacy commands too.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('cancellation');

CALL fixture.command('running');
CALL fixture.command('legacy', supervised => false);
CALL fixture.command('cancelled',
  overrides => '{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}');
CALL fixture.command('legacy, cancelled', supervised => false,
  overrides => '{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}');
CALL fixture.plant($$CALL fixture.command('reason only', overrides => '{"cancellation_reason": "explicit_stop"}')$$);

-- Intent -------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET cancellation_reason = ''bored'' WHERE id = %L',
  fixture.id('process', 'running'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('running', 'cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''explicit_stop'''),
  ('running', 'cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''provider_deadline'''),
  ('running', 'cancellation_requested_at = ''infinity'', cancellation_reason = ''provider_deadline'''),
  ('running', 'cancellation_requested_at = NULL, cancellation_reason = NULL'),
  ('running', 'cancellation_requested_at = ''2030-01-01Z'''),
  ('running', 'cancellation_reason = ''explicit_stop'''),
  ('running', 'cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = '''''),
  ('running', 'cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''Explicit_Stop'''),
  ('running', 'cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''explicit_stop '''),
  ('legacy', 'cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''explicit_stop'''),
  ('legacy', 'cancellation_requested_at = ''2030-01-01Z'''),
  ('legacy', 'cancellation_reason = ''bored'''),
  -- Without a time nothing is set yet, so it is the intent that is judged.
  ('reason only', 'settlement_reason = ''touched'''),
  ('reason only', 'cancellation_reason = NULL'),
  ('reason only', 'cancellation_requested_at = ''2030-01-01Z'''),
  -- speaks before supervised_command.legacy_proof
  ('legacy', 'cancellation_reason = ''bored'', supervision_receipt = fixture.receipt()')
) AS probe(command, change);

SELECT cancellation, fixture.answer(format($$CALL fixture.command('new', overrides => %L)$$, cancellation)) FROM (VALUES
  ('{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}'),
  ('{"cancellation_requested_at": "2030-01-01Z"}'),
  ('{"cancellation_reason": "explicit_stop"}'),
  ('{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "bored"}')
) AS probe(cancellation);

-- Monotonic ----------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET cancellation_requested_at = NULL, cancellation_reason = NULL WHERE id = %L',
  fixture.id('process', 'cancelled'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('cancelled', 'cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''explicit_stop'''),
  ('cancelled', 'cancellation_requested_at = ''2030-01-01 00:00:00.000001Z'''),
  ('cancelled', 'cancellation_reason = ''provider_deadline'''),
  ('cancelled', 'cancellation_reason = NULL'),
  ('cancelled', 'cancellation_requested_at = NULL'),
  ('cancelled', 'cancellation_requested_at = NULL, cancellation_reason = NULL'),
  ('legacy, cancelled', 'cancellation_reason = ''provider_deadline'''),
  ('legacy, cancelled', 'settlement_reason = ''touched'''),
  -- speaks before .stdin_closed and .adoption
  ('cancelled', 'cancellation_reason = NULL, provider_command_input_index = 5, owner_actor_id = id')
) AS probe(command, change);

-- Adoption -----------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET owner_actor_kind = ''turn'', owner_turn_id = id WHERE id = %L',
  fixture.id('process', 'cancelled'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('cancelled', 'owner_actor_kind = ''turn'''),
  ('cancelled', 'owner_actor_id = id'),
  ('cancelled', 'owner_turn_id = id'),
  ('cancelled', 'owner_attempt_id = id'),
  ('cancelled', 'owner_execution_generation = 1'),
  ('cancelled', 'owner_actor_kind = NULL'),
  ('cancelled', 'owner_turn_id = NULL, owner_actor_kind = ''direct'''),
  ('legacy, cancelled', 'owner_actor_id = id'),
  -- An owner may change while nothing is cancelled, and in the statement that cancels.
  ('running', 'owner_actor_id = id'),
  ('running', 'owner_actor_id = id, cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''explicit_stop'''),
  ('legacy', 'owner_actor_kind = ''turn'', owner_actor_id = id, owner_attempt_id = id, owner_turn_id = id, owner_execution_generation = 1')
) AS probe(command, change);
