-- What the application calls by name: thin functions that run as the tables' owner and hand over to the native of the same
-- name. Bodies are bound when they are created, so that no search_path leads elsewhere; the schema is kept by its OID,
-- so that a rename does not lose it.

-- @contract opengeni_private.warming_reset_resume_state_v2(text, text, jsonb, integer, integer, timestamp with time zone)
CREATE FUNCTION opengeni_private.warming_reset_resume_state_v2(
  p_backend text, p_resume_backend_id text, p_resume_state jsonb,
  p_workspace_generation integer, p_archive_generation integer, p_reset_at timestamp with time zone
) RETURNS jsonb LANGUAGE sql
  RETURN opengeni_guards.warming_reset_resume_state_v2(
    p_backend, p_resume_backend_id, p_resume_state, p_workspace_generation, p_archive_generation, p_reset_at
  );

-- @contract opengeni_private.reap_sandbox_leases(bigint, bigint, bigint)
CREATE FUNCTION opengeni_private.reap_sandbox_leases(
  p_viewer_holder_ttl_ms bigint, p_turn_holder_ttl_ms bigint, p_idle_grace_ms bigint
) RETURNS TABLE (workspace_id uuid, sandbox_group_id uuid, instance_id text, lease_epoch integer)
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT * FROM opengeni_guards.reap_sandbox_leases(
    {data_schema}, p_viewer_holder_ttl_ms, p_turn_holder_ttl_ms, p_idle_grace_ms
  );
END;

-- @contract opengeni_private.claim_terminal_retained_processes(uuid, integer, bigint)
CREATE FUNCTION opengeni_private.claim_terminal_retained_processes(p_claim_id uuid, p_limit integer, p_claim_ttl_ms bigint)
  RETURNS TABLE (
    account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, claim_id uuid,
    owner_state text, owner_attempt_outcome text
  )
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT * FROM opengeni_guards.claim_terminal_retained_processes({data_schema}, p_claim_id, p_limit, p_claim_ttl_ms);
END;

-- @contract opengeni_private.count_active_retained_processes_by_owner_state()
CREATE FUNCTION opengeni_private.count_active_retained_processes_by_owner_state()
  RETURNS TABLE (owner_state text, active_count bigint, terminal_owner_count bigint)
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT * FROM opengeni_guards.count_active_retained_processes_by_owner_state({data_schema});
END;

-- @contract opengeni_private.count_expired_draining_sandbox_leases()
CREATE FUNCTION opengeni_private.count_expired_draining_sandbox_leases()
  RETURNS TABLE (backend text, age_bucket text, count bigint)
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT * FROM opengeni_guards.count_expired_draining_sandbox_leases({data_schema});
END;

-- @contract opengeni_private.claim_sandbox_checkpoint_artifacts(uuid, integer, bigint)
CREATE FUNCTION opengeni_private.claim_sandbox_checkpoint_artifacts(p_claim_id uuid, p_limit integer, p_claim_ttl_ms bigint)
  RETURNS TABLE (
    id uuid, provider_backend text, provider_binding_key text, provider_binding jsonb,
    object_kind text, object_id text, delete_attempts integer
  )
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT * FROM opengeni_guards.claim_sandbox_checkpoint_artifacts({data_schema}, p_claim_id, p_limit, p_claim_ttl_ms);
END;

-- @contract opengeni_private.settle_sandbox_checkpoint_artifact(uuid, uuid, boolean, text, bigint)
CREATE FUNCTION opengeni_private.settle_sandbox_checkpoint_artifact(
  p_id uuid, p_claim_id uuid, p_deleted boolean, p_error text, p_retry_after_ms bigint
) RETURNS boolean
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  RETURN opengeni_guards.settle_sandbox_checkpoint_artifact(
    {data_schema}, p_id, p_claim_id, p_deleted, p_error, p_retry_after_ms
  );

-- @contract opengeni_private.prune_deleted_sandbox_checkpoint_artifacts(bigint, integer)
CREATE FUNCTION opengeni_private.prune_deleted_sandbox_checkpoint_artifacts(p_retention_ms bigint, p_limit integer)
  RETURNS integer
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  RETURN opengeni_guards.prune_deleted_sandbox_checkpoint_artifacts({data_schema}, p_retention_ms, p_limit);

-- @contract opengeni_private.list_legacy_modal_checkpoint_slots(integer)
CREATE FUNCTION opengeni_private.list_legacy_modal_checkpoint_slots(p_limit integer)
  RETURNS TABLE (
    account_id uuid, workspace_id uuid, sandbox_group_id uuid, lease_id uuid, lease_epoch integer, instance_id text,
    workspace_generation integer, slot text, archive_base64 text, descriptor jsonb
  )
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT * FROM opengeni_guards.list_legacy_modal_checkpoint_slots({data_schema}, p_limit);
END;

-- @contract opengeni_private.request_due_sandbox_rotations(bigint, integer)
CREATE FUNCTION opengeni_private.request_due_sandbox_rotations(p_lead_ms bigint, p_limit integer) RETURNS integer
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  RETURN opengeni_guards.request_due_sandbox_rotations({data_schema}, p_lead_ms, p_limit);

-- @contract opengeni_private.sandbox_checkpoint_artifact_inventory()
CREATE FUNCTION opengeni_private.sandbox_checkpoint_artifact_inventory() RETURNS TABLE (state text, count bigint)
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT * FROM opengeni_guards.sandbox_checkpoint_artifact_inventory({data_schema});
END;

-- @contract opengeni_private.sandbox_rotation_backlog()
CREATE FUNCTION opengeni_private.sandbox_rotation_backlog()
  RETURNS TABLE (requested bigint, overdue bigint, turn_blocked bigint, direct_blocked bigint, process_blocked bigint)
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT * FROM opengeni_guards.sandbox_rotation_backlog({data_schema});
END;

-- @contract opengeni_private.list_live_modal_sandbox_leases()
CREATE FUNCTION opengeni_private.list_live_modal_sandbox_leases()
  RETURNS TABLE (lease_id uuid, workspace_id uuid, sandbox_group_id uuid, instance_id text, liveness text)
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT * FROM opengeni_guards.list_live_modal_sandbox_leases({data_schema});
END;

-- @contract modal_inventory_read_capability_active()
-- Asked by the policy below for every row that its reader's workspace does not show, so without a SET clause or SECURITY
-- DEFINER: the planner inlines it. By the schema's OID, as its name would have to be found for each of the rows.
CREATE FUNCTION modal_inventory_read_capability_active() RETURNS boolean
  LANGUAGE sql STABLE PARALLEL RESTRICTED
  RETURN opengeni_guards.modal_inventory_read_capability_active({data_schema_oid});

-- @policy sandbox_leases.modal_inventory_owner_read
CREATE POLICY modal_inventory_owner_read ON sandbox_leases FOR SELECT
  USING (current_user = {owner} AND modal_inventory_read_capability_active());
