-- @table sandbox_leases
CREATE TABLE sandbox_leases (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  sandbox_group_id uuid NOT NULL,
  liveness text NOT NULL DEFAULT 'cold',
  refcount integer NOT NULL DEFAULT 0,
  turn_holders integer NOT NULL DEFAULT 0,
  viewer_holders integer NOT NULL DEFAULT 0,
  instance_id text,
  backend text NOT NULL,
  os text NOT NULL DEFAULT 'linux',
  data_plane_url text,
  lease_epoch integer NOT NULL DEFAULT 0,
  resume_backend_id text,
  resume_state jsonb,
  last_meter_at timestamptz,
  last_meter_tick integer NOT NULL DEFAULT 0,
  expires_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  terminal_data_plane_url text,
  image text,
  rig_version_id uuid,
  workspace_generation integer NOT NULL DEFAULT 0,
  archive_generation integer,
  provider_created_at timestamptz,
  provider_deadline_at timestamptz,
  rotation_requested_at timestamptz,
  rotation_reason text,
  current_checkpoint_artifact_id uuid,
  previous_checkpoint_artifact_id uuid,
  archive_capture_id uuid,
  archive_capture_published_at timestamptz,
  unobservable_command_drain_ids uuid[]
);

-- @constraint sandbox_leases.sandbox_leases_pkey
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_pkey PRIMARY KEY (id);

-- @constraint sandbox_leases.sandbox_leases_liveness_check
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_liveness_check CHECK (
  liveness IN ('cold', 'warming', 'warm', 'draining')
);

-- @constraint sandbox_leases.sandbox_leases_refcount_check
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_refcount_check CHECK (refcount >= 0);

-- @constraint sandbox_leases.sandbox_leases_turn_holders_check
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_turn_holders_check CHECK (turn_holders >= 0);

-- @constraint sandbox_leases.sandbox_leases_viewer_holders_check
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_viewer_holders_check CHECK (viewer_holders >= 0);

-- @constraint sandbox_leases.sandbox_leases_workspace_generation_check
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_workspace_generation_check CHECK (workspace_generation >= 0);

-- @constraint sandbox_leases.sandbox_leases_archive_generation_check
-- An archive can lag behind the workspace, never be ahead of it.
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_archive_generation_check CHECK (
  archive_generation IS NULL
  OR (archive_generation >= 0 AND archive_generation <= workspace_generation)
);

-- @constraint sandbox_leases.sandbox_leases_provider_deadline_check
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_provider_deadline_check CHECK (
  (provider_created_at IS NULL AND provider_deadline_at IS NULL)
  OR (
    provider_created_at IS NOT NULL
    AND provider_deadline_at IS NOT NULL
    AND provider_deadline_at > provider_created_at
  )
);

-- @constraint sandbox_leases.sandbox_leases_rotation_check
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_rotation_check CHECK (
  (rotation_requested_at IS NULL AND rotation_reason IS NULL)
  OR (rotation_requested_at IS NOT NULL AND rotation_reason IN ('provider_deadline', 'operator'))
);

-- @constraint sandbox_leases.sandbox_leases_checkpoint_distinct_check
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_checkpoint_distinct_check CHECK (
  current_checkpoint_artifact_id IS NULL
  OR previous_checkpoint_artifact_id IS NULL
  OR current_checkpoint_artifact_id <> previous_checkpoint_artifact_id
);

-- @index sandbox_leases_group_idx
CREATE UNIQUE INDEX sandbox_leases_group_idx ON sandbox_leases (workspace_id, sandbox_group_id);

-- @index sandbox_leases_reaper_idx
CREATE INDEX sandbox_leases_reaper_idx ON sandbox_leases (expires_at)
  WHERE liveness IN ('warming', 'warm', 'draining');

-- @index sandbox_leases_scoped_id_uq
-- This key and the next are what admissions and holders refer to: an id alone could name another tenant's lease.
CREATE UNIQUE INDEX sandbox_leases_scoped_id_uq ON sandbox_leases (account_id, workspace_id, sandbox_group_id, id);

-- @index sandbox_leases_account_workspace_id_uq
CREATE UNIQUE INDEX sandbox_leases_account_workspace_id_uq ON sandbox_leases (account_id, workspace_id, id);

-- @index sandbox_leases_expired_draining_inventory_idx
CREATE INDEX sandbox_leases_expired_draining_inventory_idx ON sandbox_leases (expires_at, backend)
  WHERE liveness = 'draining';

-- @index sandbox_leases_provider_deadline_idx
CREATE INDEX sandbox_leases_provider_deadline_idx ON sandbox_leases (provider_deadline_at, id)
  WHERE backend = 'modal' AND liveness IN ('warming', 'warm') AND rotation_requested_at IS NULL;

-- @index sandbox_leases_rotation_idx
-- The backlog is counted from the rotations that were requested, not from every live lease. None of its columns changes
-- without the index before it changing as well.
CREATE INDEX sandbox_leases_rotation_idx ON sandbox_leases (id) INCLUDE (provider_deadline_at)
  WHERE backend = 'modal' AND liveness IN ('warming', 'warm', 'draining') AND rotation_requested_at IS NOT NULL;

-- @index sandbox_leases_reap_idx
-- The sweep reads the leases that may have to change, never the cold fleet; in the order of the holders' index. The price:
-- an update of the counters alone is no longer heap-only. One that moves expires_at never was.
CREATE INDEX sandbox_leases_reap_idx ON sandbox_leases (id)
  INCLUDE (liveness, refcount, turn_holders, viewer_holders, expires_at)
  WHERE liveness <> 'cold' OR refcount <> 0 OR turn_holders <> 0 OR viewer_holders <> 0;

-- @index sandbox_leases_current_checkpoint_idx
-- The artifact guard asks at COMMIT who refers to an artifact.
CREATE INDEX sandbox_leases_current_checkpoint_idx ON sandbox_leases (current_checkpoint_artifact_id) WHERE current_checkpoint_artifact_id IS NOT NULL;

-- @index sandbox_leases_previous_checkpoint_idx
CREATE INDEX sandbox_leases_previous_checkpoint_idx ON sandbox_leases (previous_checkpoint_artifact_id) WHERE previous_checkpoint_artifact_id IS NOT NULL;

-- @foreign_key sandbox_leases.sandbox_leases_account_id_fkey
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_account_id_fkey
  FOREIGN KEY (account_id) REFERENCES managed_accounts (id) ON DELETE CASCADE;

-- @foreign_key sandbox_leases.sandbox_leases_workspace_id_fkey
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_workspace_id_fkey
  FOREIGN KEY (workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE;

-- @foreign_key sandbox_leases.sandbox_leases_current_checkpoint_fk
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_current_checkpoint_fk
  FOREIGN KEY (current_checkpoint_artifact_id) REFERENCES sandbox_checkpoint_artifacts (id)
  DEFERRABLE INITIALLY IMMEDIATE;

-- @foreign_key sandbox_leases.sandbox_leases_previous_checkpoint_fk
ALTER TABLE sandbox_leases ADD CONSTRAINT sandbox_leases_previous_checkpoint_fk
  FOREIGN KEY (previous_checkpoint_artifact_id) REFERENCES sandbox_checkpoint_artifacts (id)
  DEFERRABLE INITIALLY IMMEDIATE;

-- @rls sandbox_leases
ALTER TABLE sandbox_leases ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy sandbox_leases.workspace_isolation
CREATE POLICY workspace_isolation ON sandbox_leases
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
