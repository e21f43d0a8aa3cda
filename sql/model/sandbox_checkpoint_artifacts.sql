-- @table sandbox_checkpoint_artifacts
CREATE TABLE sandbox_checkpoint_artifacts (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  sandbox_group_id uuid NOT NULL,
  source_lease_id uuid NOT NULL,
  source_lease_epoch integer NOT NULL,
  source_instance_id text,
  source_workspace_generation integer,
  provenance text NOT NULL,
  provider_backend text NOT NULL,
  provider_binding_key text NOT NULL,
  provider_binding jsonb NOT NULL,
  object_kind text NOT NULL,
  object_id text NOT NULL,
  archive_base64 text NOT NULL,
  archive_sha256 text NOT NULL,
  archive_bytes integer NOT NULL,
  descriptor jsonb NOT NULL,
  descriptor_revision text NOT NULL,
  state text NOT NULL DEFAULT 'candidate',
  delete_after timestamptz,
  delete_attempts integer NOT NULL DEFAULT 0,
  delete_claim_id uuid,
  delete_claimed_at timestamptz,
  last_delete_error text,
  created_at timestamptz NOT NULL DEFAULT now(),
  published_at timestamptz,
  deleted_at timestamptz,
  updated_at timestamptz NOT NULL DEFAULT now()
);

-- @constraint sandbox_checkpoint_artifacts.sandbox_checkpoint_artifacts_pkey
ALTER TABLE sandbox_checkpoint_artifacts ADD CONSTRAINT sandbox_checkpoint_artifacts_pkey PRIMARY KEY (id);

-- @constraint sandbox_checkpoint_artifacts.sandbox_checkpoint_artifacts_source_check
ALTER TABLE sandbox_checkpoint_artifacts ADD CONSTRAINT sandbox_checkpoint_artifacts_source_check CHECK (
  source_lease_epoch >= 0
  AND (
    (
      provenance = 'native_capture'
      AND source_workspace_generation IS NOT NULL
      AND source_workspace_generation >= 0
      AND source_instance_id IS NOT NULL
      AND octet_length(source_instance_id) BETWEEN 1 AND 512
    ) OR (
      provenance = 'legacy_provider_adopted'
      AND source_workspace_generation IS NULL
      AND source_instance_id IS NULL
    )
  )
);

-- @constraint sandbox_checkpoint_artifacts.sandbox_checkpoint_artifacts_provider_check
-- The key is the binding's one canonical spelling, so that equal bindings have equal keys. Qualified names and typed
-- keys: an exact match in the data schema would win over pg_catalog's polymorphic functions and ->> of an untyped key.
ALTER TABLE sandbox_checkpoint_artifacts ADD CONSTRAINT sandbox_checkpoint_artifacts_provider_check CHECK (
  provider_backend = 'modal'
  AND octet_length(provider_binding_key) BETWEEN 1 AND 1024
  AND jsonb_typeof(provider_binding) = 'object'
  AND provider_binding_key::jsonb = provider_binding
  AND provider_binding_key = pg_catalog.format(
    '{"version":1,"serverUrl":%s,"workspaceName":%s,"environment":%s}',
    pg_catalog.to_jsonb(provider_binding ->> 'serverUrl'::text)::text,
    pg_catalog.to_jsonb(provider_binding ->> 'workspaceName'::text)::text,
    pg_catalog.to_jsonb(provider_binding ->> 'environment'::text)::text
  )
  AND provider_binding = pg_catalog.jsonb_build_object(
    'version', 1,
    'serverUrl', provider_binding ->> 'serverUrl'::text,
    'workspaceName', provider_binding ->> 'workspaceName'::text,
    'environment', provider_binding ->> 'environment'::text
  )
  AND coalesce(octet_length(provider_binding ->> 'serverUrl'::text), 0) > 0
  AND coalesce(octet_length(provider_binding ->> 'workspaceName'::text), 0) > 0
  AND provider_binding ->> 'environment'::text IS NOT NULL
  AND object_kind IN ('modal_filesystem_snapshot', 'modal_directory_snapshot')
  AND octet_length(object_id) BETWEEN 1 AND 1024
);

-- @constraint sandbox_checkpoint_artifacts.sandbox_checkpoint_artifacts_archive_check
-- Decoding and encoding again must give the same text: one archive, one spelling. The server wraps base64 lines.
ALTER TABLE sandbox_checkpoint_artifacts ADD CONSTRAINT sandbox_checkpoint_artifacts_archive_check CHECK (
  archive_bytes > 0
  AND octet_length(archive_base64) > 0
  AND archive_sha256 ~ '^[0-9a-f]{64}$'
  AND jsonb_typeof(descriptor) = 'object'
  AND octet_length(descriptor_revision) BETWEEN 1 AND 256
  AND pg_catalog.translate(
    pg_catalog.encode(pg_catalog.decode(archive_base64, 'base64'), 'base64'), E'\n\r', ''
  ) = archive_base64
  AND octet_length(pg_catalog.decode(archive_base64, 'base64')) = archive_bytes
  AND pg_catalog.encode(sha256(pg_catalog.decode(archive_base64, 'base64')), 'hex') = archive_sha256
  AND descriptor ->> 'version'::text = '2'
  AND descriptor ->> 'kind'::text = 'provider_snapshot'
  AND descriptor ->> 'revision'::text = descriptor_revision
  AND descriptor ->> 'archiveSha256'::text = archive_sha256
  AND CASE
    WHEN descriptor ->> 'archiveBytes'::text ~ '^[1-9][0-9]*$'
    THEN (descriptor ->> 'archiveBytes'::text)::bigint = archive_bytes
    ELSE false
  END
  AND descriptor ->> 'snapshotId'::text = object_id
  AND (
    (
      object_kind = 'modal_filesystem_snapshot'
      AND descriptor ->> 'provider'::text = 'modal_snapshot_filesystem'
      AND descriptor ->> 'workspacePersistence'::text = 'snapshot_filesystem'
    ) OR (
      object_kind = 'modal_directory_snapshot'
      AND descriptor ->> 'provider'::text = 'modal_snapshot_directory'
      AND descriptor ->> 'workspacePersistence'::text = 'snapshot_directory'
    )
  )
);

-- @constraint sandbox_checkpoint_artifacts.sandbox_checkpoint_artifacts_state_check
ALTER TABLE sandbox_checkpoint_artifacts ADD CONSTRAINT sandbox_checkpoint_artifacts_state_check CHECK (
  state IN ('candidate', 'current', 'previous', 'delete_pending', 'deleting', 'delete_failed', 'deleted')
);

-- @constraint sandbox_checkpoint_artifacts.sandbox_checkpoint_artifacts_delete_claim_check
ALTER TABLE sandbox_checkpoint_artifacts ADD CONSTRAINT sandbox_checkpoint_artifacts_delete_claim_check CHECK (
  (state = 'deleting' AND delete_claim_id IS NOT NULL AND delete_claimed_at IS NOT NULL)
  OR (state <> 'deleting' AND delete_claim_id IS NULL AND delete_claimed_at IS NULL)
);

-- @index sandbox_checkpoint_artifacts_provider_object_uq
CREATE UNIQUE INDEX sandbox_checkpoint_artifacts_provider_object_uq
  ON sandbox_checkpoint_artifacts (provider_backend, provider_binding_key, object_id);

-- @index sandbox_checkpoint_artifacts_gc_idx
CREATE INDEX sandbox_checkpoint_artifacts_gc_idx ON sandbox_checkpoint_artifacts (delete_after, created_at, id)
  WHERE state IN ('candidate', 'current', 'previous', 'delete_pending', 'delete_failed', 'deleting');

-- @index sandbox_checkpoint_artifacts_deleted_idx
CREATE INDEX sandbox_checkpoint_artifacts_deleted_idx ON sandbox_checkpoint_artifacts (deleted_at, id)
  WHERE state = 'deleted';

-- @index sandbox_checkpoint_artifacts_kept_idx
-- What a claim compares with the leases' references, both in the order of the ids: it looks at every artifact that a lease
-- may refer to, and their rows are wide.
CREATE INDEX sandbox_checkpoint_artifacts_kept_idx ON sandbox_checkpoint_artifacts (id) INCLUDE (created_at, delete_after)
  WHERE state IN ('candidate', 'current', 'previous');

-- @index sandbox_checkpoint_artifacts_due_idx
-- What a claim takes, in the order in which it takes them. The index above has no such order.
CREATE INDEX sandbox_checkpoint_artifacts_due_idx ON sandbox_checkpoint_artifacts ((coalesce(delete_after, created_at)), id)
  WHERE state IN ('delete_pending', 'delete_failed');

-- @index sandbox_checkpoint_artifacts_claimed_idx
-- Claims that nobody settled, without reading every artifact; small, as claims are.
CREATE INDEX sandbox_checkpoint_artifacts_claimed_idx ON sandbox_checkpoint_artifacts (delete_claimed_at, id)
  WHERE state = 'deleting';

-- @index sandbox_checkpoint_artifacts_source_idx
CREATE INDEX sandbox_checkpoint_artifacts_source_idx
  ON sandbox_checkpoint_artifacts (workspace_id, sandbox_group_id, source_lease_id);

-- @rls sandbox_checkpoint_artifacts
ALTER TABLE sandbox_checkpoint_artifacts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy sandbox_checkpoint_artifacts.workspace_isolation
CREATE POLICY workspace_isolation ON sandbox_checkpoint_artifacts
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
