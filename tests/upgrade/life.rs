//! What the application does before an upgrade, and how it goes on afterwards.

use anyhow::{Result, ensure};
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, Tenant, streams};
use opengeni_guards_harness::statement;
use uuid::{Builder, Uuid};

use crate::support::*;

/// The commands of one server's time; the same for whoever asks later.
pub struct Life {
    pub tenant: Tenant,
    /// Retained without supervision, running.
    legacy: Command,
    /// Under supervision, running: seven bytes of output are read and four of input sent.
    running: Command,
    /// Somebody wants it to end.
    cancelled: Command,
    /// Has ended.
    settled: Command,
    /// Whose sandbox went, with the command that ran there.
    gone: Tenant,
    lost: Command,
    policy: Uuid,
    activation: Uuid,
}

/// Where the running command's output is read to.
const READ: Cursor = Cursor::at(7);
/// How much input the running command was sent.
const SENT: i64 = 4;

impl Life {
    pub fn made_on(major: u32) -> Life {
        let mut last = [0; 16];
        let mut next = || {
            last[0] = u8::try_from(major).unwrap_or(0);
            last[15] += 1;
            Builder::from_random_bytes(last).into_uuid()
        };
        let mut tenant = || Tenant {
            account: next(),
            workspace: next(),
            session: next(),
            group: next(),
            lease: next(),
            instance: format!("sb-{}", next().simple()),
            epoch: 1,
        };
        let (main, gone) = (tenant(), tenant());
        let mut command = |number| Command {
            admission: next(),
            process: next(),
            actor: next(),
            provider_session: number,
            invocation: next(),
            nonce: format!("{}{}", next().simple(), next().simple()),
            control: next(),
        };
        Life {
            tenant: main,
            legacy: command(1),
            running: command(2),
            cancelled: command(3),
            settled: command(4),
            gone,
            lost: command(1),
            policy: next(),
            activation: next(),
        }
    }
}

fn ended() -> serde_json::Value {
    streams(&Cursor::end(9), &Cursor::end(0))
}

/// The output is read to its end, the receipt is there, and the command settles.
fn ends(db: &Db, tenant: &Tenant, command: &Command) -> Result<()> {
    let mut app = db.app(tenant)?;
    for step in [
        protocol::capture(command, ended(), false),
        protocol::record_receipt(command, command.receipt(0)),
        protocol::capture(command, ended(), true),
        protocol::settle(tenant, command, 0),
    ] {
        commit(&mut app, &[step])?;
    }
    Ok(())
}

pub fn begins(db: &Db, life: &Life) -> Result<()> {
    let Life { tenant, legacy, .. } = life;
    for tenant in [tenant, &life.gone] {
        commit(&mut db.admin()?, &[protocol::seed(tenant)])?;
    }
    let mut app = db.app(tenant)?;
    commit(
        &mut app,
        &[
            protocol::admit(tenant, legacy),
            protocol::retain(tenant, legacy),
            protocol::attach(legacy, legacy.legacy_provider_command(tenant)),
        ],
    )?;
    for command in [&life.running, &life.cancelled, &life.settled] {
        commit(&mut app, &[protocol::launch(tenant, command)])?;
    }
    let child = Uuid::new_v4();
    for step in [
        protocol::admit_input(tenant, &life.running, child),
        protocol::advance_input(&life.running, SENT),
        protocol::settle_input(child),
        protocol::capture(&life.running, streams(&READ, &Cursor::START), false),
        protocol::cancel(&life.cancelled, "explicit_stop"),
    ] {
        commit(&mut app, &[step])?;
    }
    ends(db, tenant, &life.settled)?;

    let mut app = db.app(&life.gone)?;
    commit(&mut app, &[protocol::launch(&life.gone, &life.lost)])?;
    commit(&mut app, &[protocol::lose_provider(&life.gone, &life.lost)])?;

    commit(
        &mut db.app(tenant)?,
        &[vec![
            statement!(
                "INSERT INTO workspace_instruction_policy_revisions
                   (account_id, workspace_id, id, revision, kind, scope, content, content_hash, provenance_source,
                    created_by_subject_id)
                 VALUES ($1, $2, $3, 1, 'charter', 'global', 'be brief', encode(sha256('be brief'), 'hex'), 'human', 's')",
                tenant.account,
                tenant.workspace,
                life.policy,
            ),
            statement!(
                "INSERT INTO workspace_instruction_policy_activation_events
                   (id, account_id, workspace_id, kind, scope, type, activation_version, new_revision_id, new_revision,
                    new_content_hash, actor_subject_id, reason)
                 SELECT $2::uuid, account_id, workspace_id, kind, scope, 'activate', 1, id, revision, content_hash, 's', 'r'
                   FROM workspace_instruction_policy_revisions WHERE id = $1",
                life.policy,
                life.activation,
            ),
            statement!(
                "INSERT INTO workspace_instruction_policy_heads
                   (id, account_id, workspace_id, kind, scope, revision_id, revision, content_hash, activation_version)
                 SELECT $2::uuid, account_id, workspace_id, kind, scope, id, revision, content_hash, 1
                   FROM workspace_instruction_policy_revisions WHERE id = $1",
                life.policy,
                Uuid::new_v4(),
            ),
        ]],
    )
}

const DELETE: &str = "DELETE FROM sandbox_retained_processes WHERE id = $1";

/// Each guard says what it said before, and for whom it said it.
pub fn refusals(db: &Db, life: &Life) -> Result<()> {
    let tenant = &life.tenant;
    let mut app = db.app(tenant)?;
    for (rule, sql, command) in [
        ("delete_unsettled", DELETE, &life.running),
        (
            "retention_xid",
            "UPDATE sandbox_retained_processes SET supervision_retention_xid = NULL WHERE id = $1",
            &life.running,
        ),
        (
            "identity",
            "UPDATE sandbox_retained_processes
                SET provider_command = jsonb_set(provider_command, '{supervision,nonce}', '\"other\"') WHERE id = $1",
            &life.running,
        ),
        (
            "stdin_child",
            "UPDATE sandbox_retained_processes SET provider_command_input_index = 9 WHERE id = $1",
            &life.running,
        ),
        (
            "stdin_closed",
            "UPDATE sandbox_retained_processes SET provider_command_input_index = 9 WHERE id = $1",
            &life.cancelled,
        ),
        (
            "settlement",
            "UPDATE sandbox_retained_processes SET state = 'exited', exit_code = 0, settled_at = now() WHERE id = $1",
            &life.running,
        ),
        (
            "cancellation_monotonic",
            "UPDATE sandbox_retained_processes SET cancellation_requested_at = NULL, cancellation_reason = NULL
              WHERE id = $1",
            &life.cancelled,
        ),
        (
            "terminal",
            "UPDATE sandbox_retained_processes SET exit_code = 1 WHERE id = $1",
            &life.settled,
        ),
    ] {
        refused(&mut app, sql, &[&command.process])?
            .speaks(&format!("supervised_command.{rule}"))?;
    }
    // Read back: a cursor that stands at seven does not go to six.
    step_refused(
        &mut app,
        &protocol::capture(
            &life.running,
            streams(&Cursor::at(6), &Cursor::START),
            false,
        ),
    )?
    .speaks("supervised_command.output_regress")?;
    // The retaining transaction is over: what was legacy then is legacy for good.
    let late = protocol::attach(&life.legacy, life.legacy.provider_command(tenant));
    step_refused(&mut app, &late)?.speaks("supervised_command.initial_retention")?;

    for (rule, sql, id) in [
        (
            "process_holder.retained",
            "DELETE FROM sandbox_lease_holders WHERE holder_id = 'process:' || $1::uuid",
            life.running.process,
        ),
        (
            "parent_admission.retained",
            "UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'resolved', settled_at = now()
              WHERE id = $1",
            life.running.admission,
        ),
        (
            "lease_capture.blocked",
            "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1",
            tenant.lease,
        ),
        (
            "instruction_policy.immutable",
            "UPDATE workspace_instruction_policy_activation_events SET reason = 'another' WHERE id = $1",
            life.activation,
        ),
    ] {
        spoken(&refused(&mut app, sql, &[&id])?, rule)?;
    }
    // At COMMIT: a process without its holder.
    let next = Command::new(5);
    let mut half = protocol::admit(tenant, &next);
    half.extend(protocol::retain(tenant, &next).into_iter().take(2));
    spoken(&step_refused(&mut app, &half)?, "retained_process.identity")?;
    // Per statement, and only a superuser gets as far.
    let truncate = "TRUNCATE sandbox_lease_holders";
    spoken(
        &refused(&mut db.admin()?, truncate, &[])?,
        "evidence.truncate",
    )?;
    // Without the marker nobody writes, and without its tenant nobody sees.
    app.batch_execute(&format!("RESET {MARKER}"))?;
    refused(&mut app, DELETE, &[&life.running.process])?.speaks("protocol_v2.marker")?;
    let mut other = db.app(&life.gone)?;
    let seen = other.execute(DELETE, &[&life.running.process])?;
    ensure!(seen == 0, "seen by another tenant");
    Ok(())
}

fn spoken(refusal: &Refusal, rule: &str) -> Result<()> {
    ensure!(
        refusal.rule.as_deref() == Some(rule) && refusal.sqlstate == "55000",
        "expected 55000 {rule}, got {refusal:?}"
    );
    Ok(())
}

/// PL/pgSQL decides: the same SQLSTATE, and no rule's name.
pub fn refused_by_originals(db: &Db, life: &Life) -> Result<()> {
    let mut app = db.app(&life.tenant)?;
    let refusal = refused(&mut app, DELETE, &[&life.running.process])?;
    ensure!(refusal.rule.is_none(), "the native guard: {refusal:?}");
    refusal.has_state("55000")
}

/// What PL/pgSQL accepts and ours would refuse: a cursor is taken back. Then it is put there again.
pub fn forgets_its_cursor(db: &Db, life: &Life) -> Result<()> {
    let mut app = db.app(&life.tenant)?;
    set(&mut app, CAPTURE, &life.cancelled.process.to_string())?;
    accepted(
        &mut app,
        "UPDATE sandbox_retained_processes SET provider_command = provider_command - 'streams' WHERE id = $1",
        &[&life.cancelled.process],
    )?;
    let again = protocol::capture(
        &life.cancelled,
        streams(&Cursor::START, &Cursor::START),
        false,
    );
    commit(&mut app, &[again])
}

/// Everything that was running goes on from where it was.
pub fn goes_on(db: &Db, life: &Life) -> Result<()> {
    let tenant = &life.tenant;
    let mut app = db.app(tenant)?;
    let child = Uuid::new_v4();
    for step in [
        protocol::admit_input(tenant, &life.running, child),
        protocol::advance_input(&life.running, SENT + 1),
        protocol::settle_input(child),
        protocol::settle(tenant, &life.legacy, 3),
    ] {
        commit(&mut app, &[step])?;
    }
    ends(db, tenant, &life.running)?;
    // Settled evidence goes as a whole, or not at all.
    refused(
        &mut app,
        "UPDATE sandbox_retained_processes SET supervision_receipt = NULL WHERE id = $1",
        &[&life.running.process],
    )?
    .speaks("supervised_command.proof_immutable")?;

    // The lease that lost its sandbox gets another, and commands run there.
    let successor = life.gone.successor();
    let next = Command::new(2);
    let mut app = db.app(&successor)?;
    commit(&mut app, &[protocol::warm(&successor)])?;
    commit(&mut app, &[protocol::launch(&successor, &next)])?;
    ends(db, &successor, &next)
}

/// The extension's own operations on a command of before.
pub fn operations(db: &Db, life: &Life) -> Result<()> {
    let (tenant, command) = (&life.tenant, &life.cancelled);
    let mut app = db.session(APP)?;
    let page = [Cursor::at(5), Cursor::START];
    for step in [
        protocol::request_cancellation(tenant, command, "provider_deadline"),
        protocol::capture_page(tenant, command, [Cursor::START, Cursor::START], page),
        protocol::take_receipt(tenant, command, command.receipt(130)),
    ] {
        commit(&mut app, &[step])?;
    }
    let mut app = db.app(tenant)?;
    let chunks = lines(
        &mut app,
        "SELECT concat_ws(' ', stream, byte_start, byte_end) FROM sandbox_command_output WHERE process_id = $1",
        &[&command.process],
    )?;
    ensure!(chunks == ["stdout 0 5"], "{chunks:?}");
    // The first reason stays.
    let reason: String = value(
        &mut app,
        "SELECT cancellation_reason FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )?;
    ensure!(reason == "explicit_stop", "{reason}");
    Ok(())
}
