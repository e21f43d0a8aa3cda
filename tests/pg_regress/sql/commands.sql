-- The retained-command operations: each error once, with what to do next, and each success.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('commands');

-- The ids by which an operation finds a command, and a command with its cursors moved.
CREATE FUNCTION pg_temp.scope(name text) RETURNS text LANGUAGE sql RETURN format('%L::uuid, %L::uuid, %L::uuid, %L::uuid',
  fixture.tenant() ->> 'account_id', fixture.tenant() ->> 'workspace_id', fixture.id('session', name), fixture.id('process', name));
CREATE FUNCTION pg_temp.at(stdout text, stderr text DEFAULT '{}', changes jsonb DEFAULT '{}') RETURNS jsonb LANGUAGE sql
  RETURN fixture.supervised(fixture.streams(fixture.cursor(stdout::jsonb), fixture.cursor(stderr::jsonb)) || changes);
CREATE FUNCTION pg_temp.batch(stdout text DEFAULT '{}', stderr text DEFAULT '{}', changes jsonb DEFAULT '{}') RETURNS jsonb LANGUAGE sql
  RETURN '{"kind": "modal-control-v1", "sandboxId": "sb-1", "taskId": "task-1", "execId": "exec-1"}'::jsonb || fixture.streams(
    '{"batchIndex": 0, "utf8Remainder": "", "exitCode": null}'::jsonb || stdout::jsonb,
    '{"batchIndex": 0, "utf8Remainder": "", "exitCode": null}'::jsonb || stderr::jsonb) || changes;
-- What an operation says no with.
CREATE FUNCTION pg_temp.refused(operation text, name text, arguments text DEFAULT '')
RETURNS TABLE (state text, "constraint" text, message text, detail text, hint text) LANGUAGE sql AS $$
  SELECT r.state, r."constraint", r.message, r.detail, r.hint
  FROM fixture.refusal(format('SELECT opengeni_guards.%s(%s%s)', operation, pg_temp.scope(name), arguments)) r
$$;
-- What it answers.
CREATE FUNCTION pg_temp.answer(operation text, name text, arguments text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  answer text;
BEGIN
  EXECUTE format('SELECT opengeni_guards.%s(%s%s)', operation, pg_temp.scope(name), arguments) INTO answer;
  RETURN answer;
END $$;
CREATE FUNCTION pg_temp.page(before jsonb, after jsonb, stdout text DEFAULT '', stderr text DEFAULT '') RETURNS text LANGUAGE sql
  RETURN format(', %L::jsonb, %L::jsonb, %L, %L', before, after, stdout, stderr);

CALL fixture.command('running');
CALL fixture.command('closed', overrides => '{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}');
CALL fixture.command('legacy', supervised => false);
CALL fixture.command('bare', supervised => false, overrides => '{"provider_command": null}');
CALL fixture.command('batch', supervised => false, overrides => jsonb_build_object('provider_command', pg_temp.batch('{"batchIndex": 3}')));
CALL fixture.command('odd', supervised => false, overrides => jsonb_build_object('provider_command', fixture.provider_command() - 'streams'));
CALL fixture.command('far', supervised => false, overrides => '{"provider_command_input_index": 9007199254740990}');

-- Receipt -----------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal($$SELECT opengeni_guards.record_supervision_receipt(NULL, NULL, NULL, NULL, '{}')$$) \gx
SELECT * FROM pg_temp.refused('record_supervision_receipt', 'running', $$, '{"leaderExitCode": "0"}'$$) \gx
SELECT * FROM pg_temp.refused('record_supervision_receipt', 'nobody', format(', %L', fixture.receipt())) \gx
SELECT * FROM pg_temp.refused('record_supervision_receipt', 'legacy', format(', %L', fixture.receipt())) \gx
-- Another invocation's: the guard's word.
SELECT * FROM pg_temp.refused('record_supervision_receipt', 'running',
  format(', %L', fixture.receipt('{"invocationId": "0a1b2c3d-0000-4000-8000-000000000bad"}'))) \gx
SELECT * FROM pg_temp.refused('load_supervision_receipt', 'nobody') \gx
SELECT pg_temp.answer('load_supervision_receipt', 'running') IS NULL;
SELECT pg_temp.answer('record_supervision_receipt', 'running', format(', %L', fixture.receipt()));
-- The same again, and then another.
SELECT pg_temp.answer('record_supervision_receipt', 'running', format(', %L', fixture.receipt()));
SELECT * FROM pg_temp.refused('record_supervision_receipt', 'running', format(', %L', fixture.receipt('{"leaderExitCode": 4}'))) \gx
SELECT pg_temp.answer('load_supervision_receipt', 'running')::jsonb = fixture.receipt();

-- Cancellation ------------------------------------------------------------------------------------
SELECT * FROM pg_temp.refused('request_cancellation', 'running', $$, 'bored'$$) \gx
SELECT * FROM pg_temp.refused('request_cancellation', 'nobody', $$, 'explicit_stop'$$) \gx
SELECT * FROM pg_temp.refused('cancellation_requested', 'nobody') \gx
SELECT pg_temp.answer('cancellation_requested', 'legacy');
SELECT pg_temp.answer('request_cancellation', 'legacy', $$, 'explicit_stop'$$);
SELECT pg_temp.answer('request_cancellation', 'legacy', $$, 'provider_deadline'$$);
SELECT pg_temp.answer('cancellation_requested', 'legacy');
SELECT cancellation_reason FROM sandbox_retained_processes WHERE id = fixture.id('process', 'legacy');

-- By its deadline: only while exactly its lease is to rotate for that.
CALL fixture.command('due');
SELECT pg_temp.answer('request_deadline_cancellation', 'nobody');
SELECT pg_temp.answer('request_deadline_cancellation', 'due');
UPDATE sandbox_leases SET rotation_requested_at = now(), rotation_reason = 'provider_deadline' WHERE id = fixture.id('lease', 'due');
SELECT pg_temp.answer('request_deadline_cancellation', 'due');
SELECT pg_temp.answer('request_deadline_cancellation', 'due');
SELECT cancellation_reason FROM sandbox_retained_processes WHERE id = fixture.id('process', 'due');
SELECT * FROM fixture.refusal('SELECT opengeni_guards.request_deadline_cancellation(NULL, NULL, NULL, NULL)') \gx

-- Input -------------------------------------------------------------------------------------------
SELECT * FROM pg_temp.refused('reserve_input', 'nobody') \gx
SELECT * FROM pg_temp.refused('reserve_input', 'bare') \gx
SELECT * FROM pg_temp.refused('reserve_input', 'closed', ', 5') \gx
SELECT * FROM pg_temp.refused('reserve_input', 'far') \gx
SELECT * FROM pg_temp.refused('reserve_input', 'far', ', 0') \gx
SELECT * FROM pg_temp.refused('reserve_input', 'far', ', 9007199254740992') \gx
SELECT * FROM pg_temp.refused('reserve_input', 'far', ', 2') \gx
SELECT pg_temp.answer('reserve_input', 'far', ', 1');
SELECT pg_temp.answer('reserve_input', 'batch');
SELECT pg_temp.answer('reserve_input', 'batch', ', 80');
-- Supervised stdin is admitted first: the guard's word.
SELECT * FROM pg_temp.refused('reserve_input', 'running', ', 5') \gx
CALL fixture.command('typing');
SELECT * FROM pg_temp.refused('reserve_input', 'typing', ', 5') \gx
CALL fixture.child('typing', 2);
SELECT pg_temp.answer('reserve_input', 'typing', ', 5');
SELECT pg_temp.answer('reserve_input', 'typing', ', 7');

-- Acknowledged output ------------------------------------------------------------------------------
SELECT * FROM pg_temp.refused('acknowledge_output', 'batch', format(', %L', pg_temp.batch('{"batchIndex": "3"}'))) \gx
SELECT * FROM pg_temp.refused('acknowledge_output', 'batch', format(', %L', fixture.supervised())) \gx
SELECT * FROM pg_temp.refused('acknowledge_output', 'nobody', format(', %L', pg_temp.batch())) \gx
SELECT * FROM pg_temp.refused('acknowledge_output', 'bare', format(', %L', pg_temp.batch())) \gx
SELECT * FROM pg_temp.refused('acknowledge_output', 'odd', format(', %L', pg_temp.batch())) \gx
SELECT * FROM pg_temp.refused('acknowledge_output', 'legacy', format(', %L', pg_temp.batch())) \gx
SELECT * FROM pg_temp.refused('acknowledge_output', 'batch', format(', %L', pg_temp.batch(changes => '{"execId": "exec-2"}'))) \gx
SELECT * FROM pg_temp.refused('acknowledge_output', 'batch', format(', %L', pg_temp.batch('{"batchIndex": 3, "exitCode": 0}'))) \gx
SELECT pg_temp.answer('acknowledge_output', 'batch', format(', %L', pg_temp.batch('{"batchIndex": 5, "exitCode": 0}')))::jsonb -> 'streams';
-- A stale one moves nothing back, and may still move the other stream on.
SELECT pg_temp.answer('acknowledge_output', 'batch', format(', %L', pg_temp.batch('{"batchIndex": 4}', '{"batchIndex": 1}')))::jsonb -> 'streams';

-- Captured output ----------------------------------------------------------------------------------
CALL fixture.command('printing');
SELECT * FROM pg_temp.refused('capture_router_output', 'printing', format(', %L, %L, NULL, ''''', pg_temp.at('{}'), pg_temp.at('{}'))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'printing', pg_temp.page('{}', pg_temp.at('{}'))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'printing', pg_temp.page(pg_temp.at('{}'), pg_temp.at('{"byteOffset": -1}'))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'printing', pg_temp.page(pg_temp.at('{}'), pg_temp.at('{}', '{}', '{"taskId": "other"}'))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'printing', pg_temp.page(pg_temp.at('{"byteOffset": 5}'), pg_temp.at('{}'))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'printing', pg_temp.page(pg_temp.at('{}'), pg_temp.at('{}'), 'text')) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'printing', pg_temp.page(pg_temp.at('{}'),
  pg_temp.at('{"byteOffset": 5, "eof": true, "utf8Remainder": "4g=="}'))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'printing', pg_temp.page(pg_temp.at('{}'),
  pg_temp.at('{"byteOffset": 5000000}'), repeat('x', 4194305))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'nobody', pg_temp.page(pg_temp.at('{}'), pg_temp.at('{}'))) \gx
SELECT * FROM fixture.refusal(format('SELECT opengeni_guards.capture_router_output(%L, %L, %L, %L, %L, %L, '''', '''')',
  fixture.tenant() ->> 'account_id', fixture.tenant() ->> 'workspace_id', fixture.id('session', 'printing'),
  fixture.id('process', 'nobody'), pg_temp.at('{}'), pg_temp.at('{}'))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'bare', pg_temp.page(pg_temp.at('{}'), pg_temp.at('{}'))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'odd', pg_temp.page(pg_temp.at('{}'), pg_temp.at('{}'))) \gx
SELECT * FROM pg_temp.refused('capture_router_output', 'printing', pg_temp.page(
  pg_temp.at('{}', '{}', '{"execId": "other"}'), pg_temp.at('{}', '{}', '{"execId": "other"}'))) \gx

-- A page, with a character that is not whole yet; the same again; the rest of it; both ends.
CREATE FUNCTION pg_temp.capture(before jsonb, after jsonb, stdout text, stderr text DEFAULT '') RETURNS TABLE (page text)
LANGUAGE sql AS $$
  SELECT concat_ws(' ', 'captured ' || captured, command #>> '{streams,stdout,byteOffset}', events)
  FROM opengeni_guards.capture_router_output((fixture.tenant() ->> 'account_id')::uuid, (fixture.tenant() ->> 'workspace_id')::uuid,
    fixture.id('session', 'printing'), fixture.id('process', 'printing'), before, after, stdout, stderr)
$$;
SELECT page FROM pg_temp.capture(pg_temp.at('{}'), pg_temp.at('{"byteOffset": 7, "utf8Remainder": "4oI="}'), 'price');
SELECT page FROM pg_temp.capture(pg_temp.at('{}'), pg_temp.at('{"byteOffset": 7, "utf8Remainder": "4oI="}'), 'price');
SELECT page FROM pg_temp.capture(pg_temp.at('{"byteOffset": 7, "utf8Remainder": "4oI="}'), pg_temp.at('{"byteOffset": 8}', '{"byteOffset": 4}'), '€', 'warn');
SELECT page FROM pg_temp.capture(pg_temp.at('{"byteOffset": 8}', '{"byteOffset": 4}'), pg_temp.at('{"byteOffset": 8}', '{"byteOffset": 4}'), '');
SELECT page FROM pg_temp.capture(pg_temp.at('{"byteOffset": 8}', '{"byteOffset": 4}'),
  pg_temp.at('{"byteOffset": 8, "eof": true, "exitCode": 0}', '{"byteOffset": 4, "eof": true, "exitCode": 0}'), '');
SELECT supervision_output_captured FROM sandbox_retained_processes WHERE id = fixture.id('process', 'printing');
SELECT stream, stream_fidelity, byte_start, byte_end, chunk_id, chunk FROM sandbox_command_output
WHERE process_id = fixture.id('process', 'printing') ORDER BY sequence;

-- A chunk that is there with another text, as a repair may have left it.
CALL fixture.command('repaired');
INSERT INTO sandbox_command_output (account_id, workspace_id, session_id, process_id, stream, stream_fidelity, byte_start, byte_end, chunk_id, chunk)
SELECT account_id, workspace_id, session_id, id, 'stdout', 'separate', 0, 4, 'modal-router:exec-1:stdout:0:4:0', 'that'
FROM sandbox_retained_processes WHERE id = fixture.id('process', 'repaired');
SELECT * FROM pg_temp.refused('capture_router_output', 'repaired', pg_temp.page(pg_temp.at('{}'), pg_temp.at('{"byteOffset": 4}'), 'this')) \gx
SELECT pg_temp.answer('capture_router_output', 'repaired',
  pg_temp.page(pg_temp.at('{}'), pg_temp.at('{"byteOffset": 4}'), 'that')) ~ ',t,';

-- The schema ---------------------------------------------------------------------------------------
SELECT * FROM pg_temp.refused('cancellation_requested', 'running', ', NULL') \gx
SELECT * FROM pg_temp.refused('cancellation_requested', 'running', ', ''nowhere''') \gx
SELECT opengeni_guards.supervised_command_protocol_ready(), opengeni_guards.supervised_command_protocol_ready('fixture');
SELECT * FROM fixture.refusal('SELECT opengeni_guards.supervised_command_protocol_ready(''nowhere'')') \gx

-- The scope ----------------------------------------------------------------------------------------
SELECT operation, fixture.answer(format('SELECT opengeni_guards.%1$s(%2$L, NULL, %2$L%3$s)', operation, fixture.id('any', 'one'), arguments))
FROM (VALUES
  ('record_supervision_receipt', $$, NULL, '{}'$$), ('load_supervision_receipt', ', NULL'),
  ('request_cancellation', $$, NULL, 'explicit_stop'$$), ('cancellation_requested', ', NULL'),
  ('request_deadline_cancellation', ', NULL'), ('reserve_input', ', NULL'), ('acknowledge_output', $$, NULL, '{}'$$),
  ('capture_router_output', $$, NULL, '{}', '{}', '', ''$$)
) AS probe(operation, arguments);
