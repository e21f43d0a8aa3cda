-- child_admission.*, parent_admission.*, process_holder.*: a column that came later has a type without equality.
-- Rows that belong to no supervised command are not compared at all; the others are by value (a child, as to_jsonb
-- shows it) or by what the type offers.
\a \t \f ' => '
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('json column');

CALL fixture.command('running');
CALL fixture.child('running', 2);
CALL fixture.command('legacy', supervised => false);
CALL fixture.child('legacy', 2);
CALL fixture.plant($$CALL fixture.command('exited, open', overrides => '{"state": "exited", "settled_at": "2030-01-01Z"}')$$);
CALL fixture.plant(format($$UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'retained', settled_at = NULL
  WHERE id = %L$$, fixture.id('admission/1', 'exited, open')));

RESET SESSION AUTHORIZATION;
BEGIN;
-- Older rows have the defaults without a rewrite.
ALTER TABLE sandbox_workspace_mutation_admissions ADD COLUMN note text DEFAULT 'a', ADD COLUMN document json DEFAULT '{"a": 1}';
ALTER TABLE sandbox_lease_holders ADD COLUMN note text DEFAULT 'a', ADD COLUMN document json DEFAULT '{"a": 1}';
SET LOCAL SESSION AUTHORIZATION regress_app;
SELECT command, generation, change, fixture.change('sandbox_workspace_mutation_admissions', fixture.id('admission/' || generation, command), change)
FROM (VALUES
  ('legacy', 1, 'note = note'), ('legacy', 1, 'document = ''{"a": 2}'''), ('legacy', 1, 'document = NULL'),
  ('legacy', 2, 'note = note'), ('legacy', 2, 'document = ''{"a": 2}'''), ('legacy', 2, 'provider_outcome = ''resolved'', settled_at = ''2030-01-01Z'''),
  ('running', 2, 'note = note'), ('running', 2, 'provider_outcome = ''resolved'', settled_at = ''2030-01-01Z'''),
  ('running', 2, 'document = ''{"a": 1}'''), ('running', 2, 'document = ''{ "a" : 1.0 }'''),
  ('running', 2, 'document = ''{"a": 2}'''), ('running', 2, 'document = NULL'), ('running', 2, 'note = ''b'''),
  ('running', 1, 'note = ''b'''), ('running', 1, 'document = NULL'),
  ('exited, open', 1, 'provider_outcome = ''resolved'', settled_at = ''2030-01-01Z''')
) AS probe(command, generation, change);
SELECT command, change, fixture.change('sandbox_lease_holders', fixture.id('holder', command), change)
FROM (VALUES
  ('legacy', 'last_heartbeat_at = ''2030-01-01Z'''), ('legacy', 'note = note'), ('legacy', 'document = ''{"a": 2}'''),
  ('running', 'last_heartbeat_at = ''2030-01-01Z'''), ('running', 'document = NULL')
) AS probe(command, change);
ROLLBACK;
