-- @table sandbox_retained_processes
-- supervision_retention_xid keeps the inserting transaction, which xmin forgets at the first update.
CREATE TABLE sandbox_retained_processes (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  session_id uuid NOT NULL,
  lease_id uuid NOT NULL,
  sandbox_group_id uuid NOT NULL,
  parent_admission_id uuid NOT NULL,
  holder_id text NOT NULL,
  owner_actor_kind text NOT NULL,
  owner_actor_id uuid NOT NULL,
  owner_turn_id uuid,
  owner_attempt_id uuid,
  owner_execution_generation integer,
  lease_epoch integer NOT NULL,
  provider_backend text NOT NULL,
  provider_instance_id text NOT NULL,
  route_kind text NOT NULL,
  route_target_id uuid,
  route_epoch integer NOT NULL,
  provider_session_id integer NOT NULL,
  state text NOT NULL DEFAULT 'active',
  exit_code integer,
  settlement_reason text,
  started_at timestamptz NOT NULL DEFAULT now(),
  settled_at timestamptz,
  reconcile_after timestamptz NOT NULL DEFAULT now(),
  reconcile_claim_id uuid,
  reconcile_claimed_at timestamptz,
  reconcile_attempts integer NOT NULL DEFAULT 0,
  last_reconcile_outcome text,
  reconcile_proof_outcome text,
  reconcile_proof_exit_code integer,
  reconcile_proof_reason text,
  reconcile_proof_observed_at timestamptz,
  provider_binding_key text,
  provider_binding jsonb,
  provider_command jsonb,
  provider_command_input_index bigint NOT NULL DEFAULT 0,
  supervision_retention_xid xid8 DEFAULT pg_current_xact_id(),
  supervision_receipt jsonb,
  supervision_output_captured boolean NOT NULL DEFAULT false,
  cancellation_requested_at timestamptz,
  cancellation_reason text
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_pkey
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_pkey PRIMARY KEY (id);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_identity_check
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_identity_check CHECK (
  lease_epoch >= 0
  AND route_epoch >= 0
  AND provider_session_id > 0
  AND octet_length(holder_id) BETWEEN 1 AND 256
  AND octet_length(provider_backend) BETWEEN 1 AND 64
  AND octet_length(provider_instance_id) BETWEEN 1 AND 512
  AND route_kind IN ('home', 'active')
  AND (route_kind = 'active' OR route_target_id IS NULL)
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_owner_check
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_owner_check CHECK (
  (
    owner_actor_kind = 'turn'
    AND owner_actor_id = owner_attempt_id
    AND owner_turn_id IS NOT NULL
    AND owner_attempt_id IS NOT NULL
    AND owner_execution_generation > 0
  ) OR (
    owner_actor_kind = 'direct'
    AND owner_turn_id IS NULL
    AND owner_attempt_id IS NULL
    AND owner_execution_generation IS NULL
  )
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_settlement_check
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_settlement_check CHECK (
  (state = 'active' AND settled_at IS NULL AND exit_code IS NULL)
  OR (state = 'exited' AND settled_at IS NOT NULL)
  OR (state = 'lost' AND settled_at IS NOT NULL AND exit_code IS NULL)
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_reason_check
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_reason_check CHECK (
  settlement_reason IS NULL OR octet_length(settlement_reason) BETWEEN 1 AND 512
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_reconcile_claim_check
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_reconcile_claim_check CHECK (
  (reconcile_claim_id IS NULL AND reconcile_claimed_at IS NULL)
  OR (reconcile_claim_id IS NOT NULL AND reconcile_claimed_at IS NOT NULL)
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_reconcile_attempts_check
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_reconcile_attempts_check CHECK (
  reconcile_attempts >= 0
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_reconcile_outcome_check
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_reconcile_outcome_check CHECK (
  last_reconcile_outcome IS NULL OR octet_length(last_reconcile_outcome) BETWEEN 1 AND 64
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_provider_binding_check
-- The key is the binding's one canonical spelling, so that equal bindings have equal keys. Qualified names and typed
-- keys: an exact match in the data schema would win over pg_catalog's polymorphic functions and ->> of an untyped key.
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_provider_binding_check CHECK (
  (
    provider_binding_key IS NULL
    AND provider_binding IS NULL
  ) OR (
    provider_backend = 'modal'
    AND octet_length(provider_binding_key) BETWEEN 1 AND 1024
    AND jsonb_typeof(provider_binding) = 'object'
    AND provider_binding_key::jsonb = provider_binding
    AND provider_binding_key = pg_catalog.format(
      '{"version":1,"serverUrl":%s,"workspaceName":%s,"environment":%s}',
      pg_catalog.to_jsonb(provider_binding ->> 'serverUrl'::text)::text,
      pg_catalog.to_jsonb(provider_binding ->> 'workspaceName'::text)::text,
      pg_catalog.to_jsonb(provider_binding ->> 'environment'::text)::text
    )
    AND provider_binding = pg_catalog.jsonb_build_object(
      'version', 1,
      'serverUrl', provider_binding ->> 'serverUrl'::text,
      'workspaceName', provider_binding ->> 'workspaceName'::text,
      'environment', provider_binding ->> 'environment'::text
    )
    AND coalesce(octet_length(provider_binding ->> 'serverUrl'::text), 0) > 0
    AND coalesce(octet_length(provider_binding ->> 'workspaceName'::text), 0) > 0
    AND provider_binding ->> 'environment'::text IS NOT NULL
  )
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_reconcile_proof_check
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_reconcile_proof_check CHECK (
  (
    reconcile_proof_outcome IS NULL
    AND reconcile_proof_exit_code IS NULL
    AND reconcile_proof_reason IS NULL
    AND reconcile_proof_observed_at IS NULL
  ) OR (
    reconcile_proof_outcome = 'exited'
    AND reconcile_proof_exit_code IS NOT NULL
    AND reconcile_proof_reason = 'provider_exit_banner'
    AND reconcile_proof_observed_at IS NOT NULL
  ) OR (
    reconcile_proof_outcome = 'lost'
    AND reconcile_proof_exit_code IS NULL
    AND reconcile_proof_reason IN (
      'provider_session_lost_banner', 'provider_instance_not_found', 'provider_instance_terminated'
    )
    AND reconcile_proof_observed_at IS NOT NULL
  )
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_provider_input_index_chk
-- The upper bound is JavaScript's largest exact integer: the application reads the index as a number.
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_provider_input_index_chk CHECK (
  provider_command_input_index >= 0 AND provider_command_input_index <= 9007199254740991
);

-- @constraint sandbox_retained_processes.sandbox_retained_processes_provider_command_chk
-- IS TRUE: a missing key yields NULL, which a bare CHECK would let through.
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_provider_command_chk CHECK (
  provider_command IS NULL
  OR (
    jsonb_typeof(provider_command) = 'object'
    AND provider_backend = 'modal'
    AND provider_command ->> 'kind'::text IN ('modal-control-v1', 'modal-router-v1')
    AND provider_command ->> 'sandboxId'::text = provider_instance_id
    AND length(provider_command ->> 'taskId'::text) > 0
    AND length(provider_command ->> 'execId'::text) > 0
  ) IS TRUE
);

-- @index sandbox_retained_processes_scoped_id_uq
CREATE UNIQUE INDEX sandbox_retained_processes_scoped_id_uq
  ON sandbox_retained_processes (account_id, workspace_id, session_id, lease_id, id);

-- @index sandbox_retained_processes_parent_admission_uq
CREATE UNIQUE INDEX sandbox_retained_processes_parent_admission_uq
  ON sandbox_retained_processes (parent_admission_id);

-- @index sandbox_retained_processes_holder_uq
CREATE UNIQUE INDEX sandbox_retained_processes_holder_uq ON sandbox_retained_processes (lease_id, holder_id);

-- @index sandbox_retained_processes_live_provider_session_uq
-- A provider may reuse a session number, but not while the command that has it is active.
CREATE UNIQUE INDEX sandbox_retained_processes_live_provider_session_uq
  ON sandbox_retained_processes (lease_id, lease_epoch, provider_instance_id, route_epoch, provider_session_id)
  WHERE state = 'active';

-- @index sandbox_retained_processes_active_idx
CREATE INDEX sandbox_retained_processes_active_idx
  ON sandbox_retained_processes (workspace_id, session_id, started_at)
  WHERE state = 'active';

-- @index sandbox_retained_processes_reconcile_due_idx
CREATE INDEX sandbox_retained_processes_reconcile_due_idx
  ON sandbox_retained_processes (reconcile_after, started_at, id)
  WHERE state = 'active';

-- @index sandbox_retained_processes_active_inventory_idx
CREATE INDEX sandbox_retained_processes_active_inventory_idx
  ON sandbox_retained_processes (owner_actor_kind, workspace_id, owner_turn_id, owner_attempt_id)
  WHERE state = 'active';

-- @foreign_key sandbox_retained_processes.sandbox_retained_processes_workspace_account_fk
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_workspace_account_fk
  FOREIGN KEY (workspace_id, account_id) REFERENCES workspaces (id, account_id) ON DELETE CASCADE;

-- @foreign_key sandbox_retained_processes.sandbox_retained_processes_workspace_session_fk
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_workspace_session_fk
  FOREIGN KEY (workspace_id, session_id) REFERENCES sessions (workspace_id, id) ON DELETE RESTRICT;

-- @foreign_key sandbox_retained_processes.sandbox_retained_processes_parent_admission_scope_fk
ALTER TABLE sandbox_retained_processes ADD CONSTRAINT sandbox_retained_processes_parent_admission_scope_fk
  FOREIGN KEY (account_id, workspace_id, session_id, lease_id, parent_admission_id)
  REFERENCES sandbox_workspace_mutation_admissions (account_id, workspace_id, session_id, lease_id, id)
  ON DELETE RESTRICT;

-- @rls sandbox_retained_processes
ALTER TABLE sandbox_retained_processes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy sandbox_retained_processes.workspace_isolation
CREATE POLICY workspace_isolation ON sandbox_retained_processes
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
