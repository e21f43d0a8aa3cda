-- @table sandbox_pty_sessions
CREATE TABLE sandbox_pty_sessions (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  session_id uuid NOT NULL,
  exec_session_id integer,
  lease_epoch integer NOT NULL,
  cols integer NOT NULL,
  rows integer NOT NULL,
  shell text NOT NULL,
  cwd text NOT NULL,
  status text NOT NULL DEFAULT 'open',
  opened_by text NOT NULL,
  last_input_at timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now(),
  closed_at timestamptz,
  lease_id uuid,
  sandbox_group_id uuid,
  retained_process_id uuid,
  open_admission_id uuid,
  provider_backend text,
  provider_instance_id text,
  route_kind text,
  route_target_id uuid,
  route_epoch integer
);

-- @constraint sandbox_pty_sessions.sandbox_pty_sessions_pkey
ALTER TABLE sandbox_pty_sessions ADD CONSTRAINT sandbox_pty_sessions_pkey PRIMARY KEY (id);

-- @constraint sandbox_pty_sessions.sandbox_pty_sessions_status_chk
ALTER TABLE sandbox_pty_sessions ADD CONSTRAINT sandbox_pty_sessions_status_chk CHECK (status IN ('open', 'closed'));

-- @constraint sandbox_pty_sessions.sandbox_pty_sessions_open_identity_check
-- Only an open terminal must name its process: closed ones may be older than the protocol.
ALTER TABLE sandbox_pty_sessions ADD CONSTRAINT sandbox_pty_sessions_open_identity_check CHECK (
  status <> 'open'
  OR (
    lease_id IS NOT NULL
    AND sandbox_group_id IS NOT NULL
    AND retained_process_id IS NOT NULL
    AND open_admission_id IS NOT NULL
    AND exec_session_id > 0
    AND lease_epoch >= 0
    AND octet_length(provider_backend) BETWEEN 1 AND 64
    AND octet_length(provider_instance_id) BETWEEN 1 AND 512
    AND route_kind IN ('home', 'active')
    AND (route_kind = 'active' OR route_target_id IS NULL)
    AND route_epoch >= 0
  )
);

-- @index sandbox_pty_sessions_session_idx
CREATE INDEX sandbox_pty_sessions_session_idx ON sandbox_pty_sessions (workspace_id, session_id)
  WHERE status = 'open';

-- @index sandbox_pty_sessions_open_process_uq
CREATE UNIQUE INDEX sandbox_pty_sessions_open_process_uq ON sandbox_pty_sessions (retained_process_id)
  WHERE status = 'open';

-- @foreign_key sandbox_pty_sessions.sandbox_pty_sessions_account_id_fkey
ALTER TABLE sandbox_pty_sessions ADD CONSTRAINT sandbox_pty_sessions_account_id_fkey
  FOREIGN KEY (account_id) REFERENCES managed_accounts (id) ON DELETE CASCADE;

-- @foreign_key sandbox_pty_sessions.sandbox_pty_sessions_workspace_id_fkey
ALTER TABLE sandbox_pty_sessions ADD CONSTRAINT sandbox_pty_sessions_workspace_id_fkey
  FOREIGN KEY (workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE;

-- @foreign_key sandbox_pty_sessions.sandbox_pty_sessions_session_id_fkey
ALTER TABLE sandbox_pty_sessions ADD CONSTRAINT sandbox_pty_sessions_session_id_fkey
  FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE;

-- @foreign_key sandbox_pty_sessions.sandbox_pty_sessions_retained_process_scope_fk
ALTER TABLE sandbox_pty_sessions ADD CONSTRAINT sandbox_pty_sessions_retained_process_scope_fk
  FOREIGN KEY (account_id, workspace_id, session_id, lease_id, retained_process_id)
  REFERENCES sandbox_retained_processes (account_id, workspace_id, session_id, lease_id, id)
  ON DELETE RESTRICT;

-- @rls sandbox_pty_sessions
ALTER TABLE sandbox_pty_sessions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy sandbox_pty_sessions.workspace_isolation
CREATE POLICY workspace_isolation ON sandbox_pty_sessions
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
