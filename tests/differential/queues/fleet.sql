-- A fleet for the queue functions. Times are given, kept and shown relative to the transaction's now(), so that two
-- databases say the same of the same rows.
CREATE SCHEMA fleet;
GRANT USAGE ON SCHEMA fleet TO PUBLIC;

CREATE FUNCTION fleet.id(what text, name text) RETURNS uuid LANGUAGE sql IMMUTABLE RETURN md5(what || '/' || name)::uuid;

CREATE FUNCTION fleet.tenant(n integer) RETURNS jsonb LANGUAGE sql IMMUTABLE
  RETURN jsonb_build_object('account_id', fleet.id('account', n::text), 'workspace_id', fleet.id('workspace', n::text));

-- The one session of a workspace that has the processes.
CREATE FUNCTION fleet.session(workspace uuid) RETURNS uuid LANGUAGE sql IMMUTABLE
  RETURN fleet.id('session', workspace::text);

-- Rows ---------------------------------------------------------------------------------------------

-- One row from the named fields: "@-1 hour" is an hour ago. The other columns take their defaults.
CREATE PROCEDURE fleet.put(target text, fields jsonb) LANGUAGE plpgsql AS $$
DECLARE columns text;
BEGIN
  SELECT string_agg(quote_ident(key), ', '), jsonb_object_agg(key, CASE
      WHEN value #>> '{}' LIKE '@%' THEN to_jsonb(now() + substr(value #>> '{}', 2)::interval) ELSE value END)
    INTO columns, fields FROM jsonb_each(fields);
  EXECUTE format('INSERT INTO public.%1$I (%2$s) SELECT %2$s FROM jsonb_populate_record(NULL::public.%1$I, $1)',
    target, columns) USING fields;
END $$;

CREATE PROCEDURE fleet.lease(name text, fields jsonb DEFAULT '{}', tenant integer DEFAULT 0) LANGUAGE plpgsql AS $$
BEGIN
  CALL fleet.put('sandbox_leases', fleet.tenant(tenant) || jsonb_build_object(
    'id', fleet.id('lease', name), 'sandbox_group_id', fleet.id('group', name), 'image', name, 'liveness', 'warm',
    'backend', 'modal', 'instance_id', 'sb-' || name, 'data_plane_url', 'https://d', 'terminal_data_plane_url', 'https://t',
    'lease_epoch', 1, 'workspace_generation', 4, 'expires_at', '@1 hour', 'created_at', '@-2 days',
    'updated_at', '@-1 day') || fields);
END $$;

CREATE PROCEDURE fleet.holder(lease text, kind text, age interval DEFAULT '10 s', holder text DEFAULT NULL)
LANGUAGE sql BEGIN ATOMIC
  INSERT INTO public.sandbox_lease_holders
      (id, account_id, workspace_id, lease_id, kind, holder_id, subject_id, last_heartbeat_at, created_at)
    SELECT fleet.id('holder', concat_ws('/', l.image, kind, holder)), l.account_id, l.workspace_id, l.id, kind,
      concat_ws('/', l.image, kind, holder), CASE WHEN kind = 'process' THEN fleet.session(l.workspace_id) END,
      now() - age, now() - interval '1 day'
    FROM public.sandbox_leases l WHERE l.id = fleet.id('lease', lease);
END;

-- Gives every lease the counters that its holders call for.
CREATE PROCEDURE fleet.count() LANGUAGE sql BEGIN ATOMIC
  UPDATE public.sandbox_leases l SET refcount = c.total, turn_holders = c.turns, viewer_holders = c.viewers
    FROM (SELECT o.id, count(h.id) AS total, count(h.id) FILTER (WHERE h.kind = 'turn') AS turns,
        count(h.id) FILTER (WHERE h.kind = 'viewer') AS viewers
      FROM public.sandbox_leases o LEFT JOIN public.sandbox_lease_holders h ON h.lease_id = o.id GROUP BY o.id) c
    WHERE l.id = c.id;
END;

CREATE PROCEDURE fleet.turn(name text, status text, tenant integer DEFAULT 0) LANGUAGE plpgsql AS $$
BEGIN
  CALL fleet.put('sessions', fleet.tenant(tenant) || jsonb_build_object('id', fleet.id('turn session', name),
    'sandbox_group_id', fleet.id('group', name), 'initial_message', 'turn', 'model', 'm', 'sandbox_backend', 'modal'));
  CALL fleet.put('session_turns', fleet.tenant(tenant) || jsonb_build_object('id', fleet.id('turn', name),
    'session_id', fleet.id('turn session', name), 'trigger_event_id', fleet.id('event', name),
    'temporal_workflow_id', name, 'status', status, 'position', 1, 'prompt', 'p', 'model', 'm',
    'reasoning_effort', 'low', 'sandbox_backend', 'modal', 'created_at', '@-1 day', 'updated_at', '@-1 day'));
END $$;

CREATE PROCEDURE fleet.attempt(name text, state text, outcome text DEFAULT NULL, tenant integer DEFAULT 0)
LANGUAGE plpgsql AS $$
BEGIN
  CALL fleet.put('session_turn_attempts', fleet.tenant(tenant) || jsonb_build_object('id', fleet.id('attempt', name),
    'session_id', fleet.id('turn session', name), 'turn_id', fleet.id('turn', name), 'execution_generation', 1,
    'state', state, 'outcome', outcome, 'temporal_workflow_id', name, 'temporal_workflow_run_id', name,
    'temporal_activity_id', name, 'verified_control_revision', 1, 'mcp_approval_policies', '{}'::jsonb,
    'started_at', '@-1 day', 'updated_at', '@-1 day', 'closed_at', CASE WHEN state = 'closed' THEN '@-1 hour' END));
END $$;

-- A process with its parent admission and, while it runs, its holder. `owner` names a turn and its attempt, which need
-- not be there. "supervised" among the fields: a supervision descriptor; "streams": its output cursors.
CREATE PROCEDURE fleet.process(name text, lease text, owner text DEFAULT NULL, fields jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE
  l public.sandbox_leases;
  runs boolean := coalesce(fields ->> 'state', 'active') = 'active';
  number integer := ('x' || left(md5(name), 7))::bit(28)::integer + 1;
  scope jsonb;
  admission jsonb;
BEGIN
  SELECT * INTO STRICT l FROM public.sandbox_leases WHERE id = fleet.id('lease', lease);
  scope := jsonb_build_object('account_id', l.account_id, 'workspace_id', l.workspace_id, 'lease_id', l.id,
    'session_id', fleet.session(l.workspace_id), 'sandbox_group_id', l.sandbox_group_id, 'lease_epoch', l.lease_epoch,
    'provider_backend', 'modal', 'provider_instance_id', coalesce(l.instance_id, 'sb'), 'route_kind', 'home',
    'route_epoch', 1, 'holder_id', concat_ws('/', lease, 'process', name));
  admission := scope || jsonb_build_object('id', fleet.id('admission', name),
    'actor_kind', CASE WHEN owner IS NULL THEN 'direct' ELSE 'turn' END,
    'actor_id', fleet.id('attempt', coalesce(owner, 'direct')), 'turn_id', fleet.id('turn', owner),
    'attempt_id', fleet.id('attempt', owner), 'execution_generation', CASE WHEN owner IS NOT NULL THEN 1 END,
    'holder_kind', CASE WHEN owner IS NULL THEN 'direct' ELSE 'turn' END,
    'workspace_generation', number, 'operation', 'exec',
    'provider_outcome', CASE WHEN runs THEN 'retained' ELSE 'resolved' END, 'admitted_at', '@-1 day',
    'settled_at', CASE WHEN NOT runs THEN '@-1 hour' END);
  CALL fleet.put('sandbox_workspace_mutation_admissions', admission);
  CALL fleet.put('sandbox_retained_processes', scope || jsonb_build_object('id', fleet.id('process', name),
    'parent_admission_id', admission -> 'id', 'owner_actor_kind', admission -> 'actor_kind',
    'owner_actor_id', admission -> 'actor_id', 'owner_turn_id', admission -> 'turn_id',
    'owner_attempt_id', admission -> 'attempt_id', 'owner_execution_generation', admission -> 'execution_generation',
    'provider_session_id', number, 'started_at', '@-2 hours', 'reconcile_after', '@-1 hour',
    'settled_at', CASE WHEN NOT runs THEN '@-1 hour' END, 'supervision_retention_xid', '5',
    'provider_command', CASE WHEN fields ? 'supervised' OR fields ? 'streams' THEN fixture.supervised(jsonb_build_object(
        'sandboxId', scope -> 'provider_instance_id', 'streams', coalesce(fields -> 'streams',
          jsonb_build_object('stdout', fixture.cursor(), 'stderr', fixture.cursor())))) END)
    || (fields - '{supervised,streams}'::text[]));
  IF runs THEN
    CALL fleet.holder(lease, 'process', '10 s', name);
  END IF;
END $$;

CREATE PROCEDURE fleet.artifact(name text, lease text, fields jsonb DEFAULT '{}') LANGUAGE plpgsql AS $$
DECLARE
  l public.sandbox_leases;
  content bytea := md5(name)::bytea;
  checksum text := encode(sha256(content), 'hex');
  bytes integer := length(content);
  binding text := '{"version":1,"serverUrl":"u","workspaceName":"w","environment":""}';
BEGIN
  SELECT * INTO STRICT l FROM public.sandbox_leases WHERE id = fleet.id('lease', lease);
  CALL fleet.put('sandbox_checkpoint_artifacts', jsonb_build_object('id', fleet.id('artifact', name),
    'account_id', l.account_id, 'workspace_id', l.workspace_id, 'sandbox_group_id', l.sandbox_group_id,
    'source_lease_id', l.id, 'source_lease_epoch', 1, 'source_instance_id', 'sb', 'source_workspace_generation', 4,
    'provenance', 'native_capture', 'provider_backend', 'modal', 'provider_binding_key', binding,
    'provider_binding', binding::jsonb, 'object_kind', 'modal_filesystem_snapshot', 'object_id', name,
    'archive_base64', encode(content, 'base64'), 'archive_sha256', checksum, 'archive_bytes', bytes,
    'descriptor_revision', name, 'descriptor', jsonb_build_object('version', 2, 'kind', 'provider_snapshot',
      'revision', name, 'archiveSha256', checksum, 'archiveBytes', bytes, 'snapshotId', name,
      'provider', 'modal_snapshot_filesystem', 'workspacePersistence', 'snapshot_filesystem'),
    'created_at', '@-1 day', 'updated_at', '@-1 day') || CASE fields ->> 'state'
      WHEN 'deleting' THEN jsonb_build_object('delete_claim_id', fleet.id('claim', 'old'), 'delete_claimed_at', '@-1 hour')
      WHEN 'deleted' THEN '{"deleted_at": "@-2 days"}' ELSE '{}' END || fields);
END $$;

-- Lets a lease refer to artifacts of its own.
CREATE PROCEDURE fleet.refer(lease text, current text, previous text DEFAULT NULL) LANGUAGE sql BEGIN ATOMIC
  UPDATE public.sandbox_leases l SET current_checkpoint_artifact_id = fleet.id('artifact', current),
    previous_checkpoint_artifact_id = fleet.id('artifact', previous), archive_generation = 4,
    resume_state = jsonb_strip_nulls(jsonb_build_object('backendId', 'modal', 'sessionState', jsonb_build_object(
      'workspaceArchive', encode(md5(current)::bytea, 'base64'),
      'workspaceArchiveMeta', '{"version": 2, "provider": "modal_snapshot_filesystem"}'::jsonb
        || jsonb_build_object('revision', current),
      'workspaceArchivePrev', encode(md5(previous)::bytea, 'base64'),
      'workspaceArchivePrevMeta', '{"version": 2, "provider": "modal_snapshot_filesystem"}'::jsonb
        || jsonb_build_object('revision', previous))))
    WHERE l.id = fleet.id('lease', lease);
END;

-- Fleets -------------------------------------------------------------------------------------------

-- Every liveness, with and without instance, expired or not, under holders of every kind and age, with counters that
-- agree with them or do not. A viewer's TTL of a minute and a turn's of two are between fresh and stale, or equal.
CREATE PROCEDURE fleet.matrix() LANGUAGE plpgsql AS $$
DECLARE
  held jsonb := '[[], [["viewer", 10]], [["viewer", 600]], [["direct", 10]], [["direct", 600]], [["turn", 10]],
    [["turn", 600]], [["process", 10]], [["process", 6000000]], [["viewer", 60], ["turn", 120], ["direct", 60]],
    [["viewer", 60.000001], ["turn", 120.000001]], [["viewer", 600], ["turn", 10]],
    [["viewer", 10], ["turn", 600], ["direct", 600], ["process", 600]], [["viewer", -10], ["direct", 0], ["turn", 0]]]';
  states jsonb := '[null, {}, {"sessionState": {"workspaceArchive": "YQ==", "workspaceArchiveMeta": {"revision": "1"}}},
    {"backendId": "old", "sessionState": {"workspaceArchive": "", "workspaceArchivePrev": "Yg==", "more": 1}},
    {"sessionState": {"workspaceArchive": "YQ==", "workspaceArchiveRef": "r"}, "opengeniRecovery": {"archive": {"current": null}}},
    {"sessionState": null}, "text"]';
BEGIN
  CREATE TEMP TABLE cells ON COMMIT DROP AS
    SELECT row_number() OVER (ORDER BY live, instance, expiry, held.n, counted) AS n, live, instance, expiry, held.kinds,
      counted, concat_ws(' ', live, instance, expiry, held.kinds, counted) AS name
    FROM unnest('{cold,warming,warm,draining}'::text[]) AS live, unnest('{no,sb}'::text[]) AS instance,
      unnest('{-1 hour,0,1 hour}'::text[]) AS expiry, unnest('{right,zero,wrong}'::text[]) AS counted,
      jsonb_array_elements(held) WITH ORDINALITY AS held (kinds, n);
  INSERT INTO public.sandbox_leases (id, account_id, workspace_id, sandbox_group_id, image, liveness, instance_id, backend,
      resume_backend_id, lease_epoch, workspace_generation, archive_generation, expires_at, created_at, updated_at,
      refcount, turn_holders, viewer_holders, data_plane_url, terminal_data_plane_url, resume_state)
    SELECT fleet.id('lease', name), fleet.id('account', (n % 3)::text), fleet.id('workspace', (n % 3)::text),
      fleet.id('group', name), name, live, nullif(instance, 'no'), CASE n % 5 WHEN 0 THEN 'docker' ELSE 'modal' END,
      CASE n % 4 WHEN 0 THEN 'other' END, n, 3, CASE n % 3 WHEN 0 THEN 3 WHEN 1 THEN 2 END, now() + expiry::interval,
      now() - interval '2 days', now() - n * interval '1 second', CASE counted WHEN 'wrong' THEN 7 ELSE 0 END,
      CASE counted WHEN 'wrong' THEN n % 2 ELSE 0 END, CASE counted WHEN 'wrong' THEN n % 3 ELSE 0 END, 'd', 't',
      nullif(states -> (n % 7)::integer, 'null')
    FROM cells;
  INSERT INTO public.sandbox_lease_holders
      (id, account_id, workspace_id, lease_id, kind, holder_id, last_heartbeat_at, created_at)
    SELECT fleet.id('holder', name || kind), fleet.id('account', (n % 3)::text), fleet.id('workspace', (n % 3)::text),
      fleet.id('lease', name), kind ->> 0, name, now() - (kind ->> 1)::numeric * interval '1 second', now()
    FROM cells, jsonb_array_elements(kinds) AS kind;
  UPDATE public.sandbox_leases l SET refcount = c.total, turn_holders = c.turns, viewer_holders = c.viewers
    FROM (SELECT fleet.id('lease', name) AS id, count(*) AS total, count(*) FILTER (WHERE kind ->> 0 = 'turn') AS turns,
        count(*) FILTER (WHERE kind ->> 0 = 'viewer') AS viewers
      FROM cells, jsonb_array_elements(kinds) AS kind WHERE counted = 'right' GROUP BY name) c
    WHERE l.id = c.id;
END $$;

-- Processes of owners of every sort, due and not, in two workspaces.
CREATE PROCEDURE fleet.owners() LANGUAGE plpgsql AS $$
DECLARE
  status text;
  attempt text;
  outcome text;
  due text;
  name text;
  n integer := 0;
BEGIN
  CALL fleet.lease('p0');
  CALL fleet.lease('p1', '{"liveness": "draining"}', 1);
  FOREACH status IN ARRAY '{queued,running,requires_action,recovering,waiting_capacity,completed,failed,cancelled,
      superseded,withdrawn_for_edit,missing,elsewhere}'::text[] LOOP
    FOREACH attempt IN ARRAY '{claimed,running,closed,missing,elsewhere}'::text[] LOOP
      n := n + 1;
      name := status || ' ' || attempt;
      outcome := CASE WHEN attempt IN ('closed', 'elsewhere') THEN ('{completed,failed,cancelled,superseded,requires_action,
        interrupted_recoverable,lease_lost_recoverable,pre_cutover_closed}'::text[])[1 + n % 8] END;
      IF status <> 'missing' THEN
        CALL fleet.turn(name, CASE status WHEN 'elsewhere' THEN 'failed' ELSE status END,
          CASE status WHEN 'elsewhere' THEN 2 ELSE n % 2 END);
      END IF;
      IF attempt <> 'missing' THEN
        CALL fleet.attempt(name, CASE attempt WHEN 'elsewhere' THEN 'closed' ELSE attempt END, outcome,
          CASE attempt WHEN 'elsewhere' THEN 2 ELSE n % 2 END);
      END IF;
      CALL fleet.process(name, 'p' || n % 2, name, jsonb_build_object('reconcile_after', '@-' || n % 7 || ' minutes',
        'started_at', '@-' || n % 3 || ' days') || CASE n % 2 WHEN 0 THEN '{"supervised": true}' ELSE '{}' END::jsonb);
    END LOOP;
  END LOOP;
  FOREACH due IN ARRAY '{-1 day,-0.000001,0,0.000001,1 hour}'::text[] LOOP
    CALL fleet.process('direct ' || due, 'p1', NULL, jsonb_build_object('reconcile_after', '@' || due));
    CALL fleet.process('claimed ' || due, 'p0', NULL, jsonb_build_object('reconcile_after', '@' || due,
      'reconcile_claim_id', fleet.id('claim', 'old'), 'reconcile_claimed_at', '@-1 hour', 'reconcile_attempts', 3,
      'last_reconcile_outcome', 'claimed', 'supervised', true));
  END LOOP;
  CALL fleet.process('claimed, running', 'p0', 'running running', jsonb_build_object('reconcile_after', '@-3 days',
    'reconcile_claim_id', fleet.id('claim', 'old'), 'reconcile_claimed_at', '@-1 hour', 'reconcile_attempts', 3));
  CALL fleet.process('exited', 'p0', NULL, '{"state": "exited"}');
  CALL fleet.process('lost', 'p1', NULL, '{"state": "lost"}');
  CALL fleet.count();
END $$;

-- Artifacts of every state, created and due at every side of each limit, referred to or not.
CREATE PROCEDURE fleet.checkpoints() LANGUAGE plpgsql AS $$
DECLARE
  state text;
  created text;
  due text;
  reference text;
  name text;
  fields jsonb;
  n integer := 0;
BEGIN
  FOREACH state IN ARRAY '{candidate,current,previous,delete_pending,deleting,delete_failed,deleted}'::text[] LOOP
    FOREACH created IN ARRAY '{-1 minute,-15 minutes,-15 minutes -0.000001 s,-3 days}'::text[] LOOP
      FOREACH due IN ARRAY '{none,-5 days,-1 day -0.000001 s,-1 day,-60.000001 s,-60 s,-0.000001 s,0,1 s}'::text[] LOOP
        n := n + 1;
        -- A deletion under way that is referred to again is refused at COMMIT when it is taken back.
        reference := CASE WHEN state = 'deleting' THEN 'no' WHEN n % 4 = 0 THEN 'current' WHEN n % 4 = 1 THEN 'previous' ELSE 'no' END;
        name := concat_ws(' ', state, created, due, reference);
        fields := jsonb_build_object('state', state, 'created_at', '@' || created, 'delete_attempts', n % 3,
          'last_delete_error', CASE WHEN n % 5 = 0 THEN 'earlier' END,
          CASE state WHEN 'deleting' THEN 'delete_claimed_at' WHEN 'deleted' THEN 'deleted_at' ELSE 'delete_after' END,
          CASE WHEN due <> 'none' THEN '@' || due WHEN state = 'deleting' THEN '@-2 s' END);
        CALL fleet.lease(name, '{}', n % 3);
        CALL fleet.artifact(name, name, fields);
        UPDATE public.sandbox_leases SET current_checkpoint_artifact_id = CASE reference WHEN 'current' THEN fleet.id('artifact', name) END,
            previous_checkpoint_artifact_id = CASE reference WHEN 'previous' THEN fleet.id('artifact', name) END
          WHERE id = fleet.id('lease', name);
      END LOOP;
    END LOOP;
  END LOOP;
END $$;

-- Leases of every sort before, at and after their deadline, under all that may stand in the way of a rotation.
CREATE PROCEDURE fleet.deadlines() LANGUAGE plpgsql AS $$
DECLARE
  live text;
  due text;
  kinds text;
  kind text;
  name text;
  n integer := 0;
BEGIN
  FOREACH live IN ARRAY '{cold,warming,warm,draining}'::text[] LOOP
    FOREACH due IN ARRAY '{never,-1 day,0,0.000001 s,60 s,60.000001 s,1 day}'::text[] LOOP
      FOREACH kinds IN ARRAY '{nobody,viewer,direct,turn,process,viewer turn,viewer direct process,turn direct}'::text[] LOOP
        n := n + 1;
        name := concat_ws(' ', live, due, kinds);
        CALL fleet.lease(name, jsonb_build_object('liveness', live, 'backend', CASE n % 9 WHEN 0 THEN 'docker' ELSE 'modal' END,
          'resume_backend_id', CASE n % 6 WHEN 0 THEN 'modal' WHEN 1 THEN 'docker' END,
          'instance_id', CASE WHEN n % 7 > 0 THEN 'sb' END, 'refcount', n % 3, 'viewer_holders', n % 2,
          'provider_created_at', CASE WHEN due <> 'never' THEN '@-2 days' END,
          'provider_deadline_at', CASE WHEN due <> 'never' THEN '@' || due END) || CASE n % 5
            WHEN 0 THEN '{"rotation_requested_at": "@-1 minute", "rotation_reason": "operator"}' ELSE '{}' END::jsonb, n % 3);
        FOREACH kind IN ARRAY array_remove(string_to_array(kinds, ' '), 'nobody') LOOP
          CALL fleet.holder(name, kind);
        END LOOP;
      END LOOP;
    END LOOP;
  END LOOP;
END $$;

-- Archives in every shape a resume state may have.
CREATE PROCEDURE fleet.slots() LANGUAGE plpgsql AS $$
DECLARE
  archive jsonb;
  meta jsonb;
  live text;
  n integer := 0;
BEGIN
  FOR archive, meta IN SELECT a, m
      FROM jsonb_array_elements('["YQ==", "", null, 7, true, [], ["YQ=="], {}, {"a": 1}, " ", 0]') AS a,
        jsonb_array_elements('[{"version": 2, "provider": "modal_snapshot_filesystem"},
          {"version": "2", "provider": "modal_snapshot_directory", "more": [null]}, {"version": 2.0, "provider": "modal_snapshot_filesystem"},
          {"version": 1, "provider": "modal_snapshot_filesystem"}, {"version": null, "provider": "modal_snapshot_filesystem"},
          {"version": [2], "provider": "modal_snapshot_filesystem"}, {"version": 2}, {"version": 2, "provider": null},
          {"version": 2, "provider": "other"}, {"provider": "modal_snapshot_filesystem"}, null, "2", 2, [], {},
          [{"version": 2, "provider": "modal_snapshot_filesystem"}]]') AS m LOOP
    n := n + 1;
    live := ('{cold,warming,warm,draining}'::text[])[1 + n % 4];
    CALL fleet.lease('slot ' || n, jsonb_build_object('liveness', live, 'updated_at', '@-' || n % 50 || ' s',
      'backend', CASE n % 13 WHEN 0 THEN 'docker' ELSE 'modal' END, 'instance_id', CASE WHEN n % 11 > 0 THEN 'sb' END,
      'resume_state', jsonb_build_object('sessionState', jsonb_build_object('workspaceArchive', archive,
        'workspaceArchiveMeta', meta, 'workspaceArchivePrev', CASE WHEN n % 2 = 0 THEN archive ELSE '"Yg=="' END,
        'workspaceArchivePrevMeta', CASE WHEN n % 3 > 0 THEN meta ELSE '{"version": 2, "provider": "modal_snapshot_directory"}' END))), n % 3);
  END LOOP;
  FOR archive IN SELECT * FROM jsonb_array_elements('[null, {}, [], "text", 1, {"sessionState": null}, {"sessionState": []},
      {"sessionState": "x"}, {"sessionState": {"workspaceArchive": "YQ=="}}, {"sessionState": {"workspaceArchiveMeta":
      {"version": 2, "provider": "modal_snapshot_filesystem"}}}, {"sessionState": [{"workspaceArchive": "YQ=="}]}]') LOOP
    n := n + 1;
    CALL fleet.lease('slot ' || n, jsonb_build_object('resume_state', archive));
  END LOOP;
  FOR n IN 1..3 LOOP
    CALL fleet.lease('kept ' || n);
    CALL fleet.artifact('kept ' || n, 'kept ' || n, '{"state": "current"}');
    CALL fleet.artifact('before ' || n, 'kept ' || n, '{"state": "previous"}');
    CALL fleet.refer('kept ' || n, 'kept ' || n, 'before ' || n);
  END LOOP;
  UPDATE public.sandbox_leases SET current_checkpoint_artifact_id = NULL WHERE image = 'kept 2';
  UPDATE public.sandbox_leases SET previous_checkpoint_artifact_id = NULL WHERE image = 'kept 3';
END $$;

-- Leases that drain, of every age.
CREATE PROCEDURE fleet.draining() LANGUAGE plpgsql AS $$
DECLARE
  live text;
  backend text;
  expired text;
BEGIN
  FOREACH live IN ARRAY '{cold,warming,warm,draining}'::text[] LOOP
    FOREACH backend IN ARRAY '{modal,docker,""}'::text[] LOOP
      FOREACH expired IN ARRAY '{1 s,0,-0.000001 s,-299.999999 s,-5 minutes,-1 hour 0.000001 s,-1 hour,-24 hours 0.000001 s,
          -24 hours,-1 day -1 s,-400 days}'::text[] LOOP
        CALL fleet.lease(concat_ws(' ', live, backend, expired), jsonb_build_object('liveness', live, 'backend', backend,
          'expires_at', '@' || expired, 'refcount', length(expired) % 2), length(expired) % 3);
      END LOOP;
    END LOOP;
  END LOOP;
END $$;

-- Fleets that many cases start from are made once and kept.
CREATE TABLE fleet.kept (fleet text, source text, columns text, shifted text);

CREATE PROCEDURE fleet.keep(VARIADIC fleets text[]) LANGUAGE plpgsql SET session_replication_role = replica AS $$
DECLARE
  fleet text;
  t record;
BEGIN
  FOREACH fleet IN ARRAY fleets LOOP
    EXECUTE format('CALL fleet.%I()', fleet);
    FOR t IN
      SELECT c.relname, string_agg(quote_ident(a.attname), ', ') AS columns, string_agg(CASE
          WHEN a.atttypid = 'timestamptz'::regtype THEN format('%I + (now() - %L::timestamptz)', a.attname, now())
          ELSE quote_ident(a.attname) END, ', ') AS shifted
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
        AND (c.relname LIKE 'sandbox\_%' OR c.relname IN ('sessions', 'session_turns', 'session_turn_attempts'))
      GROUP BY c.relname
    LOOP
      EXECUTE format('CREATE TABLE fleet.%I AS SELECT * FROM public.%I %s', fleet || '/' || t.relname, t.relname,
        CASE t.relname WHEN 'sessions' THEN 'WHERE initial_message = ''turn''' END);
      INSERT INTO fleet.kept VALUES (fleet, t.relname, t.columns, t.shifted);
    END LOOP;
    CALL fleet.clear();
  END LOOP;
END $$;

-- Rows of kept fleets, as far from now() as they were made.
CREATE PROCEDURE fleet.plant(VARIADIC fleets text[]) LANGUAGE plpgsql AS $$
DECLARE t record;
BEGIN
  FOR t IN SELECT * FROM fleet.kept WHERE fleet = ANY (fleets) LOOP
    EXECUTE format('INSERT INTO public.%I (%s) SELECT %s FROM fleet.%I', t.source, t.columns, t.shifted,
      t.fleet || '/' || t.source);
  END LOOP;
END $$;

-- What is seen ---------------------------------------------------------------------------------------

-- A warming reset says in the document when it was; the wall clock is no transaction's.
CREATE FUNCTION fleet.clocked(document jsonb, since timestamptz DEFAULT now()) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
  path text[];
  said text;
BEGIN
  FOREACH path SLICE 1 IN ARRAY '{{opengeniRecovery,provider,observedAt},{opengeniRecovery,restore,completedAt}}'::text[] LOOP
    said := document #>> path;
    IF said ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d' AND said::timestamptz BETWEEN since AND clock_timestamp() THEN
      document := jsonb_set(document, path, '"the clock"');
    END IF;
  END LOOP;
  RETURN document;
END $$;

-- Every row of every table, its times relative to now(). What nothing here touches has no times.
CREATE FUNCTION fleet.snapshot() RETURNS TABLE (name text, id text, fields text) LANGUAGE plpgsql
SET IntervalStyle = postgres SET TimeZone = 'UTC' AS $$
DECLARE
  t record;
BEGIN
  FOR t IN
    SELECT c.relname, string_agg(format('%L, (t.%I - now())::text', a.attname, a.attname), ', ') AS times
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.atttypid = 'timestamptz'::regtype
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
      -- ours alone, and no queue's
      AND c.relname <> 'sandbox_command_output'
    GROUP BY c.relname
  LOOP
    RETURN QUERY EXECUTE format('SELECT %L, t.id::text, (to_jsonb(t) %s %s)::text FROM public.%I t', t.relname,
      CASE WHEN t.relname IN ('managed_accounts', 'workspaces', 'sessions') THEN '- ''{created_at,updated_at}''::text[]'
        ELSE format('|| jsonb_build_object(%s)', t.times) END,
      CASE t.relname WHEN 'sandbox_leases' THEN '|| jsonb_build_object(''resume_state'', fleet.clocked(t.resume_state)::text)' END,
      t.relname);
  END LOOP;
END $$;

-- Time ------------------------------------------------------------------------------------------------

CREATE TABLE fleet.clock (at timestamptz NOT NULL);

-- Moves every time so that it is as far from this transaction's now() as it was from the last one's, and `later`
-- further in the past. What sweeps leave in updated_at differs by design (D16): it becomes the same again.
CREATE PROCEDURE fleet.go(later interval) LANGUAGE plpgsql AS $$
DECLARE
  t record;
BEGIN
  FOR t IN
    SELECT c.relname, string_agg(format('%1$I = %1$I + (now() - at) - $1', a.attname), ', ') AS times
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.atttypid = 'timestamptz'::regtype
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname NOT IN ('managed_accounts', 'workspaces', 'sessions')
    GROUP BY c.relname
  LOOP
    EXECUTE format('UPDATE public.%I SET %s FROM fleet.clock', t.relname, t.times) USING later;
  END LOOP;
  UPDATE public.sandbox_leases l SET resume_state = fleet.clocked(l.resume_state, at),
    updated_at = now() - (('x' || left(md5(l.id::text || l.lease_epoch), 4))::bit(16)::integer % 500 + 1) * interval '1 second'
    FROM fleet.clock;
  DELETE FROM fleet.clock;
  INSERT INTO fleet.clock VALUES (now());
END $$;

-- Remedies: what the originals need not to be refused, so that the rest can be compared ---------------

-- The expired warming leases whose reset the capture guard refuses (D4).
CREATE FUNCTION fleet.blocked() RETURNS SETOF uuid LANGUAGE sql STABLE AS $$
  SELECT l.id
  FROM public.sandbox_leases l
  CROSS JOIN opengeni_private.warming_reset_resume_state_v2(l.backend, l.resume_backend_id, l.resume_state,
    l.workspace_generation, l.archive_generation, now()) AS reset
  WHERE l.liveness = 'warming' AND l.instance_id IS NULL AND l.expires_at < now()
    AND EXISTS (SELECT FROM public.sandbox_retained_processes p
      WHERE p.lease_id = l.id AND p.state = 'active' AND p.provider_command ? 'supervision')
    AND EXISTS (SELECT FROM unnest('{workspaceArchive,workspaceArchiveMeta,workspaceArchiveRef}'::text[]) AS key
      WHERE l.resume_state -> 'sessionState' -> key IS DISTINCT FROM reset -> 'sessionState' -> key);
$$;

CREATE TABLE fleet.remedied (id uuid PRIMARY KEY, command jsonb);

CREATE PROCEDURE fleet.unblock() LANGUAGE sql BEGIN ATOMIC
  INSERT INTO fleet.remedied (id) SELECT * FROM fleet.blocked();
  UPDATE public.sandbox_leases l SET expires_at = l.expires_at + interval '9 years' FROM fleet.remedied r WHERE l.id = r.id;
END;

-- Processes whose output cursors are malformed (D3) are called poisoned.
CREATE PROCEDURE fleet.cure() LANGUAGE sql BEGIN ATOMIC
  INSERT INTO fleet.remedied SELECT p.id, p.provider_command FROM public.sandbox_retained_processes p
    WHERE p.holder_id LIKE '%/poisoned%';
  UPDATE public.sandbox_retained_processes p SET provider_command = p.provider_command || fixture.streams(fixture.cursor())
    FROM fleet.remedied r WHERE p.id = r.id;
END;

CREATE PROCEDURE fleet.recover() LANGUAGE sql BEGIN ATOMIC
  UPDATE public.sandbox_leases l SET expires_at = l.expires_at - interval '9 years' FROM fleet.remedied r WHERE l.id = r.id;
  UPDATE public.sandbox_retained_processes p SET provider_command = r.command FROM fleet.remedied r WHERE p.id = r.id;
  DELETE FROM fleet.remedied;
END;

-- Takes the fleet away, past all guards.
CREATE PROCEDURE fleet.clear() LANGUAGE plpgsql SET session_replication_role = replica AS $$
BEGIN
  TRUNCATE public.sandbox_leases, public.sandbox_lease_holders, public.sandbox_workspace_mutation_admissions,
    public.sandbox_retained_processes, public.sandbox_pty_sessions, public.sandbox_checkpoint_artifacts,
    public.session_turns, public.session_turn_attempts, fleet.clock, fleet.remedied CASCADE;
  DELETE FROM public.sessions WHERE initial_message = 'turn';
END $$;

DO $$
BEGIN
  FOR n IN 0..2 LOOP
    INSERT INTO public.managed_accounts (id, name) VALUES (fleet.id('account', n::text), 'a');
    INSERT INTO public.workspaces (id, account_id, name)
      VALUES (fleet.id('workspace', n::text), fleet.id('account', n::text), 'w');
    CALL fleet.put('sessions', fleet.tenant(n) || jsonb_build_object('id', fleet.session(fleet.id('workspace', n::text)),
      'sandbox_group_id', fleet.id('group', n::text), 'initial_message', '', 'model', 'm', 'sandbox_backend', 'modal'));
  END LOOP;
END $$;

CALL fleet.keep('matrix', 'owners', 'checkpoints', 'deadlines', 'slots', 'draining');
