-- @trigger sandbox_leases.sandbox_recovery_protocol_v2_lease_guard
CREATE TRIGGER sandbox_recovery_protocol_v2_lease_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_leases FOR EACH ROW EXECUTE FUNCTION opengeni_guards.enforce_sandbox_recovery_protocol_v2();

-- @trigger sandbox_lease_holders.sandbox_recovery_protocol_v2_holder_guard
CREATE TRIGGER sandbox_recovery_protocol_v2_holder_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_lease_holders FOR EACH ROW EXECUTE FUNCTION opengeni_guards.enforce_sandbox_recovery_protocol_v2();

-- @trigger sandbox_workspace_mutation_admissions.sandbox_recovery_protocol_v2_admission_guard
CREATE TRIGGER sandbox_recovery_protocol_v2_admission_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_workspace_mutation_admissions FOR EACH ROW EXECUTE FUNCTION opengeni_guards.enforce_sandbox_recovery_protocol_v2();

-- @trigger sandbox_retained_processes.sandbox_recovery_protocol_v2_process_guard
CREATE TRIGGER sandbox_recovery_protocol_v2_process_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_retained_processes FOR EACH ROW EXECUTE FUNCTION opengeni_guards.enforce_sandbox_recovery_protocol_v2();

-- @trigger sandbox_pty_sessions.sandbox_recovery_protocol_v2_pty_guard
CREATE TRIGGER sandbox_recovery_protocol_v2_pty_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_pty_sessions FOR EACH ROW EXECUTE FUNCTION opengeni_guards.enforce_sandbox_recovery_protocol_v2();

-- @trigger sandbox_checkpoint_artifacts.sandbox_recovery_protocol_v2_checkpoint_guard
CREATE TRIGGER sandbox_recovery_protocol_v2_checkpoint_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_checkpoint_artifacts FOR EACH ROW EXECUTE FUNCTION opengeni_guards.enforce_sandbox_recovery_protocol_v2();

-- @trigger sandbox_retained_processes.supervised_command_guard
CREATE TRIGGER supervised_command_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_retained_processes FOR EACH ROW EXECUTE FUNCTION opengeni_guards.supervised_command_guard();

-- @trigger sandbox_retained_processes.supervised_provider_loss_commit_guard
CREATE CONSTRAINT TRIGGER supervised_provider_loss_commit_guard AFTER UPDATE ON sandbox_retained_processes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.state = 'active'::text) AND (new.state = 'lost'::text) AND (new.provider_command ? 'supervision'::text) AND (new.settlement_reason = 'provider_instance_lost'::text))) EXECUTE FUNCTION opengeni_guards.supervised_provider_loss_commit_guard();

-- @trigger sandbox_workspace_mutation_admissions.supervised_command_admission_guard
CREATE TRIGGER supervised_command_admission_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_workspace_mutation_admissions FOR EACH ROW EXECUTE FUNCTION opengeni_guards.supervised_command_blocker_guard();

-- @trigger sandbox_lease_holders.supervised_command_holder_guard
CREATE TRIGGER supervised_command_holder_guard BEFORE DELETE OR UPDATE ON sandbox_lease_holders FOR EACH ROW EXECUTE FUNCTION opengeni_guards.supervised_command_blocker_guard();

-- @trigger sandbox_lease_holders.supervised_command_holder_insert_guard
CREATE TRIGGER supervised_command_holder_insert_guard BEFORE INSERT OR UPDATE ON sandbox_lease_holders FOR EACH ROW WHEN ((new.kind = 'process'::text)) EXECUTE FUNCTION opengeni_guards.supervised_command_blocker_guard();

-- @trigger sandbox_leases.supervised_command_capture_guard
CREATE TRIGGER supervised_command_capture_guard BEFORE UPDATE OF unobservable_command_drain_ids, archive_capture_id, archive_capture_published_at, archive_generation, resume_state ON sandbox_leases FOR EACH ROW EXECUTE FUNCTION opengeni_guards.supervised_command_capture_guard();

-- @trigger sandbox_retained_processes.sandbox_retained_processes_identity_v2
CREATE CONSTRAINT TRIGGER sandbox_retained_processes_identity_v2 AFTER INSERT OR UPDATE ON sandbox_retained_processes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION opengeni_guards.validate_sandbox_retained_process_v2();

-- @trigger sandbox_pty_sessions.sandbox_pty_sessions_process_identity_v2
CREATE CONSTRAINT TRIGGER sandbox_pty_sessions_process_identity_v2 AFTER INSERT OR UPDATE ON sandbox_pty_sessions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION opengeni_guards.validate_sandbox_pty_process_v2();

-- @trigger sandbox_leases.sandbox_checkpoint_refs_guard
CREATE CONSTRAINT TRIGGER sandbox_checkpoint_refs_guard AFTER INSERT OR UPDATE OF account_id, workspace_id, sandbox_group_id, backend, workspace_generation, archive_generation, resume_state, current_checkpoint_artifact_id, previous_checkpoint_artifact_id ON sandbox_leases DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION opengeni_guards.validate_sandbox_checkpoint_refs();

-- @trigger sandbox_checkpoint_artifacts.sandbox_checkpoint_artifact_refs_guard
CREATE CONSTRAINT TRIGGER sandbox_checkpoint_artifact_refs_guard AFTER INSERT OR UPDATE OF account_id, workspace_id, sandbox_group_id, source_lease_id, provider_backend, state ON sandbox_checkpoint_artifacts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION opengeni_guards.validate_sandbox_checkpoint_artifact_refs();

-- @trigger sandbox_checkpoint_artifacts.sandbox_checkpoint_artifact_immutability_guard
CREATE TRIGGER sandbox_checkpoint_artifact_immutability_guard BEFORE UPDATE ON sandbox_checkpoint_artifacts FOR EACH ROW EXECUTE FUNCTION opengeni_guards.enforce_sandbox_checkpoint_artifact_immutability();

-- @trigger workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_validate_link
CREATE TRIGGER workspace_instruction_policy_revisions_validate_link BEFORE INSERT OR UPDATE ON workspace_instruction_policy_revisions FOR EACH ROW EXECUTE FUNCTION opengeni_guards.workspace_instruction_policy_validate_revision_link();

-- @trigger workspace_instruction_policy_revisions.workspace_instruction_policy_revisions_immutable
CREATE TRIGGER workspace_instruction_policy_revisions_immutable BEFORE DELETE OR UPDATE ON workspace_instruction_policy_revisions FOR EACH ROW EXECUTE FUNCTION opengeni_guards.workspace_instruction_policy_reject_mutation();

-- @trigger workspace_instruction_policy_heads.workspace_instruction_policy_heads_validate_revision
CREATE TRIGGER workspace_instruction_policy_heads_validate_revision BEFORE INSERT OR UPDATE ON workspace_instruction_policy_heads FOR EACH ROW EXECUTE FUNCTION opengeni_guards.workspace_instruction_policy_validate_head();

-- @trigger workspace_instruction_policy_activation_events.workspace_instruction_policy_events_validate_revisions
CREATE TRIGGER workspace_instruction_policy_events_validate_revisions BEFORE INSERT OR UPDATE ON workspace_instruction_policy_activation_events FOR EACH ROW EXECUTE FUNCTION opengeni_guards.workspace_instruction_policy_validate_event();

-- @trigger workspace_instruction_policy_activation_events.workspace_instruction_policy_events_immutable
CREATE TRIGGER workspace_instruction_policy_events_immutable BEFORE DELETE OR UPDATE ON workspace_instruction_policy_activation_events FOR EACH ROW EXECUTE FUNCTION opengeni_guards.workspace_instruction_policy_reject_mutation();

-- @trigger sandbox_retained_processes.supervised_command_truncate_guard
CREATE TRIGGER supervised_command_truncate_guard BEFORE TRUNCATE ON sandbox_retained_processes FOR EACH STATEMENT EXECUTE FUNCTION opengeni_guards.refuse_truncate_of_unsettled_evidence();

-- @trigger sandbox_workspace_mutation_admissions.supervised_command_truncate_guard
CREATE TRIGGER supervised_command_truncate_guard BEFORE TRUNCATE ON sandbox_workspace_mutation_admissions FOR EACH STATEMENT EXECUTE FUNCTION opengeni_guards.refuse_truncate_of_unsettled_evidence();

-- @trigger sandbox_lease_holders.supervised_command_truncate_guard
CREATE TRIGGER supervised_command_truncate_guard BEFORE TRUNCATE ON sandbox_lease_holders FOR EACH STATEMENT EXECUTE FUNCTION opengeni_guards.refuse_truncate_of_unsettled_evidence();

-- @trigger sandbox_leases.supervised_command_truncate_guard
CREATE TRIGGER supervised_command_truncate_guard BEFORE TRUNCATE ON sandbox_leases FOR EACH STATEMENT EXECUTE FUNCTION opengeni_guards.refuse_truncate_of_unsettled_evidence();
