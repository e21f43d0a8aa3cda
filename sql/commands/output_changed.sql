-- Whether a chunk of the page is stored with another text. Asked only where one was there already.
SELECT count(*) > 0
FROM jsonb_array_elements($2) AS page (event)
JOIN {schema}.sandbox_command_output kept ON kept.process_id = $1 AND kept.chunk_id = page.event ->> 'chunkId'
WHERE kept.chunk <> page.event ->> 'chunk'
