-- A session's metadata without the identity by which an authority was once selected: new sessions cannot write it.
CREATE FUNCTION opengeni_guards.without_retired_session_create_metadata(metadata jsonb) RETURNS jsonb
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN CASE
    WHEN jsonb_typeof(metadata) = 'object' THEN metadata - '_opengeni_session_create_host_delegations_v1'
    ELSE metadata
  END;

-- Whether metadata still selects an authority: nonempty or malformed selections must not be replayed as native creates.
CREATE FUNCTION opengeni_guards.has_retired_session_create_selection(metadata jsonb) RETURNS boolean
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN coalesce(
    metadata -> '_opengeni_session_create_host_delegations_v1' NOT IN ('null'::jsonb, '[]'::jsonb),
    false
  );
