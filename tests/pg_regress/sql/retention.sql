-- supervised_command.retention_xid and .initial_retention: the row remembers the transaction that inserted
-- it, and only that transaction may attach supervision.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('retention');

CALL fixture.command('retained');
CALL fixture.command('legacy', supervised => false);
CALL fixture.command('no command', overrides => '{"provider_command": null}');
CALL fixture.command('cancelled', supervised => false,
  overrides => '{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}');
-- From before the column existed.
CALL fixture.command('ancient', supervised => false, overrides => '{"supervision_retention_xid": null}');

-- The identity never changes -----------------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET supervision_retention_xid = NULL WHERE id = %L',
  fixture.id('process', 'retained'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('retained', 'supervision_retention_xid = NULL'),
  ('retained', 'supervision_retention_xid = ''3'''),
  ('retained', 'supervision_retention_xid = pg_current_xact_id()'),
  ('retained', 'supervision_retention_xid = supervision_retention_xid'),
  ('legacy', 'supervision_retention_xid = NULL'),
  ('legacy', 'supervision_retention_xid = pg_current_xact_id()'),
  ('ancient', 'supervision_retention_xid = pg_current_xact_id()'),
  ('ancient', 'supervision_retention_xid = NULL'),
  -- speaks before supervised_command.identity and .initial_retention
  ('retained', 'supervision_retention_xid = NULL, lease_epoch = 2'),
  ('legacy', 'supervision_retention_xid = pg_current_xact_id(), provider_command = fixture.supervised()')
) AS probe(command, change);

-- An INSERT names its own transaction, none, or one that has ended. Any other would still be current for a
-- later attachment.
SELECT pg_current_xact_id() AS committed \gset
BEGIN;
SELECT pg_current_xact_id() AS aborted \gset
ROLLBACK;
SELECT xid AS "inserted as", fixture.answer(format($$CALL fixture.command('new', supervised => false,
    overrides => jsonb_build_object('supervision_retention_xid', %s))$$, value)) FROM (VALUES
  ('own', 'pg_current_xact_id()'),
  ('none', 'NULL::xid8'),
  ('committed', :'committed'),
  ('aborted', :'aborted'),
  ('frozen', '3'),
  ('not yet assigned', '(pg_current_xact_id()::text::bigint + 1000000)'),
  ('of the next epoch', '(pg_current_xact_id()::text::bigint + 4294967296)'),
  ('the last there can be', '18446744073709551615')
) AS probe(xid, value);

-- A superuser session restores rows as they were.
RESET SESSION AUTHORIZATION;
SELECT fixture.answer($$CALL fixture.command('restored', overrides => '{"supervision_retention_xid": 1000000000}')$$);
SET ROLE regress_app;
SELECT fixture.answer($$CALL fixture.command('restored', overrides => '{"supervision_retention_xid": 1000000000}')$$);
RESET ROLE;
SET SESSION AUTHORIZATION regress_app;

-- Attachment in a later transaction ----------------------------------------------------------------
SELECT * FROM fixture.refusal(format('UPDATE sandbox_retained_processes SET provider_command = fixture.supervised() WHERE id = %L',
  fixture.id('process', 'legacy'))) \gx

SELECT command, change, fixture.update(command, change) FROM (VALUES
  ('legacy', 'provider_command = fixture.supervised()'),
  ('legacy', 'provider_command = provider_command || ''{"supervision": null}'''),
  ('no command', 'provider_command = fixture.supervised()'),
  ('ancient', 'provider_command = fixture.supervised()'),
  ('legacy', 'provider_command = provider_command || ''{"note": "supervision"}'''),
  ('ancient', 'provider_command = NULL'),
  ('retained', 'provider_command = provider_command'),
  -- speaks before supervised_command.cancellation_monotonic
  ('cancelled', 'provider_command = fixture.supervised(), cancellation_reason = ''provider_deadline''')
) AS probe(command, change);

-- Attachment in the inserting transaction, savepoints included -------------------------------------
BEGIN;
CALL fixture.command('fresh', supervised => false);
CALL fixture.command('fresh, no command', overrides => '{"provider_command": null}');
CALL fixture.command('fresh, no identity', supervised => false, overrides => '{"supervision_retention_xid": null}');
SAVEPOINT inner_insert;
CALL fixture.command('fresh, in a savepoint', supervised => false);
RELEASE inner_insert;
SELECT command, fixture.update(command, 'provider_command = fixture.supervised()')
FROM unnest(ARRAY['fresh', 'fresh, no command', 'fresh, no identity', 'fresh, in a savepoint']) AS command;
UPDATE sandbox_retained_processes SET provider_command = fixture.supervised() WHERE id = fixture.id('process', 'fresh');
COMMIT;
SELECT fixture.update('fresh', 'last_reconcile_outcome = ''seen''');
