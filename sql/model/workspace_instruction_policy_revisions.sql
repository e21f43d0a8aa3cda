-- @sequence workspace_instruction_policy_revision_seq
CREATE SEQUENCE workspace_instruction_policy_revision_seq AS bigint;

-- @table workspace_instruction_policy_revisions
CREATE TABLE workspace_instruction_policy_revisions (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  revision bigint NOT NULL DEFAULT nextval('workspace_instruction_policy_revision_seq'::regclass),
  kind text NOT NULL,
  scope text NOT NULL,
  role_key text,
  content text NOT NULL,
  content_hash text NOT NULL,
  provenance_source text NOT NULL,
  provenance_source_id text,
  supersedes_revision_id uuid,
  created_by_subject_id text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

-- @constraint workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_pkey
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_pkey PRIMARY KEY (id);

-- @constraint workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_workspace_revision_uq
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_workspace_revision_uq UNIQUE (workspace_id, revision);

-- @constraint workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_revision_chk
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_revision_chk CHECK (revision > 0);

-- @constraint workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_target_chk
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_target_chk CHECK (
    (kind = 'charter' AND scope = 'global' AND role_key IS NULL)
    OR (kind = 'policy' AND scope = 'global' AND role_key IS NULL)
    OR (kind = 'policy' AND scope = 'role' AND role_key IS NOT NULL)
  );

-- @constraint workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_role_key_chk
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_role_key_chk CHECK (
    role_key IS NULL
    OR (
      role_key = lower(btrim(role_key))
      AND length(role_key) BETWEEN 1 AND 64
      AND role_key ~ '^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?$'
      AND role_key !~ '--'
    )
  );

-- @constraint workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_content_chk
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_content_chk CHECK (
    length(btrim(content)) > 0 AND octet_length(content) <= 1048576
  );

-- @constraint workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_hash_chk
-- Qualified: the untyped literals would let a function with text arguments in the data schema win.
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_hash_chk CHECK (
    content_hash ~ '^[0-9a-f]{64}$'
    AND content_hash = pg_catalog.encode(sha256(pg_catalog.convert_to(content, 'UTF8')), 'hex')
  );

-- @constraint workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_provenance_chk
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_provenance_chk CHECK (
    provenance_source IN ('human', 'onboarding', 'knowledge_proposal', 'legacy_import')
    AND (provenance_source_id IS NULL OR length(provenance_source_id) BETWEEN 1 AND 512)
  );

-- @constraint workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_actor_chk
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_actor_chk CHECK (
    length(btrim(created_by_subject_id)) BETWEEN 1 AND 1024
  );

-- @index workspace_instruction_policy_revisions_workspace_history_idx
CREATE INDEX workspace_instruction_policy_revisions_workspace_history_idx
  ON workspace_instruction_policy_revisions (workspace_id, kind, scope, role_key, revision DESC);

-- @foreign_key workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_account_id_fkey
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_account_id_fkey
  FOREIGN KEY (account_id) REFERENCES managed_accounts (id) ON DELETE CASCADE;

-- @foreign_key workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_workspace_id_fkey
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisions_workspace_id_fkey
  FOREIGN KEY (workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE;

-- @foreign_key workspace_instruction_policy_revisions.workspace_instruction_policy_revisi_supersedes_revision_id_fkey
ALTER TABLE workspace_instruction_policy_revisions
  ADD CONSTRAINT workspace_instruction_policy_revisi_supersedes_revision_id_fkey
  FOREIGN KEY (supersedes_revision_id) REFERENCES workspace_instruction_policy_revisions (id) ON DELETE RESTRICT;

-- @rls workspace_instruction_policy_revisions
ALTER TABLE workspace_instruction_policy_revisions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy workspace_instruction_policy_revisions.workspace_isolation
CREATE POLICY workspace_isolation ON workspace_instruction_policy_revisions
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
