SELECT count(*) = 5
FROM pg_trigger t
JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND t.tgenabled IN ('O', 'A') AND NOT t.tgisinternal
  AND (c.relname, t.tgname) IN (
    ('sandbox_retained_processes', 'supervised_command_guard'),
    ('sandbox_retained_processes', 'supervised_provider_loss_commit_guard'),
    ('sandbox_workspace_mutation_admissions', 'supervised_command_admission_guard'),
    ('sandbox_lease_holders', 'supervised_command_holder_guard'),
    ('sandbox_leases', 'supervised_command_capture_guard')
  )
