-- @table sandbox_lease_holders
CREATE TABLE sandbox_lease_holders (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  lease_id uuid NOT NULL,
  kind text NOT NULL,
  holder_id text NOT NULL,
  subject_id uuid,
  last_heartbeat_at timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now()
);

-- @constraint sandbox_lease_holders.sandbox_lease_holders_pkey
ALTER TABLE sandbox_lease_holders ADD CONSTRAINT sandbox_lease_holders_pkey PRIMARY KEY (id);

-- @constraint sandbox_lease_holders.sandbox_lease_holders_kind_check
ALTER TABLE sandbox_lease_holders ADD CONSTRAINT sandbox_lease_holders_kind_check CHECK (
  kind IN ('turn', 'viewer', 'direct', 'process')
);

-- @index sandbox_lease_holders_holder_idx
CREATE UNIQUE INDEX sandbox_lease_holders_holder_idx ON sandbox_lease_holders (lease_id, kind, holder_id);

-- @index sandbox_lease_holders_lease_idx
CREATE INDEX sandbox_lease_holders_lease_idx ON sandbox_lease_holders (lease_id);

-- @index sandbox_lease_holders_stale_idx
CREATE INDEX sandbox_lease_holders_stale_idx ON sandbox_lease_holders (kind, last_heartbeat_at);

-- @foreign_key sandbox_lease_holders.sandbox_lease_holders_account_id_fkey
ALTER TABLE sandbox_lease_holders ADD CONSTRAINT sandbox_lease_holders_account_id_fkey
  FOREIGN KEY (account_id) REFERENCES managed_accounts (id) ON DELETE CASCADE;

-- @foreign_key sandbox_lease_holders.sandbox_lease_holders_workspace_id_fkey
ALTER TABLE sandbox_lease_holders ADD CONSTRAINT sandbox_lease_holders_workspace_id_fkey
  FOREIGN KEY (workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE;

-- @foreign_key sandbox_lease_holders.sandbox_lease_holders_lease_id_fkey
ALTER TABLE sandbox_lease_holders ADD CONSTRAINT sandbox_lease_holders_lease_id_fkey
  FOREIGN KEY (lease_id) REFERENCES sandbox_leases (id) ON DELETE CASCADE;

-- @foreign_key sandbox_lease_holders.sandbox_lease_holders_lease_scope_fk
ALTER TABLE sandbox_lease_holders ADD CONSTRAINT sandbox_lease_holders_lease_scope_fk
  FOREIGN KEY (account_id, workspace_id, lease_id)
  REFERENCES sandbox_leases (account_id, workspace_id, id) ON DELETE CASCADE;

-- @rls sandbox_lease_holders
ALTER TABLE sandbox_lease_holders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy sandbox_lease_holders.workspace_isolation
CREATE POLICY workspace_isolation ON sandbox_lease_holders
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
