//! A fleet in bulk, as no client writes it, and the queues' functions by name.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::error::DbError;
use postgres::{Client, Config, NoTls};
use uuid::Uuid;

use crate::support::*;

/// A contract function, and arguments that it takes.
pub struct Function {
    pub name: &'static str,
    pub arguments: &'static str,
}

const fn function(name: &'static str, arguments: &'static str) -> Function {
    Function { name, arguments }
}

/// The functions that write nothing.
pub const READERS: &[Function] = &[
    function("count_active_retained_processes_by_owner_state", ""),
    function("count_expired_draining_sandbox_leases", ""),
    function("list_legacy_modal_checkpoint_slots", "500"),
    function("sandbox_checkpoint_artifact_inventory", ""),
    function("sandbox_rotation_backlog", ""),
    function("list_live_modal_sandbox_leases", ""),
];

pub const WRITERS: &[Function] = &[
    function("reap_sandbox_leases", "60000, 60000, 60000"),
    function(
        "claim_terminal_retained_processes",
        "md5('claim')::uuid, 100, 0",
    ),
    function(
        "claim_sandbox_checkpoint_artifacts",
        "md5('claim')::uuid, 100, 1000",
    ),
    function(
        "settle_sandbox_checkpoint_artifact",
        "md5('artifact/1/1')::uuid, md5('claim')::uuid, false, NULL, 0",
    ),
    function(
        "prune_deleted_sandbox_checkpoint_artifacts",
        "86400000, 1000",
    ),
    function("request_due_sandbox_rotations", "86400000, 500"),
];

impl Function {
    /// As the application calls it.
    pub fn contract(&self) -> String {
        format!("opengeni_private.{}({})", self.name, self.arguments)
    }

    /// As whoever has no wrapper calls it.
    pub fn native(&self, schema: &str) -> String {
        let arguments = match self.arguments {
            "" => String::new(),
            arguments => format!(", {arguments}"),
        };
        format!("opengeni_guards.{}('{schema}'{arguments})", self.name)
    }
}

/// What a call answers, one line a row.
pub fn answer(client: &mut impl postgres::GenericClient, call: &str) -> Result<Vec<String>> {
    let sql = format!("SELECT answer::text FROM {call} AS answer ORDER BY 1");
    lines(client, &sql, &[])
}

/// The same for each of these functions.
pub fn answers(
    client: &mut impl postgres::GenericClient,
    functions: &[Function],
    call: impl Fn(&Function) -> String,
) -> Result<Vec<Vec<String>>> {
    functions
        .iter()
        .map(|function| answer(client, &call(function)))
        .collect()
}

/// Writes rows as a superuser with no trigger firing, foreign keys included.
pub fn plant(db: &Db, schema: &str, sql: &str) -> Result<()> {
    let mut admin = db.session(SUPERUSER)?;
    admin.batch_execute(&format!(
        "SET search_path = {schema}; SET session_replication_role = replica; {sql}"
    ))?;
    Ok(())
}

/// The id that the rows below have in SQL.
pub fn id(client: &mut Client, name: &str) -> Result<Uuid> {
    value(client, "SELECT md5($1)::uuid", &[&name])
}

/// Tenants 1 to `count`, each with a session and a warm lease that nobody holds: `account/T`, `workspace/T`,
/// `session/T`, `group/T`, `lease/T`.
pub fn tenants(db: &Db, schema: &str, count: u32) -> Result<()> {
    plant(
        db,
        schema,
        &format!(
            "INSERT INTO managed_accounts (id, name)
               SELECT md5('account/' || t)::uuid, 'a' || t FROM generate_series(1, {count}) t;
             INSERT INTO workspaces (id, account_id, name)
               SELECT md5('workspace/' || t)::uuid, md5('account/' || t)::uuid, 'w' || t
               FROM generate_series(1, {count}) t;
             INSERT INTO sessions (id, account_id, workspace_id, sandbox_group_id, initial_message, model, sandbox_backend)
               SELECT md5('session/' || t)::uuid, md5('account/' || t)::uuid, md5('workspace/' || t)::uuid,
                 md5('group/' || t)::uuid, '', 'm', 'modal' FROM generate_series(1, {count}) t;
             INSERT INTO sandbox_leases (id, account_id, workspace_id, sandbox_group_id, liveness, instance_id,
                 backend, lease_epoch, expires_at, workspace_generation)
               SELECT md5('lease/' || t)::uuid, md5('account/' || t)::uuid, md5('workspace/' || t)::uuid,
                 md5('group/' || t)::uuid, 'warm', 'sb-' || t, 'modal', 1, now() + interval '1 hour', 1000000
               FROM generate_series(1, {count}) t"
        ),
    )
}

/// Processes 1 to `each` of every lease, all due, in an order that is not that of their numbers:
/// `process/T/N`, with its admission and its holder.
pub fn processes(db: &Db, schema: &str, each: u32) -> Result<()> {
    plant(
        db,
        schema,
        &format!(
            "CREATE TEMP TABLE made AS
               SELECT l.*, s.id AS session_id, n, right(instance_id, -3) || '/' || n AS name
               FROM sandbox_leases l JOIN sessions s USING (workspace_id), generate_series(1, {each}) n
               WHERE l.liveness = 'warm';
             INSERT INTO sandbox_workspace_mutation_admissions (id, account_id, workspace_id, lease_id,
                 sandbox_group_id, session_id, actor_kind, actor_id, holder_kind, holder_id, lease_epoch,
                 provider_backend, provider_instance_id, route_kind, route_epoch, workspace_generation, operation,
                 provider_outcome)
               SELECT md5('admission/' || name)::uuid, account_id, workspace_id, id, sandbox_group_id, session_id,
                 'direct', md5('actor/' || name)::uuid, 'direct', name, lease_epoch, backend, instance_id, 'home', 0,
                 n, 'exec', 'retained' FROM made;
             INSERT INTO sandbox_lease_holders (id, account_id, workspace_id, lease_id, kind, holder_id, subject_id)
               SELECT md5('holder/' || name)::uuid, account_id, workspace_id, id, 'process', name, session_id
               FROM made;
             INSERT INTO sandbox_retained_processes (id, account_id, workspace_id, session_id, lease_id,
                 sandbox_group_id, parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, lease_epoch,
                 provider_backend, provider_instance_id, route_kind, route_epoch, provider_session_id,
                 reconcile_after, started_at)
               SELECT md5('process/' || name)::uuid, account_id, workspace_id, session_id, id, sandbox_group_id,
                 md5('admission/' || name)::uuid, name, 'direct', md5('actor/' || name)::uuid, lease_epoch, backend,
                 instance_id, 'home', 0, n, now() - interval '1 hour' + n % 7 * interval '1 minute',
                 now() - interval '2 hours' - n % 11 * interval '1 minute'
               FROM made;
             UPDATE sandbox_leases SET refcount = {each} WHERE liveness = 'warm'"
        ),
    )
}

/// Artifacts 1 to `each` of every warm lease, all to be deleted: `artifact/T/N`.
pub fn artifacts(db: &Db, schema: &str, each: u32) -> Result<()> {
    plant(
        db,
        schema,
        &format!(
            "INSERT INTO sandbox_checkpoint_artifacts (id, account_id, workspace_id, sandbox_group_id,
                 source_lease_id, source_lease_epoch, source_instance_id, source_workspace_generation, provenance,
                 provider_backend, provider_binding_key, provider_binding, object_kind, object_id, archive_base64,
                 archive_sha256, archive_bytes, descriptor, descriptor_revision, state, delete_after, created_at)
               SELECT md5('artifact/' || name)::uuid, account_id, workspace_id, sandbox_group_id, id, lease_epoch,
                 instance_id, 1, 'native_capture', 'modal',
                 '{{\"version\":1,\"serverUrl\":\"https://modal\",\"workspaceName\":\"w\",\"environment\":\"\"}}',
                 '{{\"version\": 1, \"serverUrl\": \"https://modal\", \"workspaceName\": \"w\", \"environment\": \"\"}}',
                 'modal_filesystem_snapshot', name, 'YQ==', encode(sha256('a'), 'hex'), 1,
                 jsonb_build_object('version', 2, 'kind', 'provider_snapshot', 'revision', 'r', 'archiveSha256',
                   encode(sha256('a'), 'hex'), 'archiveBytes', 1, 'snapshotId', name, 'provider',
                   'modal_snapshot_filesystem', 'workspacePersistence', 'snapshot_filesystem'),
                 'r', CASE WHEN n % 3 = 0 THEN 'candidate' ELSE 'delete_pending' END,
                 CASE WHEN n % 3 > 0 THEN now() - interval '1 hour' + n % 7 * interval '1 minute' END,
                 now() - interval '1 day' - n % 11 * interval '1 minute'
               FROM (
                 SELECT l.*, n, right(instance_id, -3) || '/' || n AS name
                 FROM sandbox_leases l, generate_series(1, {each}) n WHERE l.liveness = 'warm'
               ) made"
        ),
    )
}

/// Two tenants for whom every function of [`READERS`] has an answer; of whatever is counted, the second has
/// one more than the first.
pub fn pair(db: &Db, schema: &str) -> Result<()> {
    tenants(db, schema, 2)?;
    processes(db, schema, 1)?;
    artifacts(db, schema, 1)?;
    plant(
        db,
        schema,
        r#"INSERT INTO sandbox_leases (id, account_id, workspace_id, sandbox_group_id, liveness, instance_id, backend,
              lease_epoch, expires_at, provider_created_at, provider_deadline_at, rotation_requested_at,
              rotation_reason, resume_state)
            SELECT md5('gone/' || t || '/' || n)::uuid, md5('account/' || t)::uuid, md5('workspace/' || t)::uuid,
              md5('gone-group/' || t || '/' || n)::uuid, 'draining', 'gone-' || n, 'modal', 1,
              now() - interval '2 hours', now() - interval '1 day', now() - interval '1 hour', now(), 'operator',
              '{"sessionState": {"workspaceArchive": "YQ==", "workspaceArchiveMeta":
                {"version": 2, "provider": "modal_snapshot_filesystem"}}}'
            FROM generate_series(1, 2) t, generate_series(1, t) n"#,
    )
}

/// The session shows row-level security this tenant.
pub fn enter(client: &mut Client, tenant: u32) -> Result<()> {
    client.execute(
        "SELECT set_config('opengeni.account_id', md5('account/' || $1::text)::uuid::text, false),
           set_config('opengeni.workspace_id', md5('workspace/' || $1::text)::uuid::text, false)",
        &[&tenant.to_string()],
    )?;
    Ok(())
}

/// A session of the application for tenant T.
pub fn app(db: &Db, tenant: u32) -> Result<Client> {
    let mut client = db.session(APP)?;
    enter(&mut client, tenant)?;
    Ok(client)
}

/// The tables' owner sees nothing of the fleet: neither is the capability open nor row-level security lifted.
pub fn closed(owner: &mut impl postgres::GenericClient) -> Result<()> {
    let row = owner.query_one(
        "SELECT current_user::text, (SELECT count(*) FROM opengeni.sandbox_leases),
           opengeni.modal_inventory_read_capability_active(), current_setting('search_path'),
           current_setting('enable_seqscan')",
        &[],
    )?;
    let found: (String, i64, bool, String, String) =
        (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
    ensure!(
        found.0 == OWNER && found.1 == 0 && !found.2 && found.3 == SCHEMA && found.4 == "on",
        "(user, leases seen, capability, search_path, enable_seqscan) = {found:?}"
    );
    Ok(())
}

/// What the server told a session beside its answers.
#[derive(Clone, Default)]
pub struct Notices(Arc<Mutex<Vec<DbError>>>);

impl Notices {
    /// What has come since the last time, errors aside.
    pub fn take(&self) -> Vec<DbError> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A session that listens to warnings.
pub fn listening(server: &Server, role: &str, database: &str) -> Result<(Client, Notices)> {
    let notices = Notices::default();
    let into = notices.clone();
    let client = Config::new()
        .host_path(&server.socket_dir)
        .port(server.port)
        .user(role)
        .dbname(database)
        .notice_callback(move |notice| {
            into.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(notice);
        })
        .connect(NoTls)
        .with_context(|| format!("cannot connect to database {database} as {role}"))?;
    Ok((client, notices))
}
