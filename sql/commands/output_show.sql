-- A page's chunks, for a schema that stores none.
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'commandId', $1, 'chunkId',
    concat('modal-router:', $3 ->> 'execId', ':', given.stream, ':', moved.byte_start, ':', moved.byte_end,
      CASE WHEN moved.eof THEN ':1' ELSE ':0' END),
    'stream', given.stream, 'streamFidelity', $6,
    'byteStart', moved.byte_start, 'byteEnd', moved.byte_end, 'chunk', given.chunk
  ) ORDER BY given.stream DESC), '[]')
FROM (VALUES ('stdout', $4), ('stderr', $5)) AS given (stream, chunk)
CROSS JOIN LATERAL (
  SELECT ($2 #>> ARRAY['streams', given.stream, 'byteOffset'])::bigint AS byte_start,
    ($3 #>> ARRAY['streams', given.stream, 'byteOffset'])::bigint AS byte_end,
    ($3 #>> ARRAY['streams', given.stream, 'eof'])::boolean AS eof
) moved
WHERE given.chunk <> ''
