//! The design's hazards where they matter most: on PL/pgSQL originals that the extension came to later.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, Tenant, streams};
use opengeni_guards_harness::server::Server;
use postgres::{Client, GenericClient};
use uuid::Uuid;

use crate::attach::{create_extension, extension, switch, works};
use crate::dump;
use crate::fleet::{self, READERS, WRITERS};
use crate::inventory;
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    let cases: [(&str, Body); 24] = [
        (
            "11: a workspace or an account goes with its settled history, and with nothing else",
            history_goes,
        ),
        (
            "11: whatever the order of the foreign keys, the guards decide nothing about cascades",
            foreign_keys_in_any_order,
        ),
        (
            "11: after pg_dump | psql of an attached database history goes as before",
            history_goes_after_restore,
        ),
        (
            "12: a column that a guard reads is renamed and renamed back, table by table",
            columns_renamed,
        ),
        (
            "12: a column that the contract functions read is renamed and renamed back",
            contract_column_renamed,
        ),
        (
            "12: a table is renamed and renamed back, table by table",
            tables_renamed,
        ),
        (
            "12: a table is dropped, provisioned and attached again",
            tables_dropped,
        ),
        (
            "12: the schema is renamed, and detached under its new name",
            schema_renamed,
        ),
        (
            "14: a guard that was dropped, disabled or taken back shows, and attach mends what it may",
            guards_go,
        ),
        (
            "14: a contract function that a migration took back shows, and attach replaces it",
            contract_taken_back,
        ),
        (
            "20: the originals in a database that is not UTF8 refuse the extension and go on",
            other_encodings,
        ),
        (
            "21: decoys of the application's change no guard's answer, whatever they say",
            decoys,
        ),
        (
            "21: decoys of the application's change no answer of the contract functions",
            contract_decoys,
        ),
        (
            "22: default privileges and blanket grants after attach open nothing",
            opened_afterwards,
        ),
        (
            "23: one session under three identities and two tenants never sees more than its own",
            identities,
        ),
        (
            "23: the contract's functions in one session under four identities, planned for each and for all",
            |db| attached(db).and_then(|_| inventory::identities(db)),
        ),
        (
            "23: what the inventory lifted is closed after success, LIMIT and a cursor",
            |db| attached(db).and_then(|_| inventory::closed_after_success(db)),
        ),
        (
            "23: what the inventory lifted is closed after an error, a savepoint and a cancel",
            |db| attached(db).and_then(|_| inventory::closed_after_errors(db)),
        ),
        (
            "23: what the inventory lifted stays so for an outer call and no longer",
            |db| attached(db).and_then(|_| inventory::nested(db)),
        ),
        (
            "24: nothing that depends on backend state is PARALLEL SAFE, and workers change no answer",
            parallel,
        ),
        (
            "28: what the owner laid out never runs with the rights of the superuser who calls",
            mines,
        ),
        (
            "29: look-alikes in another schema are told of and left alone",
            look_alikes_elsewhere,
        ),
        (
            "29: look-alikes in the schema itself are told of and left alone",
            look_alikes_inside,
        ),
        (
            "30: nothing that happens to a row later hides it from the checks at COMMIT",
            checked_at_commit,
        ),
    ];
    cases
        .into_iter()
        .map(|(name, body)| original_case(server, &format!("hazard {name}"), body))
        .collect()
}

/// Has the guards of the originals' database call the native functions; a session of the owner.
fn attached(db: &Db) -> Result<Client> {
    extension(db)?;
    let mut owner = db.owner()?;
    let done = switch(&mut owner, "attach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    ensure!(is_ready(&mut owner)?);
    Ok(owner)
}

fn is_ready(client: &mut impl GenericClient) -> Result<bool> {
    value(client, "SELECT opengeni_guards.ready($1)", &[&SCHEMA])
}

/// What status() says of an object, by the beginning of its name.
fn states(client: &mut impl GenericClient, object: &str) -> Result<Vec<String>> {
    lines(
        client,
        "SELECT DISTINCT state FROM opengeni_guards.status($1) WHERE starts_with(object, $2) ORDER BY 1",
        &[&SCHEMA, &object],
    )
}

fn says(refusal: &Refusal, sqlstate: &str, rule: &str) -> Result<()> {
    ensure!(
        refusal.sqlstate == sqlstate && refusal.rule.as_deref() == Some(rule),
        "expected {sqlstate} {rule}, got {refusal:?}"
    );
    Ok(())
}

/// Commits statements in one transaction; what refused them, at once or at COMMIT.
fn committed(client: &mut Client, sql: &str) -> Result<Option<Refusal>> {
    let mut transaction = client.transaction()?;
    let done = match transaction.batch_execute(sql) {
        Ok(()) => transaction.commit(),
        Err(error) => transaction.rollback().and(Err(error)),
    };
    match done {
        Ok(()) => Ok(None),
        Err(error) => Refusal::of(&error).map(Some),
    }
}

/// The same, and the answer has to be this rule, or none.
fn answers(client: &mut Client, sql: &str, expected: Option<(&str, &str)>) -> Result<()> {
    match (committed(client, sql)?, expected) {
        (None, None) => Ok(()),
        (Some(refusal), Some((sqlstate, rule))) => says(&refusal, sqlstate, rule),
        (None, Some((_, rule))) => Err(anyhow!("accepted, should have been refused by {rule}")),
        (Some(refusal), None) => Err(anyhow!("refused: {refusal:?}")),
    }
    .with_context(|| sql.to_owned())
}

// States ---------------------------------------------------------------------------------------------

const OPEN_PTY: &str = "INSERT INTO opengeni.sandbox_pty_sessions
   (account_id, workspace_id, session_id, exec_session_id, lease_epoch, cols, rows, shell, cwd, opened_by, lease_id,
    sandbox_group_id, retained_process_id, open_admission_id, provider_backend, provider_instance_id, route_kind,
    route_target_id, route_epoch, status)
 SELECT account_id, workspace_id, session_id, provider_session_id, lease_epoch, 80, 24, 'sh', '/', 'me', lease_id,
    sandbox_group_id, id, parent_admission_id, provider_backend, provider_instance_id, route_kind,
    route_target_id, route_epoch, '{status}' FROM opengeni.sandbox_retained_processes WHERE id = '{process}'";

fn pty(command: &Command, status: &str) -> String {
    OPEN_PTY
        .replace("{status}", status)
        .replace("{process}", &command.process.to_string())
}

/// An artifact of the tenant's lease as it is.
fn artifact(tenant: &Tenant, id: Uuid, state: &str) -> String {
    let key = r#"{"version":1,"serverUrl":"https://modal","workspaceName":"w","environment":""}"#;
    format!(
        "INSERT INTO opengeni.sandbox_checkpoint_artifacts (id, account_id, workspace_id, sandbox_group_id,
           source_lease_id, source_lease_epoch, source_instance_id, source_workspace_generation, provenance,
           provider_backend, provider_binding_key, provider_binding, object_kind, object_id, archive_base64,
           archive_sha256, archive_bytes, descriptor, descriptor_revision, state, delete_after)
         SELECT '{id}', account_id, workspace_id, sandbox_group_id, id, lease_epoch, 'sb-1', workspace_generation,
           'native_capture', 'modal', '{key}', '{key}', 'modal_filesystem_snapshot', '{id}', 'YQ==',
           encode(sha256('a'), 'hex'), 1,
           jsonb_build_object('version', 2, 'kind', 'provider_snapshot', 'revision', 'r', 'archiveSha256',
             encode(sha256('a'), 'hex'), 'archiveBytes', 1, 'snapshotId', '{id}', 'provider',
             'modal_snapshot_filesystem', 'workspacePersistence', 'snapshot_filesystem'),
           'r', '{state}', CASE WHEN '{state}' = 'delete_pending' THEN now() END
         FROM opengeni.sandbox_leases WHERE id = '{}';",
        tenant.lease
    )
}

/// The lease refers to an artifact as its current checkpoint.
fn refer(tenant: &Tenant, artifact: Uuid) -> String {
    format!(
        r#"UPDATE opengeni.sandbox_leases SET current_checkpoint_artifact_id = '{artifact}',
             archive_generation = workspace_generation, resume_state =
               '{{"sessionState": {{"workspaceArchive": "YQ==", "workspaceArchiveMeta": {{"revision": "r"}}}}}}'
           WHERE id = '{}';"#,
        tenant.lease
    )
}

/// A revision of the workspace's charter.
fn revision(tenant: &Tenant, id: Uuid, superseded: Option<Uuid>) -> String {
    let superseded = superseded.map_or("NULL".to_owned(), |id| format!("'{id}'"));
    format!(
        "INSERT INTO opengeni.workspace_instruction_policy_revisions (id, account_id, workspace_id, kind, scope,
           content, content_hash, provenance_source, supersedes_revision_id, created_by_subject_id, revision)
         VALUES ('{id}', '{}', '{}', 'charter', 'global', 'text', encode(sha256('text'), 'hex'), 'human',
           {superseded}, 'me', nextval('opengeni.workspace_instruction_policy_revision_seq'));",
        tenant.account, tenant.workspace
    )
}

/// The head names a revision.
fn head(id: Uuid) -> String {
    format!(
        "INSERT INTO opengeni.workspace_instruction_policy_heads (account_id, workspace_id, kind, scope, revision_id,
           revision, content_hash, activation_version)
         SELECT account_id, workspace_id, kind, scope, id, revision, content_hash, 1
         FROM opengeni.workspace_instruction_policy_revisions WHERE id = '{id}';"
    )
}

/// An activation from one revision to the next.
fn activation(old: Uuid, new: Uuid) -> String {
    format!(
        "INSERT INTO opengeni.workspace_instruction_policy_activation_events (account_id, workspace_id, kind, scope,
           type, activation_version, old_revision_id, old_revision, old_content_hash, new_revision_id, new_revision,
           new_content_hash, actor_subject_id, reason)
         SELECT new.account_id, new.workspace_id, new.kind, new.scope, 'activate', new.revision, old.id, old.revision,
           old.content_hash, new.id, new.revision, new.content_hash, 'me', 'because'
         FROM opengeni.workspace_instruction_policy_revisions old, opengeni.workspace_instruction_policy_revisions new
         WHERE old.id = '{old}' AND new.id = '{new}';"
    )
}

/// A command whose exit is proven: it may settle.
fn prove(app: &mut Client, command: &Command) -> Result<()> {
    for step in [
        protocol::cancel(command, "explicit_stop"),
        protocol::record_receipt(command, command.receipt(0)),
        protocol::capture(command, streams(&Cursor::end(9), &Cursor::end(0)), true),
    ] {
        commit(app, &[step])?;
    }
    Ok(())
}

/// A tenant with all that a workspace leaves behind: commands that exited, were rejected, lost or never
/// supervised, input, a terminal, a viewer, checkpoints, policies.
fn history(db: &Db) -> Result<Tenant> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let [exited, rejected, legacy, lost] = [1, 2, 3, 4].map(Command::new);

    commit(&mut app, &[protocol::launch(&tenant, &exited)])?;
    answers(&mut app, &pty(&exited, "open"), None)?;
    let child = Uuid::new_v4();
    for step in [
        protocol::admit_input(&tenant, &exited, child),
        protocol::advance_input(&exited, 1),
        protocol::settle_input(child),
    ] {
        commit(&mut app, &[step])?;
    }
    prove(&mut app, &exited)?;
    let mut transaction = app.transaction()?;
    transaction
        .batch_execute("UPDATE sandbox_pty_sessions SET status = 'closed', closed_at = now()")?;
    run(&mut transaction, &protocol::settle(&tenant, &exited, 0))?;
    transaction.commit()?;

    commit(&mut app, &[protocol::launch(&tenant, &rejected)])?;
    commit(&mut app, &[protocol::reject_launch(&tenant, &rejected)])?;
    commit(
        &mut app,
        &[
            protocol::admit(&tenant, &legacy),
            protocol::retain(&tenant, &legacy),
            protocol::attach(&legacy, legacy.legacy_provider_command(&tenant)),
        ],
    )?;
    commit(&mut app, &[protocol::settle(&tenant, &legacy, 3)])?;
    commit(&mut app, &[protocol::launch(&tenant, &lost)])?;
    commit(&mut app, &[protocol::lose_provider(&tenant, &lost)])?;

    accepted(
        &mut app,
        "INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id)
         VALUES ($1, $2, $3, 'viewer', 'somebody')",
        &[&tenant.account, &tenant.workspace, &tenant.lease],
    )?;
    let [current, pending, first, second] = [(); 4].map(|()| Uuid::new_v4());
    let published = artifact(&tenant, current, "current") + &refer(&tenant, current);
    answers(&mut app, &published, None)?;
    answers(
        &mut app,
        &artifact(&tenant, pending, "delete_pending"),
        None,
    )?;
    let policies = [
        revision(&tenant, first, None),
        revision(&tenant, second, Some(first)),
        head(second),
        activation(first, second),
    ];
    answers(&mut app, &policies.concat(), None)?;
    Ok(tenant)
}

/// How many rows of an account each table has.
fn rows_of(client: &mut impl GenericClient, tenant: &Tenant) -> Result<BTreeMap<String, i64>> {
    let tables = lines(
        client,
        "SELECT relname::text FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
          WHERE relnamespace = 'opengeni'::regnamespace AND relkind = 'r' AND attname = 'account_id'",
        &[],
    )?;
    let mut rows = BTreeMap::new();
    for (table, column) in tables
        .iter()
        .map(|table| (table.as_str(), "account_id"))
        .chain([("managed_accounts", "id")])
    {
        let sql = format!("SELECT count(*) FROM opengeni.{table} WHERE {column} = $1");
        rows.insert(table.to_owned(), value(client, &sql, &[&tenant.account])?);
    }
    Ok(rows)
}

/// What has rows of the account left, once `what` is deleted. Artifacts refer to no workspace: the objects at
/// the provider are still there, and the queue deletes them.
fn expected_left(what: &str) -> Vec<&'static str> {
    match what {
        "workspaces" => vec!["managed_accounts", "sandbox_checkpoint_artifacts"],
        _ => vec!["sandbox_checkpoint_artifacts"],
    }
}

fn left(rows: &BTreeMap<String, i64>) -> Vec<&str> {
    rows.iter()
        .filter(|(_, count)| **count > 0)
        .map(|(table, _)| table.as_str())
        .collect()
}

fn deletion(what: &str, tenant: &Tenant) -> String {
    let id = match what {
        "workspaces" => tenant.workspace,
        _ => tenant.account,
    };
    format!("DELETE FROM opengeni.{what} WHERE id = '{id}'")
}

const PARENTS: [&str; 2] = ["workspaces", "managed_accounts"];

// 11 -------------------------------------------------------------------------------------------------

/// The application deletes workspaces and accounts; `bystander` keeps what it has.
fn goes(db: &Db, what: &str, tenant: &Tenant, bystander: &Tenant) -> Result<()> {
    let mut admin = db.admin()?;
    let (before, theirs) = (
        rows_of(&mut admin, tenant)?,
        rows_of(&mut admin, bystander)?,
    );
    // Turns are no part of what the guards know.
    let empty: Vec<&str> = before
        .iter()
        .filter(|(table, count)| **count == 0 && !table.starts_with("session_turn"))
        .map(|(table, _)| table.as_str())
        .collect();
    ensure!(
        empty.iter().all(|table| *table == "sandbox_command_output"),
        "nothing to go: {empty:?}"
    );
    let mut app = db.app(tenant)?;
    let delete = deletion(what, tenant);
    app.batch_execute(&format!("RESET {MARKER}"))?;
    refused(&mut app, &delete, &[])?.speaks("protocol_v2.marker")?;
    ensure!(rows_of(&mut admin, tenant)? == before);
    set(&mut app, MARKER, "1")?;
    answers(&mut app, &delete, None)?;
    let after = rows_of(&mut admin, tenant)?;
    ensure!(left(&after) == expected_left(what), "{what}: {after:?}");
    ensure!(
        after["sandbox_checkpoint_artifacts"] == before["sandbox_checkpoint_artifacts"],
        "{after:?}"
    );
    ensure!(rows_of(&mut admin, bystander)? == theirs);
    Ok(())
}

fn history_goes(db: &Db) -> Result<()> {
    attached(db)?;
    let bystander = history(db)?;
    for what in PARENTS {
        goes(db, what, &history(db)?, &bystander)?;
        // As long as a supervised command is not settled, everything stays.
        let (tenant, command) = db.supervised()?;
        let mut app = db.app(&tenant)?;
        let refusal = refused(&mut app, &deletion(what, &tenant), &[])?;
        refusal.has_state("55000")?;
        let rules = [
            "process_holder.retained",
            "parent_admission.retained",
            "supervised_command.delete_unsettled",
        ];
        ensure!(
            refusal
                .rule
                .as_deref()
                .is_some_and(|rule| rules.contains(&rule)),
            "{refusal:?}"
        );
        prove(&mut app, &command)?;
        commit(&mut app, &[protocol::settle(&tenant, &command, 0)])?;
        answers(&mut app, &deletion(what, &tenant), None)?;
        let after = rows_of(&mut db.admin()?, &tenant)?;
        ensure!(
            left(&after)
                .iter()
                .all(|table| *table == "managed_accounts"),
            "{after:?}"
        );
    }
    Ok(())
}

fn history_goes_after_restore(db: &Db) -> Result<()> {
    attached(db)?;
    let (tenant, bystander) = (history(db)?, history(db)?);
    let target = Db::empty(&db.server)?;
    dump::restore(&target, &dump::dump(db)?)?;
    ensure!(is_ready(&mut target.owner()?)?);
    goes(&target, "workspaces", &tenant, &bystander)?;
    // In pg_dump's order of the keys an account's own sessions hold it back, guards or not: see the next case.
    answers(
        &mut target.app(&tenant)?,
        &deletion("managed_accounts", &tenant),
        None,
    )?;
    goes(&target, "workspaces", &bystander, &tenant)
}

/// What a deletion comes to: what is left, or the error.
fn outcome(
    client: &mut impl GenericClient,
    sql: &str,
    tenant: &Tenant,
) -> Result<Result<BTreeMap<String, i64>, Refusal>> {
    let mut attempt = client.transaction()?;
    let done = attempt.batch_execute(&format!("{sql}; SET CONSTRAINTS ALL IMMEDIATE"));
    let outcome = match done {
        Ok(()) => Ok(rows_of(&mut attempt, tenant)?),
        Err(error) => Err(Refusal::of(&error)?),
    };
    attempt.rollback()?;
    Ok(outcome)
}

fn foreign_keys_in_any_order(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let tenant = history(db)?;
    let mut admin = db.admin()?;
    let of_schema =
        "FROM pg_constraint WHERE contype = 'f' AND connamespace = 'opengeni'::regnamespace";
    let tables = lines(
        &mut admin,
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'opengeni'::regnamespace AND relkind = 'r'",
        &[],
    )?;
    let (mut gone, mut stopped) = (0, 0);
    for order in [
        "oid",
        "oid DESC",
        // pg_dump's.
        "conrelid::regclass::text, conname",
        "conrelid::regclass::text DESC, conname DESC",
        "md5(conname || 1)",
        "md5(conname || 2)",
        "md5(conname || 3)",
        "md5(conname || 4)",
    ] {
        let keys = lines(
            &mut owner,
            &format!(
                "SELECT format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
                 {of_schema} ORDER BY {order}"
            ),
            &[],
        )?;
        ensure!(keys.len() > 20, "{} foreign keys", keys.len());
        let drop = lines(
            &mut owner,
            &format!(
                "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) {of_schema}"
            ),
            &[],
        )?;
        let mut transaction = owner.transaction()?;
        transaction.batch_execute(&drop.join(";"))?;
        transaction.batch_execute(&keys.join(";"))?;
        transaction.commit()?;
        for what in PARENTS {
            let delete = deletion(what, &tenant);
            let guarded = outcome(&mut db.app(&tenant)?, &delete, &tenant)?;
            // The server's own answer, with nobody asked.
            let mut transaction = admin.transaction()?;
            for table in &tables {
                transaction.batch_execute(&format!("ALTER TABLE {table} DISABLE TRIGGER USER"))?;
            }
            let alone = outcome(&mut transaction, &delete, &tenant)?;
            transaction.rollback()?;
            match (guarded, alone) {
                (Ok(_), Ok(rows)) => {
                    // The application sees its tenant only; the superuser all.
                    ensure!(
                        left(&rows) == expected_left(what),
                        "{order}: {what}: {rows:?}"
                    );
                    let mut again = db.admin()?;
                    match outcome(&mut again, &delete, &tenant)? {
                        Ok(seen) => ensure!(seen == rows, "{order}: {what}: {seen:?}"),
                        Err(refusal) => bail!("{order}: {what}: {refusal:?}"),
                    }
                    gone += 1;
                }
                // RESTRICT between tables that both go: the order of the keys decides, and only it.
                (Err(ours), Err(theirs)) => {
                    ensure!(
                        ours.sqlstate == "23503" && ours.rule == theirs.rule,
                        "{order}: {what}: {ours:?}, {theirs:?}"
                    );
                    stopped += 1;
                }
                (ours, theirs) => bail!("{order}: {what}: {ours:?}, {theirs:?}"),
            }
        }
    }
    ensure!(
        gone >= 10,
        "{gone} gone, {stopped} stopped by a foreign key"
    );
    ensure!(is_ready(&mut owner)?);
    Ok(())
}

// 12 -------------------------------------------------------------------------------------------------

/// A tenant on whom every guard has something to say: a published checkpoint, policies, and then a running
/// command, one that has ended, a legacy one and a terminal.
struct Scene {
    tenant: Tenant,
    running: Command,
    ended: Command,
    legacy: Command,
    current: Uuid,
    candidate: Uuid,
    /// The charter's revisions, the second in force.
    revisions: [Uuid; 2],
    app: Client,
}

impl Scene {
    fn set(db: &Db) -> Result<Self> {
        let tenant = db.tenant()?;
        let [running, ended, legacy] = [1, 2, 3].map(Command::new);
        let [current, candidate, first, second] = [(); 4].map(|()| Uuid::new_v4());
        let mut app = db.app(&tenant)?;
        for sql in [
            artifact(&tenant, current, "current") + &refer(&tenant, current),
            artifact(&tenant, candidate, "candidate"),
            revision(&tenant, first, None)
                + &revision(&tenant, second, Some(first))
                + &head(second)
                + &activation(first, second),
        ] {
            answers(&mut app, &sql, None)?;
        }
        commit(&mut app, &[protocol::launch(&tenant, &ended)])?;
        prove(&mut app, &ended)?;
        commit(&mut app, &[protocol::settle(&tenant, &ended, 0)])?;
        commit(&mut app, &[protocol::launch(&tenant, &running)])?;
        commit(
            &mut app,
            &[
                protocol::admit(&tenant, &legacy),
                protocol::retain(&tenant, &legacy),
            ],
        )?;
        answers(&mut app, &pty(&running, "open"), None)?;
        Ok(Self {
            tenant,
            running,
            ended,
            legacy,
            current,
            candidate,
            revisions: [first, second],
            app,
        })
    }
}

fn columns_renamed(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let mut scene = Scene::set(db)?;
    let process = scene.running.process;
    let lease = scene.tenant.lease;
    let [first, second] = scene.revisions;
    let touch = format!(
        "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = '{process}'"
    );
    let capture = format!(
        "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = '{lease}'"
    );
    let blocked = Some(("55000", "lease_capture.blocked"));
    let activate = activation(second, first);
    let third = revision(&scene.tenant, Uuid::new_v4(), Some(second));
    let head =
        "UPDATE workspace_instruction_policy_heads SET activation_version = activation_version + 1";
    // Table and column; a write, which writes `{}` where it has to name the column; the guard that cannot read it;
    // what the write is answered with the column in place.
    for (table, column, write, guard, answer) in [
        (
            "sandbox_retained_processes",
            "provider_session_id",
            touch.as_str(),
            "supervised_command_guard",
            None,
        ),
        (
            "sandbox_retained_processes",
            "state",
            &capture,
            "supervised_command_capture_guard",
            blocked,
        ),
        (
            "sandbox_retained_processes",
            "provider_session_id",
            "UPDATE sandbox_pty_sessions SET cols = cols + 1",
            "validate_sandbox_pty_process_v2",
            None,
        ),
        (
            "sandbox_workspace_mutation_admissions",
            "actor_id",
            "UPDATE sandbox_workspace_mutation_admissions SET operation = 'other'",
            "supervised_command_blocker_guard",
            Some(("55000", "parent_admission.retained")),
        ),
        (
            "sandbox_workspace_mutation_admissions",
            "settled_at",
            &touch,
            "validate_sandbox_retained_process_v2",
            None,
        ),
        (
            "sandbox_lease_holders",
            "holder_id",
            "UPDATE sandbox_lease_holders SET last_heartbeat_at = '2030-01-01Z'",
            "supervised_command_blocker_guard",
            Some(("55000", "process_holder.retained")),
        ),
        (
            "sandbox_lease_holders",
            "subject_id",
            &touch,
            "validate_sandbox_retained_process_v2",
            None,
        ),
        (
            "sandbox_leases",
            "archive_generation",
            &capture,
            "supervised_command_capture_guard",
            blocked,
        ),
        (
            "sandbox_leases",
            "current_checkpoint_artifact_id",
            "UPDATE sandbox_leases SET workspace_generation = workspace_generation + 1",
            "validate_sandbox_checkpoint_refs",
            None,
        ),
        (
            "sandbox_pty_sessions",
            "exec_session_id",
            "UPDATE sandbox_pty_sessions SET cols = cols + 1",
            "validate_sandbox_pty_process_v2",
            None,
        ),
        (
            "sandbox_checkpoint_artifacts",
            "archive_sha256",
            "UPDATE sandbox_checkpoint_artifacts SET delete_attempts = 1",
            "enforce_sandbox_checkpoint_artifact_immutability",
            None,
        ),
        (
            "sandbox_checkpoint_artifacts",
            "state",
            "UPDATE sandbox_checkpoint_artifacts SET {} = {}",
            "validate_sandbox_checkpoint_artifact_refs",
            None,
        ),
        (
            "sandbox_leases",
            "previous_checkpoint_artifact_id",
            "UPDATE sandbox_checkpoint_artifacts SET state = state",
            "validate_sandbox_checkpoint_artifact_refs",
            None,
        ),
        (
            "workspace_instruction_policy_revisions",
            "scope",
            &third,
            "workspace_instruction_policy_validate_revision_link",
            None,
        ),
        (
            "workspace_instruction_policy_revisions",
            "content_hash",
            head,
            "workspace_instruction_policy_validate_head",
            None,
        ),
        (
            "workspace_instruction_policy_heads",
            "content_hash",
            head,
            "workspace_instruction_policy_validate_head",
            None,
        ),
        (
            "workspace_instruction_policy_activation_events",
            "new_content_hash",
            &activate,
            "workspace_instruction_policy_validate_event",
            None,
        ),
    ] {
        let context = || format!("{table}.{column}: {write}");
        let rename =
            |from: &str, to: &str| format!("ALTER TABLE {table} RENAME COLUMN {from} TO {to}");
        owner.batch_execute(&rename(column, "renamed"))?;
        let renamed = match write.contains("{}") {
            true => write.replace("{}", "renamed"),
            // What names the column names it by its new name.
            false => write.replace(&format!(" {column},"), " renamed,"),
        };
        let Some(refusal) = committed(&mut scene.app, &renamed)? else {
            bail!("committed: {}", context());
        };
        refusal.has_state("42703").with_context(context)?;
        refusal
            .names(&[table, column, guard])
            .with_context(context)?;
        let seen = states(&mut owner, &format!("table {table}"))?;
        ensure!(seen == ["incompatible"], "{}: {seen:?}", context());
        refused(&mut owner, "SELECT opengeni_guards.attach('opengeni')", &[])?
            .has_state("42703")?;
        owner.batch_execute(&rename("renamed", column))?;
        // The first answer in the same session is the right one.
        let whole = write.replace("{}", column);
        let undone = format!("{whole}; SET CONSTRAINTS ALL IMMEDIATE");
        let mut attempt = scene.app.transaction()?;
        match (attempt.batch_execute(&undone), answer) {
            (Ok(()), None) => {}
            (Err(error), Some((sqlstate, rule))) => {
                says(&Refusal::of(&error)?, sqlstate, rule).with_context(context)?
            }
            (answer, _) => bail!("{}: {answer:?}", context()),
        }
        attempt.rollback()?;
    }
    ensure!(is_ready(&mut owner)?);
    speaks_again(db)
}

fn contract_column_renamed(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    fleet::pair(db, SCHEMA)?;
    let mut app = db.session(APP)?;
    let all = |client: &mut Client| -> Result<Vec<Result<Vec<String>, Refusal>>> {
        let mut answers = Vec::new();
        for function in READERS.iter().chain(WRITERS) {
            let mut attempt = client.transaction()?;
            let sql = format!(
                "SELECT answer::text FROM {} AS answer ORDER BY 1",
                function.contract()
            );
            answers.push(match attempt.query(&sql, &[]) {
                Ok(rows) => Ok(rows
                    .iter()
                    .map(|row| row.get::<_, Option<String>>(0).unwrap_or_default())
                    .collect()),
                Err(error) => Err(Refusal::of(&error)?),
            });
            attempt.rollback()?;
        }
        Ok(answers)
    };
    let before = all(&mut app)?;
    ensure!(before.iter().all(Result::is_ok), "{before:#?}");
    for (table, column, least) in [
        ("sandbox_leases", "liveness", 4),
        ("sandbox_leases", "provider_deadline_at", 2),
        ("sandbox_lease_holders", "last_heartbeat_at", 1),
        ("sandbox_retained_processes", "reconcile_after", 1),
        ("sandbox_checkpoint_artifacts", "delete_after", 1),
        ("sandbox_checkpoint_artifacts", "state", 3),
    ] {
        owner.batch_execute(&format!(
            "ALTER TABLE {table} RENAME COLUMN {column} TO renamed"
        ))?;
        let between = all(&mut app)?;
        let mut failed = 0;
        for (between, before) in between.iter().zip(&before) {
            match between {
                Ok(_) => ensure!(between == before, "{column}: {between:?}"),
                Err(refusal) => {
                    refusal.has_state("42703").and(refusal.names(&[column]))?;
                    failed += 1;
                }
            }
        }
        ensure!(failed >= least, "{table}.{column}: {failed} failed");
        owner.batch_execute(&format!(
            "ALTER TABLE {table} RENAME COLUMN renamed TO {column}"
        ))?;
        let after = all(&mut app)?;
        ensure!(after == before, "{table}.{column}: {after:#?}");
    }
    ensure!(is_ready(&mut owner)?);
    Ok(())
}

/// The tables that have guards.
const GUARDED: [&str; 9] = [
    "sandbox_retained_processes",
    "sandbox_workspace_mutation_admissions",
    "sandbox_leases",
    "sandbox_lease_holders",
    "sandbox_pty_sessions",
    "sandbox_checkpoint_artifacts",
    "workspace_instruction_policy_revisions",
    "workspace_instruction_policy_heads",
    "workspace_instruction_policy_activation_events",
];

/// With a table gone from its name: what status() and ready() say, and that the switches fail, or work, clearly.
fn missing(owner: &mut impl GenericClient, table: &str) -> Result<()> {
    let qualified = format!("opengeni.{table}");
    let seen: Vec<String> = lines(
        owner,
        "SELECT state FROM opengeni_guards.status('opengeni') WHERE object = 'table ' || $1",
        &[&table],
    )?;
    ensure!(seen == ["missing"], "{table}: {seen:?}");
    let guards: i64 = value(
        owner,
        "SELECT count(*) FROM opengeni_guards.status('opengeni')
          WHERE object LIKE 'trigger % on ' || $1 AND state <> 'missing'",
        &[&table],
    )?;
    ensure!(guards == 0, "{table}: {guards} guards are not missing");
    ensure!(is_ready(owner)? != GUARDED.contains(&table), "{table}");
    for call in ["attach('opengeni')", "attach('opengeni', mode => 'shadow')"] {
        let refusal = refused(owner, &format!("SELECT opengeni_guards.{call}"), &[])?;
        refusal.has_state("42P01")?;
        refusal.names(&[&qualified, "provision"])?;
    }
    // Going back does without the table, unless what it puts back wants to see it.
    let mut attempt = owner.transaction()?;
    let rows = attempt.query(
        "SELECT action, object FROM opengeni_guards.detach('opengeni')",
        &[],
    );
    match rows {
        Ok(rows) => {
            let restored = rows.iter().filter(|row| {
                row.get::<_, &str>(0) == "restored"
                    && row.get::<_, &str>(1).starts_with("function ")
            });
            ensure!(restored.count() == 14, "{table}");
        }
        Err(error) => {
            let refusal = Refusal::of(&error)?;
            refusal
                .has_state("42P01")
                .and(refusal.names(&[&qualified]))?;
        }
    }
    attempt.rollback()?;
    Ok(())
}

fn tables_renamed(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let mut scene = Scene::set(db)?;
    let process = scene.running.process;
    let touch = format!(
        "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = '{process}'"
    );
    let pty = "UPDATE sandbox_pty_sessions SET cols = cols + 1";
    let head =
        "UPDATE workspace_instruction_policy_heads SET activation_version = activation_version + 1";
    let capture = "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid()";
    let artifact = "UPDATE sandbox_checkpoint_artifacts SET state = state";
    // A write elsewhere that needs the table, and the guard that misses it.
    for (table, write, guard, answer) in [
        (
            "sandbox_retained_processes",
            capture,
            "supervised_command_capture_guard",
            Some(("55000", "lease_capture.blocked")),
        ),
        (
            "sandbox_retained_processes",
            pty,
            "validate_sandbox_pty_process_v2",
            None,
        ),
        (
            "sandbox_workspace_mutation_admissions",
            &touch,
            "validate_sandbox_retained_process_v2",
            None,
        ),
        (
            "sandbox_lease_holders",
            &touch,
            "validate_sandbox_retained_process_v2",
            None,
        ),
        (
            "sandbox_leases",
            artifact,
            "validate_sandbox_checkpoint_artifact_refs",
            None,
        ),
        (
            "workspace_instruction_policy_revisions",
            head,
            "workspace_instruction_policy_validate_head",
            None,
        ),
    ] {
        owner.batch_execute(&format!("ALTER TABLE {table} RENAME TO elsewhere"))?;
        let Some(refusal) = committed(&mut scene.app, write)? else {
            bail!("committed without {table}: {write}");
        };
        refusal.has_state("42P01")?;
        refusal.names(&[table, guard])?;
        owner.batch_execute(&format!("ALTER TABLE elsewhere RENAME TO {table}"))?;
        let mut attempt = scene.app.transaction()?;
        let done = attempt.batch_execute(&format!("{write}; SET CONSTRAINTS ALL IMMEDIATE"));
        match (done, answer) {
            (Ok(()), None) => {}
            (Err(error), Some((sqlstate, rule))) => says(&Refusal::of(&error)?, sqlstate, rule)?,
            (done, _) => bail!("{table}: {write}: {done:?}"),
        }
        attempt.rollback()?;
    }
    for table in GUARDED.iter().chain(&PARENTS) {
        owner.batch_execute(&format!("ALTER TABLE {table} RENAME TO elsewhere"))?;
        missing(&mut owner, table)?;
        // Its guards went with it, and still guard it.
        if *table == "sandbox_retained_processes" {
            let delete = format!("DELETE FROM elsewhere WHERE id = '{process}'");
            answers(
                &mut scene.app,
                &delete,
                Some(("55000", "supervised_command.delete_unsettled")),
            )?;
        }
        owner.batch_execute(&format!("ALTER TABLE elsewhere RENAME TO {table}"))?;
        ensure!(is_ready(&mut owner)?, "{table}");
        ensure!(states(&mut owner, "table")?.is_empty(), "{table}");
    }
    speaks_again(db)?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    Ok(())
}

fn tables_dropped(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let scene = Scene::set(db)?;
    for table in GUARDED.iter().chain(&PARENTS).chain(&[
        "sessions",
        "session_turns",
        "session_turn_attempts",
    ]) {
        let mut attempt = owner.transaction()?;
        attempt.batch_execute(&format!("DROP TABLE {table} CASCADE"))?;
        missing(&mut attempt, table)?;
        attempt.rollback()?;
    }
    // For good. Sessions that knew the table go on.
    let mut app = scene.app;
    for dropped in [
        &["sandbox_pty_sessions"][..],
        &["sandbox_retained_processes"],
        &["sandbox_leases"],
        &["workspace_instruction_policy_revisions"],
        &["sandbox_checkpoint_artifacts", "sandbox_lease_holders"],
        &["workspaces"],
    ] {
        // Rows that would refer to nobody.
        db.admin()?.batch_execute(
            "SET session_replication_role = replica; DELETE FROM sandbox_retained_processes; DELETE FROM sandbox_pty_sessions;
             DELETE FROM sandbox_workspace_mutation_admissions; DELETE FROM sandbox_lease_holders; DELETE FROM sandbox_leases;
             DELETE FROM workspace_instruction_policy_activation_events; DELETE FROM workspace_instruction_policy_heads;
             DELETE FROM workspace_instruction_policy_revisions; DELETE FROM sessions; DELETE FROM workspaces",
        )?;
        owner.batch_execute(&format!("DROP TABLE {} CASCADE", dropped.join(", ")))?;
        if let [table] = dropped {
            missing(&mut owner, table)?;
        }
        owner.batch_execute("SELECT opengeni_guards.provision('opengeni')")?;
        grant_usage(&mut owner, APP, SCHEMA)?;
        let done = switch(&mut owner, "attach('opengeni')")?;
        ensure!(
            !done.iter().any(|line| line.starts_with("left ")),
            "{dropped:?}: {done:#?}"
        );
        ensure!(is_ready(&mut owner)?, "{dropped:?}");
        ensure!(states(&mut owner, "table")?.is_empty(), "{dropped:?}");
        let tenant = db.tenant()?;
        let command = Command::new(1);
        set(&mut app, "opengeni.account_id", &tenant.account.to_string())?;
        set(
            &mut app,
            "opengeni.workspace_id",
            &tenant.workspace.to_string(),
        )?;
        commit(&mut app, &[protocol::launch(&tenant, &command)])?;
        answers(&mut app, &pty(&command, "open"), None)?;
        answers(
            &mut app,
            &format!(
                "DELETE FROM sandbox_retained_processes WHERE id = '{}'",
                command.process
            ),
            Some(("55000", "supervised_command.delete_unsettled")),
        )?;
        speaks_again(db).with_context(|| format!("{dropped:?}"))?;
    }
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    Ok(())
}

fn schema_renamed(db: &Db) -> Result<()> {
    let before = definitions(&mut db.admin()?)?;
    let mut owner = attached(db)?;
    fleet::pair(db, SCHEMA)?;
    let Scene {
        tenant,
        running,
        mut app,
        ..
    } = Scene::set(db)?;
    let delete = format!(
        "DELETE FROM sandbox_retained_processes WHERE id = '{}'",
        running.process
    );
    for (number, from, to) in [
        (7, SCHEMA, "moved"),
        (8, "moved", SCHEMA),
        (9, SCHEMA, "moved"),
    ] {
        owner.batch_execute(&format!("ALTER SCHEMA {from} RENAME TO {to}"))?;
        set(&mut app, "search_path", to)?;
        let refusal = refused(&mut app, &delete, &[])?;
        refusal.speaks("supervised_command.delete_unsettled")?;
        ensure!(refusal.schema.as_deref() == Some(to), "{refusal:?}");
        commit(
            &mut app,
            &[protocol::launch(&tenant, &Command::new(number))],
        )?;
        let odd = lines(
            &mut owner,
            "SELECT concat_ws(' ', object, state, detail) FROM opengeni_guards.status($1)
              WHERE state NOT IN ('native', 'present') AND object !~ '^(index|constraint|foreign key|policy) '",
            &[&to],
        )?;
        ensure!(odd.is_empty(), "{odd:#?}");
        let fleet = fleet::answers(&mut owner, READERS, |f| f.native(to))?;
        ensure!(fleet.iter().all(|rows| !rows.is_empty()), "{fleet:?}");
        for client in [&mut app, &mut db.session(APP)?] {
            ensure!(fleet::answers(client, READERS, |f| f.contract())? == fleet);
            let mut transaction = client.transaction()?;
            for function in WRITERS {
                fleet::answer(&mut transaction, &function.contract())
                    .with_context(|| function.name)?;
            }
            transaction.rollback()?;
        }
        let again = lines(
            &mut owner,
            "SELECT DISTINCT action FROM opengeni_guards.attach($1)",
            &[&to],
        )?;
        ensure!(again == ["present"], "{again:?}");
        refused(
            &mut owner,
            &format!("SELECT opengeni_guards.attach('{from}')"),
            &[],
        )?
        .has_state("3F000")?;
    }
    // What stood there names the schema's old name: under the new one there is no way back, and nothing changes.
    let attached = snapshot(&mut db.admin()?)?;
    let refusal = refused(&mut owner, "SELECT opengeni_guards.detach('moved')", &[])?;
    refusal.has_state("42P01")?;
    refusal.names(&["opengeni."])?;
    same(&attached, &snapshot(&mut db.admin()?)?)?;
    owner.batch_execute("ALTER SCHEMA moved RENAME TO opengeni")?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    let mut after = definitions(&mut db.admin()?)?;
    after.retain(|line| !line.contains("opengeni_guards"));
    same(&before, &after)
}

// 14 -------------------------------------------------------------------------------------------------

/// What befalls a guard.
struct Harm {
    sql: &'static str,
    trigger: &'static str,
    state: &'static str,
    /// How attach speaks of it: the action, or the SQLSTATE that it fails with.
    attach: &'static str,
    /// What a DBA has to do besides.
    repair: &'static str,
}

const HARMS: &[Harm] = &[
    Harm {
        sql: "DROP TRIGGER supervised_command_guard ON sandbox_retained_processes",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "missing",
        attach: "created",
        repair: "",
    },
    Harm {
        sql: "ALTER TABLE sandbox_retained_processes DISABLE TRIGGER supervised_command_guard",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "disabled",
        attach: "left",
        repair: "ALTER TABLE sandbox_retained_processes ENABLE TRIGGER supervised_command_guard",
    },
    Harm {
        sql: "ALTER TABLE sandbox_retained_processes DISABLE TRIGGER USER",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "disabled",
        attach: "left",
        repair: "ALTER TABLE sandbox_retained_processes ENABLE TRIGGER USER",
    },
    Harm {
        sql: "ALTER TABLE sandbox_retained_processes ENABLE REPLICA TRIGGER supervised_command_guard",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "disabled",
        attach: "left",
        repair: "ALTER TABLE sandbox_retained_processes ENABLE TRIGGER supervised_command_guard",
    },
    Harm {
        sql: "CREATE OR REPLACE TRIGGER supervised_command_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_retained_processes
                FOR EACH ROW EXECUTE FUNCTION opengeni_private.supervised_command_guard()",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "plpgsql",
        attach: "rebound",
        repair: "",
    },
    Harm {
        sql: "DROP TRIGGER sandbox_retained_processes_identity_v2 ON sandbox_retained_processes;
              CREATE CONSTRAINT TRIGGER sandbox_retained_processes_identity_v2 AFTER INSERT OR UPDATE ON sandbox_retained_processes
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
                EXECUTE FUNCTION opengeni_private.validate_sandbox_retained_process_v2()",
        trigger: "sandbox_retained_processes_identity_v2 on sandbox_retained_processes",
        state: "plpgsql",
        attach: "rebound",
        repair: "",
    },
    // Triggers hang on the columns of their WHEN and of their UPDATE OF.
    Harm {
        sql: "ALTER TABLE sandbox_retained_processes DROP COLUMN settlement_reason CASCADE",
        trigger: "supervised_provider_loss_commit_guard on sandbox_retained_processes",
        state: "missing",
        attach: "42703",
        repair: "ALTER TABLE sandbox_retained_processes ADD COLUMN settlement_reason text",
    },
    Harm {
        sql: "ALTER TABLE sandbox_leases DROP COLUMN unobservable_command_drain_ids CASCADE",
        trigger: "supervised_command_capture_guard on sandbox_leases",
        state: "missing",
        attach: "42703",
        repair: "ALTER TABLE sandbox_leases ADD COLUMN unobservable_command_drain_ids uuid[]",
    },
    Harm {
        sql: "ALTER TABLE sandbox_leases DROP COLUMN current_checkpoint_artifact_id CASCADE",
        trigger: "sandbox_checkpoint_refs_guard on sandbox_leases",
        state: "missing",
        attach: "42703",
        repair: "ALTER TABLE sandbox_leases ADD COLUMN current_checkpoint_artifact_id uuid",
    },
];

fn guards_go(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let attach = "SELECT object, action FROM opengeni_guards.attach('opengeni')";
    for harm in HARMS {
        let context = || harm.sql.to_owned();
        let trigger = format!("trigger {}", harm.trigger);
        owner.batch_execute(harm.sql)?;
        ensure!(!is_ready(&mut owner)?, "{}", harm.sql);
        let seen = states(&mut owner, &trigger)?;
        ensure!(seen == [harm.state], "{}: {seen:?}", harm.sql);
        let mode = states(&mut owner, "mode")?;
        ensure!(mode == ["partly"], "{}: {mode:?}", harm.sql);
        let on = harm.trigger.replace(" on ", " on opengeni.");
        let action_of = |owner: &mut Client| -> Result<Option<String>> {
            Ok(owner
                .query(attach, &[])?
                .iter()
                .find(|row| row.get::<_, &str>(0) == format!("trigger {on}"))
                .map(|row| row.get(1)))
        };
        if harm.attach == "42703" {
            refused(&mut owner, attach, &[])?
                .has_state(harm.attach)
                .with_context(context)?;
            ensure!(
                states(&mut owner, "table")? == ["incompatible"],
                "{}",
                harm.sql
            );
            owner.batch_execute(harm.repair)?;
            let action = action_of(&mut owner)?;
            ensure!(
                action.as_deref() == Some("created"),
                "{}: {action:?}",
                harm.sql
            );
        } else {
            let action = action_of(&mut owner)?;
            ensure!(
                action.as_deref() == Some(harm.attach),
                "{}: {action:?}",
                harm.sql
            );
            ensure!(
                is_ready(&mut owner)? == harm.repair.is_empty(),
                "{}",
                harm.sql
            );
            owner.batch_execute(harm.repair)?;
        }
        ensure!(is_ready(&mut owner)?, "{}", harm.sql);
        let mode = states(&mut owner, "mode")?;
        ensure!(mode == ["native"], "{}: {mode:?}", harm.sql);
        // Each of these guards speaks again.
        speaks_again(db).with_context(context)?;
    }
    // What was dropped with a column is not in the way of going back.
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    Ok(())
}

/// A rule of each guard that `HARMS` takes away, and a life that none of them stops.
fn speaks_again(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let process = command.process;
    let lease = tenant.lease;
    answers(
        &mut app,
        &format!("DELETE FROM sandbox_retained_processes WHERE id = '{process}'"),
        Some(("55000", "supervised_command.delete_unsettled")),
    )?;
    answers(
        &mut app,
        &format!(
            "UPDATE sandbox_leases SET unobservable_command_drain_ids = ARRAY['{process}'::uuid] WHERE id = '{lease}'"
        ),
        Some(("55000", "lease_capture.blocked")),
    )?;
    let (legacy_tenant, legacy) = db.legacy()?;
    answers(
        &mut db.app(&legacy_tenant)?,
        &format!(
            "UPDATE sandbox_retained_processes SET holder_id = 'forged' WHERE id = '{}'",
            legacy.process
        ),
        Some(("55000", "retained_process.identity")),
    )?;
    let candidate = Uuid::new_v4();
    answers(
        &mut db.app(&legacy_tenant)?,
        &artifact(&legacy_tenant, candidate, "candidate"),
        None,
    )?;
    answers(
        &mut db.app(&legacy_tenant)?,
        &refer(&legacy_tenant, candidate),
        Some(("23514", "checkpoint_refs.current")),
    )?;
    let mut loss = app.transaction()?;
    run(
        &mut loss,
        &[
            protocol::loss_binding(&tenant.loss_binding()),
            protocol::mark_lost(&command, "provider_instance_lost"),
            protocol::settle_parent(&command, "rejected"),
            protocol::release_holder(&tenant, &command),
        ],
    )?;
    match loss.commit() {
        Ok(()) => bail!("a loss beside a warm lease was committed"),
        Err(error) => says(
            &Refusal::of(&error)?,
            "55000",
            "provider_loss.recovery_truth",
        )?,
    }
    commit(&mut app, &[protocol::lose_provider(&tenant, &command)])
}

fn contract_taken_back(db: &Db) -> Result<()> {
    let before = definitions(&mut db.admin()?)?;
    let functions = lines(
        &mut db.owner()?,
        "SELECT pg_get_functiondef(oid) FROM pg_proc
          WHERE pronamespace = 'opengeni_private'::regnamespace
            AND proname IN ('reap_sandbox_leases', 'sandbox_rotation_backlog', 'list_live_modal_sandbox_leases')",
        &[],
    )?;
    ensure!(functions.len() == 3, "{functions:#?}");
    let mut owner = attached(db)?;
    for function in &functions {
        owner.batch_execute(function)?;
    }
    let seen = states(&mut owner, "function opengeni_private.reap_sandbox_leases")?;
    ensure!(seen == ["plpgsql"], "{seen:?}");
    ensure!(is_ready(&mut owner)?, "no guard was touched");
    let done = switch(&mut owner, "attach('opengeni')")?;
    let replaced: Vec<&String> = done
        .iter()
        .filter(|line| !line.starts_with("present "))
        .collect();
    ensure!(
        replaced.len() == 3
            && replaced
                .iter()
                .all(|line| line.starts_with("replaced function ")),
        "{replaced:#?}"
    );
    let seen = states(&mut owner, "function opengeni_private.reap_sandbox_leases")?;
    ensure!(seen == ["native"], "{seen:?}");
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    // PUBLIC had lost them before the migration took them back.
    let closed = |lines: Vec<String>| -> Vec<String> {
        let lines = lines.into_iter();
        lines
            .filter(|line| !line.contains("opengeni_guards"))
            .map(|line| line.replace("{=X/og_cases_owner,", "{"))
            .collect()
    };
    same(&closed(before), &closed(definitions(&mut db.admin()?)?))
}

// 20 -------------------------------------------------------------------------------------------------

fn other_encodings(db: &Db) -> Result<()> {
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

// 21 -------------------------------------------------------------------------------------------------

/// Every relation that a guard or an original reads by name.
const SIBLINGS: [&str; 11] = [
    "sandbox_retained_processes",
    "sandbox_workspace_mutation_admissions",
    "sandbox_leases",
    "sandbox_lease_holders",
    "sandbox_pty_sessions",
    "sandbox_checkpoint_artifacts",
    "workspace_instruction_policy_revisions",
    "workspace_instruction_policy_heads",
    "workspace_instruction_policy_activation_events",
    "workspaces",
    "managed_accounts",
];

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
    for table in SIBLINGS {
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

/// The policies' helpers of the originals follow the caller's path, and are not what is asked here.
const PINNED_HELPERS: &str = "
    ALTER FUNCTION opengeni_private.current_account_id() SET search_path = pg_catalog, pg_temp;
    ALTER FUNCTION opengeni_private.current_workspace_id() SET search_path = pg_catalog, pg_temp;
    ALTER FUNCTION opengeni_private.workspace_rls_visible(uuid, uuid) SET search_path = pg_catalog, pg_temp";

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
        // As deep as a cascade, with the workspace still there.
        (
            "INSERT INTO bait VALUES (1)".to_owned(),
            Some(("55000", "instruction_policy.immutable")),
        ),
    ]
}

fn decoys(db: &Db) -> Result<()> {
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
    let bait = "CREATE TEMP TABLE bait (id int);
        CREATE FUNCTION pg_temp.spring() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN DELETE FROM opengeni.workspace_instruction_policy_activation_events; RETURN NULL; END $$;
        CREATE TRIGGER spring AFTER INSERT ON bait FOR EACH ROW EXECUTE FUNCTION pg_temp.spring()";
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
                    if says(&refusal, sqlstate, rule).is_err() {
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
        app.batch_execute(bait)?;
        decoy_tables(&mut app, kind)?;
        app.batch_execute(TEMP_NAMES)?;
        app.batch_execute("CREATE DOMAIN pg_temp.uuid AS pg_catalog.uuid CHECK (false)")?;
        set(&mut app, "search_path", path)?;
        Ok(app)
    };
    let mut app = db.app(&tenant)?;
    app.batch_execute(bait)?;
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

fn contract_decoys(db: &Db) -> Result<()> {
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

// 22 -------------------------------------------------------------------------------------------------

/// Which functions that run as their owner somebody else may execute.
fn open_definers(client: &mut Client, role: &str) -> Result<Vec<String>> {
    lines(
        client,
        "SELECT oid::regprocedure::text FROM pg_proc
          WHERE prosecdef AND has_function_privilege($1::text, oid, 'EXECUTE')
            AND pronamespace IN (SELECT oid FROM pg_namespace WHERE nspname LIKE 'opengeni%') ORDER BY 1",
        &[&role],
    )
}

fn opened_afterwards(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let mut admin = db.admin()?;
    // Nobody but whom the application names: contract functions, and two trigger functions of its own.
    let contract = open_definers(&mut admin, APP)?;
    let guards = contract.iter().filter(|name| name.contains(".validate_"));
    ensure!(guards.count() == 2 && contract.len() == 14, "{contract:?}");
    ensure!(open_definers(&mut admin, "public")?.is_empty());
    owner.batch_execute(&format!(
        "ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC, {STRANGER};
         ALTER DEFAULT PRIVILEGES IN SCHEMA opengeni_private GRANT EXECUTE ON FUNCTIONS TO PUBLIC, {STRANGER} ;
         ALTER DEFAULT PRIVILEGES IN SCHEMA opengeni GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC, {APP};
         ALTER DEFAULT PRIVILEGES IN SCHEMA opengeni GRANT ALL ON TABLES TO PUBLIC, {APP}"
    ))?;
    admin.batch_execute(
        "ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
         ALTER DEFAULT PRIVILEGES IN SCHEMA opengeni_private GRANT EXECUTE ON FUNCTIONS TO PUBLIC",
    )?;
    let closed = |admin: &mut Client, when: &str| -> Result<()> {
        for role in ["public", STRANGER] {
            let open = open_definers(admin, role)?;
            ensure!(open.is_empty(), "{when}: {role}: {open:?}");
        }
        let ledgers = lines(
            admin,
            "SELECT relname || ' ' || role FROM pg_class, unnest(ARRAY['public', $1::text, $2]) AS role
              WHERE relname IN ('opengeni_guards_replaced', 'opengeni_guards_shadow') AND relkind = 'r'
                AND (has_table_privilege(role, pg_class.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
                  OR has_any_column_privilege(role, pg_class.oid, 'SELECT, INSERT, UPDATE, REFERENCES'))",
            &[&APP, &STRANGER],
        )?;
        ensure!(ledgers.is_empty(), "{when}: {ledgers:?}");
        Ok(())
    };
    for role in [OWNER, "postgres"] {
        let mut caller = db.session(role)?;
        // Made anew, by name or by default, under those privileges.
        owner.batch_execute("DROP FUNCTION opengeni_private.sandbox_rotation_backlog()")?;
        switch(&mut caller, "attach('opengeni')")?;
        closed(&mut admin, &format!("attach by {role}"))?;
        owner.batch_execute(
            "DROP FUNCTION opengeni_private.reap_sandbox_leases(bigint, bigint, bigint)",
        )?;
        caller.batch_execute("SELECT opengeni_guards.provision('opengeni')")?;
        closed(&mut admin, &format!("provision by {role}"))?;
        grant_usage(&mut owner, APP, SCHEMA)?;
        // There and back, and on with watching: the ledgers are made anew.
        switch(&mut caller, "detach('opengeni', force => true)")?;
        switch(&mut caller, "attach('opengeni', mode => 'shadow')")?;
        let ledgers: bool = value(
            &mut admin,
            "SELECT to_regclass('opengeni.opengeni_guards_shadow') IS NOT NULL",
            &[],
        )?;
        ensure!(ledgers);
        switch(&mut caller, "attach('opengeni')")?;
        closed(&mut admin, &format!("once more by {role}"))?;
    }
    // What the application's own set-up grants at large gives the contract, and no way to change it.
    for grant in [
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_private TO",
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni TO",
    ] {
        owner.batch_execute(&format!("{grant} {APP}"))?;
    }
    admin.batch_execute(&format!(
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_guards TO {APP} WITH GRANT OPTION"
    ))?;
    closed(&mut admin, "blanket grants")?;
    let open = open_definers(&mut admin, APP)?;
    ensure!(open == contract, "{open:?}");
    let before = snapshot(&mut admin)?;
    let mut app = db.session(APP)?;
    for call in [
        "attach('opengeni')",
        "attach()",
        "attach('opengeni', mode => 'shadow')",
        "detach('opengeni')",
        "detach('opengeni', force => true)",
        "provision('opengeni')",
        "provision('opengeni', 'og_cases_app')",
        "grant_usage('og_cases_app', 'opengeni')",
        "grant_usage('public', 'opengeni')",
        "revoke_usage('og_cases_app', 'opengeni')",
        "shadow_report('opengeni')",
    ] {
        let sql = format!("SELECT opengeni_guards.{call}");
        refused(&mut app, &sql, &[])?
            .has_state("42501")
            .with_context(|| call)?;
    }
    for function in READERS.iter().chain(WRITERS) {
        let mut attempt = app.transaction()?;
        attempt.batch_execute(&format!("SELECT FROM {}", function.contract()))?;
        attempt.rollback()?;
    }
    same(&before, &snapshot(&mut admin)?)
}

// 23 -------------------------------------------------------------------------------------------------

/// Another application role.
const SECOND: &str = "og_cases_second_app";

/// A tenant with a command that has its receipt, and one that runs.
fn with_receipt(db: &Db) -> Result<(Tenant, Command, Command, String)> {
    let (tenant, ended) = db.supervised()?;
    let running = Command::new(2);
    let mut app = db.app(&tenant)?;
    prove(&mut app, &ended)?;
    commit(&mut app, &[protocol::launch(&tenant, &running)])?;
    commit(
        &mut app,
        &[protocol::admit_input(&tenant, &running, Uuid::new_v4())],
    )?;
    let receipt = value(
        &mut app,
        "SELECT supervision_receipt::text FROM sandbox_retained_processes WHERE id = $1",
        &[&ended.process],
    )?;
    Ok((tenant, ended, running, receipt))
}

fn identities(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let mut admin = db.admin()?;
    if admin
        .query_opt("SELECT FROM pg_roles WHERE rolname = $1", &[&SECOND])?
        .is_none()
    {
        admin.batch_execute(&format!("CREATE ROLE {SECOND} NOLOGIN"))?;
    }
    grant_usage(&mut owner, SECOND, SCHEMA)?;
    let tenants = [with_receipt(db)?, with_receipt(db)?];
    let fleet = fleet::answers(&mut owner, READERS, |f| f.native(SCHEMA))?;
    // Of what each sees by itself: leases, processes, and the natives' answers.
    let mut own = Vec::new();
    for (tenant, ..) in &tenants {
        own.push(fleet::answers(&mut db.app(tenant)?, READERS, |f| {
            f.native(SCHEMA)
        })?);
    }
    ensure!(own[0] != own[1] && own[0] != fleet);

    for mode in ["auto", "force_generic_plan", "force_custom_plan"] {
        let mut session = db.admin()?;
        set(&mut session, "plan_cache_mode", mode)?;
        set(&mut session, MARKER, "1")?;
        // Planned once and kept, under whatever identity comes first.
        let leases = session.prepare("SELECT array_agg(workspace_id) FROM sandbox_leases")?;
        let touch = session.prepare(
            "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = $1",
        )?;
        let release = session.prepare("DELETE FROM sandbox_lease_holders WHERE holder_id = $1")?;
        let load = session.prepare(
            "SELECT opengeni_guards.load_supervision_receipt($1, $2, $3, $4, 'opengeni')::text",
        )?;
        let reserve = session
            .prepare("SELECT opengeni_guards.reserve_input($1, $2, $3, $4, 5, 'opengeni')")?;
        for turn in 0..7 {
            for (role, mine) in [
                (APP, Some(0)),
                (SECOND, Some(1)),
                (OWNER, None),
                (APP, Some(1)),
                (OWNER, Some(0)),
                (SECOND, Some(0)),
                (APP, None),
            ] {
                let context = || format!("{mode}, turn {turn}: {role}, tenant {mine:?}");
                session.batch_execute(&format!("SET ROLE {role}"))?;
                let (account, workspace) = match mine {
                    Some(mine) => (
                        tenants[mine].0.account.to_string(),
                        tenants[mine].0.workspace.to_string(),
                    ),
                    None => (String::new(), String::new()),
                };
                set(&mut session, "opengeni.account_id", &account)?;
                set(&mut session, "opengeni.workspace_id", &workspace)?;
                let visible = mine.map(|mine| vec![tenants[mine].0.workspace]);
                let sees_its_own = |client: &mut postgres::Transaction<'_>| -> Result<()> {
                    let seen: Option<Vec<Uuid>> = client.query_one(&leases, &[])?.get(0);
                    ensure!(seen == visible, "{}: {seen:?}", context());
                    Ok(())
                };
                let mut transaction = session.transaction()?;
                sees_its_own(&mut transaction)?;
                let wrapped = fleet::answers(&mut transaction, READERS, |f| f.contract())?;
                ensure!(wrapped == fleet, "{}: {wrapped:?}", context());
                sees_its_own(&mut transaction)?;
                let direct = fleet::answers(&mut transaction, READERS, |f| f.native(SCHEMA))?;
                match (role, mine) {
                    (OWNER, _) => ensure!(direct == fleet, "{}: {direct:?}", context()),
                    (_, Some(mine)) => ensure!(direct == own[mine], "{}: {direct:?}", context()),
                    _ => ensure!(direct != own[0] && direct != own[1] && direct != fleet),
                }
                sees_its_own(&mut transaction)?;
                for (number, (tenant, ended, running, receipt)) in tenants.iter().enumerate() {
                    // The four ids say whose command it is; no other tenant's ids reach it.
                    let other = &tenants[1 - number].0;
                    let right = |process| -> [Uuid; 4] {
                        [tenant.account, tenant.workspace, tenant.session, process]
                    };
                    let call =
                        |client: &mut postgres::Transaction<'_>, statement, ids: [Uuid; 4]| {
                            client.query_one(statement, &[&ids[0], &ids[1], &ids[2], &ids[3]])
                        };
                    let loaded = call(&mut transaction, &load, right(ended.process))?;
                    ensure!(
                        loaded.get::<_, Option<&str>>(0) == Some(receipt),
                        "{}",
                        context()
                    );
                    let none = call(&mut transaction, &load, right(running.process))?;
                    ensure!(none.get::<_, Option<&str>>(0).is_none(), "{}", context());
                    for process in [ended.process, running.process] {
                        for statement in [&load, &reserve] {
                            let mut attempt = transaction.transaction()?;
                            let ids = [other.account, other.workspace, other.session, process];
                            match call(&mut attempt, statement, ids) {
                                Ok(_) => bail!("{}: another tenant's command", context()),
                                Err(error) => Refusal::of(&error)?.has_state("P0002")?,
                            }
                            attempt.rollback()?;
                            sees_its_own(&mut transaction)?;
                        }
                    }
                    let mut attempt = transaction.transaction()?;
                    let at: i64 = call(&mut attempt, &reserve, right(running.process))?.get(0);
                    ensure!(at == 0, "{}: {at}", context());
                    sees_its_own(&mut attempt)?;
                    attempt.rollback()?;
                    // Writes reach the own tenant's rows, and there the guard answers.
                    let expected = u64::from(mine == Some(number));
                    let touched = transaction.execute(&touch, &[&running.process])?;
                    ensure!(touched == expected, "{}: {touched} touched", context());
                    let mut attempt = transaction.transaction()?;
                    match (attempt.execute(&release, &[&running.holder()]), expected) {
                        (Ok(0), 0) => {}
                        (Err(error), 1) => {
                            says(&Refusal::of(&error)?, "55000", "process_holder.retained")?;
                        }
                        (outcome, _) => bail!("{}: {outcome:?}", context()),
                    }
                    attempt.rollback()?;
                    sees_its_own(&mut transaction)?;
                }
                transaction.commit()?;
            }
            session.batch_execute("RESET ROLE")?;
            let lifted = lines(
                &mut session,
                "SELECT relname::text FROM pg_class WHERE relnamespace = 'opengeni'::regnamespace AND relkind = 'r'
                   AND relname LIKE 'sandbox_%' AND relname <> 'sandbox_checkpoint_artifacts'
                   AND NOT (relrowsecurity AND relforcerowsecurity)",
                &[],
            )?;
            ensure!(lifted.is_empty(), "{lifted:?}");
        }
    }
    Ok(())
}

// 24 -------------------------------------------------------------------------------------------------

fn parallel(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    // Functions of their arguments alone.
    let safe = lines(
        &mut owner,
        "SELECT proname::text FROM pg_proc WHERE proparallel = 's' AND pronamespace = 'opengeni_guards'::regnamespace ORDER BY 1",
        &[],
    )?;
    ensure!(
        safe == [
            "has_retired_session_create_selection",
            "rules",
            "warming_reset_resume_state_v2",
            "without_retired_session_create_metadata",
        ],
        "{safe:?}"
    );
    let wrong = lines(
        &mut owner,
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
           JOIN pg_proc native ON d.refclassid = 'pg_proc'::regclass AND native.oid = d.refobjid
          WHERE p.pronamespace IN ('opengeni'::regnamespace, 'opengeni_private'::regnamespace)
            AND native.pronamespace = 'opengeni_guards'::regnamespace
            AND (p.proparallel = 's' AND native.proparallel <> 's' OR p.provolatile = 'i' AND native.provolatile <> 'i')",
        &[],
    )?;
    ensure!(wrong.is_empty(), "{wrong:?}");

    fleet::pair(db, SCHEMA)?;
    // The application's own helpers would keep every query of a table with a policy from going parallel.
    owner.batch_execute(
        "ALTER FUNCTION opengeni_private.current_account_id() PARALLEL SAFE;
         ALTER FUNCTION opengeni_private.current_workspace_id() PARALLEL SAFE;
         ALTER FUNCTION opengeni_private.workspace_rls_visible(uuid, uuid) PARALLEL SAFE",
    )?;
    let force = match db.server.major {
        ..=15 => "force_parallel_mode",
        _ => "debug_parallel_query",
    };
    let with_workers = format!(
        "SET {force} = on; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
         SET min_parallel_index_scan_size = 0; SET max_parallel_workers_per_gather = 4"
    );
    let mut seen = Vec::new();
    for settings in ["", &with_workers] {
        let mut all = Vec::new();
        for tenant in [0, 1, 2] {
            for role in [APP, OWNER] {
                let mut session = db.session(role)?;
                session.batch_execute(settings)?;
                fleet::enter(&mut session, tenant)?;
                all.push(fleet::answers(&mut session, READERS, |f| f.contract())?);
                all.push(fleet::answers(&mut session, READERS, |f| f.native(SCHEMA))?);
                let mut transaction = session.transaction()?;
                all.push(fleet::answers(&mut transaction, WRITERS, |f| f.contract())?);
                transaction.rollback()?;
                all.push(vec![lines(
                    &mut session,
                    "SELECT 'l' || id FROM sandbox_leases UNION ALL SELECT 'p' || id FROM sandbox_retained_processes ORDER BY 1",
                    &[],
                )?]);
                // Beside the inventory, in one statement: the policy asks in this backend, and it says no.
                all.push(vec![lines(
                    &mut session,
                    "SELECT (SELECT count(*) FROM opengeni_private.list_live_modal_sandbox_leases()) || ' ' || count(*)
                       FROM sandbox_leases",
                    &[],
                )?]);
                if tenant == 0 && role == OWNER {
                    fleet::closed(&mut session)?;
                }
            }
        }
        seen.push(all);
    }
    for (number, (alone, workers)) in seen[0].iter().zip(&seen[1]).enumerate() {
        ensure!(
            alone == workers,
            "answer {number}: {alone:?}, with workers {workers:?}"
        );
    }
    // There were workers, where the policy allows them, and none where the capability is asked for.
    let mut app = fleet::app(db, 1)?;
    app.batch_execute(&with_workers)?;
    for (table, workers) in [
        ("sandbox_retained_processes", true),
        ("sandbox_leases", false),
    ] {
        let plan = lines(&mut app, &format!("EXPLAIN SELECT * FROM {table}"), &[])?.join("\n");
        ensure!(plan.contains("Gather") == workers, "{table}:\n{plan}");
    }
    Ok(())
}

// 28 -------------------------------------------------------------------------------------------------

/// `trap.spring()` counts, across rollbacks, who runs it and whether it can become more. Whatever the owner can
/// hang on its tables calls it.
fn lay_mines(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute(
        "CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO PUBLIC;
         CREATE SEQUENCE trap.as_superuser; CREATE SEQUENCE trap.as_owner; CREATE SEQUENCE trap.escaped;
         GRANT ALL ON ALL SEQUENCES IN SCHEMA trap TO PUBLIC;
         CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $trap$
         DECLARE
           attempt text;
         BEGIN
           IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
             PERFORM nextval('trap.as_superuser');
             RETURN true;
           END IF;
           PERFORM nextval('trap.as_owner');
           FOREACH attempt IN ARRAY ARRAY['SET ROLE postgres', 'SET LOCAL ROLE postgres', 'SET ROLE NONE', 'RESET ROLE',
             'RESET SESSION AUTHORIZATION', 'SET SESSION AUTHORIZATION postgres', 'CREATE ROLE og_cases_escaped SUPERUSER',
             'CREATE TEMP TABLE og_cases_escaped (id int)', 'ALTER SYSTEM SET log_statement = none'] LOOP
             BEGIN
               EXECUTE attempt;
               IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user)
                 OR attempt ~ '^(CREATE ROLE|ALTER)' THEN
                 PERFORM nextval('trap.escaped');
               END IF;
             EXCEPTION WHEN OTHERS THEN NULL;
             END;
           END LOOP;
           RETURN true;
         END $trap$;
         CREATE FUNCTION trap.fired() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM trap.spring(); RETURN coalesce(NEW, OLD); END $$;
         CREATE FUNCTION trap.text(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM trap.spring(); RETURN $1; END $$;
         CREATE FUNCTION trap.sure(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN trap.spring(); END $$;
         CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.spring(); RETURN now(); END $$;
         CREATE DOMAIN trap.trapped AS text CHECK (trap.sure(value));
         CREATE VIEW trap.seen AS SELECT trap.text('x') AS rule, trap.text('y') AS object, 1::bigint AS refusals, trap.now() AS seen_at",
    )?;
    for table in GUARDED {
        owner.batch_execute(&format!(
            "CREATE TRIGGER a_mine BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION trap.fired();
             CREATE TRIGGER statement_mine AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table} FOR EACH STATEMENT
               EXECUTE FUNCTION trap.fired();
             CREATE CONSTRAINT TRIGGER late_mine AFTER INSERT OR UPDATE OR DELETE ON {table} DEFERRABLE INITIALLY DEFERRED
               FOR EACH ROW EXECUTE FUNCTION trap.fired();
             CREATE INDEX {table}_mine ON {table} (trap.text(id::text));
             CREATE INDEX {table}_mine_where ON {table} (id) WHERE trap.sure('constant');
             ALTER TABLE {table} ADD CONSTRAINT mine CHECK (trap.sure('constant') AND trap.sure(id::text)),
               ALTER COLUMN id SET DEFAULT trap.text(gen_random_uuid()::text)::uuid;
             CREATE POLICY mine ON {table} USING (trap.sure('constant') AND trap.sure(id::text));
             CREATE STATISTICS {table}_mine_statistics ON (trap.text(id::text)), (trap.text(account_id::text)) FROM {table}"
        ))?;
    }
    // What a caller's path, a role's settings or a function's could lead to.
    for (signature, result) in [
        ("format(text, text)", "text"),
        ("quote_ident(text)", "text"),
        ("set_config(text, text, boolean)", "text"),
        ("encode(bytea, text)", "text"),
        ("concat_ws(text, text, text)", "text"),
        ("pg_get_triggerdef(oid)", "text"),
        ("pg_get_functiondef(oid)", "text"),
        ("has_schema_privilege(text, text)", "boolean"),
        ("count(bigint)", "bigint"),
    ] {
        owner.batch_execute(&format!(
            "CREATE FUNCTION opengeni.{signature} RETURNS {result} LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.spring(); RETURN NULL; END $$"
        ))?;
    }
    for kind in ["text", "name", "oid", "jsonb", "uuid"] {
        owner.batch_execute(&format!(
            "CREATE FUNCTION opengeni.equal({kind}, {kind}) RETURNS boolean LANGUAGE plpgsql AS
               $$ BEGIN PERFORM trap.spring(); RETURN true; END $$;
             CREATE OPERATOR opengeni.= (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = opengeni.equal);
             CREATE OPERATOR opengeni.<> (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = opengeni.equal)"
        ))?;
    }
    owner.batch_execute(&format!(
        "ALTER FUNCTION opengeni_private.workspace_rls_visible(uuid, uuid) SET search_path = opengeni, trap;
         ALTER ROLE {OWNER} IN DATABASE {} SET search_path = opengeni, trap, pg_catalog;
         ALTER ROLE {OWNER} IN DATABASE {} SET check_function_bodies = off",
        db.name, db.name
    ))?;
    Ok(())
}

fn sprung(client: &mut Client, sequence: &str) -> Result<i64> {
    value(
        client,
        "SELECT coalesce(pg_sequence_last_value($1::text::regclass), 0)",
        &[&format!("trap.{sequence}")],
    )
}

fn mines(db: &Db) -> Result<()> {
    let (tenant, _) = db.supervised()?;
    lay_mines(db)?;
    let mut owner = db.owner()?;
    let mut admin = db.admin()?;
    let reset = |client: &mut Client| {
        client.batch_execute(
        "SELECT setval('trap.as_superuser', 1, false), setval('trap.as_owner', 1, false), setval('trap.escaped', 1, false)",
    )
    };
    reset(&mut admin)?;
    // On the ledgers, once they are there.
    let ledger = "ALTER TABLE opengeni_guards_replaced ALTER COLUMN replaced_at SET DEFAULT trap.now(),
          ADD CONSTRAINT mine CHECK (trap.sure('constant') AND trap.sure(object)),
          ADD COLUMN made text GENERATED ALWAYS AS (trap.text(object)) STORED, ADD COLUMN note trap.trapped DEFAULT 'note';
        CREATE INDEX mine ON opengeni_guards_replaced (trap.text(object));
        CREATE INDEX mine_where ON opengeni_guards_replaced (object) WHERE trap.sure('constant');
        CREATE STATISTICS mine_of_ledger ON (trap.text(object)), (trap.text(owner)) FROM opengeni_guards_replaced";
    // With something to write into it.
    let written = format!("{ledger}; DROP FUNCTION opengeni_private.sandbox_rotation_backlog()");
    let log = "ALTER TABLE opengeni_guards_shadow ALTER COLUMN seen_at SET DEFAULT trap.now(),
          ADD CONSTRAINT mine CHECK (trap.sure(rule));
        CREATE INDEX mine_of_log ON opengeni_guards_shadow (trap.text(rule));
        CREATE INDEX mine_of_log_where ON opengeni_guards_shadow (rule) WHERE trap.sure('constant')";
    let view = "DROP TABLE opengeni_guards_shadow; ALTER VIEW trap.seen SET SCHEMA opengeni; ALTER VIEW seen RENAME TO opengeni_guards_shadow";
    for (before, call) in [
        ("", "CREATE EXTENSION opengeni_guards"),
        ("", "SELECT * FROM opengeni_guards.status()"),
        ("", "SELECT * FROM opengeni_guards.status('opengeni')"),
        ("", "SELECT opengeni_guards.ready('opengeni')"),
        ("", "SELECT * FROM opengeni_guards.detach('opengeni')"),
        (
            "",
            "SELECT * FROM opengeni_guards.attach('opengeni', mode => 'shadow')",
        ),
        (
            log,
            "SELECT * FROM opengeni_guards.shadow_report('opengeni')",
        ),
        (
            view,
            "SELECT * FROM opengeni_guards.shadow_report('opengeni')",
        ),
        ("", "SELECT * FROM opengeni_guards.attach('opengeni')"),
        ("", "SELECT * FROM opengeni_guards.status('opengeni')"),
        (
            "",
            "SELECT opengeni_guards.grant_usage('og_cases_app', 'opengeni')",
        ),
        (ledger, "SELECT * FROM opengeni_guards.detach('opengeni')"),
        ("", "SELECT * FROM opengeni_guards.attach('opengeni')"),
        (
            &written,
            "SELECT * FROM opengeni_guards.attach('opengeni', fire => 'always')",
        ),
        ("", "SELECT * FROM opengeni_guards.detach('opengeni')"),
        (
            "DROP INDEX sandbox_leases_group_idx; DROP POLICY workspace_isolation ON sandbox_lease_holders",
            "SELECT * FROM opengeni_guards.provision('opengeni')",
        ),
        (
            "",
            "SELECT opengeni_guards.revoke_usage('og_cases_app', 'opengeni')",
        ),
        ("", "SELECT * FROM opengeni_guards.attach()"),
    ] {
        owner
            .batch_execute(before)
            .with_context(|| before.to_owned())?;
        for path in ["opengeni", "opengeni, trap, pg_catalog"] {
            let mut caller = db.admin()?;
            caller.batch_execute(&format!("SET search_path = {path}"))?;
            let mut transaction = caller.transaction()?;
            if call.starts_with("CREATE EXTENSION") && path != "opengeni" {
                continue;
            }
            transaction
                .batch_execute(call)
                .map_err(|error| anyhow!("{}: {call}", describe(&error)))?;
            transaction
                .commit()
                .with_context(|| format!("COMMIT after {call}"))?;
            // The caller is itself again, and free.
            caller.batch_execute(
                "CREATE TEMP TABLE free (id int); SET ROLE og_cases_app; RESET ROLE",
            )?;
            for sequence in ["as_superuser", "escaped"] {
                let count = sprung(&mut admin, sequence)?;
                ensure!(
                    count == 0,
                    "{call}, search_path = {path}: {sequence} {count} times"
                );
            }
        }
    }
    // A deferred constraint would evaluate the owner's expression at COMMIT: the ledger is not written then.
    owner.batch_execute(
        "ALTER TABLE opengeni_guards_replaced ADD CONSTRAINT late EXCLUDE USING btree
           (trap.text(object) WITH OPERATOR(pg_catalog.=)) DEFERRABLE INITIALLY DEFERRED",
    )?;
    for call in ["attach", "detach"] {
        let mut caller = db.admin()?;
        // So that attach has something to write.
        owner
            .batch_execute("DROP FUNCTION IF EXISTS opengeni_private.sandbox_rotation_backlog()")?;
        let done = caller.execute(&format!("SELECT opengeni_guards.{call}('opengeni')"), &[]);
        match (call, done) {
            ("attach", Ok(_)) => ensure!(
                states(
                    &mut caller,
                    "function opengeni_private.sandbox_rotation_backlog"
                )? == ["missing"]
            ),
            ("detach", Err(error)) => Refusal::of(&error)?.has_state("55000")?,
            (call, done) => bail!("{call}: {done:?}"),
        }
        for sequence in ["as_superuser", "escaped"] {
            let count = sprung(&mut admin, sequence)?;
            ensure!(count == 0, "{call}, late: {sequence} {count} times");
        }
    }
    ensure!(
        sprung(&mut admin, "as_owner")? > 0,
        "nothing of the owner's ran at all"
    );
    let made = admin.query_opt(
        "SELECT FROM pg_roles WHERE rolname = 'og_cases_escaped'",
        &[],
    )?;
    ensure!(made.is_none(), "a role was made");
    // The mines are live: a superuser's own write of the row steps on them.
    admin.execute(
        "UPDATE sandbox_leases SET os = 'linux' WHERE id = $1",
        &[&tenant.lease],
    )?;
    ensure!(sprung(&mut admin, "as_superuser")? > 3, "dead mines");
    Ok(())
}

// 29 -------------------------------------------------------------------------------------------------

/// What can stand under a table's name: how it is made of the table `{t}` (in schema `{s}`), the SQLSTATE that it is
/// refused with, and how status() describes it.
const ALIKE: [(&str, &str, &str, &str); 8] = [
    ("a view", "ALTER TABLE {s}.{t} RENAME TO real; CREATE VIEW {s}.{t} AS SELECT * FROM {s}.real", "42809", "not an ordinary table"),
    ("a materialized view", "ALTER TABLE {s}.{t} RENAME TO real; CREATE MATERIALIZED VIEW {s}.{t} AS SELECT * FROM {s}.real", "42809",
        "not an ordinary table"),
    ("a partitioned table", "ALTER TABLE {s}.{t} RENAME TO real; CREATE TABLE {s}.{t} (LIKE {s}.real INCLUDING DEFAULTS) PARTITION BY HASH (account_id);
        CREATE TABLE {s}.part PARTITION OF {s}.{t} FOR VALUES WITH (MODULUS 1, REMAINDER 0)", "42809", "not an ordinary table"),
    ("a foreign table", "ALTER TABLE {s}.{t} RENAME TO real; CREATE FOREIGN TABLE {s}.{t} (id uuid NOT NULL, provider_command jsonb) SERVER nowhere",
        "42809", "not an ordinary table"),
    ("a table with a child", "CREATE TABLE {s}.heir () INHERITS ({s}.{t})", "42809", "has child tables, which no guard reads"),
    ("another text type", "ALTER TABLE {s}.{t} ALTER COLUMN provider_backend TYPE varchar(99)", "42804",
        "column provider_backend has type character varying(99) instead of text"),
    ("a domain", "CREATE DOMAIN {s}.trapped AS text CHECK (trap.sure(value)); ALTER TABLE {s}.{t} ALTER COLUMN provider_backend TYPE {s}.trapped",
        "42804", "column provider_backend has type {s}.trapped instead of text"),
    ("a type with a cast", "CREATE TYPE {s}.kind AS ENUM ('modal');
        CREATE FUNCTION {s}.to_text({s}.kind) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM trap.spring(); RETURN 'modal'; END $$;
        CREATE CAST ({s}.kind AS text) WITH FUNCTION {s}.to_text({s}.kind) AS IMPLICIT;
        ALTER TABLE {s}.{t} ALTER COLUMN provider_backend DROP DEFAULT;
        ALTER TABLE {s}.{t} ADD COLUMN other {s}.kind; ALTER TABLE {s}.{t} DROP COLUMN provider_backend CASCADE;
        ALTER TABLE {s}.{t} RENAME COLUMN other TO provider_backend", "42804", "column provider_backend has type {s}.kind instead of text"),
];

fn trap_only(db: &Db) -> Result<()> {
    db.admin()?.batch_execute(&format!(
        "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
         GRANT USAGE ON FOREIGN SERVER nowhere TO {OWNER}"
    ))?;
    db.owner()?.batch_execute(
        "CREATE SCHEMA trap; CREATE SEQUENCE trap.sprung;
         CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('trap.sprung'); RETURN true; END $$;
         CREATE FUNCTION trap.sure(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN trap.spring(); END $$",
    )?;
    Ok(())
}

fn named(sql: &str, schema: &str, table: &str) -> String {
    sql.replace("{s}", schema).replace("{t}", table)
}

/// The definitions that name a schema.
fn of_schema(db: &Db, schema: &str) -> Result<Vec<String>> {
    let mut lines = snapshot(&mut db.admin()?)?;
    lines.retain(|line| line.contains(&format!("{schema}.")));
    Ok(lines)
}

fn look_alikes_elsewhere(db: &Db) -> Result<()> {
    trap_only(db)?;
    let mut owner = db.owner()?;
    let tables = lines(
        &mut owner,
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'opengeni'::regnamespace AND relkind = 'r'",
        &[],
    )?;
    const TABLE: &str = "sandbox_retained_processes";
    for (number, (_, sql, ..)) in ALIKE.iter().enumerate() {
        let schema = format!("alike_{number}");
        owner.batch_execute(&format!("CREATE SCHEMA {schema}"))?;
        for table in &tables {
            owner.batch_execute(&format!(
                "CREATE TABLE {schema}.{table} (LIKE opengeni.{table} INCLUDING DEFAULTS)"
            ))?;
        }
        owner
            .batch_execute(&named(sql, &schema, TABLE))
            .with_context(|| named(sql, &schema, TABLE))?;
    }
    let all = |db: &Db| -> Result<Vec<Vec<String>>> {
        (0..ALIKE.len())
            .map(|n| of_schema(db, &format!("alike_{n}")))
            .collect()
    };
    let before = all(db)?;
    let told = create_extension(db)?;
    ensure!(
        told.contains("26 guards of schema opengeni are native"),
        "{told}"
    );
    let done = switch(&mut owner, "attach()")?;
    for (number, (what, sql, state, detail)) in ALIKE.iter().enumerate() {
        let schema = format!("alike_{number}");
        let detail = named(detail, &schema, TABLE);
        // A schema is found by its process table; where nothing of the kind stands under the name, it is none.
        let found = !sql.contains("RENAME TO real");
        let warned = told.contains(&format!("guards of schema {schema} are left as they are"));
        ensure!(warned == found, "{what}: {told}");
        let skipped = done
            .iter()
            .find(|line| line.starts_with(&format!("skipped schema {schema} ")));
        ensure!(
            skipped.is_some_and(|line| line.contains(&detail)) == found,
            "{what}: {done:#?}"
        );
        for call in ["attach", "provision"] {
            let refusal = refused(
                &mut owner,
                &format!("SELECT opengeni_guards.{call}('{schema}')"),
                &[],
            )
            .with_context(|| format!("{what}: {call}"))?;
            refusal.has_state(state).with_context(|| *what)?;
            refusal.names(&[TABLE])?;
        }
        let ready: bool = value(&mut owner, "SELECT opengeni_guards.ready($1)", &[&schema])?;
        ensure!(!ready, "{what}");
        let seen = lines(
            &mut owner,
            "SELECT concat_ws(' ', state, detail) FROM opengeni_guards.status($1) WHERE object = 'table ' || $2",
            &[&schema, &TABLE],
        )?;
        ensure!(
            seen == [format!("incompatible {detail}")],
            "{what}: {seen:?}"
        );
        // There is nothing to take back; that it was the first schema that a shared function is from may be said.
        let mut attempt = owner.transaction()?;
        let back = format!("SELECT action FROM opengeni_guards.detach('{schema}')");
        match attempt.query(&back, &[]) {
            Ok(rows) => ensure!(
                rows.iter().all(|row| row.get::<_, &str>(0) == "left"),
                "{what}"
            ),
            Err(error) => Refusal::of(&error)?.has_state("55000")?,
        }
        attempt.rollback()?;
    }
    for (before, after) in before.iter().zip(&all(db)?) {
        same(before, after)?;
    }
    ensure!(
        value::<bool>(&mut owner, "SELECT NOT is_called FROM trap.sprung", &[])?,
        "the owner's code ran"
    );
    ensure!(is_ready(&mut owner)?);
    works(db, true)
}

fn look_alikes_inside(db: &Db) -> Result<()> {
    trap_only(db)?;
    let mut owner = db.owner()?;
    // Before there is an extension, each by itself; undone before the next.
    for table in [
        "sandbox_retained_processes",
        "sandbox_workspace_mutation_admissions",
    ] {
        for (what, sql, state, detail) in ALIKE {
            let context = || format!("{what} as {table}");
            let (sql, detail) = (named(sql, SCHEMA, table), named(detail, SCHEMA, table));
            let mut admin = db.admin()?;
            let mut transaction = admin.transaction()?;
            transaction
                .batch_execute(&format!("SET LOCAL ROLE {OWNER}; {sql}; RESET ROLE"))
                .with_context(context)?;
            let guards = "SELECT array_agg(tgfoid::regproc::text ORDER BY 1) FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
               WHERE relnamespace = 'opengeni'::regnamespace AND NOT tgisinternal";
            let before: Vec<String> = value(&mut transaction, guards, &[])?;
            transaction
                .batch_execute("CREATE EXTENSION opengeni_guards")
                .with_context(context)?;
            ensure!(
                value::<Vec<String>>(&mut transaction, guards, &[])? == before,
                "{}",
                context()
            );
            let refusal = refused(
                &mut transaction,
                "SELECT opengeni_guards.attach('opengeni')",
                &[],
            )?;
            refusal.has_state(state).with_context(context)?;
            refusal.names(&[table])?;
            let seen = lines(
                &mut transaction,
                "SELECT concat_ws(' ', state, detail) FROM opengeni_guards.status('opengeni') WHERE object = 'table ' || $1",
                &[&table],
            )?;
            ensure!(
                seen == [format!("incompatible {detail}")],
                "{}: {seen:?}",
                context()
            );
            transaction.rollback()?;
        }
    }
    // After it was attached: status tells, attach leaves everything, and a guard that needs the table says so.
    extension(db)?;
    switch(&mut owner, "attach('opengeni')")?;
    let (tenant, command) = db.supervised()?;
    let child = "sandbox_workspace_mutation_admissions";
    let mut app = db.app(&tenant)?;
    let touch =
        "UPDATE sandbox_retained_processes SET provider_command_input_index = 9 WHERE id = $1";
    for (what, sql, state, detail) in ALIKE {
        let context = || format!("{what} as {child}");
        let mut transaction = owner.transaction()?;
        // The owner writes, who sees the row as the tenant does.
        for (name, text) in [
            ("opengeni.account_id", tenant.account.to_string()),
            ("opengeni.workspace_id", tenant.workspace.to_string()),
            (MARKER, "1".to_owned()),
        ] {
            set(&mut transaction, name, &text)?;
        }
        says(
            &refused(&mut transaction, touch, &[&command.process])?,
            "55000",
            "supervised_command.stdin_child",
        )?;
        transaction
            .batch_execute(&named(sql, SCHEMA, child))
            .with_context(context)?;
        // Making it may have rewritten rows; looking at it must not.
        transaction.batch_execute("SELECT setval('trap.sprung', 1, false)")?;
        refused(
            &mut transaction,
            "SELECT opengeni_guards.attach('opengeni')",
            &[],
        )?
        .has_state(state)
        .with_context(context)?;
        let seen = lines(
            &mut transaction,
            "SELECT concat_ws(' ', state, detail) FROM opengeni_guards.status('opengeni') WHERE object = 'table ' || $1",
            &[&child],
        )?;
        ensure!(
            seen == [format!("incompatible {}", named(detail, SCHEMA, child))],
            "{}: {seen:?}",
            context()
        );
        let refusal = refused(&mut transaction, touch, &[&command.process])?;
        ensure!(
            ["42P01", "42809", "42804", "42703"].contains(&refusal.sqlstate.as_str()),
            "{}: {refusal:?}",
            context()
        );
        refusal
            .names(&[child, "supervised_command_guard"])
            .with_context(context)?;
        let quiet = "SELECT NOT is_called FROM trap.sprung";
        ensure!(
            value::<bool>(&mut transaction, quiet, &[])?,
            "{}: the owner's code ran",
            context()
        );
        transaction.rollback()?;
        says(
            &refused(&mut app, touch, &[&command.process])?,
            "55000",
            "supervised_command.stdin_child",
        )?;
    }
    Ok(())
}

// 30 -------------------------------------------------------------------------------------------------

fn checked_at_commit(db: &Db) -> Result<()> {
    attached(db)?;
    let identity = Some(("55000", "retained_process.identity"));

    // A process that its parent admission does not know.
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let mut app = db.app(&tenant)?;
    commit(&mut app, &[protocol::admit(&tenant, &command)])?;
    let process = command.process;
    let forge = format!(
        "INSERT INTO sandbox_retained_processes (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id,
           parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, lease_epoch, provider_backend,
           provider_instance_id, route_kind, route_epoch, provider_session_id)
         SELECT '{process}', account_id, workspace_id, session_id, lease_id, sandbox_group_id, id, 'forged', actor_kind,
           actor_id, lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, 1
         FROM sandbox_workspace_mutation_admissions WHERE id = '{}';",
        command.admission
    );
    let delete = format!("DELETE FROM sandbox_retained_processes WHERE id = '{process}';");
    answers(&mut app, &forge, identity)?;
    answers(&mut app, &(forge.clone() + &delete), identity)?;
    answers(
        &mut app,
        &format!("SAVEPOINT s; {forge} ROLLBACK TO s; SELECT 1"),
        None,
    )?;
    answers(
        &mut app,
        &format!("{forge} SAVEPOINT s; {delete} ROLLBACK TO s"),
        identity,
    )?;

    // Settled, but the holder stays.
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    prove(&mut app, &command)?;
    let settled = |released: bool| {
        let holder = match released {
            true => format!(
                "DELETE FROM sandbox_lease_holders WHERE holder_id = '{}';",
                command.holder()
            ),
            false => String::new(),
        };
        format!(
            "UPDATE sandbox_retained_processes SET state = 'exited', exit_code = 0, settled_at = now() WHERE id = '{0}';
             UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'resolved', settled_at = now() WHERE id = '{1}';
             {holder} DELETE FROM sandbox_retained_processes WHERE id = '{0}'",
            command.process, command.admission
        )
    };
    answers(&mut app, &settled(false), identity)?;
    answers(&mut app, &settled(true), None)?;

    // A process row that a later statement, or the end of a savepoint, makes look right.
    let (tenant, command) = db.legacy()?;
    let mut app = db.app(&tenant)?;
    let process = command.process;
    let become_holder = |holder: &str| {
        format!(
            "UPDATE sandbox_retained_processes SET holder_id = '{holder}' WHERE id = '{process}';"
        )
    };
    let touch = format!(
        "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = '{process}';"
    );
    let (bad, good) = (become_holder("forged"), become_holder(&command.holder()));
    let delete = format!("DELETE FROM sandbox_retained_processes WHERE id = '{process}';");
    app.batch_execute("CREATE TEMP TABLE copy AS SELECT * FROM sandbox_retained_processes")?;
    let insert = "INSERT INTO sandbox_retained_processes SELECT * FROM copy;";
    for (steps, expected) in [
        (format!("{bad} SAVEPOINT s; {good} ROLLBACK TO s"), identity),
        (
            format!("{bad} SAVEPOINT s; {good} ROLLBACK TO s; {touch}"),
            identity,
        ),
        (
            format!("{touch} SAVEPOINT s; {bad} {touch} ROLLBACK TO s; {touch}"),
            None,
        ),
        (
            format!("{touch} SAVEPOINT s; {bad} RELEASE s; {touch}"),
            identity,
        ),
        (
            format!("SAVEPOINT s; {bad} SAVEPOINT t; {good} RELEASE t; ROLLBACK TO s; {bad}"),
            identity,
        ),
        (format!("{bad} {good}"), None),
        (format!("{bad} {delete} {insert}"), identity),
        (format!("{delete} {insert}"), None),
        (format!("{delete} {insert} {bad}"), identity),
    ] {
        answers(&mut app, &steps, expected)?;
    }

    // A loss that the lease does not know of.
    let lost = |tenant: &Tenant, command: &Command, cold: bool, end: &str| {
        let lease = match cold {
            true => format!(
                r#"UPDATE sandbox_leases SET liveness = 'cold', instance_id = NULL, lease_epoch = lease_epoch + 1, resume_state =
                     '{{"opengeniRecovery": {{"provider": {{"status": "missing", "instanceId": "{}"}},
                        "restore": {{"status": "degraded"}}, "workspace": {{"status": "degraded"}}}}}}' WHERE id = '{}';"#,
                tenant.instance, tenant.lease
            ),
            false => String::new(),
        };
        format!(
            "SELECT set_config('{LOSS}', '{}', true);
             UPDATE sandbox_retained_processes SET state = 'lost', settlement_reason = 'provider_instance_lost', settled_at = now()
               WHERE id = '{}';
             UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'rejected', settled_at = now() WHERE id = '{}';
             {lease} DELETE FROM sandbox_lease_holders WHERE holder_id = '{}'; {end}",
            tenant.loss_binding(), command.process, command.admission, command.holder()
        )
    };
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let delete = format!(
        "DELETE FROM sandbox_retained_processes WHERE id = '{}'",
        command.process
    );
    let truth = Some(("55000", "provider_loss.recovery_truth"));
    answers(&mut app, &lost(&tenant, &command, false, ""), truth)?;
    answers(&mut app, &lost(&tenant, &command, false, &delete), truth)?;
    let warmed = format!(
        "UPDATE sandbox_leases SET liveness = 'warm', instance_id = 'sb-next' WHERE id = '{}'",
        tenant.lease
    );
    answers(&mut app, &lost(&tenant, &command, true, &warmed), truth)?;
    answers(&mut app, &lost(&tenant, &command, true, &delete), None)?;

    // A terminal of a command that has ended.
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let open = pty(&command, "open");
    answers(
        &mut app,
        &format!("{open}; DELETE FROM sandbox_pty_sessions"),
        None,
    )?;
    prove(&mut app, &command)?;
    commit(&mut app, &[protocol::settle(&tenant, &command, 0)])?;
    let closed = pty(&command, "closed");
    let rule = Some(("55000", "pty.identity"));
    answers(
        &mut app,
        &format!("{open}; DELETE FROM sandbox_pty_sessions"),
        rule,
    )?;
    answers(
        &mut app,
        &format!("{open}; UPDATE sandbox_pty_sessions SET status = 'closed'"),
        None,
    )?;
    answers(
        &mut app,
        "UPDATE sandbox_pty_sessions SET status = 'open'; SAVEPOINT s;
         UPDATE sandbox_pty_sessions SET status = 'closed'; ROLLBACK TO s",
        rule,
    )?;
    answers(
        &mut app,
        &format!("DELETE FROM sandbox_pty_sessions; {closed}"),
        None,
    )?;

    // A reference to a checkpoint that is none.
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let lease = tenant.lease;
    let [candidate, current] = [(); 2].map(|()| Uuid::new_v4());
    answers(&mut app, &artifact(&tenant, candidate, "candidate"), None)?;
    let bad = refer(&tenant, candidate);
    let rename = format!("UPDATE sandbox_leases SET id = gen_random_uuid() WHERE id = '{lease}';");
    let repair = format!(
        "UPDATE sandbox_leases SET current_checkpoint_artifact_id = NULL WHERE id = '{lease}';"
    );
    app.batch_execute("CREATE TEMP TABLE copied AS SELECT * FROM sandbox_leases")?;
    let anew = format!(
        "DELETE FROM sandbox_leases WHERE id = '{lease}'; INSERT INTO sandbox_leases SELECT * FROM copied;"
    );
    let rule = Some(("23514", "checkpoint_refs.current"));
    for (steps, expected) in [
        (bad.clone(), rule),
        (format!("{bad} {rename}"), rule),
        (format!("{bad} {anew}"), rule),
        (anew.clone(), None),
        (format!("{bad} {repair}"), None),
        (format!("{bad} SAVEPOINT s; {repair} ROLLBACK TO s"), rule),
        (format!("SAVEPOINT s; {bad} ROLLBACK TO s; {repair}"), None),
    ] {
        answers(&mut app, &steps, expected)?;
    }
    // And the other way round: what an artifact says of itself.
    let state = |state: &str| {
        format!(
            "UPDATE sandbox_checkpoint_artifacts SET state = '{state}' WHERE id = '{candidate}';"
        )
    };
    let gone = format!("DELETE FROM sandbox_checkpoint_artifacts WHERE id = '{candidate}';");
    let vanished = Some(("23514", "checkpoint_artifact.vanished"));
    for (steps, expected) in [
        (
            state("current"),
            Some(("23514", "checkpoint_artifact.state")),
        ),
        (state("current") + &gone, vanished),
        (state("current") + &state("candidate"), None),
        (
            format!(
                "{} SAVEPOINT s; {} ROLLBACK TO s",
                state("previous"),
                state("candidate")
            ),
            Some(("23514", "checkpoint_artifact.state")),
        ),
        (
            artifact(&tenant, current, "current") + &refer(&tenant, current),
            None,
        ),
        (gone, None),
    ] {
        answers(&mut app, &steps, expected)?;
    }
    Ok(())
}
