-- @table session_turns
CREATE TABLE session_turns (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  session_id uuid NOT NULL,
  trigger_event_id uuid NOT NULL,
  temporal_workflow_id text NOT NULL,
  status text NOT NULL,
  source text NOT NULL DEFAULT 'user',
  position bigint NOT NULL,
  prompt text NOT NULL,
  resources jsonb NOT NULL DEFAULT '[]',
  tools jsonb NOT NULL DEFAULT '[]',
  model text NOT NULL,
  reasoning_effort text NOT NULL,
  sandbox_backend text NOT NULL,
  metadata jsonb NOT NULL DEFAULT '{}',
  started_at timestamptz,
  finished_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  version integer NOT NULL DEFAULT 1,
  execution_generation integer NOT NULL DEFAULT 0,
  active_attempt_id uuid
);

-- @constraint session_turns.session_turns_pkey
ALTER TABLE session_turns ADD CONSTRAINT session_turns_pkey PRIMARY KEY (id);

-- @constraint session_turns.session_turns_queue_purity_check
ALTER TABLE session_turns ADD CONSTRAINT session_turns_queue_purity_check CHECK (
  status <> 'queued' OR source IN ('user', 'api')
);

-- @constraint session_turns.session_turns_status_check
ALTER TABLE session_turns ADD CONSTRAINT session_turns_status_check CHECK (
  status IN (
    'queued', 'running', 'requires_action', 'recovering', 'waiting_capacity',
    'completed', 'failed', 'cancelled', 'superseded', 'withdrawn_for_edit'
  )
);

-- @index session_turns_workspace_id_uq
CREATE UNIQUE INDEX session_turns_workspace_id_uq ON session_turns (workspace_id, id);

-- @index session_turns_one_current_inference_uq
CREATE UNIQUE INDEX session_turns_one_current_inference_uq ON session_turns (workspace_id, session_id)
  WHERE status IN ('running', 'requires_action', 'recovering', 'waiting_capacity');

-- @foreign_key session_turns.session_turns_account_id_fkey
ALTER TABLE session_turns ADD CONSTRAINT session_turns_account_id_fkey
  FOREIGN KEY (account_id) REFERENCES managed_accounts (id) ON DELETE CASCADE;

-- @foreign_key session_turns.session_turns_session_id_fkey
ALTER TABLE session_turns ADD CONSTRAINT session_turns_session_id_fkey
  FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE;

-- @foreign_key session_turns.session_turns_workspace_id_fkey
ALTER TABLE session_turns ADD CONSTRAINT session_turns_workspace_id_fkey
  FOREIGN KEY (workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE;

-- @foreign_key session_turns.session_turns_workspace_account_fk
ALTER TABLE session_turns ADD CONSTRAINT session_turns_workspace_account_fk
  FOREIGN KEY (workspace_id, account_id) REFERENCES workspaces (id, account_id) ON DELETE CASCADE;

-- @foreign_key session_turns.session_turns_workspace_active_attempt_fk
-- Turn and attempt refer to each other, so this side waits for the commit.
ALTER TABLE session_turns ADD CONSTRAINT session_turns_workspace_active_attempt_fk
  FOREIGN KEY (workspace_id, active_attempt_id) REFERENCES session_turn_attempts (workspace_id, id)
  ON DELETE RESTRICT DEFERRABLE INITIALLY DEFERRED;

-- @rls session_turns
ALTER TABLE session_turns ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy session_turns.workspace_isolation
CREATE POLICY workspace_isolation ON session_turns
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
