-- @table session_turn_attempts
CREATE TABLE session_turn_attempts (
  id uuid NOT NULL,
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  session_id uuid NOT NULL,
  turn_id uuid NOT NULL,
  execution_generation integer NOT NULL,
  state text NOT NULL DEFAULT 'claimed',
  outcome text,
  temporal_workflow_id text NOT NULL,
  temporal_workflow_run_id text NOT NULL,
  temporal_activity_id text NOT NULL,
  worker_id text,
  lease_id text,
  lease_expires_at timestamptz,
  verified_control_revision bigint NOT NULL,
  started_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  closed_at timestamptz,
  quiesced_at timestamptz,
  mcp_approval_policies jsonb NOT NULL
);

-- @constraint session_turn_attempts.session_turn_attempts_pkey
ALTER TABLE session_turn_attempts ADD CONSTRAINT session_turn_attempts_pkey PRIMARY KEY (id);

-- @constraint session_turn_attempts.session_turn_attempts_state_check
ALTER TABLE session_turn_attempts ADD CONSTRAINT session_turn_attempts_state_check CHECK (
  state IN ('claimed', 'running', 'closed')
);

-- @constraint session_turn_attempts.session_turn_attempts_outcome_check
ALTER TABLE session_turn_attempts ADD CONSTRAINT session_turn_attempts_outcome_check CHECK (
  outcome IS NULL
  OR outcome IN (
    'completed', 'failed', 'cancelled', 'superseded', 'requires_action',
    'interrupted_recoverable', 'lease_lost_recoverable', 'pre_cutover_closed'
  )
);

-- @constraint session_turn_attempts.session_turn_attempts_closed_check
ALTER TABLE session_turn_attempts ADD CONSTRAINT session_turn_attempts_closed_check CHECK (
  (state = 'closed' AND outcome IS NOT NULL AND closed_at IS NOT NULL)
  OR (state <> 'closed' AND outcome IS NULL AND closed_at IS NULL)
);

-- @index session_turn_attempts_workspace_id_uq
CREATE UNIQUE INDEX session_turn_attempts_workspace_id_uq ON session_turn_attempts (workspace_id, id);

-- @index session_turn_attempts_dispatch_uq
CREATE UNIQUE INDEX session_turn_attempts_dispatch_uq
  ON session_turn_attempts (workspace_id, temporal_workflow_run_id, temporal_activity_id);

-- @index session_turn_attempts_live_session_uq
CREATE UNIQUE INDEX session_turn_attempts_live_session_uq ON session_turn_attempts (workspace_id, session_id)
  WHERE state IN ('claimed', 'running');

-- @index session_turn_attempts_live_turn_uq
CREATE UNIQUE INDEX session_turn_attempts_live_turn_uq ON session_turn_attempts (workspace_id, turn_id)
  WHERE state IN ('claimed', 'running');

-- @foreign_key session_turn_attempts.session_turn_attempts_workspace_account_fk
ALTER TABLE session_turn_attempts ADD CONSTRAINT session_turn_attempts_workspace_account_fk
  FOREIGN KEY (workspace_id, account_id) REFERENCES workspaces (id, account_id) ON DELETE CASCADE;

-- @foreign_key session_turn_attempts.session_turn_attempts_workspace_session_fk
ALTER TABLE session_turn_attempts ADD CONSTRAINT session_turn_attempts_workspace_session_fk
  FOREIGN KEY (workspace_id, session_id) REFERENCES sessions (workspace_id, id) ON DELETE RESTRICT;

-- @foreign_key session_turn_attempts.session_turn_attempts_workspace_turn_fk
ALTER TABLE session_turn_attempts ADD CONSTRAINT session_turn_attempts_workspace_turn_fk
  FOREIGN KEY (workspace_id, turn_id) REFERENCES session_turns (workspace_id, id) ON DELETE RESTRICT;

-- @rls session_turn_attempts
ALTER TABLE session_turn_attempts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy session_turn_attempts.workspace_isolation
CREATE POLICY workspace_isolation ON session_turn_attempts
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
