-- The command's guard meets a row however it is written.
\a \t \f ' => '
\set VERBOSITY terse
SET SESSION AUTHORIZATION regress_app;
CALL fixture.enter('writes');

CALL fixture.command('one');
CALL fixture.command('two');
CALL fixture.command('legacy', supervised => false);
CALL fixture.parent('new');

CREATE TEMP VIEW process AS SELECT * FROM sandbox_retained_processes WHERE id IN
  (fixture.id('process', 'one'), fixture.id('process', 'two'), fixture.id('process', 'legacy'));
-- `draft` fits where 'new' is prepared; `twin` has the id of 'two'; the others are what the guard refuses.
CREATE TEMP TABLE draft AS SELECT * FROM process WHERE id = fixture.id('process', 'one');
UPDATE draft SET id = fixture.id('process', 'new'), session_id = fixture.id('session', 'new'),
  lease_id = fixture.id('lease', 'new'), sandbox_group_id = fixture.id('group', 'new'),
  parent_admission_id = fixture.id('admission/1', 'new'), owner_actor_id = fixture.id('actor', 'new');
CREATE TEMP TABLE twin AS SELECT * FROM draft;
UPDATE twin SET id = fixture.id('process', 'two');
CREATE TEMP TABLE lost AS SELECT * FROM draft;
UPDATE lost SET state = 'lost', settled_at = '2030-01-01Z';
CREATE TEMP TABLE twin_with_bad_receipt AS SELECT * FROM twin;
UPDATE twin_with_bad_receipt SET supervision_receipt = '{}';

SELECT statement, fixture.answer(statement) FROM (VALUES
  -- Of several rows, one that may not change is enough.
  ($$UPDATE process SET last_reconcile_outcome = 'seen'$$),
  ($$UPDATE process SET route_epoch = 2 WHERE NOT provider_command ? 'supervision'$$),
  ($$UPDATE process SET route_epoch = 2$$),
  ($$UPDATE process p SET lease_epoch = 2 FROM draft d WHERE p.lease_epoch = d.lease_epoch$$),
  ($$WITH gone AS (DELETE FROM process RETURNING id) SELECT id FROM gone$$),
  ($$WITH moved AS (UPDATE process SET route_epoch = 2) SELECT 1$$),
  -- Whole rows.
  ($$INSERT INTO sandbox_retained_processes SELECT * FROM draft$$),
  ($$INSERT INTO sandbox_retained_processes SELECT * FROM lost$$),
  ($$INSERT INTO sandbox_retained_processes SELECT * FROM draft UNION ALL SELECT * FROM lost$$),
  -- The row is judged as an INSERT before the conflict is known, and then as the UPDATE that it becomes.
  ($$INSERT INTO sandbox_retained_processes SELECT * FROM twin ON CONFLICT DO NOTHING$$),
  ($$INSERT INTO sandbox_retained_processes SELECT * FROM twin_with_bad_receipt ON CONFLICT DO NOTHING$$),
  ($$INSERT INTO sandbox_retained_processes SELECT * FROM twin ON CONFLICT (id) DO UPDATE SET last_reconcile_outcome = 'again'$$),
  ($$INSERT INTO sandbox_retained_processes SELECT * FROM twin ON CONFLICT (id) DO UPDATE SET lease_id = excluded.lease_id$$),
  ($$MERGE INTO sandbox_retained_processes p USING twin t ON p.id = t.id WHEN MATCHED THEN UPDATE SET last_reconcile_outcome = 'merged'$$),
  ($$MERGE INTO sandbox_retained_processes p USING twin t ON p.id = t.id WHEN MATCHED THEN UPDATE SET lease_id = t.lease_id$$),
  ($$MERGE INTO sandbox_retained_processes p USING twin t ON p.id = t.id WHEN MATCHED THEN DELETE$$),
  ($$MERGE INTO sandbox_retained_processes p USING lost t ON p.id = t.id WHEN NOT MATCHED THEN INSERT (state, provider_command) VALUES (t.state, t.provider_command)$$)
) AS probe(statement);

-- COPY does not know row-level security. What passes the guard here meets the foreign keys.
RESET SESSION AUTHORIZATION;
COPY sandbox_retained_processes (account_id, workspace_id, session_id, lease_id, sandbox_group_id, parent_admission_id, holder_id,
  owner_actor_kind, owner_actor_id, lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch,
  provider_session_id, provider_command) FROM stdin DELIMITER '|';
00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|h|direct|00000000-0000-4000-8000-000000000001|1|modal|sb-1|home|1|1|{"kind": "modal-router-v1", "sandboxId": "sb-1", "taskId": "t", "execId": "e", "supervision": {}}
\.
COPY sandbox_retained_processes (account_id, workspace_id, session_id, lease_id, sandbox_group_id, parent_admission_id, holder_id,
  owner_actor_kind, owner_actor_id, lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch,
  provider_session_id, provider_command) FROM stdin DELIMITER '|';
00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|00000000-0000-4000-8000-000000000001|h|direct|00000000-0000-4000-8000-000000000001|1|modal|sb-1|home|1|1|{"kind": "modal-router-v1", "sandboxId": "sb-1", "taskId": "t", "execId": "e"}
\.
