//! The protocol's transactions as the application writes them, one function per step.
//!
//! Table names are unqualified: the session's search_path says which data schema it works in.

use postgres::GenericClient;
use postgres::types::ToSql;
use serde_json::{Value, json};
use uuid::Uuid;

/// One statement with its parameters.
pub struct Statement {
    pub sql: &'static str,
    params: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Statement {
    pub fn new(sql: &'static str, params: Vec<Box<dyn ToSql + Sync + Send>>) -> Self {
        Self { sql, params }
    }

    /// Runs the statement and returns how many rows it touched.
    pub fn run(&self, client: &mut impl GenericClient) -> Result<u64, postgres::Error> {
        let params: Vec<&(dyn ToSql + Sync)> =
            self.params.iter().map(|param| &**param as _).collect();
        client.execute(self.sql, &params)
    }
}

/// `statement!("… $1 … $2", first, second)`: a [`Statement`] that owns its parameters.
#[macro_export]
macro_rules! statement {
    ($sql:expr $(, $param:expr)* $(,)?) => {
        $crate::demo::protocol::Statement::new($sql, vec![$(Box::new($param)),*])
    };
}

/// One workspace with one session and one lease on a provider sandbox.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub account: Uuid,
    pub workspace: Uuid,
    pub session: Uuid,
    pub group: Uuid,
    pub lease: Uuid,
    pub instance: String,
    pub epoch: i32,
}

impl Tenant {
    pub fn new() -> Self {
        Self {
            account: Uuid::new_v4(),
            workspace: Uuid::new_v4(),
            session: Uuid::new_v4(),
            group: Uuid::new_v4(),
            lease: Uuid::new_v4(),
            instance: format!("sb-{}", Uuid::new_v4().simple()),
            epoch: 1,
        }
    }

    /// The lease's next life: another sandbox, another epoch.
    pub fn successor(&self) -> Self {
        Self {
            instance: format!("sb-{}", Uuid::new_v4().simple()),
            epoch: self.epoch + 2,
            ..self.clone()
        }
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self::new()
    }
}

/// One long-running command: its parent admission, its process row, its supervisor.
#[derive(Clone, Debug)]
pub struct Command {
    pub admission: Uuid,
    pub process: Uuid,
    pub actor: Uuid,
    pub provider_session: i32,
    pub invocation: Uuid,
    pub nonce: String,
    pub control: Uuid,
}

impl Command {
    /// `provider_session` tells apart the live commands of one sandbox.
    pub fn new(provider_session: i32) -> Self {
        Self {
            admission: Uuid::new_v4(),
            process: Uuid::new_v4(),
            actor: Uuid::new_v4(),
            provider_session,
            invocation: Uuid::new_v4(),
            nonce: format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()),
            control: Uuid::new_v4(),
        }
    }

    /// The process holder's name on the lease.
    pub fn holder(&self) -> String {
        format!("process:{}", self.process)
    }

    pub fn supervision(&self) -> Value {
        json!({
            "protocol": "native-subreaper-v1",
            "invocationId": self.invocation.to_string(),
            "nonce": self.nonce,
            "controlPath": format!("/tmp/opengeni-supervision/{}.sock", self.control),
        })
    }

    /// The command as the launcher records it: supervised, no output read yet.
    pub fn provider_command(&self, tenant: &Tenant) -> Value {
        let mut command = self.legacy_provider_command(tenant);
        command["supervision"] = self.supervision();
        command
    }

    /// The same command of a launcher that knows no supervision.
    pub fn legacy_provider_command(&self, tenant: &Tenant) -> Value {
        json!({
            "kind": "modal-router-v1",
            "sandboxId": tenant.instance,
            "taskId": format!("ta-{}", self.provider_session),
            "execId": format!("ex-{}", self.provider_session),
            "streams": streams(&Cursor::START, &Cursor::START),
        })
    }

    pub fn receipt(&self, exit_code: i32) -> Value {
        json!({
            "protocol": "native-subreaper-v1",
            "invocationId": self.invocation.to_string(),
            "receiptId": Uuid::new_v4().to_string(),
            "leaderExitCode": exit_code,
        })
    }
}

/// How far one output stream has been read.
#[derive(Clone, Debug)]
pub struct Cursor {
    pub byte_offset: i64,
    pub remainder: &'static str,
    pub eof: bool,
    pub exit_code: Option<i32>,
}

impl Cursor {
    pub const START: Cursor = Cursor::at(0);

    pub const fn at(byte_offset: i64) -> Self {
        Self {
            byte_offset,
            remainder: "",
            eof: false,
            exit_code: None,
        }
    }

    /// The end of a stream whose supervisor acknowledged its receipt.
    pub const fn end(byte_offset: i64) -> Self {
        Self {
            byte_offset,
            remainder: "",
            eof: true,
            exit_code: Some(0),
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "byteOffset": self.byte_offset,
            "utf8Remainder": self.remainder,
            "eof": self.eof,
            "exitCode": self.exit_code,
        })
    }
}

pub fn streams(stdout: &Cursor, stderr: &Cursor) -> Value {
    json!({ "stdout": stdout.json(), "stderr": stderr.json() })
}

/// Row-level security shows the transaction this tenant's rows.
pub fn tenant_settings(tenant: &Tenant) -> Statement {
    statement!(
        "SELECT set_config('opengeni.account_id', $1, true),
                set_config('opengeni.workspace_id', $2, true)",
        tenant.account.to_string(),
        tenant.workspace.to_string(),
    )
}

/// The transaction declares that it speaks version 2 of the recovery protocol.
pub fn protocol_marker() -> Statement {
    statement!("SELECT set_config('opengeni.sandbox_recovery_protocol_v2', '1', true)")
}

/// Account, workspace, session and a warm lease.
pub fn seed(tenant: &Tenant) -> Vec<Statement> {
    vec![
        statement!(
            "INSERT INTO managed_accounts (id, name) VALUES ($1, 'Acme')",
            tenant.account,
        ),
        statement!(
            "INSERT INTO workspaces (id, account_id, name) VALUES ($1, $2, 'Main')",
            tenant.workspace,
            tenant.account,
        ),
        statement!(
            "INSERT INTO sessions
               (id, account_id, workspace_id, sandbox_group_id, initial_message, model, sandbox_backend)
             VALUES ($1, $2, $3, $4, 'run the tests', 'large', 'modal')",
            tenant.session,
            tenant.account,
            tenant.workspace,
            tenant.group,
        ),
        statement!(
            "INSERT INTO sandbox_leases
               (id, account_id, workspace_id, sandbox_group_id, liveness, instance_id, backend,
                lease_epoch, expires_at)
             VALUES ($1, $2, $3, $4, 'warm', $5, 'modal', $6, now() + interval '1 hour')",
            tenant.lease,
            tenant.account,
            tenant.workspace,
            tenant.group,
            tenant.instance.clone(),
            tenant.epoch,
        ),
    ]
}

/// A direct caller is admitted to change the workspace: the next generation is its own.
pub fn admit(tenant: &Tenant, command: &Command) -> Vec<Statement> {
    vec![
        statement!(
            "UPDATE sandbox_leases SET workspace_generation = workspace_generation + 1 WHERE id = $1",
            tenant.lease,
        ),
        statement!(
            "INSERT INTO sandbox_workspace_mutation_admissions
               (id, account_id, workspace_id, lease_id, sandbox_group_id, session_id,
                actor_kind, actor_id, holder_kind, holder_id, lease_epoch, provider_backend,
                provider_instance_id, route_kind, route_epoch, workspace_generation, operation)
             SELECT $2::uuid, account_id, workspace_id, id, sandbox_group_id, $3::uuid,
                'direct', $4::uuid, 'direct', $5::text, lease_epoch, backend,
                instance_id, 'home', 0, workspace_generation, 'exec'
             FROM sandbox_leases WHERE id = $1",
            tenant.lease,
            command.admission,
            tenant.session,
            command.actor,
            command.actor.to_string(),
        ),
        statement!(
            "INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
             VALUES ($1, $2, $3, 'direct', $4, $5)",
            tenant.account,
            tenant.workspace,
            tenant.lease,
            command.actor.to_string(),
            tenant.session,
        ),
    ]
}

/// The mutation outlives its request: it becomes a process with a holder of its own.
pub fn retain(tenant: &Tenant, command: &Command) -> Vec<Statement> {
    vec![
        statement!(
            "INSERT INTO sandbox_retained_processes
               (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id,
                parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, lease_epoch,
                provider_backend, provider_instance_id, route_kind, route_epoch, provider_session_id)
             SELECT $2::uuid, account_id, workspace_id, session_id, lease_id, sandbox_group_id,
                id, $3::text, actor_kind, actor_id, lease_epoch,
                provider_backend, provider_instance_id, route_kind, route_epoch, $4::int
             FROM sandbox_workspace_mutation_admissions WHERE id = $1",
            command.admission,
            command.process,
            command.holder(),
            command.provider_session,
        ),
        statement!(
            "UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'retained' WHERE id = $1",
            command.admission,
        ),
        statement!(
            "INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
             VALUES ($1, $2, $3, 'process', $4, $5)",
            tenant.account,
            tenant.workspace,
            tenant.lease,
            command.holder(),
            tenant.session,
        ),
        statement!(
            "DELETE FROM sandbox_lease_holders WHERE lease_id = $1 AND kind = 'direct' AND holder_id = $2",
            tenant.lease,
            command.actor.to_string(),
        ),
    ]
}

/// The launcher's locator, with or without supervision, is written to the process.
pub fn attach(command: &Command, provider_command: Value) -> Vec<Statement> {
    vec![statement!(
        "UPDATE sandbox_retained_processes SET provider_command = $2 WHERE id = $1",
        command.process,
        provider_command,
    )]
}

/// Admission, retention and supervision of a command at once.
pub fn launch(tenant: &Tenant, command: &Command) -> Vec<Statement> {
    [
        admit(tenant, command),
        retain(tenant, command),
        attach(command, command.provider_command(tenant)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Stdin is a mutation too: a child admission that belongs to the process.
pub fn admit_input(tenant: &Tenant, command: &Command, child: Uuid) -> Vec<Statement> {
    vec![
        statement!(
            "UPDATE sandbox_leases SET workspace_generation = workspace_generation + 1 WHERE id = $1",
            tenant.lease,
        ),
        statement!(
            "INSERT INTO sandbox_workspace_mutation_admissions
               (id, account_id, workspace_id, lease_id, sandbox_group_id, session_id,
                actor_kind, actor_id, holder_kind, holder_id, lease_epoch, provider_backend,
                provider_instance_id, route_kind, route_epoch, workspace_generation, operation)
             SELECT $2::uuid, process.account_id, process.workspace_id, process.lease_id,
                process.sandbox_group_id, process.session_id, 'process', process.id, 'process',
                process.holder_id, process.lease_epoch, process.provider_backend,
                process.provider_instance_id, process.route_kind, process.route_epoch,
                lease.workspace_generation, 'stdin'
             FROM sandbox_retained_processes process
             JOIN sandbox_leases lease ON lease.id = process.lease_id
             WHERE process.id = $1",
            command.process,
            child,
        ),
    ]
}

/// Bytes of stdin are reserved before they are sent.
pub fn advance_input(command: &Command, index: i64) -> Vec<Statement> {
    vec![statement!(
        "UPDATE sandbox_retained_processes SET provider_command_input_index = $2 WHERE id = $1",
        command.process,
        index,
    )]
}

/// The provider took the input: its child admission is settled.
pub fn settle_input(child: Uuid) -> Vec<Statement> {
    vec![statement!(
        "UPDATE sandbox_workspace_mutation_admissions
         SET provider_outcome = 'resolved', settled_at = now() WHERE id = $1",
        child,
    )]
}

/// Output moves on inside the capture protocol; `captured` closes the streams for good.
pub fn capture(command: &Command, streams: Value, captured: bool) -> Vec<Statement> {
    vec![
        statement!(
            "SELECT set_config('opengeni.supervised_output_capture_process_id', $1, true)",
            command.process.to_string(),
        ),
        uncovered_capture(command, streams, captured),
        statement!("SELECT set_config('opengeni.supervised_output_capture_process_id', '', true)"),
    ]
}

/// The capture's write without the setting that makes it a capture.
pub fn uncovered_capture(command: &Command, streams: Value, captured: bool) -> Statement {
    statement!(
        "UPDATE sandbox_retained_processes
         SET provider_command = jsonb_set(provider_command, '{streams}', $2),
             supervision_output_captured = $3
         WHERE id = $1",
        command.process,
        streams,
        captured,
    )
}

/// The supervisor proves that the whole process tree has ended.
pub fn record_receipt(command: &Command, receipt: Value) -> Vec<Statement> {
    vec![statement!(
        "UPDATE sandbox_retained_processes SET supervision_receipt = $2 WHERE id = $1",
        command.process,
        receipt,
    )]
}

// The same by the extension's operations: one statement each, which locks, decides and writes, and sets the
// tenant and the protocol's settings for itself.

/// Bytes of stdin are reserved before they are sent.
pub fn reserve_input(tenant: &Tenant, command: &Command, bytes: i64) -> Vec<Statement> {
    vec![statement!(
        "SELECT opengeni_guards.reserve_input($1, $2, $3, $4, $5, current_schema()::text)",
        tenant.account,
        tenant.workspace,
        tenant.session,
        command.process,
        bytes,
    )]
}

/// A page of output leads from two cursors to two others.
pub fn capture_page(
    tenant: &Tenant,
    command: &Command,
    [stdout, stderr]: [Cursor; 2],
    [stdout_after, stderr_after]: [Cursor; 2],
) -> Vec<Statement> {
    let at = |streams: Value| {
        let mut document = command.provider_command(tenant);
        document["streams"] = streams;
        document
    };
    let text = |from: &Cursor, to: &Cursor| {
        ".".repeat(usize::try_from(to.byte_offset - from.byte_offset).unwrap_or(0))
    };
    vec![statement!(
        "SELECT opengeni_guards.capture_router_output($1, $2, $3, $4, $5, $6, $7, $8, current_schema()::text)",
        tenant.account,
        tenant.workspace,
        tenant.session,
        command.process,
        at(streams(&stdout, &stderr)),
        at(streams(&stdout_after, &stderr_after)),
        text(&stdout, &stdout_after),
        text(&stderr, &stderr_after),
    )]
}

/// The supervisor proves that the whole process tree has ended.
pub fn take_receipt(tenant: &Tenant, command: &Command, receipt: Value) -> Vec<Statement> {
    vec![statement!(
        "SELECT opengeni_guards.record_supervision_receipt($1, $2, $3, $4, $5, current_schema()::text)",
        tenant.account,
        tenant.workspace,
        tenant.session,
        command.process,
        receipt,
    )]
}

/// Somebody wants the command to end.
pub fn request_cancellation(
    tenant: &Tenant,
    command: &Command,
    reason: &'static str,
) -> Vec<Statement> {
    vec![statement!(
        "SELECT opengeni_guards.request_cancellation($1, $2, $3, $4, $5, current_schema()::text)",
        tenant.account,
        tenant.workspace,
        tenant.session,
        command.process,
        reason,
    )]
}

/// Somebody wants the command to end; it is not proof that it has.
pub fn cancel(command: &Command, reason: &'static str) -> Vec<Statement> {
    vec![statement!(
        "UPDATE sandbox_retained_processes
         SET cancellation_requested_at = now(), cancellation_reason = $2 WHERE id = $1",
        command.process,
        reason,
    )]
}

/// The process has exited; parent admission and holder go with it.
pub fn settle(tenant: &Tenant, command: &Command, exit_code: i32) -> Vec<Statement> {
    vec![
        statement!(
            "UPDATE sandbox_retained_processes
             SET state = 'exited', exit_code = $2, settled_at = now() WHERE id = $1",
            command.process,
            exit_code,
        ),
        settle_parent(command, "resolved"),
        release_holder(tenant, command),
    ]
}

/// The provider never started the command.
pub fn reject_launch(tenant: &Tenant, command: &Command) -> Vec<Statement> {
    vec![
        statement!(
            "SELECT set_config('opengeni.supervised_launch_rejection_binding',
                jsonb_build_object('processId', id, 'command', provider_command)::text, true)
             FROM sandbox_retained_processes WHERE id = $1",
            command.process,
        ),
        mark_lost(command, "provider_start_rejected"),
        settle_parent(command, "rejected"),
        release_holder(tenant, command),
    ]
}

/// The sandbox is gone: process, admission and holder end, the lease goes cold and says why.
pub fn lose_provider(tenant: &Tenant, command: &Command) -> Vec<Statement> {
    vec![
        loss_binding(&tenant.loss_binding()),
        mark_lost(command, "provider_instance_lost"),
        settle_parent(command, "rejected"),
        statement!(
            "UPDATE sandbox_leases
             SET liveness = 'cold', instance_id = NULL, lease_epoch = lease_epoch + 1, resume_state = $2
             WHERE id = $1",
            tenant.lease,
            json!({
                "backendId": "modal",
                "opengeniRecovery": {
                    "provider": { "status": "missing", "instanceId": tenant.instance },
                    "restore": { "status": "degraded" },
                    "workspace": { "status": "degraded" },
                },
            }),
        ),
        release_holder(tenant, command),
    ]
}

impl Tenant {
    /// The physical identity that a typed loss has to name.
    pub fn loss_binding(&self) -> Value {
        json!({
            "accountId": self.account.to_string(),
            "workspaceId": self.workspace.to_string(),
            "leaseId": self.lease.to_string(),
            "sandboxGroupId": self.group.to_string(),
            "lostEpoch": self.epoch,
            "lostBackend": "modal",
            "lostInstanceId": self.instance,
        })
    }
}

pub fn loss_binding(binding: &Value) -> Statement {
    statement!(
        "SELECT set_config('opengeni.supervised_provider_loss_binding', $1, true)",
        binding.to_string(),
    )
}

pub fn mark_lost(command: &Command, reason: &'static str) -> Statement {
    statement!(
        "UPDATE sandbox_retained_processes
         SET state = 'lost', settlement_reason = $2, settled_at = now() WHERE id = $1",
        command.process,
        reason,
    )
}

pub fn settle_parent(command: &Command, outcome: &'static str) -> Statement {
    statement!(
        "UPDATE sandbox_workspace_mutation_admissions
         SET provider_outcome = $2, settled_at = now() WHERE id = $1",
        command.admission,
        outcome,
    )
}

pub fn release_holder(tenant: &Tenant, command: &Command) -> Statement {
    statement!(
        "DELETE FROM sandbox_lease_holders WHERE lease_id = $1 AND kind = 'process' AND holder_id = $2",
        tenant.lease,
        command.holder(),
    )
}

/// A cold lease gets its next sandbox.
pub fn warm(successor: &Tenant) -> Vec<Statement> {
    vec![statement!(
        "UPDATE sandbox_leases SET liveness = 'warm', instance_id = $2, lease_epoch = $3 WHERE id = $1",
        successor.lease,
        successor.instance.clone(),
        successor.epoch,
    )]
}
