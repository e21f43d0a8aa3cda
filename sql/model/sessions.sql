-- @table sessions
CREATE TABLE sessions (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  status text NOT NULL DEFAULT 'queued',
  initial_message text NOT NULL,
  resources jsonb NOT NULL DEFAULT '[]',
  tools jsonb NOT NULL DEFAULT '[]',
  metadata jsonb NOT NULL DEFAULT '{}',
  model text NOT NULL,
  sandbox_backend text NOT NULL,
  temporal_workflow_id text,
  active_turn_id uuid,
  last_sequence integer NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  sandbox_os text NOT NULL DEFAULT 'linux',
  sandbox_group_id uuid NOT NULL
);

-- @constraint sessions.sessions_pkey
ALTER TABLE sessions ADD CONSTRAINT sessions_pkey PRIMARY KEY (id);

-- @constraint sessions.sessions_lifecycle_status_check
ALTER TABLE sessions ADD CONSTRAINT sessions_lifecycle_status_check CHECK (
  status IN ('queued', 'running', 'idle', 'requires_action', 'recovering', 'waiting_capacity', 'failed', 'cancelled')
);

-- @constraint sessions.sessions_sandbox_os_check
ALTER TABLE sessions ADD CONSTRAINT sessions_sandbox_os_check CHECK (sandbox_os IN ('linux', 'macos', 'windows'));

-- @index sessions_sandbox_group_idx
CREATE INDEX sessions_sandbox_group_idx ON sessions (workspace_id, sandbox_group_id);

-- @index sessions_workspace_id_uq
CREATE UNIQUE INDEX sessions_workspace_id_uq ON sessions (workspace_id, id);

-- @foreign_key sessions.sessions_account_id_fkey
ALTER TABLE sessions ADD CONSTRAINT sessions_account_id_fkey
  FOREIGN KEY (account_id) REFERENCES managed_accounts (id) ON DELETE CASCADE;

-- @foreign_key sessions.sessions_workspace_id_fkey
ALTER TABLE sessions ADD CONSTRAINT sessions_workspace_id_fkey
  FOREIGN KEY (workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE;

-- @foreign_key sessions.sessions_workspace_account_fk
ALTER TABLE sessions ADD CONSTRAINT sessions_workspace_account_fk
  FOREIGN KEY (workspace_id, account_id) REFERENCES workspaces (id, account_id) ON DELETE CASCADE;

-- @rls sessions
ALTER TABLE sessions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy sessions.workspace_isolation
CREATE POLICY workspace_isolation ON sessions
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
