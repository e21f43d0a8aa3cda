-- supervised_command.stdin_closed, .stdin_child and .stdin_regress: input is reserved upwards, for an
-- unsettled child admission of exactly this command, until the command is cancelled or has its receipt.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('stdin');

CALL fixture.command('with child', overrides => '{"provider_command_input_index": 5}');
CALL fixture.child('with child', 2);
CALL fixture.command('no child', overrides => '{"provider_command_input_index": 5}');
CALL fixture.command('legacy', supervised => false, overrides => '{"provider_command_input_index": 5}');
CALL fixture.command('cancelled', overrides => '{"provider_command_input_index": 5,
  "cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}');
CALL fixture.command('legacy, cancelled', supervised => false, overrides => '{"provider_command_input_index": 5,
  "cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}');
CALL fixture.command('with receipt', overrides => jsonb_build_object('provider_command_input_index', 5,
  'supervision_receipt', fixture.receipt()));

-- Closed -------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET provider_command_input_index = 9 WHERE id = %L',
  fixture.id('process', 'cancelled'))) \gx

SELECT command, index, fixture.update(command, 'provider_command_input_index = ' || index) FROM (VALUES
  ('cancelled', '9'), ('cancelled', '4'), ('cancelled', 'NULL'), ('cancelled', '5'),
  ('with receipt', '9'), ('with receipt', '5'),
  ('legacy, cancelled', '9'), ('legacy, cancelled', '5')
) AS probe(command, index);

-- The request that cancels may still carry the last reservation.
SELECT fixture.update('with child', 'provider_command_input_index = 9,
  cancellation_requested_at = ''2030-01-01Z'', cancellation_reason = ''explicit_stop''');

-- Child --------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET provider_command_input_index = 9 WHERE id = %L',
  fixture.id('process', 'no child'))) \gx

SELECT command, index, fixture.update(command, 'provider_command_input_index = ' || index) FROM (VALUES
  ('no child', '6'), ('no child', '5'), ('no child', 'NULL'),
  -- speaks before .stdin_regress
  ('no child', '4'),
  ('legacy', '6'), ('legacy', '4'), ('legacy', 'NULL')
) AS probe(command, index);

-- A child counts where it is this command's, on its lease, epoch, backend and instance, and unsettled. Such
-- mismatches are planted: an admission that the protocol lets in has none.
CALL fixture.lease('elsewhere');
SELECT child, fixture.update('no child', 'provider_command_input_index = 6',
    planted => format('CALL fixture.child(''no child'', 2, %L)', replace(child, 'elsewhere', fixture.id('lease', 'elsewhere')::text))) FROM (VALUES
  ('{}'),
  ('{"provider_outcome": "retained"}'),
  ('{"holder_id": "other", "route_epoch": 2}'),
  ('{"settled_at": "2030-01-01Z", "provider_outcome": "resolved"}'),
  ('{"account_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"workspace_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"actor_kind": "direct", "holder_kind": "direct"}'),
  ('{"actor_id": "00000000-0000-4000-8000-000000000001"}'),
  ('{"lease_id": "elsewhere"}'),
  ('{"lease_epoch": 2}'),
  ('{"provider_backend": "Modal"}'),
  ('{"provider_instance_id": "sb-2"}')
) AS probe(child);

-- One that fits is enough, beside one that does not.
BEGIN;
CALL fixture.child('no child', 2, '{"settled_at": "2030-01-01Z", "provider_outcome": "rejected"}');
SELECT fixture.update('no child', 'provider_command_input_index = 6');
CALL fixture.child('no child', 3);
SELECT fixture.update('no child', 'provider_command_input_index = 6');
ROLLBACK;

-- The statement that admits the child may reserve for it.
SELECT fixture.answer(format($$
  WITH child AS (INSERT INTO sandbox_workspace_mutation_admissions (account_id, workspace_id, lease_id, sandbox_group_id,
      session_id, actor_kind, actor_id, holder_kind, holder_id, lease_epoch, provider_backend, provider_instance_id,
      route_kind, route_epoch, workspace_generation, operation)
    SELECT account_id, workspace_id, lease_id, sandbox_group_id, session_id, 'process', id, 'process', holder_id,
      lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, 2, 'stdin'
    FROM sandbox_retained_processes WHERE id = %1$L RETURNING actor_id)
  UPDATE sandbox_retained_processes p SET provider_command_input_index = 6 FROM child WHERE p.id = child.actor_id$$,
  fixture.id('process', 'no child')));

-- Attachment is no reservation: an index that moves with it needs the child too.
BEGIN;
CALL fixture.command('fresh', supervised => false);
SELECT fixture.update('fresh', 'provider_command = fixture.supervised(), provider_command_input_index = 1');
SELECT fixture.update('fresh', 'provider_command = fixture.supervised()');
ROLLBACK;

-- A temporary table of the same name is not asked (D8), and a policy that hides the child hides nothing
-- from the guard (D9).
CREATE TEMP TABLE sandbox_workspace_mutation_admissions AS SELECT * FROM public.sandbox_workspace_mutation_admissions
  WHERE actor_id = fixture.id('process', 'with child');
UPDATE pg_temp.sandbox_workspace_mutation_admissions a SET actor_id = p.id, lease_id = p.lease_id
  FROM sandbox_retained_processes p WHERE p.id = fixture.id('process', 'no child');
SELECT fixture.update('no child', 'provider_command_input_index = 6');
DROP TABLE pg_temp.sandbox_workspace_mutation_admissions;

RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_workspace_mutation_admissions AS RESTRICTIVE USING (actor_kind <> 'process');
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT count(*) FROM sandbox_workspace_mutation_admissions WHERE actor_id = fixture.id('process', 'with child');
SELECT fixture.update('with child', 'provider_command_input_index = 6');
ROLLBACK;
SET SESSION AUTHORIZATION regress_app;

-- Regress ------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET provider_command_input_index = 4 WHERE id = %L',
  fixture.id('process', 'with child'))) \gx

-- NULL is not below anything: the column's own NOT NULL refuses it.
SELECT index, fixture.update('with child', 'provider_command_input_index = ' || index)
FROM unnest(ARRAY['4', '0', '-1', '5', '6', '9007199254740991', '9007199254740992', 'NULL']) AS index;
