//! 20 and 21: another encoding, and names in a session that lead elsewhere.

use anyhow::{Context, Result, ensure};
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use postgres::Client;
use uuid::Uuid;

use super::{GUARDED, HISTORY_BAIT, PARENTS, Scene, attached, pty, revision};
use crate::attach::{extension, switch, works};
use crate::dump;
use crate::fleet::{self, READERS, WRITERS};
use crate::support::*;

pub fn other_encodings(db: &Db) -> Result<()> {
    let script = dump::dump(db)?;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let other = Db {
            server: db.server.clone(),
            name: format!("{}_{}", db.name, encoding.to_lowercase()),
        };
        db.admin()?.batch_execute(&format!(
            "CREATE DATABASE {} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0 OWNER {OWNER}",
            other.name
        ))?;
        dump::restore(&other, &script)?;
        works(&other, false)?;
        let before = snapshot(&mut other.admin()?)?;
        for bind in ["on", "off"] {
            let mut admin = other.admin()?;
            set(&mut admin, "opengeni_guards.bind_on_create", bind)?;
            let refusal = refused(&mut admin, "CREATE EXTENSION opengeni_guards", &[])?;
            refusal.has_state("0A000")?;
            refusal.names(&["UTF8", encoding])?;
        }
        same(&before, &snapshot(&mut other.admin()?)?)?;
        works(&other, false)?;
    }
    // The same rows and definitions in UTF8 take it.
    extension(db)?;
    switch(&mut db.owner()?, "attach('opengeni')")?;
    works(db, true)
}

/// Rows as they are, but each says the opposite of what decides.
fn lie(table: &str) -> &'static str {
    match table {
        "sandbox_retained_processes" => {
            "UPDATE pg_temp.sandbox_retained_processes SET state = CASE state WHEN 'active' THEN 'exited' ELSE 'active' END,
               cancellation_requested_at = NULL, provider_command = CASE state WHEN 'active' THEN NULL ELSE provider_command END"
        }
        "sandbox_workspace_mutation_admissions" => {
            "UPDATE pg_temp.sandbox_workspace_mutation_admissions SET settled_at = CASE WHEN settled_at IS NULL THEN now() END,
               provider_outcome = CASE WHEN settled_at IS NULL THEN 'resolved' END"
        }
        "sandbox_leases" => {
            "UPDATE pg_temp.sandbox_leases SET archive_capture_id = CASE WHEN archive_capture_id IS NULL THEN gen_random_uuid() END,
               liveness = 'cold', instance_id = NULL, lease_epoch = lease_epoch + 1, current_checkpoint_artifact_id = NULL,
               resume_state = jsonb_build_object('opengeniRecovery', jsonb_build_object(
                 'provider', jsonb_build_object('status', 'missing', 'instanceId', instance_id),
                 'restore', jsonb_build_object('status', 'degraded'), 'workspace', jsonb_build_object('status', 'degraded')))"
        }
        "sandbox_lease_holders" => "UPDATE pg_temp.sandbox_lease_holders SET holder_id = holder_id || '?'",
        "sandbox_checkpoint_artifacts" => {
            "UPDATE pg_temp.sandbox_checkpoint_artifacts SET state = CASE state WHEN 'current' THEN 'candidate' ELSE 'current' END"
        }
        "workspace_instruction_policy_revisions" => {
            "UPDATE pg_temp.workspace_instruction_policy_revisions SET revision = revision + 1000"
        }
        "workspaces" => "DELETE FROM pg_temp.workspaces",
        "managed_accounts" => "DELETE FROM pg_temp.managed_accounts",
        _ => "SELECT 1",
    }
}

/// The ways in which a session can stand in the way of names.
const DECOYS: [&str; 4] = [
    "empty tables",
    "tables that lie",
    "views that lie",
    "tables of another kind",
];

fn decoy_tables(app: &mut Client, kind: &str) -> Result<()> {
    // Every relation that a guard or an original reads by name.
    for table in GUARDED.iter().chain(&PARENTS).copied() {
        let sql = match kind {
            "empty tables" => format!("CREATE TEMP TABLE {table} (LIKE opengeni.{table})"),
            "tables that lie" => format!(
                "CREATE TEMP TABLE {table} AS SELECT * FROM opengeni.{table}; {}",
                lie(table)
            ),
            "views that lie" => format!(
                "CREATE TEMP TABLE {table} AS SELECT * FROM opengeni.{table}; {};
                 ALTER TABLE pg_temp.{table} RENAME TO of_{table};
                 CREATE TEMP VIEW {table} AS SELECT * FROM pg_temp.of_{table}",
                lie(table)
            ),
            _ => format!("CREATE TEMP TABLE {table} (id text, nothing integer)"),
        };
        app.batch_execute(&sql).with_context(|| sql)?;
    }
    // Who is a superuser, who owns what, and which schema is which.
    app.batch_execute(
        "CREATE TEMP TABLE pg_roles AS SELECT oid, rolname, true AS rolsuper FROM pg_catalog.pg_roles;
         CREATE TEMP TABLE pg_authid AS SELECT oid, rolname, true AS rolsuper FROM pg_catalog.pg_roles;
         CREATE TEMP TABLE pg_class (oid oid, relname name); CREATE TEMP TABLE pg_namespace (oid oid, nspname name);
         CREATE TEMP TABLE pg_index (indexrelid oid); CREATE TEMP TABLE pg_attribute (attname name);
         CREATE TEMP TABLE pg_settings (name text, setting text)",
    )?;
    Ok(())
}

/// Functions, operators and types that a guard's own names could be taken for. Each raises an error.
const EVIL: &str = "
    CREATE SCHEMA evil; GRANT ALL ON SCHEMA evil TO PUBLIC;
    CREATE FUNCTION evil.trip(VARIADIC anyarray) RETURNS text LANGUAGE plpgsql AS $$
      BEGIN RAISE 'evil was called as %', current_user; END $$;
    CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
    CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
    CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
    CREATE FUNCTION evil.pg_trigger_depth() RETURNS integer LANGUAGE sql AS $$ SELECT evil.trip(1)::pg_catalog.int4 $$;
    CREATE FUNCTION evil.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT evil.trip(1)::pg_catalog.xid8 $$;
    CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
    CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT evil.trip(1)::pg_catalog.timestamptz $$;
    CREATE FUNCTION evil.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
    CREATE FUNCTION evil.same(uuid, uuid) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trip(1)::pg_catalog.bool $$;
    CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trip(1)::pg_catalog.bool $$;
    CREATE FUNCTION evil.has(jsonb, text) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trip(1)::pg_catalog.bool $$;
    CREATE FUNCTION evil.get(jsonb, text) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
    CREATE FUNCTION evil.cast_to(text) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
    CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = uuid, RIGHTARG = uuid);
    CREATE OPERATOR evil.<> (FUNCTION = evil.same, LEFTARG = uuid, RIGHTARG = uuid);
    CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text);
    CREATE OPERATOR evil.<> (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text);
    CREATE OPERATOR evil.? (FUNCTION = evil.has, LEFTARG = jsonb, RIGHTARG = text);
    CREATE OPERATOR evil.->> (FUNCTION = evil.get, LEFTARG = jsonb, RIGHTARG = text);";

/// Types, for sessions that name their own by schema.
const EVIL_TYPES: &str = "
    CREATE DOMAIN evil.uuid AS pg_catalog.uuid CHECK (false); CREATE DOMAIN evil.text AS pg_catalog.text CHECK (false);
    CREATE DOMAIN evil.jsonb AS pg_catalog.jsonb CHECK (false); CREATE DOMAIN evil.bigint AS pg_catalog.int8 CHECK (false);";

/// What the originals' policies and CHECKs call follows the caller's path, and is not what is asked here.
const PINNED_HELPERS: &str = "
    ALTER FUNCTION opengeni_private.current_account_id() SET search_path = pg_catalog, pg_temp;
    ALTER FUNCTION opengeni_private.current_workspace_id() SET search_path = pg_catalog, pg_temp;
    ALTER FUNCTION opengeni_private.workspace_rls_visible(uuid, uuid) SET search_path = pg_catalog, pg_temp;
    ALTER FUNCTION public.digest(bytea, text) SET search_path = pg_catalog, pg_temp";

/// The same in the session's own temp schema, as far as names are looked up there.
const TEMP_NAMES: &str = "
    CREATE FUNCTION pg_temp.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
    CREATE FUNCTION pg_temp.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
    CREATE FUNCTION pg_temp.pg_trigger_depth() RETURNS integer LANGUAGE sql AS $$ SELECT evil.trip(1)::integer $$;
    CREATE FUNCTION pg_temp.same(uuid, uuid) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trip(1)::boolean $$;
    CREATE OPERATOR pg_temp.= (FUNCTION = pg_temp.same, LEFTARG = uuid, RIGHTARG = uuid);
    CREATE FUNCTION pg_temp.modal_inventory_read_capability_active() RETURNS boolean LANGUAGE sql AS $$ SELECT true $$";

/// Writes of the application by qualified names only, and what they are answered with.
fn probes(
    scene: &Scene,
    idle: &Command,
    captured: &Tenant,
) -> Vec<(String, Option<(&'static str, &'static str)>)> {
    let is = |column: &str, value: &dyn std::fmt::Display| {
        format!(
            "{column} OPERATOR(pg_catalog.=) '{value}'::pg_catalog.{}",
            if column == "holder_id" {
                "text"
            } else {
                "uuid"
            }
        )
    };
    let (running, ended, legacy) = (&scene.running, &scene.ended, &scene.legacy);
    let tenant = &scene.tenant;
    let processes = "UPDATE opengeni.sandbox_retained_processes SET";
    let leases = "UPDATE opengeni.sandbox_leases SET";
    let artifacts = "UPDATE opengeni.sandbox_checkpoint_artifacts SET";
    let heads = "UPDATE opengeni.workspace_instruction_policy_heads SET";
    let holder = |command: &Command| {
        format!(
            "DELETE FROM opengeni.sandbox_lease_holders WHERE {}",
            is("holder_id", &command.holder())
        )
    };
    let settle = |command: &Command, outcome: &str| {
        format!(
            "UPDATE opengeni.sandbox_workspace_mutation_admissions SET provider_outcome = '{outcome}', settled_at = pg_catalog.now() WHERE {}",
            is("id", &command.admission)
        )
    };
    let lease = is("id", &tenant.lease);
    let loss = |cold: bool| {
        let lease = match cold {
            true => format!(
                "; {leases} liveness = 'cold', instance_id = NULL, lease_epoch = {}, resume_state = pg_catalog.jsonb_set(resume_state,
                   '{{opengeniRecovery}}', '{{\"provider\": {{\"status\": \"missing\", \"instanceId\": \"{}\"}},
                     \"restore\": {{\"status\": \"degraded\"}}, \"workspace\": {{\"status\": \"degraded\"}}}}') WHERE {lease}",
                tenant.epoch + 1, tenant.instance
            ),
            false => String::new(),
        };
        format!(
            "SELECT pg_catalog.set_config('{LOSS}', '{}', true);
             {processes} state = 'lost', settlement_reason = 'provider_instance_lost', settled_at = pg_catalog.now() WHERE {};
             {}; {} {lease}",
            tenant.loss_binding(), is("id", &idle.process), settle(idle, "rejected"), holder(idle)
        )
    };
    let receipt = |command: &Command| {
        format!(
            "{processes} supervision_receipt = '{}' WHERE {}",
            command.receipt(0),
            is("id", &command.process)
        )
    };
    let [first, second] = scene.revisions;
    let activate = |plus: i32| {
        format!(
            "INSERT INTO opengeni.workspace_instruction_policy_activation_events (account_id, workspace_id, kind, scope, type,
               activation_version, old_revision_id, old_revision, old_content_hash, new_revision_id, new_revision, new_content_hash,
               actor_subject_id, reason)
             SELECT account_id, workspace_id, kind, scope, 'rollback', 1000, NULL, NULL, NULL, id, revision OPERATOR(pg_catalog.+) {plus},
               content_hash, 'me', 'because' FROM opengeni.workspace_instruction_policy_revisions WHERE {}",
            is("id", &first)
        )
    };
    let child = |command: &Command| {
        format!(
            "{leases} workspace_generation = 1000 WHERE {lease};
             INSERT INTO opengeni.sandbox_workspace_mutation_admissions (id, account_id, workspace_id, lease_id, sandbox_group_id, session_id,
               actor_kind, actor_id, holder_kind, holder_id, lease_epoch, provider_backend, provider_instance_id, route_kind,
               route_epoch, workspace_generation, operation)
             SELECT pg_catalog.gen_random_uuid(), account_id, workspace_id, lease_id, sandbox_group_id, session_id, 'process', id, 'process',
               holder_id, lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, 1000, 'stdin'
             FROM opengeni.sandbox_retained_processes WHERE {}",
            is("id", &command.process)
        )
    };
    let release = |command: &Command| {
        format!(
            "INSERT INTO opengeni.sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
             VALUES ('{}', '{}', '{}', 'process', '{}', '{}')",
            tenant.account, tenant.workspace, tenant.lease, command.holder(), tenant.session
        )
    };
    let pty = |command: &Command, status: &str| {
        pty(command, status).replace(
            &format!("id = '{}'", command.process),
            &is("id", &command.process),
        )
    };
    let state =
        |of: &str, to: &str, id: &Uuid| format!("{of} state = '{to}' WHERE {}", is("id", id));
    let of_tenant = |tenant: &Tenant| {
        format!(
            "SELECT pg_catalog.set_config('opengeni.account_id', '{}', true), pg_catalog.set_config('opengeni.workspace_id', '{}', true)",
            tenant.account, tenant.workspace
        )
    };
    let launched = Command::new(77);
    let launch = |tenant: &Tenant| {
        format!(
            "{}; INSERT INTO opengeni.sandbox_workspace_mutation_admissions (id, account_id, workspace_id, lease_id, sandbox_group_id,
               session_id, actor_kind, actor_id, holder_kind, holder_id, lease_epoch, provider_backend, provider_instance_id,
               route_kind, route_epoch, workspace_generation, operation, provider_outcome)
             SELECT '{}', account_id, workspace_id, id, sandbox_group_id, '{}', 'direct', '{}', 'direct', 'x', lease_epoch, backend,
               instance_id, 'home', 0, 999, 'exec', 'retained' FROM opengeni.sandbox_leases WHERE {};
             INSERT INTO opengeni.sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
             VALUES ('{}', '{}', '{}', 'process', '{}', '{}');
             INSERT INTO opengeni.sandbox_retained_processes (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id,
               parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, lease_epoch, provider_backend, provider_instance_id,
               route_kind, route_epoch, provider_session_id, provider_command)
             SELECT '{}', account_id, workspace_id, session_id, lease_id, sandbox_group_id, id, '{}', actor_kind, actor_id, lease_epoch,
               provider_backend, provider_instance_id, route_kind, route_epoch, 77, '{}'
             FROM opengeni.sandbox_workspace_mutation_admissions WHERE {}",
            of_tenant(tenant), launched.admission, tenant.session, launched.actor, is("id", &tenant.lease), tenant.account,
            tenant.workspace, tenant.lease, launched.holder(), tenant.session, launched.process, launched.holder(),
            launched.provider_command(tenant), is("id", &launched.admission)
        )
    };
    let operation = |name: &str, command: &Command, arguments: String| {
        format!(
            "SELECT opengeni_guards.{name}('{}', '{}', '{}', '{}'{arguments}, data_schema => 'opengeni')",
            tenant.account, tenant.workspace, tenant.session, command.process
        )
    };
    let process = |command: &Command| is("id", &command.process);
    vec![
        (
            format!(
                "DELETE FROM opengeni.sandbox_retained_processes WHERE {}",
                process(running)
            ),
            Some(("55000", "supervised_command.delete_unsettled")),
        ),
        (
            format!(
                "DELETE FROM opengeni.sandbox_retained_processes WHERE {}",
                process(ended)
            ),
            None,
        ),
        (holder(running), Some(("55000", "process_holder.retained"))),
        (release(ended), Some(("55000", "process_holder.released"))),
        (
            settle(running, "resolved"),
            Some(("55000", "parent_admission.retained")),
        ),
        (
            settle(ended, "rejected"),
            Some(("55000", "parent_admission.immutable")),
        ),
        (
            format!("{leases} archive_capture_id = pg_catalog.gen_random_uuid() WHERE {lease}"),
            Some(("55000", "lease_capture.blocked")),
        ),
        (
            format!(
                "{}; {leases} archive_capture_published_at = pg_catalog.now() WHERE {}",
                of_tenant(captured),
                is("id", &captured.lease)
            ),
            None,
        ),
        (
            launch(captured),
            Some(("55000", "supervised_command.containment")),
        ),
        (launch(tenant), None),
        (
            receipt(running),
            Some(("55000", "supervised_command.input_settles_first")),
        ),
        (receipt(idle), None),
        (
            format!(
                "{processes} provider_command_input_index = 7 WHERE {}",
                process(idle)
            ),
            Some(("55000", "supervised_command.stdin_child")),
        ),
        (
            format!(
                "{processes} provider_command_input_index = 7 WHERE {}",
                process(running)
            ),
            None,
        ),
        (child(ended), Some(("55000", "child_admission.closed"))),
        (child(idle), None),
        (loss(false), Some(("55000", "provider_loss.recovery_truth"))),
        (loss(true), None),
        (
            format!(
                "SET LOCAL {MARKER} = ''; {leases} updated_at = pg_catalog.now() WHERE {lease}"
            ),
            Some(("55000", "protocol_v2.marker")),
        ),
        (
            format!(
                "{processes} reconcile_attempts = 7 WHERE {}",
                process(running)
            ),
            None,
        ),
        (
            format!(
                "{processes} reconcile_attempts = 7 WHERE {}; {}",
                process(legacy),
                holder(legacy)
            ),
            Some(("55000", "retained_process.identity")),
        ),
        (
            format!(
                "{processes} state = 'exited', exit_code = 1, settled_at = pg_catalog.now() WHERE {}; {}; {}",
                process(legacy),
                settle(legacy, "resolved"),
                holder(legacy)
            ),
            None,
        ),
        (pty(ended, "open"), Some(("55000", "pty.identity"))),
        (pty(idle, "open"), None),
        (
            format!(
                "{leases} current_checkpoint_artifact_id = '{}' WHERE {lease}",
                scene.candidate
            ),
            Some(("23514", "checkpoint_refs.current")),
        ),
        (
            format!(
                "{leases} current_checkpoint_artifact_id = '{}' WHERE {lease}",
                scene.current
            ),
            None,
        ),
        (
            state(artifacts, "previous", &scene.candidate),
            Some(("23514", "checkpoint_artifact.state")),
        ),
        (
            state(artifacts, "candidate", &scene.current),
            Some(("23514", "checkpoint_artifact.state")),
        ),
        (state(artifacts, "current", &scene.current), None),
        (
            format!("{artifacts} archive_bytes = 7"),
            Some(("55000", "checkpoint_artifact.immutable")),
        ),
        (
            format!("{heads} revision = 1000000"),
            Some(("23514", "instruction_policy.head")),
        ),
        (format!("{heads} activation_version = 7"), None),
        (
            activate(1000),
            Some(("23514", "instruction_policy.event_new")),
        ),
        (activate(0), None),
        (
            revision(tenant, Uuid::new_v4(), Some(Uuid::new_v4()))
                .replace(
                    "encode(sha256('text'), 'hex')",
                    "pg_catalog.encode(pg_catalog.sha256('text'), 'hex')",
                )
                .replace("nextval(", "pg_catalog.nextval("),
            Some(("23514", "instruction_policy.link")),
        ),
        (
            revision(tenant, Uuid::new_v4(), Some(second))
                .replace(
                    "encode(sha256('text'), 'hex')",
                    "pg_catalog.encode(pg_catalog.sha256('text'), 'hex')",
                )
                .replace("nextval(", "pg_catalog.nextval("),
            None,
        ),
        // The operations, which work as their caller.
        (
            operation("load_supervision_receipt", ended, String::new()),
            None,
        ),
        (
            operation("cancellation_requested", running, String::new()),
            None,
        ),
        (
            operation("request_cancellation", idle, ", 'explicit_stop'".to_owned()),
            None,
        ),
        (operation("reserve_input", running, ", 5".to_owned()), None),
        (
            operation("reserve_input", idle, ", 5".to_owned()),
            Some(("55000", "supervised_command.stdin_child")),
        ),
        (
            operation("reserve_input", ended, ", 5".to_owned()),
            Some(("55000", "command.reserve_input.inactive")),
        ),
        (
            operation("reserve_input", &Command::new(9), ", 5".to_owned()),
            Some(("P0002", "command.reserve_input.unknown")),
        ),
        (
            operation(
                "record_supervision_receipt",
                running,
                format!(", '{}'", running.receipt(0)),
            ),
            Some(("55000", "supervised_command.input_settles_first")),
        ),
        (
            operation(
                "record_supervision_receipt",
                idle,
                format!(", '{}'", idle.receipt(0)),
            ),
            None,
        ),
        // As deep as a cascade, with the workspace still there.
        (
            "INSERT INTO bait VALUES (1)".to_owned(),
            Some(("55000", "instruction_policy.immutable")),
        ),
    ]
}

pub fn decoys(db: &Db) -> Result<()> {
    attached(db)?;
    let mut scene = Scene::set(db)?;
    let tenant = scene.tenant.clone();
    let idle = Command::new(4);
    commit(&mut scene.app, &[protocol::launch(&tenant, &idle)])?;
    commit(
        &mut scene.app,
        &[protocol::admit_input(
            &tenant,
            &scene.running,
            Uuid::new_v4(),
        )],
    )?;
    let captured = db.tenant()?;
    accepted(
        &mut db.admin()?,
        "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1",
        &[&captured.lease],
    )?;
    let mut admin = db.admin()?;
    for names in [EVIL, EVIL_TYPES, PINNED_HELPERS] {
        admin.batch_execute(names)?;
    }
    let probes = probes(&scene, &idle, &captured);
    let astray = |app: &mut Client| -> Result<Vec<String>> {
        let mut astray = Vec::new();
        for (sql, expected) in &probes {
            let mut attempt = app.transaction()?;
            let done = attempt.batch_execute(&format!("{sql}; SET CONSTRAINTS ALL IMMEDIATE"));
            match (done, expected) {
                (Ok(()), None) => {}
                (Ok(()), Some((_, rule))) => astray.push(format!("accepted, not {rule}: {sql}")),
                (Err(error), Some((sqlstate, rule))) => {
                    let refusal = Refusal::of(&error)?;
                    if refusal.is_by(sqlstate, rule).is_err() {
                        astray.push(format!("not {rule}: {refusal:?}: {sql}"));
                    }
                }
                (Err(error), None) => {
                    astray.push(format!("refused: {}: {sql}", describe(&error)));
                }
            }
            attempt.rollback()?;
        }
        Ok(astray)
    };
    let decoyed = |kind: &str, path: &str| -> Result<Client> {
        let mut app = db.app(&tenant)?;
        app.batch_execute(HISTORY_BAIT)?;
        decoy_tables(&mut app, kind)?;
        app.batch_execute(TEMP_NAMES)?;
        app.batch_execute("CREATE DOMAIN pg_temp.uuid AS pg_catalog.uuid CHECK (false)")?;
        set(&mut app, "search_path", path)?;
        Ok(app)
    };
    let mut app = db.app(&tenant)?;
    app.batch_execute(HISTORY_BAIT)?;
    let plain = astray(&mut app)?;
    ensure!(plain.is_empty(), "without decoys: {plain:#?}");
    for kind in DECOYS {
        for path in [
            "opengeni",
            "pg_temp, opengeni, pg_catalog",
            "pg_temp, evil, pg_catalog",
            "evil, pg_temp",
        ] {
            let found = astray(&mut decoyed(kind, path)?)?;
            ensure!(found.is_empty(), "{kind}, search_path = {path}: {found:#?}");
        }
    }
    // A session that knew the tables before the decoys came.
    decoy_tables(&mut app, "tables that lie")?;
    set(&mut app, "search_path", "pg_temp, evil")?;
    let found = astray(&mut app)?;
    ensure!(found.is_empty(), "{found:#?}");
    // The decoys are good ones: the originals let pass, and refuse, because of them.
    switch(&mut db.owner()?, "detach('opengeni')")?;
    let found = astray(&mut decoyed("tables that lie", "opengeni")?)?;
    for fate in ["accepted, not ", "refused: "] {
        let led = found.iter().filter(|line| line.starts_with(fate)).count();
        ensure!(led >= 4, "{fate}: {led} of {found:#?}");
    }
    Ok(())
}

pub fn contract_decoys(db: &Db) -> Result<()> {
    attached(db)?;
    fleet::pair(db, SCHEMA)?;
    let calm = |client: &mut Client, functions: &[fleet::Function]| -> Result<Vec<Vec<String>>> {
        let mut transaction = client.transaction()?;
        let found = fleet::answers(&mut transaction, functions, |f| f.contract())?;
        transaction.rollback()?;
        Ok(found)
    };
    let mut app = fleet::app(db, 1)?;
    let lists = calm(&mut app, READERS)?;
    let sweeps = calm(&mut app, WRITERS)?;
    ensure!(lists.iter().chain(&sweeps).any(|rows| !rows.is_empty()));
    db.admin()?.batch_execute(EVIL)?;
    db.admin()?.batch_execute(PINNED_HELPERS)?;
    for kind in DECOYS {
        for path in ["opengeni", "pg_temp, evil, pg_catalog", "evil, pg_temp"] {
            let mut app = fleet::app(db, 1)?;
            decoy_tables(&mut app, kind)?;
            app.batch_execute(
                "CREATE TEMP TABLE sessions (LIKE opengeni.sessions); CREATE TEMP TABLE session_turns (LIKE opengeni.session_turns);
                 CREATE TEMP TABLE session_turn_attempts (LIKE opengeni.session_turn_attempts);
                 CREATE TEMP TABLE modal_inventory_read_capabilities (backend_pid int)",
            )?;
            app.batch_execute(TEMP_NAMES)?;
            set(&mut app, "search_path", path)?;
            let context = || format!("{kind}, search_path = {path}");
            let found = calm(&mut app, READERS).with_context(context)?;
            ensure!(found == lists, "{}: {found:?}", context());
            let found = calm(&mut app, WRITERS).with_context(context)?;
            ensure!(found == sweeps, "{}: {found:?}", context());
        }
    }
    Ok(())
}
