-- supervised_command.containment: a launch does not join a lease whose archive is being captured or whose
-- commands are being drained. (Who wins the race is in the isolation suite.)
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('containment');

CALL fixture.lease('capture', '{"archive_capture_id": "00000000-0000-4000-8000-000000000001"}');
CALL fixture.lease('drain', '{"unobservable_command_drain_ids": ["00000000-0000-4000-8000-000000000001"]}');
CALL fixture.lease('empty drain', '{"unobservable_command_drain_ids": []}');
CALL fixture.lease('both', '{"archive_capture_id": "00000000-0000-4000-8000-000000000001",
  "unobservable_command_drain_ids": ["00000000-0000-4000-8000-000000000001"]}');
CALL fixture.lease('published', '{"archive_capture_published_at": "2030-01-01Z", "archive_generation": 0}');
CALL fixture.lease('free');

-- INSERT -------------------------------------------------------------------------------------------
SELECT * FROM fixture.refusal($$CALL fixture.command('capture')$$) \gx

SELECT lease, fixture.answer(format('CALL fixture.command(%L)', lease))
FROM unnest(ARRAY['capture', 'drain', 'empty drain', 'both', 'published', 'free']) AS lease;
-- A legacy command may join.
SELECT lease, fixture.answer(format('CALL fixture.command(%L, supervised => false)', lease))
FROM unnest(ARRAY['capture', 'drain', 'both']) AS lease;

-- Order: after .cancellation_intent, before .descriptor, .receipt and .capture_incomplete.
SELECT fixture.answer($$CALL fixture.command('capture', overrides => '{"cancellation_reason": "bored"}')$$);
SELECT fixture.answer($$CALL fixture.command('capture', overrides => jsonb_build_object('supervision_receipt', '{}',
  'supervision_output_captured', true, 'provider_command', fixture.supervised('{"supervision": {}}')))$$);

-- No lease, no containment: it is the foreign key that refuses.
SELECT fixture.answer($$CALL fixture.command('free', overrides => jsonb_build_object('lease_id', gen_random_uuid()))$$);

-- Attachment by UPDATE -----------------------------------------------------------------------------
BEGIN;
CALL fixture.command('capture', supervised => false);
CALL fixture.command('drain', overrides => '{"provider_command": null}');
CALL fixture.command('published', supervised => false);
SELECT command, fixture.update(command, 'provider_command = fixture.supervised()')
FROM unnest(ARRAY['capture', 'drain', 'published']) AS command;
ROLLBACK;

-- What was attached before stays free to move.
BEGIN;
CALL fixture.command('free');
CALL fixture.plant(format('UPDATE sandbox_leases SET archive_capture_id = id WHERE id = %L', fixture.id('lease', 'free')));
SELECT fixture.update('free', 'last_reconcile_outcome = ''seen''');
SELECT fixture.capture('free', fixture.streams(fixture.cursor('{"byteOffset": 1}')));
ROLLBACK;

-- A temporary table of the same name is not asked (D8).
CREATE TEMP TABLE sandbox_leases AS SELECT * FROM public.sandbox_leases WHERE id = fixture.id('lease', 'capture');
UPDATE pg_temp.sandbox_leases SET archive_capture_id = NULL;
SELECT fixture.answer($$CALL fixture.command('capture')$$);
DROP TABLE pg_temp.sandbox_leases;

-- A policy that hides the contained lease hides nothing from the guard (D9).
RESET SESSION AUTHORIZATION;
BEGIN;
CREATE POLICY hidden ON sandbox_leases AS RESTRICTIVE USING (id <> fixture.id('lease', 'capture'));
CALL fixture.command('capture', supervised => false);
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT count(*) FROM sandbox_leases WHERE id = fixture.id('lease', 'capture');
SELECT fixture.update('capture', 'provider_command = fixture.supervised()');
ROLLBACK;
