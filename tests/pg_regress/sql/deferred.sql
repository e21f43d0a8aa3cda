-- The deferred checks in general: when they run, in which order, and what they leave behind.
\a \t \f ' => '
\set SHOW_CONTEXT never
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('deferred');

CALL fixture.command('one', supervised => false);
CALL fixture.command('two', supervised => false);
CALL fixture.pty('two');
CALL fixture.checkpoints('lease');
SELECT fixture.id('process', 'one') AS one, fixture.id('process', 'two') AS two, fixture.id('pty', 'two') AS pty,
  fixture.id('lease', 'lease') AS lease, fixture.id('artifact/current', 'lease') AS artifact \gset
\set process 'UPDATE sandbox_retained_processes SET holder_id = ''forged'' WHERE id = '
\set terminal 'UPDATE sandbox_pty_sessions SET route_epoch = 2 WHERE id = '
\set reference 'UPDATE sandbox_leases SET archive_generation = 2 WHERE id = '
\set state 'UPDATE sandbox_checkpoint_artifacts SET state = ''candidate'' WHERE id = '

-- The first event speaks first; each constraint can be asked by itself.
SELECT fixture.at_commit(format('%s%L; %s%L; %s%L', :'reference', :'lease', :'process', :'one', :'terminal', :'pty'));
SELECT fixture.at_commit(format('%s%L; %s%L; %s%L', :'terminal', :'pty', :'process', :'one', :'reference', :'lease'));
SELECT fixture.at_commit(format('%s%L; %s%L', :'state', :'artifact', :'reference', :'lease'));
SELECT name, fixture.answer(format('DO $do$ BEGIN %s%L; %s%L; %s%L; %s%L; SET CONSTRAINTS %I IMMEDIATE; END $do$; UPDATE workspaces SET name = name',
    :'process', :'one', :'terminal', :'pty', :'reference', :'lease', :'state', :'artifact', name))
FROM unnest(ARRAY['sandbox_retained_processes_identity_v2', 'sandbox_pty_sessions_process_identity_v2', 'sandbox_checkpoint_refs_guard',
  'sandbox_checkpoint_artifact_refs_guard', 'supervised_provider_loss_commit_guard']) AS name;

-- Until then everything is allowed, and seen.
BEGIN;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'one';
SELECT holder_id FROM sandbox_retained_processes WHERE id = :'one';
ROLLBACK;
-- An autocommit statement is its own COMMIT.
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'one';
UPDATE sandbox_pty_sessions SET route_epoch = 2 WHERE id = :'pty';
UPDATE sandbox_leases SET archive_generation = 2 WHERE id = :'lease';
UPDATE sandbox_checkpoint_artifacts SET state = 'candidate' WHERE id = :'artifact';
-- So is each of a procedure's, and what a block catches is gone.
DO $$ BEGIN
  UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'kept' WHERE id = fixture.id('process', 'one');
  COMMIT;
  UPDATE sandbox_retained_processes SET holder_id = 'forged', last_reconcile_outcome = 'lost' WHERE id = fixture.id('process', 'one');
  COMMIT;
END $$;
SELECT holder_id, last_reconcile_outcome FROM sandbox_retained_processes WHERE id = :'one';
DO $$ BEGIN
  BEGIN
    UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = fixture.id('process', 'one');
    RAISE division_by_zero;
  EXCEPTION WHEN division_by_zero THEN NULL;
  END;
  BEGIN
    UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = fixture.id('process', 'one');
    SET CONSTRAINTS ALL IMMEDIATE;
  EXCEPTION WHEN object_not_in_prerequisite_state THEN
    RAISE INFO 'caught: %', SQLERRM;
  END;
  UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'after' WHERE id = fixture.id('process', 'one');
END $$;
SELECT holder_id, last_reconcile_outcome FROM sandbox_retained_processes WHERE id = :'one';

-- At every isolation level; of many rows one is enough.
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'rr' WHERE id IN (:'one', :'two');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'ser' WHERE id IN (:'one', :'two');
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'two';
COMMIT;
SELECT DISTINCT last_reconcile_outcome FROM sandbox_retained_processes WHERE id IN (:'one', :'two');
-- Two phases: due at PREPARE.
BEGIN;
UPDATE sandbox_pty_sessions SET route_epoch = 2 WHERE id = :'pty';
PREPARE TRANSACTION 'deferred';
BEGIN;
UPDATE sandbox_pty_sessions SET cols = 90 WHERE id = :'pty';
UPDATE sandbox_leases SET workspace_generation = 5 WHERE id = :'lease';
UPDATE sandbox_checkpoint_artifacts SET state = 'current' WHERE id = :'artifact';
PREPARE TRANSACTION 'deferred';
COMMIT PREPARED 'deferred';
-- An open cursor and a column that came in between.
RESET SESSION AUTHORIZATION;
BEGIN;
UPDATE sandbox_pty_sessions SET cols = 91 WHERE id = :'pty';
DECLARE c CURSOR FOR SELECT * FROM sandbox_retained_processes;
SET CONSTRAINTS ALL IMMEDIATE;
CLOSE c;
ALTER TABLE sandbox_pty_sessions ADD COLUMN note text DEFAULT 'a';
ALTER TABLE sandbox_retained_processes ADD COLUMN note text DEFAULT 'a', DROP COLUMN reconcile_proof_reason CASCADE;
SET CONSTRAINTS ALL DEFERRED;
SELECT fixture.at_commit(format('UPDATE sandbox_pty_sessions SET note = ''b'' WHERE id = %L; UPDATE sandbox_retained_processes SET note = ''b'' WHERE id = %L', :'pty', :'two'));
SELECT fixture.at_commit(format('%s%L', :'terminal', :'pty')), fixture.at_commit(format('%s%L', :'process', :'one'));
ROLLBACK;
-- A replica applies what its origin checked.
BEGIN;
SET LOCAL session_replication_role = replica;
UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = :'one';
COMMIT;
UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'touched' WHERE id = :'one';
UPDATE sandbox_retained_processes SET holder_id = 'process' WHERE id = :'one';
