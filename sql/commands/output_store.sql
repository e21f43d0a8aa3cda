-- Stores a page's chunks, those of the same id that are there already excepted, and shows all of them and whether all were
-- new.
WITH page AS (
  SELECT given.stream, given.chunk, moved.byte_start, moved.byte_end,
    concat('modal-router:', $6 ->> 'execId', ':', given.stream, ':', moved.byte_start, ':', moved.byte_end,
      CASE WHEN moved.eof THEN ':1' ELSE ':0' END) AS chunk_id
  FROM (VALUES ('stdout', $7), ('stderr', $8)) AS given (stream, chunk)
  CROSS JOIN LATERAL (
    SELECT ($5 #>> ARRAY['streams', given.stream, 'byteOffset'])::bigint AS byte_start,
      ($6 #>> ARRAY['streams', given.stream, 'byteOffset'])::bigint AS byte_end,
      ($6 #>> ARRAY['streams', given.stream, 'eof'])::boolean AS eof
  ) moved
  WHERE given.chunk <> ''
), stored AS (
  INSERT INTO {schema}.sandbox_command_output (
    account_id, workspace_id, session_id, process_id, stream, stream_fidelity, byte_start, byte_end, chunk_id, chunk
  )
  SELECT $1, $2, $3, $4, page.stream, $9, page.byte_start, page.byte_end, page.chunk_id, page.chunk
  FROM page
  ON CONFLICT (process_id, chunk_id) DO NOTHING
  RETURNING 1
)
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'commandId', $4, 'chunkId', page.chunk_id, 'stream', page.stream, 'streamFidelity', $9,
    'byteStart', page.byte_start, 'byteEnd', page.byte_end, 'chunk', page.chunk
  ) ORDER BY page.stream DESC), '[]'),
  count(*) = (SELECT count(*) FROM stored)
FROM page
