-- supervised_command.receipt, .proof_immutable, .legacy_proof and .input_settles_first: a receipt is bound to
-- the invocation, is given once, and comes after the input has settled.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('receipt');

CALL fixture.command('running');
CALL fixture.command('upper case', overrides => jsonb_build_object('provider_command', fixture.supervised(jsonb_build_object(
  'supervision', fixture.descriptor('{"invocationId": "0A1B2C3D-0000-4000-8000-00000000000F"}')))));
CALL fixture.command('with receipt', overrides => jsonb_build_object('supervision_receipt', fixture.receipt()));
CALL fixture.command('captured', overrides => jsonb_build_object('supervision_output_captured', true,
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.command('legacy', supervised => false);
CALL fixture.plant($$CALL fixture.command('legacy with receipt', supervised => false,
  overrides => jsonb_build_object('supervision_receipt', fixture.receipt()))$$);
CALL fixture.plant($$CALL fixture.command('bad receipt', overrides => '{"supervision_receipt": {}}')$$);

-- The shape --------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET supervision_receipt = ''{"note": 1}'' WHERE id = %L',
  fixture.id('process', 'running'))) \gx

SELECT receipt, fixture.update('running', format('supervision_receipt = %L', receipt))
FROM unnest(ARRAY['null', '{}', '[]', '"receipt"', '7', NULL]::jsonb[]) AS receipt;

SELECT member, fixture.update('running', format('supervision_receipt = %L', fixture.receipt(member::jsonb))) FROM (VALUES
  ('{}'),
  ('{"protocol": "Native-Subreaper-v1"}'),
  ('{"protocol": "native-subreaper-v2"}'),
  ('{"protocol": null}'),
  ('{"invocationId": "0a1b2c3d-0000-4000-8000-0000000000ff"}'),
  -- the same uuid in another case is another invocation
  ('{"invocationId": "0A1B2C3D-0000-4000-8000-00000000000F"}'),
  ('{"invocationId": null}'),
  ('{"receiptId": "0A1B2C3D-0000-4000-8000-0000000000AA"}'),
  ('{"receiptId": "0a1b2c3d-0000-4000-8000-0000000000a"}'),
  ('{"receiptId": "0a1b2c3d0000400080000000000000aa"}'),
  ('{"receiptId": "0a1b2c3d-0000-4000-8000-0000000000aa\n"}'),
  ('{"receiptId": "x0a1b2c3d-0000-4000-8000-0000000000aa"}'),
  ('{"receiptId": ""}'),
  ('{"receiptId": null}'),
  ('{"receiptId": 1}'),
  ('{"leaderExitCode": 0}'),
  ('{"leaderExitCode": -0}'),
  ('{"leaderExitCode": -1}'),
  ('{"leaderExitCode": 2147483647}'),
  ('{"leaderExitCode": -2147483648}'),
  ('{"leaderExitCode": 2147483648}'),
  ('{"leaderExitCode": -2147483649}'),
  ('{"leaderExitCode": 18446744073709551617}'),
  ('{"leaderExitCode": 1e400}'),
  -- an integer is what jsonb writes as one
  ('{"leaderExitCode": 7e1}'),
  ('{"leaderExitCode": 0.7e1}'),
  ('{"leaderExitCode": 1.0}'),
  ('{"leaderExitCode": 10e-1}'),
  ('{"leaderExitCode": 1.5}'),
  ('{"leaderExitCode": "3"}'),
  ('{"leaderExitCode": "abc"}'),
  ('{"leaderExitCode": true}'),
  ('{"leaderExitCode": [3]}'),
  ('{"leaderExitCode": null}'),
  ('{"note": 1}'),
  ('{"note": null}'),
  ('{"nonce": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}')
) AS probe(member);

SELECT 'without ' || key, fixture.update('running', format('supervision_receipt = %L', fixture.receipt() - key))
FROM unnest(ARRAY['protocol', 'invocationId', 'receiptId', 'leaderExitCode']) AS key;

SELECT member, fixture.update('upper case', format('supervision_receipt = %L', fixture.receipt(member::jsonb))) FROM (VALUES
  ('{}'),
  ('{"invocationId": "0A1B2C3D-0000-4000-8000-00000000000F"}')
) AS probe(member);

-- INSERT asks the same, and every write of the row asks again.
SELECT fixture.answer(format($$CALL fixture.command('new', overrides => jsonb_build_object('supervision_receipt', %L::jsonb))$$, receipt))
FROM unnest(ARRAY[fixture.receipt(), '{}']) AS receipt;
SELECT fixture.update('bad receipt', 'last_reconcile_outcome = ''seen''');

-- Order: before .capture_incomplete and .settlement.
SELECT fixture.update('running', 'supervision_receipt = ''{}'', supervision_output_captured = true, state = ''exited''',
  fixture.capturing('running'));

-- Given once -------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET supervision_receipt = NULL WHERE id = %L',
  fixture.id('process', 'with receipt'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('with receipt', 'supervision_receipt = supervision_receipt'),
  ('with receipt', 'supervision_receipt = NULL'),
  ('with receipt', 'supervision_receipt = ''null'''),
  ('with receipt', 'supervision_receipt = supervision_receipt || ''{"leaderExitCode": 4}'''),
  ('with receipt', 'supervision_receipt = supervision_receipt - ''receiptId'''),
  -- 3 = 3.0, so the receipt did not change; but 3.0 is not written as an integer
  ('with receipt', 'supervision_receipt = supervision_receipt || ''{"leaderExitCode": 3.0}'''),
  ('captured', 'supervision_output_captured = false'),
  ('captured', 'supervision_output_captured = true'),
  ('running', 'supervision_output_captured = false'),
  -- speaks before .stdin_closed
  ('with receipt', 'supervision_receipt = NULL, provider_command_input_index = 1')
) AS probe(command, change);

-- NULL takes nothing back: what it meets is the column's own NOT NULL.
SELECT fixture.update('captured', 'supervision_output_captured = NULL', fixture.capturing('captured'));

-- A legacy command has none ----------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET supervision_output_captured = true WHERE id = %L',
  fixture.id('process', 'legacy'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('legacy', 'supervision_receipt = fixture.receipt()'),
  ('legacy', 'supervision_receipt = ''null'''),
  ('legacy', 'supervision_receipt = NULL'),
  ('legacy', 'supervision_output_captured = true'),
  ('legacy', 'supervision_output_captured = NULL'),
  ('legacy', 'provider_command = NULL, supervision_output_captured = true'),
  ('legacy with receipt', 'last_reconcile_outcome = ''seen'''),
  -- what is there stays there, also where it should not be
  ('legacy with receipt', 'supervision_receipt = NULL')
) AS probe(command, change);
SELECT fixture.answer($$CALL fixture.command('new', supervised => false, overrides => '{"supervision_output_captured": true}')$$);

-- Input settles first ----------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET supervision_receipt = fixture.receipt() WHERE id = %L',
  fixture.id('process', 'running')), planted => $$CALL fixture.child('running', 2)$$) \gx

-- Any unsettled child of this command counts, on whatever lease, epoch, backend or instance.
CALL fixture.lease('elsewhere');
SELECT child, fixture.update('running', 'supervision_receipt = fixture.receipt()',
    planted => format('CALL fixture.child(''running'', 2, %L)', replace(child, 'elsewhere', fixture.id('lease', 'elsewhere')::text))) FROM (VALUES
  ('{}'),
  ('{"provider_outcome": "retained"}'),
  ('{"lease_id": "elsewhere"}'),
  ('{"lease_epoch": 2, "provider_backend": "other", "provider_instance_id": "sb-2"}'),
  ('{"settled_at": "2030-01-01Z", "provider_outcome": "resolved"}'),
  ('{"account_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"workspace_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"actor_kind": "direct", "holder_kind": "direct"}'),
  ('{"actor_id": "00000000-0000-4000-8000-000000000001"}')
) AS probe(child);

-- With a receipt on record, an unsettled child stops every write.
SELECT fixture.update('with receipt', 'last_reconcile_outcome = ''seen''', planted => $$CALL fixture.child('with receipt', 2)$$);
SELECT fixture.update('running', 'last_reconcile_outcome = ''seen''', planted => $$CALL fixture.child('running', 2)$$);
-- speaks before .settlement
SELECT fixture.update('running', 'supervision_receipt = fixture.receipt(), state = ''exited''', planted => $$CALL fixture.child('running', 2)$$);

-- The statement that settles the last child may bring the receipt.
SELECT fixture.answer(format($$
  WITH settled AS (UPDATE sandbox_workspace_mutation_admissions SET settled_at = '2030-01-01Z', provider_outcome = 'resolved'
    WHERE actor_id = %1$L RETURNING actor_id)
  UPDATE sandbox_retained_processes p SET supervision_receipt = fixture.receipt() FROM settled WHERE p.id = settled.actor_id$$,
  fixture.id('process', 'running')), planted => $$CALL fixture.child('running', 2)$$);

-- A temporary table of the same name is not asked (D8), and a policy that hides the child hides nothing
-- from the guard (D9).
CREATE TEMP TABLE sandbox_workspace_mutation_admissions (LIKE public.sandbox_workspace_mutation_admissions);
SELECT fixture.update('running', 'supervision_receipt = fixture.receipt()', planted => $$CALL fixture.child('running', 2)$$);
DROP TABLE pg_temp.sandbox_workspace_mutation_admissions;

RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_workspace_mutation_admissions AS RESTRICTIVE USING (actor_kind <> 'process');
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT fixture.update('running', 'supervision_receipt = fixture.receipt()', planted => $$CALL fixture.child('running', 2)$$);
ROLLBACK;
