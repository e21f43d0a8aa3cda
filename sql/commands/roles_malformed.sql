SELECT CASE
  WHEN jsonb_typeof($1) <> 'array' THEN true
  WHEN jsonb_array_length($1) NOT BETWEEN 1 AND 16 THEN true
  ELSE EXISTS (
    SELECT FROM jsonb_array_elements($1) AS role (name)
    WHERE jsonb_typeof(role.name) <> 'string'
      OR role.name #>> '{}' = ''
      OR role.name #>> '{}' <> btrim(role.name #>> '{}')
      OR octet_length(role.name #>> '{}') > 63
  )
END
