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
