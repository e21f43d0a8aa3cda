-- @table workspace_instruction_policy_heads
CREATE TABLE workspace_instruction_policy_heads (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  kind text NOT NULL,
  scope text NOT NULL,
  role_key text,
  revision_id uuid NOT NULL,
  revision bigint NOT NULL,
  content_hash text NOT NULL,
  activation_version bigint NOT NULL,
  activated_at timestamptz NOT NULL DEFAULT now()
);

-- @constraint workspace_instruction_policy_heads.workspace_instruction_policy_heads_pkey
ALTER TABLE workspace_instruction_policy_heads
  ADD CONSTRAINT workspace_instruction_policy_heads_pkey PRIMARY KEY (id);

-- @constraint workspace_instruction_policy_heads.workspace_instruction_policy_heads_target_chk
ALTER TABLE workspace_instruction_policy_heads
  ADD CONSTRAINT workspace_instruction_policy_heads_target_chk CHECK (
    (kind = 'charter' AND scope = 'global' AND role_key IS NULL)
    OR (kind = 'policy' AND scope = 'global' AND role_key IS NULL)
    OR (kind = 'policy' AND scope = 'role' AND role_key IS NOT NULL)
  );

-- @constraint workspace_instruction_policy_heads.workspace_instruction_policy_heads_role_key_chk
ALTER TABLE workspace_instruction_policy_heads
  ADD CONSTRAINT workspace_instruction_policy_heads_role_key_chk CHECK (
    role_key IS NULL
    OR (
      role_key = lower(btrim(role_key))
      AND length(role_key) BETWEEN 1 AND 64
      AND role_key ~ '^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?$'
      AND role_key !~ '--'
    )
  );

-- @constraint workspace_instruction_policy_heads.workspace_instruction_policy_heads_revision_chk
ALTER TABLE workspace_instruction_policy_heads
  ADD CONSTRAINT workspace_instruction_policy_heads_revision_chk CHECK (
    revision > 0 AND activation_version > 0 AND content_hash ~ '^[0-9a-f]{64}$'
  );

-- @index workspace_instruction_policy_heads_charter_uq
-- One head per target. Three indexes, because a NULL role_key is never equal to another.
CREATE UNIQUE INDEX workspace_instruction_policy_heads_charter_uq
  ON workspace_instruction_policy_heads (workspace_id)
  WHERE kind = 'charter';

-- @index workspace_instruction_policy_heads_global_policy_uq
CREATE UNIQUE INDEX workspace_instruction_policy_heads_global_policy_uq
  ON workspace_instruction_policy_heads (workspace_id)
  WHERE kind = 'policy' AND scope = 'global';

-- @index workspace_instruction_policy_heads_role_policy_uq
CREATE UNIQUE INDEX workspace_instruction_policy_heads_role_policy_uq
  ON workspace_instruction_policy_heads (workspace_id, role_key)
  WHERE kind = 'policy' AND scope = 'role';

-- @foreign_key workspace_instruction_policy_heads.workspace_instruction_policy_heads_account_id_fkey
ALTER TABLE workspace_instruction_policy_heads
  ADD CONSTRAINT workspace_instruction_policy_heads_account_id_fkey
  FOREIGN KEY (account_id) REFERENCES managed_accounts (id) ON DELETE CASCADE;

-- @foreign_key workspace_instruction_policy_heads.workspace_instruction_policy_heads_workspace_id_fkey
ALTER TABLE workspace_instruction_policy_heads
  ADD CONSTRAINT workspace_instruction_policy_heads_workspace_id_fkey
  FOREIGN KEY (workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE;

-- @foreign_key workspace_instruction_policy_heads.workspace_instruction_policy_heads_revision_id_fkey
ALTER TABLE workspace_instruction_policy_heads
  ADD CONSTRAINT workspace_instruction_policy_heads_revision_id_fkey
  FOREIGN KEY (revision_id) REFERENCES workspace_instruction_policy_revisions (id) ON DELETE RESTRICT;

-- @rls workspace_instruction_policy_heads
ALTER TABLE workspace_instruction_policy_heads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy workspace_instruction_policy_heads.workspace_isolation
CREATE POLICY workspace_isolation ON workspace_instruction_policy_heads
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
