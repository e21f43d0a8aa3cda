-- What commands printed. A command's rows are numbered in the order in which their captures were committed: a capture
-- holds the command's process row, so that no number appears below one that a reader has seen.

-- @sequence sandbox_command_output_seq
CREATE SEQUENCE sandbox_command_output_seq AS bigint;

-- @table sandbox_command_output
-- byte_start and byte_end are the cursor before and after the page; an end of file may flush text at one offset.
CREATE TABLE sandbox_command_output (
  sequence bigint NOT NULL DEFAULT nextval('sandbox_command_output_seq'::regclass),
  account_id uuid NOT NULL,
  workspace_id uuid NOT NULL,
  session_id uuid NOT NULL,
  process_id uuid NOT NULL,
  stream text NOT NULL,
  stream_fidelity text NOT NULL,
  byte_start bigint NOT NULL,
  byte_end bigint NOT NULL,
  chunk_id text NOT NULL,
  chunk text NOT NULL,
  captured_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- @constraint sandbox_command_output.sandbox_command_output_pkey
-- Also the index by which a reader follows a command: WHERE process_id = $1 AND sequence > $2 ORDER BY sequence.
ALTER TABLE sandbox_command_output ADD CONSTRAINT sandbox_command_output_pkey PRIMARY KEY (process_id, sequence);

-- @constraint sandbox_command_output.sandbox_command_output_range_check
ALTER TABLE sandbox_command_output ADD CONSTRAINT sandbox_command_output_range_check CHECK (
  byte_start >= 0
  AND byte_end >= byte_start
  AND stream IN ('stdout', 'stderr')
  AND stream_fidelity IN ('separate', 'merged')
  AND chunk <> ''
);

-- @index sandbox_command_output_chunk_uq
CREATE UNIQUE INDEX sandbox_command_output_chunk_uq ON sandbox_command_output (process_id, chunk_id);

-- @foreign_key sandbox_command_output.sandbox_command_output_process_fk
-- The process row has the rest of the scope's foreign keys.
ALTER TABLE sandbox_command_output ADD CONSTRAINT sandbox_command_output_process_fk
  FOREIGN KEY (process_id) REFERENCES sandbox_retained_processes (id) ON DELETE CASCADE;

-- @rls sandbox_command_output
ALTER TABLE sandbox_command_output ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- @policy sandbox_command_output.workspace_isolation
CREATE POLICY workspace_isolation ON sandbox_command_output
  USING (opengeni_private.workspace_rls_visible(account_id, workspace_id))
  WITH CHECK (opengeni_private.workspace_rls_visible(account_id, workspace_id));
