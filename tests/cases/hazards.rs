//! The design's hazards where they matter most: on PL/pgSQL originals that the extension came to later.

mod callers;
mod cascades;
mod commit;
mod decoys;
mod look_alikes;
mod owner;
mod schema;
mod taken_back;
mod waiting;

use anyhow::{Context, Result, anyhow, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, Tenant, streams};
use opengeni_guards_harness::server::Server;
use postgres::{Client, GenericClient};
use uuid::Uuid;

use crate::attach::{extension, switch};
use crate::inventory;
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    let cases: [(&str, Body); 35] = [
        (
            "11: a workspace or an account goes with its settled history, and with nothing else",
            cascades::history_goes,
        ),
        (
            "11: whatever the order of the foreign keys, the guards decide nothing about cascades",
            cascades::foreign_keys_in_any_order,
        ),
        (
            "11: after pg_dump | psql of an attached database history goes as before",
            cascades::history_goes_after_restore,
        ),
        (
            "12: a column that a guard reads is renamed and renamed back, table by table",
            schema::columns_renamed,
        ),
        (
            "12: a column that the contract functions read is renamed and renamed back",
            schema::contract_column_renamed,
        ),
        (
            "12: a table is renamed and renamed back, table by table",
            schema::tables_renamed,
        ),
        (
            "12: a table is dropped, provisioned and attached again",
            schema::tables_dropped,
        ),
        (
            "12: the schema is renamed, and detached under its new name",
            schema::schema_renamed,
        ),
        (
            "12: functions or the extension are gone, and attach and detach still know the way home",
            schema::way_home_after_cascade,
        ),
        (
            "13: a call that has to wait gives up, and nobody waits for it",
            waiting::nobody_else_waits,
        ),
        (
            "13: two schemas at once take turns",
            waiting::two_schemas_at_once,
        ),
        (
            "13: a check that the session has deferred is run first",
            waiting::deferred_by_the_session,
        ),
        (
            "14: a guard that was dropped, disabled or taken back shows, and attach mends what it may",
            taken_back::guards_go,
        ),
        (
            "14: every trigger that a migration took back to PL/pgSQL shows, and attach rebinds it",
            taken_back::migration_taken_back,
        ),
        (
            "14: a contract function that a migration took back shows, and attach replaces it",
            taken_back::contract_taken_back,
        ),
        (
            "20: the originals in a database that is not UTF8 refuse the extension and go on",
            decoys::other_encodings,
        ),
        (
            "21: decoys of the application's change no guard's answer, whatever they say",
            decoys::decoys,
        ),
        (
            "21: decoys of the application's change no answer of the contract functions",
            decoys::contract_decoys,
        ),
        (
            "22: default privileges and blanket grants after attach open nothing",
            callers::opened_afterwards,
        ),
        (
            "23: one session under three identities and two tenants never sees more than its own",
            callers::identities,
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
            callers::parallel,
        ),
        (
            "28: what the owner laid out never runs with the rights of the superuser who calls",
            owner::mines,
        ),
        (
            "28: what the owner's code sets ends with the call",
            owner::settings_end,
        ),
        (
            "28: a schema's name is never a statement",
            owner::names_that_are_statements,
        ),
        (
            "28: operators of the schema's do not reach status()",
            owner::status_pinned,
        ),
        (
            "28: nothing of the schema's runs with the rights of the superuser who installs fences",
            owner::fences_as_superuser,
        ),
        (
            "28: a ledger that somebody edited is no error of the server's inside",
            owner::edited_ledger,
        ),
        (
            "29: detach of a schema that was never attached takes nothing from another",
            look_alikes::detach_of_a_bystander,
        ),
        (
            "29: look-alikes in another schema are told of and left alone",
            look_alikes::look_alikes_elsewhere,
        ),
        (
            "29: look-alikes in the schema itself are told of and left alone",
            look_alikes::look_alikes_inside,
        ),
        (
            "30: nothing that happens to a row later hides it from the checks at COMMIT",
            commit::checked_at_commit,
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
        (Some(refusal), Some((sqlstate, rule))) => refusal.is_by(sqlstate, rule),
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

/// A table of the session's own, a row in which has a trigger delete policy history: as deep as a cascade.
const HISTORY_BAIT: &str = "CREATE TEMP TABLE bait (id int);
    CREATE FUNCTION pg_temp.spring() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN DELETE FROM opengeni.workspace_instruction_policy_activation_events; RETURN NULL; END $$;
    CREATE TRIGGER spring AFTER INSERT ON bait FOR EACH ROW EXECUTE FUNCTION pg_temp.spring()";

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

const PARENTS: [&str; 2] = ["workspaces", "managed_accounts"];

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
        Err(error) => Refusal::of(&error)?.is_by("55000", "provider_loss.recovery_truth")?,
    }
    commit(&mut app, &[protocol::lose_provider(&tenant, &command)])
}
