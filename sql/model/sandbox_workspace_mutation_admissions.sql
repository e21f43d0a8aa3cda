-- @table sandbox_workspace_mutation_admissions
CREATE TABLE sandbox_workspace_mutation_admissions (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  lease_id uuid NOT NULL,
  sandbox_group_id uuid NOT NULL,
  session_id uuid NOT NULL,
  actor_kind text NOT NULL,
  actor_id uuid NOT NULL,
  turn_id uuid,
  attempt_id uuid,
  execution_generation integer,
  holder_kind text NOT NULL,
  holder_id text NOT NULL,
  lease_epoch integer NOT NULL,
  provider_backend text NOT NULL,
  provider_instance_id text NOT NULL,
  route_kind text NOT NULL,
  route_target_id uuid,
  route_epoch integer NOT NULL,
  workspace_generation integer NOT NULL,
  operation text NOT NULL,
  provider_outcome text,
  admitted_at timestamptz NOT NULL DEFAULT now(),
  settled_at timestamptz
);

-- @constraint sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_pkey
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_pkey PRIMARY KEY (id);

-- @constraint sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_generation_check
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_generation_check CHECK (
    workspace_generation > 0
    AND lease_epoch >= 0
    AND route_epoch >= 0
    AND (execution_generation IS NULL OR execution_generation > 0)
  );

-- @constraint sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_actor_check
-- Only a turn's attempt has a turn behind it, and its holder is of the actor's own kind.
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_actor_check CHECK (
    (
      actor_kind = 'turn'
      AND actor_id = attempt_id
      AND turn_id IS NOT NULL
      AND attempt_id IS NOT NULL
      AND execution_generation IS NOT NULL
      AND holder_kind = 'turn'
    ) OR (
      actor_kind = 'direct'
      AND turn_id IS NULL
      AND attempt_id IS NULL
      AND execution_generation IS NULL
      AND holder_kind = 'direct'
    ) OR (
      actor_kind = 'process'
      AND turn_id IS NULL
      AND attempt_id IS NULL
      AND execution_generation IS NULL
      AND holder_kind = 'process'
    )
  );

-- @constraint sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_route_check
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_route_check CHECK (
    actor_kind IN ('turn', 'direct', 'process')
    AND holder_kind IN ('turn', 'direct', 'process')
    AND octet_length(holder_id) BETWEEN 1 AND 256
    AND octet_length(provider_backend) BETWEEN 1 AND 64
    AND octet_length(provider_instance_id) BETWEEN 1 AND 512
    AND route_kind IN ('home', 'active')
    AND (route_kind = 'active' OR route_target_id IS NULL)
  );

-- @constraint sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_operation_check
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_operation_check CHECK (
    octet_length(operation) BETWEEN 1 AND 128
  );

-- @constraint sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_outcome_check
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_outcome_check CHECK (
    provider_outcome IS NULL OR provider_outcome IN ('resolved', 'rejected', 'retained')
  );

-- @constraint sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_settlement_check
-- A retained outcome stays open: the command still runs.
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_settlement_check CHECK (
    (provider_outcome IS NULL AND settled_at IS NULL)
    OR (provider_outcome = 'retained' AND settled_at IS NULL)
    OR (provider_outcome IN ('resolved', 'rejected') AND settled_at IS NOT NULL)
  );

-- @index sandbox_workspace_mutation_admissions_lease_generation_uq
CREATE UNIQUE INDEX sandbox_workspace_mutation_admissions_lease_generation_uq
  ON sandbox_workspace_mutation_admissions (lease_id, workspace_generation);

-- @index sandbox_workspace_mutation_admissions_scoped_id_uq
CREATE UNIQUE INDEX sandbox_workspace_mutation_admissions_scoped_id_uq
  ON sandbox_workspace_mutation_admissions (account_id, workspace_id, session_id, lease_id, id);

-- @index sandbox_workspace_mutation_admissions_blocking_idx
CREATE INDEX sandbox_workspace_mutation_admissions_blocking_idx
  ON sandbox_workspace_mutation_admissions (lease_id, workspace_generation)
  WHERE settled_at IS NULL;

-- @index sandbox_workspace_mutation_admissions_attempt_idx
CREATE INDEX sandbox_workspace_mutation_admissions_attempt_idx
  ON sandbox_workspace_mutation_admissions (workspace_id, attempt_id);

-- @index sandbox_workspace_mutation_admissions_actor_idx
CREATE INDEX sandbox_workspace_mutation_admissions_actor_idx
  ON sandbox_workspace_mutation_admissions (workspace_id, actor_kind, actor_id);

-- @foreign_key sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_workspace_account_fk
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_workspace_account_fk
  FOREIGN KEY (workspace_id, account_id) REFERENCES workspaces (id, account_id) ON DELETE CASCADE;

-- @foreign_key sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_workspace_session_fk
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_workspace_session_fk
  FOREIGN KEY (workspace_id, session_id) REFERENCES sessions (workspace_id, id) ON DELETE RESTRICT;

-- @foreign_key sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_workspace_turn_fk
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_workspace_turn_fk
  FOREIGN KEY (workspace_id, turn_id) REFERENCES session_turns (workspace_id, id) ON DELETE RESTRICT;

-- @foreign_key sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_workspace_attempt_fk
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_workspace_attempt_fk
  FOREIGN KEY (workspace_id, attempt_id) REFERENCES session_turn_attempts (workspace_id, id) ON DELETE RESTRICT;

-- @foreign_key sandbox_workspace_mutation_admissions.sandbox_workspace_mutation_admissions_lease_scope_fk
ALTER TABLE sandbox_workspace_mutation_admissions
  ADD CONSTRAINT sandbox_workspace_mutation_admissions_lease_scope_fk
  FOREIGN KEY (account_id, workspace_id, sandbox_group_id, lease_id)
  REFERENCES sandbox_leases (account_id, workspace_id, sandbox_group_id, id) ON DELETE CASCADE;

-- @rls sandbox_workspace_mutation_admissions
ALTER TABLE sandbox_workspace_mutation_admissions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy sandbox_workspace_mutation_admissions.workspace_isolation
CREATE POLICY workspace_isolation ON sandbox_workspace_mutation_admissions
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
