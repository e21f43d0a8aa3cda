-- @table workspace_instruction_policy_activation_events
CREATE TABLE workspace_instruction_policy_activation_events (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  kind text NOT NULL,
  scope text NOT NULL,
  role_key text,
  type text NOT NULL,
  activation_version bigint NOT NULL,
  old_revision_id uuid,
  old_revision bigint,
  old_content_hash text,
  new_revision_id uuid NOT NULL,
  new_revision bigint NOT NULL,
  new_content_hash text NOT NULL,
  actor_subject_id text NOT NULL,
  reason text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

-- @constraint workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_events_pkey
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_events_pkey PRIMARY KEY (id);

-- @constraint workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_events_type_chk
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_events_type_chk CHECK (type IN ('activate', 'rollback'));

-- @constraint workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_events_target_chk
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_events_target_chk CHECK (
    (kind = 'charter' AND scope = 'global' AND role_key IS NULL)
    OR (kind = 'policy' AND scope = 'global' AND role_key IS NULL)
    OR (kind = 'policy' AND scope = 'role' AND role_key IS NOT NULL)
  );

-- @constraint workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_events_role_key_chk
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_events_role_key_chk CHECK (
    role_key IS NULL
    OR (
      role_key = lower(btrim(role_key))
      AND length(role_key) BETWEEN 1 AND 64
      AND role_key ~ '^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?$'
      AND role_key !~ '--'
    )
  );

-- @constraint workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_events_old_revision_chk
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_events_old_revision_chk CHECK (
    (old_revision_id IS NULL AND old_revision IS NULL AND old_content_hash IS NULL)
    OR (old_revision_id IS NOT NULL AND old_revision > 0 AND old_content_hash ~ '^[0-9a-f]{64}$')
  );

-- @constraint workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_events_new_revision_chk
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_events_new_revision_chk CHECK (
    new_revision > 0 AND new_content_hash ~ '^[0-9a-f]{64}$' AND activation_version > 0
  );

-- @constraint workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_events_audit_chk
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_events_audit_chk CHECK (
    length(btrim(actor_subject_id)) BETWEEN 1 AND 1024
    AND length(btrim(reason)) BETWEEN 1 AND 4096
  );

-- @index workspace_instruction_policy_events_target_version_uq
-- coalesce: two events without a role are the same target, which NULL would deny.
CREATE UNIQUE INDEX workspace_instruction_policy_events_target_version_uq
  ON workspace_instruction_policy_activation_events
  (workspace_id, kind, scope, coalesce(role_key, ''), activation_version);

-- @index workspace_instruction_policy_events_workspace_time_idx
CREATE INDEX workspace_instruction_policy_events_workspace_time_idx
  ON workspace_instruction_policy_activation_events (workspace_id, created_at DESC, id);

-- @foreign_key workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_events_account_id_fkey
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_events_account_id_fkey
  FOREIGN KEY (account_id) REFERENCES managed_accounts (id) ON DELETE CASCADE;

-- @foreign_key workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_event_workspace_id_fkey
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_event_workspace_id_fkey
  FOREIGN KEY (workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE;

-- @foreign_key workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_ev_old_revision_id_fkey
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_ev_old_revision_id_fkey
  FOREIGN KEY (old_revision_id) REFERENCES workspace_instruction_policy_revisions (id) ON DELETE RESTRICT;

-- @foreign_key workspace_instruction_policy_activation_events.workspace_instruction_policy_activation_ev_new_revision_id_fkey
ALTER TABLE workspace_instruction_policy_activation_events
  ADD CONSTRAINT workspace_instruction_policy_activation_ev_new_revision_id_fkey
  FOREIGN KEY (new_revision_id) REFERENCES workspace_instruction_policy_revisions (id) ON DELETE RESTRICT;

-- @rls workspace_instruction_policy_activation_events
ALTER TABLE workspace_instruction_policy_activation_events ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy workspace_instruction_policy_activation_events.workspace_isolation
CREATE POLICY workspace_isolation ON workspace_instruction_policy_activation_events
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
