SELECT EXISTS (
  SELECT FROM pg_stat_activity a
  JOIN jsonb_array_elements_text($1) AS role (name) ON role.name = a.usename
  WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
)
