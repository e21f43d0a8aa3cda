-- Rows that the named cases need beyond those of the shared fixture.
CREATE SCHEMA diff;
GRANT USAGE ON SCHEMA diff TO PUBLIC;

CREATE PROCEDURE diff.artifact(name text, which text, state text DEFAULT 'candidate', overrides jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE
  body text := fixture.id('artifact/' || which, name);
  bytes bytea := convert_to(body, 'UTF8');
  binding text := '{"version":1,"serverUrl":"u","workspaceName":"w","environment":"e"}';
BEGIN
  CALL fixture.insert('sandbox_checkpoint_artifacts', fixture.tenant() || jsonb_build_object(
    'id', body, 'sandbox_group_id', fixture.id('group', name), 'source_lease_id', fixture.id('lease', name),
    'source_lease_epoch', 1, 'source_instance_id', 'sb-1', 'source_workspace_generation', 5,
    'provenance', 'native_capture', 'provider_backend', 'modal', 'provider_binding_key', binding,
    'provider_binding', binding::jsonb, 'object_kind', 'modal_filesystem_snapshot', 'object_id', body,
    'archive_base64', encode(bytes, 'base64'), 'archive_sha256', encode(sha256(bytes), 'hex'),
    'archive_bytes', length(bytes), 'descriptor_revision', 'rev-' || which, 'state', state,
    'descriptor', jsonb_build_object('version', '2', 'kind', 'provider_snapshot', 'revision', 'rev-' || which,
      'archiveSha256', encode(sha256(bytes), 'hex'), 'archiveBytes', length(bytes), 'snapshotId', body,
      'provider', 'modal_snapshot_filesystem', 'workspacePersistence', 'snapshot_filesystem'),
    'created_at', '2026-01-01Z', 'updated_at', '2026-01-01Z', 'delete_attempts', 0) || overrides);
END $$;

CREATE FUNCTION diff.archive(name text, current text, previous text DEFAULT NULL) RETURNS jsonb LANGUAGE sql STABLE
  RETURN jsonb_build_object('sessionState', jsonb_strip_nulls(jsonb_build_object(
    'workspaceArchive', encode(convert_to(fixture.id('artifact/' || current, name)::text, 'UTF8'), 'base64'),
    'workspaceArchiveMeta', jsonb_build_object('revision', 'rev-' || current),
    'workspaceArchivePrev', encode(convert_to(fixture.id('artifact/' || previous, name)::text, 'UTF8'), 'base64'),
    'workspaceArchivePrevMeta', jsonb_build_object('revision', 'rev-' || previous))));

CREATE PROCEDURE diff.pty(name text, overrides jsonb DEFAULT '{}') LANGUAGE plpgsql AS $$
BEGIN
  CALL fixture.insert('sandbox_pty_sessions', fixture.tenant() || jsonb_build_object(
    'id', fixture.id('pty', name), 'session_id', fixture.id('session', name), 'exec_session_id', 1, 'lease_epoch', 1,
    'cols', 80, 'rows', 24, 'shell', 'sh', 'cwd', '/', 'status', 'open', 'opened_by', 'u',
    'lease_id', fixture.id('lease', name), 'sandbox_group_id', fixture.id('group', name),
    'retained_process_id', fixture.id('process', name), 'open_admission_id', fixture.id('admission/1', name),
    'provider_backend', 'modal', 'provider_instance_id', 'sb-1', 'route_kind', 'home', 'route_epoch', 1) || overrides);
END $$;

CREATE PROCEDURE diff.holder(name text, overrides jsonb DEFAULT '{}') LANGUAGE plpgsql AS $$
BEGIN
  CALL fixture.insert('sandbox_lease_holders', fixture.tenant() || jsonb_build_object(
    'id', fixture.id('holder/2', name), 'lease_id', fixture.id('lease', name), 'kind', 'process',
    'holder_id', 'process', 'subject_id', fixture.id('session', name)) || overrides);
END $$;

-- Numbers are unique per workspace; the ids of two revisions of one case differ in their name.
CREATE PROCEDURE diff.revision(name text, which text, overrides jsonb DEFAULT '{}') LANGUAGE plpgsql AS $$
DECLARE id uuid := fixture.id('revision/' || which, name);
BEGIN
  CALL fixture.insert('workspace_instruction_policy_revisions', fixture.tenant() || jsonb_build_object(
    'id', id, 'revision', ('x' || left(md5(id::text), 7))::bit(28)::integer + 1, 'kind', 'policy', 'scope', 'role',
    'role_key', left(md5(current_setting('fixture.suite')), 8), 'content', 'c', 'content_hash', encode(sha256('c'), 'hex'),
    'provenance_source', 'human', 'created_by_subject_id', 's') || overrides);
END $$;

CREATE PROCEDURE diff.head(name text, which text, overrides jsonb DEFAULT '{}') LANGUAGE plpgsql AS $$
DECLARE fields jsonb;
BEGIN
  SELECT to_jsonb(r) - '{id,content,created_at,provenance_source,provenance_source_id,supersedes_revision_id,created_by_subject_id}'::text[]
    || jsonb_build_object('id', fixture.id('head', name), 'revision_id', r.id, 'activation_version', 1)
    INTO fields FROM public.workspace_instruction_policy_revisions r WHERE r.id = fixture.id('revision/' || which, name);
  CALL fixture.insert('workspace_instruction_policy_heads', fields || overrides);
END $$;

-- With `shift`, the revision is the old one too, its number off by so much.
CREATE PROCEDURE diff.event(name text, which text, overrides jsonb DEFAULT '{}', shift integer DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE fields jsonb;
BEGIN
  SELECT jsonb_build_object('id', fixture.id('event', name), 'account_id', account_id, 'workspace_id', workspace_id,
      'kind', kind, 'scope', scope, 'role_key', role_key, 'type', 'activate', 'activation_version', 1,
      'new_revision_id', r.id, 'new_revision', revision, 'new_content_hash', content_hash,
      'actor_subject_id', 's', 'reason', 'r')
      || CASE WHEN shift IS NULL THEN '{}' ELSE jsonb_build_object('old_revision_id', r.id,
        'old_revision', revision + shift, 'old_content_hash', content_hash) END
    INTO fields FROM public.workspace_instruction_policy_revisions r WHERE r.id = fixture.id('revision/' || which, name);
  CALL fixture.insert('workspace_instruction_policy_activation_events', fields || overrides);
END $$;
