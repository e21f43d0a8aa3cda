-- @table workspaces
CREATE TABLE workspaces (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  name text NOT NULL,
  slug text,
  external_source text,
  external_id text,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  agent_instructions text,
  settings jsonb NOT NULL DEFAULT '{}',
  default_rig_id uuid
);

-- @constraint workspaces.workspaces_pkey
ALTER TABLE workspaces ADD CONSTRAINT workspaces_pkey PRIMARY KEY (id);

-- @index workspaces_account_idx
CREATE INDEX workspaces_account_idx ON workspaces (account_id);

-- @index workspaces_account_slug_idx
CREATE UNIQUE INDEX workspaces_account_slug_idx ON workspaces (account_id, slug) WHERE slug IS NOT NULL;

-- @index workspaces_external_idx
CREATE UNIQUE INDEX workspaces_external_idx ON workspaces (external_source, external_id);

-- @index workspaces_id_account_idx
-- Referenced by the tables below it, so that a row cannot name one tenant's workspace and another's account.
CREATE UNIQUE INDEX workspaces_id_account_idx ON workspaces (id, account_id);

-- @foreign_key workspaces.workspaces_account_id_fkey
ALTER TABLE workspaces ADD CONSTRAINT workspaces_account_id_fkey
  FOREIGN KEY (account_id) REFERENCES managed_accounts (id) ON DELETE CASCADE;
