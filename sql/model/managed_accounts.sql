-- @table managed_accounts
CREATE TABLE managed_accounts (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  name text NOT NULL,
  external_source text,
  external_id text,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);

-- @constraint managed_accounts.managed_accounts_pkey
ALTER TABLE managed_accounts ADD CONSTRAINT managed_accounts_pkey PRIMARY KEY (id);

-- @index managed_accounts_external_idx
CREATE UNIQUE INDEX managed_accounts_external_idx ON managed_accounts (external_source, external_id);
