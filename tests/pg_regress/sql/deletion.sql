-- supervised_command.delete_unsettled: evidence stays until the command is settled.
\a \t \f ' => '

-- The CHECK on provider_command admits objects only. Without it, the question "is it supervised?" also
-- meets an array and a scalar.
BEGIN;
ALTER TABLE sandbox_retained_processes DROP CONSTRAINT sandbox_retained_processes_provider_command_chk;
SET LOCAL SESSION AUTHORIZATION regress_app;
CALL fixture.enter('deletion');

-- name: the state a command is in. A command that no guard would have let through is planted.
CALL fixture.command('active');
CALL fixture.command('active, proven', overrides => jsonb_build_object('supervision_receipt', fixture.receipt(),
  'supervision_output_captured', true,
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.command('exited, proven', overrides => jsonb_build_object('supervision_receipt', fixture.receipt(),
  'supervision_output_captured', true, 'state', 'exited', 'exit_code', 3, 'settled_at', '2030-01-01Z',
  'provider_command', fixture.supervised(fixture.streams(fixture.drained(), fixture.drained()))));
CALL fixture.plant($$CALL fixture.command('exited, no receipt', overrides => '{
  "supervision_output_captured": true, "state": "exited", "settled_at": "2030-01-01Z"}')$$);
CALL fixture.plant($$CALL fixture.command('exited, not captured', overrides => jsonb_build_object(
  'supervision_receipt', fixture.receipt(), 'state', 'exited', 'settled_at', '2030-01-01Z'))$$);
CALL fixture.plant($$CALL fixture.command('lost', overrides => '{"state": "lost", "settled_at": "2030-01-01Z"}')$$);
CALL fixture.command('legacy, active', supervised => false);
CALL fixture.command('no command', overrides => '{"provider_command": null}');
CALL fixture.plant($$CALL fixture.command('descriptor is JSON null', overrides => jsonb_build_object(
  'provider_command', fixture.supervised('{"supervision": null}')))$$);
CALL fixture.plant($$CALL fixture.command('array with the word', overrides => '{"provider_command": ["supervision"]}')$$);
CALL fixture.plant($$CALL fixture.command('scalar with the word', overrides => '{"provider_command": "supervision"}')$$);
CALL fixture.plant($$CALL fixture.command('array without it', overrides => '{"provider_command": ["streams"]}')$$);

SELECT * FROM fixture.refusal(format('DELETE FROM sandbox_retained_processes WHERE id = %L',
  fixture.id('process', 'active'))) \gx

SELECT command, fixture.answer(format('DELETE FROM sandbox_retained_processes WHERE id = %L', fixture.id('process', command)))
FROM unnest(ARRAY['active', 'active, proven', 'exited, proven', 'exited, no receipt', 'exited, not captured', 'lost',
  'legacy, active', 'no command', 'descriptor is JSON null', 'array with the word', 'scalar with the word',
  'array without it']) AS command;

-- One row that may not go keeps all of them.
SELECT fixture.answer(format('DELETE FROM sandbox_retained_processes WHERE id IN (%L, %L)',
  fixture.id('process', 'lost'), fixture.id('process', 'active, proven')));
ROLLBACK;

-- A superuser session is no exception.
BEGIN;
CALL fixture.command('active');
SELECT fixture.answer(format('DELETE FROM sandbox_retained_processes WHERE id = %L', fixture.id('process', 'active')));
ROLLBACK;
