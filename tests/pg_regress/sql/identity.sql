-- supervised_command.identity: what a supervised command runs as never changes.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('identity');

CALL fixture.command('plain');
CALL fixture.command('bound', overrides => '{
  "route_kind": "active", "route_target_id": "00000000-0000-4000-8000-000000000001",
  "provider_binding_key": "{\"version\":1,\"serverUrl\":\"u\",\"workspaceName\":\"w\",\"environment\":\"e\"}",
  "provider_binding": {"version": 1, "serverUrl": "u", "workspaceName": "w", "environment": "e"}}');
CALL fixture.command('cancelled',
  overrides => '{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}');
CALL fixture.command('legacy', supervised => false);

SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET lease_epoch = 2, provider_command = NULL WHERE id = %L',
  fixture.id('process', 'plain'))) \gx

-- The seventeen columns ----------------------------------------------------------------------------
SELECT change, fixture.update('plain', change) FROM (VALUES
  ('lease_id = gen_random_uuid()'),
  ('lease_epoch = 2'),
  ('provider_backend = ''other'''),
  ('provider_instance_id = ''sb-2'''),
  ('provider_binding_key = ''k'''),
  ('provider_binding = ''{}'''),
  ('provider_binding = ''null'''),
  ('parent_admission_id = gen_random_uuid()'),
  ('holder_id = ''other'''),
  ('account_id = gen_random_uuid()'),
  ('workspace_id = gen_random_uuid()'),
  ('session_id = gen_random_uuid()'),
  ('sandbox_group_id = gen_random_uuid()'),
  ('id = gen_random_uuid()'),
  ('provider_session_id = 2'),
  ('route_kind = ''active'''),
  ('route_target_id = gen_random_uuid()'),
  ('route_epoch = 2')
) AS probe(change);

-- NULL is a value like any other, and all that changes is named.
SELECT change, fixture.update('bound', change) FROM (VALUES
  ('route_target_id = NULL'),
  ('provider_binding_key = NULL'),
  ('provider_binding = NULL'),
  ('lease_epoch = NULL'),
  ('provider_binding = NULL, provider_binding_key = NULL, route_epoch = 2, account_id = gen_random_uuid()')
) AS probe(change);

-- The command, less its streams --------------------------------------------------------------------
SELECT change, fixture.update('plain', 'provider_command = ' || change) FROM (VALUES
  ('provider_command || ''{"taskId": "task-2"}'''),
  ('provider_command || ''{"note": null}'''),
  ('provider_command - ''pty'''),
  ('provider_command - ''supervision'''),
  ('provider_command || ''{"supervision": null}'''),
  ('jsonb_set(provider_command, ''{supervision,nonce}'', to_jsonb(repeat(''0'', 64)))'),
  ('jsonb_set(provider_command, ''{supervision,note}'', ''1'')'),
  ('NULL'),
  ('''null'''),
  ('''["supervision"]''')
) AS probe(change);

-- Numbers are compared as jsonb compares them: by value, to the last digit, beyond any double.
BEGIN;
CALL fixture.command('numbers', overrides => jsonb_build_object('provider_command', fixture.supervised(
  '{"one": 1, "serial": 123456789012345678901234567890, "tenth": 0.1, "huge": 1e400}'
  || jsonb_build_object('deep', (repeat('[', 500) || repeat(']', 500))::jsonb))));
SELECT change, fixture.update('numbers', format('provider_command = provider_command || %L::jsonb', change)) FROM (VALUES
  ('{}'),
  ('{"one": 1.0}'),
  ('{"one": "1"}'),
  ('{"serial": 123456789012345678901234567891}'),
  ('{"tenth": 0.10000000000000000555}'),
  ('{"huge": 10e399}'),
  ('{"huge": 1e401}'),
  ('{"deep": [[]]}')
) AS probe(change);
ROLLBACK;

-- What may change ----------------------------------------------------------------------------------
SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('plain', 'lease_epoch = lease_epoch, route_target_id = NULL'),
  ('plain', 'last_reconcile_outcome = ''seen'', reconcile_attempts = 7'),
  ('plain', 'settlement_reason = ''later'''),
  ('bound', 'provider_binding = provider_binding || ''{"version": 1.0}'''),
  -- a turn adopts the command
  ('plain', 'owner_actor_kind = ''turn'', owner_actor_id = id, owner_attempt_id = id, owner_turn_id = id, owner_execution_generation = 1'),
  -- a legacy command has no identity yet
  ('legacy', 'provider_session_id = 2, route_epoch = 2'),
  ('legacy', 'provider_command = provider_command || ''{"taskId": "task-2"}'''),
  ('legacy', 'provider_command = NULL'),
  -- speaks before supervised_command.cancellation_monotonic
  ('cancelled', 'route_epoch = 2, cancellation_reason = ''provider_deadline''')
) AS probe(command, change);
