//! Supervision belongs to the transaction that retained the command, and that transaction cannot be forged (D12).

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Statement, Tenant};
use opengeni_guards_harness::server::Server;
use postgres::Client;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "retention: an INSERT may name its own transaction, none, or a finished one",
            legal_ids,
        ),
        case(
            server,
            "retention: an INSERT naming a running transaction or one to come is refused (D12)",
            forged_ids,
        ),
        case(
            server,
            "retention: a superuser's session may name any transaction (D12)",
            superuser_restores,
        ),
        case(
            server,
            "retention: the recorded transaction never changes",
            immutable,
        ),
        case(
            server,
            "retention: supervision is refused after the transaction that retained",
            attached_too_late,
        ),
        case(
            server,
            "retention: a row that names a finished transaction cannot be upgraded",
            finished_transaction_cannot_upgrade,
        ),
        case(
            server,
            "retention: supervision is accepted under a savepoint of the retaining transaction",
            savepoints,
        ),
        case(
            server,
            "retention: after ROLLBACK TO the retaining transaction may attach again",
            rolled_back_attachment,
        ),
        case(
            server,
            "retention: an INSERT that attaches at once is judged by the same rules",
            attached_at_once,
        ),
    ]
}

/// Retains `command` in a row that names transaction `xid`, an SQL expression.
fn retain_naming(
    client: &mut Client,
    tenant: &Tenant,
    command: &Command,
    xid: &str,
) -> Result<Option<Refusal>> {
    let mut transaction = client.transaction()?;
    run(&mut transaction, &protocol::admit(tenant, command))?;
    let insert = format!(
        "INSERT INTO sandbox_retained_processes
           (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id,
            parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, lease_epoch,
            provider_backend, provider_instance_id, route_kind, route_epoch, provider_session_id,
            supervision_retention_xid)
         SELECT $2::uuid, account_id, workspace_id, session_id, lease_id, sandbox_group_id,
            id, $3::text, actor_kind, actor_id, lease_epoch,
            provider_backend, provider_instance_id, route_kind, route_epoch, $4::int, {xid}
         FROM sandbox_workspace_mutation_admissions WHERE id = $1"
    );
    let inserted = transaction.execute(
        &insert,
        &[
            &command.admission,
            &command.process,
            &command.holder(),
            &command.provider_session,
        ],
    );
    match inserted {
        Ok(_) => {
            // The rest of the retention, without the INSERT that has just been made.
            let rest: Vec<Statement> = protocol::retain(tenant, command)
                .into_iter()
                .skip(1)
                .collect();
            run(&mut transaction, &rest)?;
            transaction.commit()?;
            Ok(None)
        }
        Err(error) => Ok(Some(Refusal::of(&error)?)),
    }
}

/// A transaction that has ended, committed or not.
fn finished(client: &mut Client, end: &str) -> Result<String> {
    client.batch_execute("BEGIN")?;
    let xid = value(client, "SELECT pg_current_xact_id()::text", &[])?;
    client.batch_execute(end)?;
    Ok(xid)
}

fn literal(xid: &str) -> String {
    format!("'{xid}'::xid8")
}

fn legal_ids(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let mut other = db.admin()?;
    let committed = literal(&finished(&mut other, "COMMIT")?);
    let aborted = literal(&finished(&mut other, "ROLLBACK")?);
    let own = "pg_current_xact_id()".to_string();
    let (bootstrap, frozen, first) = (literal("1"), literal("2"), literal("3"));
    let none = "NULL::xid8".to_string();
    for (number, xid) in [own, none, committed, aborted, bootstrap, frozen, first]
        .iter()
        .enumerate()
    {
        let command = Command::new(i32::try_from(number)? + 1);
        if let Some(refusal) = retain_naming(&mut app, &tenant, &command, xid)? {
            bail!("{xid} refused: {refusal:?}");
        }
    }
    Ok(())
}

fn forged_ids(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let mut other = db.admin()?;
    other.batch_execute("BEGIN")?;
    let running: u64 =
        value::<String>(&mut other, "SELECT pg_current_xact_id()::text", &[])?.parse()?;
    // A subtransaction of a running transaction has not finished either.
    other.batch_execute(
        "SAVEPOINT inner_one; CREATE TEMP TABLE takes_an_id (id int); INSERT INTO takes_an_id VALUES (1)",
    )?;
    let inner: i64 = value(
        &mut other,
        "SELECT xmin::text::bigint FROM takes_an_id",
        &[],
    )?;
    let inner = (running >> 32 << 32) + u64::try_from(inner)?;
    for (what, xid) in [
        ("running", running),
        ("running subtransaction", inner),
        ("to come", running + 1_000_000),
        ("of the next epoch", running + (1 << 32)),
        ("the last there is", u64::MAX),
    ] {
        retain_naming(
            &mut app,
            &tenant,
            &Command::new(1),
            &literal(&xid.to_string()),
        )?
        .with_context(|| format!("{what}: {xid} accepted"))?
        .speaks("supervised_command.retention_xid")
        .with_context(|| what.to_string())?;
    }
    // So are the ids to be assigned next; a few on, since another session may end one meanwhile.
    let soon = "(pg_current_xact_id()::text::numeric + 10)::text::xid8";
    retain_naming(&mut app, &tenant, &Command::new(1), soon)?
        .context("a transaction soon to come accepted")?
        .speaks("supervised_command.retention_xid")?;

    // Once it has ended it is history, and stays legal.
    other.batch_execute("COMMIT")?;
    let late = retain_naming(
        &mut app,
        &tenant,
        &Command::new(1),
        &literal(&running.to_string()),
    )?;
    ensure!(late.is_none(), "finished since, yet refused: {late:?}");
    Ok(())
}

fn superuser_restores(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut other = db.admin()?;
    other.batch_execute("BEGIN")?;
    let running: u64 =
        value::<String>(&mut other, "SELECT pg_current_xact_id()::text", &[])?.parse()?;
    let mut admin = db.admin()?;
    for (number, xid) in [(1, running), (2, running + 1_000_000)] {
        let command = Command::new(number);
        let refusal = retain_naming(&mut admin, &tenant, &command, &literal(&xid.to_string()))?;
        ensure!(refusal.is_none(), "{xid}: {refusal:?}");
    }

    // The session user decides, as for the marker: SET ROLE keeps the exemption, SESSION AUTHORIZATION ends it.
    admin.batch_execute(&format!(
        "SET {MARKER} = '1'; SET opengeni.account_id = '{}'; SET opengeni.workspace_id = '{}'; SET ROLE {APP}",
        tenant.account, tenant.workspace
    ))?;
    let xid = literal(&(running + 1_000_000).to_string());
    let refusal = retain_naming(&mut admin, &tenant, &Command::new(3), &xid)?;
    ensure!(refusal.is_none(), "after SET ROLE: {refusal:?}");
    admin.batch_execute(&format!("RESET ROLE; SET SESSION AUTHORIZATION {APP}"))?;
    retain_naming(&mut admin, &tenant, &Command::new(4), &xid)?
        .context("exempt after SET SESSION AUTHORIZATION")?
        .speaks("supervised_command.retention_xid")
}

fn immutable(db: &Db) -> Result<()> {
    for (tenant, command) in [db.legacy()?, db.supervised()?] {
        for session in [db.app(&tenant)?, db.admin()?].iter_mut() {
            for xid in ["NULL", "pg_current_xact_id()", "'3'::xid8"] {
                refused(
                    session,
                    &format!(
                        "UPDATE sandbox_retained_processes SET supervision_retention_xid = {xid} WHERE id = $1"
                    ),
                    &[&command.process],
                )?
                .speaks("supervised_command.retention_xid")?;
            }
            accepted(
                session,
                "UPDATE sandbox_retained_processes
                 SET supervision_retention_xid = supervision_retention_xid WHERE id = $1",
                &[&command.process],
            )?;
        }
    }
    Ok(())
}

fn attached_too_late(db: &Db) -> Result<()> {
    let (tenant, command) = db.legacy()?;
    let attach = protocol::attach(&command, command.provider_command(&tenant));
    for mut session in [db.app(&tenant)?, db.admin()?] {
        step_refused(&mut session, &attach)?.speaks("supervised_command.initial_retention")?;
    }
    // What a legacy command may still do: lose its descriptor-free command, and end.
    let mut app = db.app(&tenant)?;
    accepted(
        &mut app,
        "UPDATE sandbox_retained_processes SET provider_command = NULL WHERE id = $1",
        &[&command.process],
    )?;
    step_refused(&mut app, &attach)?.speaks("supervised_command.initial_retention")?;
    commit(&mut app, &[protocol::settle(&tenant, &command, 0)])
}

fn finished_transaction_cannot_upgrade(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let past = literal(&finished(&mut db.admin()?, "COMMIT")?);
    for (number, xid) in [(1, past.as_str()), (2, "NULL")] {
        let command = Command::new(number);
        let refusal = retain_naming(&mut app, &tenant, &command, &format!("({xid})::xid8"))?;
        ensure!(refusal.is_none(), "{xid}: {refusal:?}");
        let attach = protocol::attach(&command, command.provider_command(&tenant));
        step_refused(&mut app, &attach)?.speaks("supervised_command.initial_retention")?;
    }
    Ok(())
}

fn savepoints(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let attach = |command: &Command| protocol::attach(command, command.provider_command(&tenant));

    // Retained outside, attached inside.
    let command = Command::new(1);
    let mut transaction = app.transaction()?;
    run(&mut transaction, &protocol::admit(&tenant, &command))?;
    run(&mut transaction, &protocol::retain(&tenant, &command))?;
    let mut inner = transaction.transaction()?;
    run(&mut inner, &attach(&command))?;
    inner.commit()?;
    transaction.commit()?;

    // Retained inside one savepoint, attached inside another.
    let command = Command::new(2);
    let mut transaction = app.transaction()?;
    run(&mut transaction, &protocol::admit(&tenant, &command))?;
    let mut inner = transaction.transaction()?;
    run(&mut inner, &protocol::retain(&tenant, &command))?;
    inner.commit()?;
    let mut inner = transaction.transaction()?;
    run(&mut inner, &attach(&command))?;
    inner.commit()?;
    transaction.commit()?;

    // Retained inside, attached outside.
    let command = Command::new(3);
    let mut transaction = app.transaction()?;
    let mut inner = transaction.transaction()?;
    run(&mut inner, &protocol::admit(&tenant, &command))?;
    run(&mut inner, &protocol::retain(&tenant, &command))?;
    inner.commit()?;
    run(&mut transaction, &attach(&command))?;
    Ok(transaction.commit()?)
}

fn rolled_back_attachment(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let attach = protocol::attach(&command, command.provider_command(&tenant));
    let mut app = db.app(&tenant)?;
    let mut transaction = app.transaction()?;
    run(&mut transaction, &protocol::admit(&tenant, &command))?;
    run(&mut transaction, &protocol::retain(&tenant, &command))?;
    let mut inner = transaction.transaction()?;
    run(&mut inner, &attach)?;
    // Attached, the identity is fixed even inside the same transaction.
    let mut stranger = command.provider_command(&tenant);
    stranger["supervision"]["nonce"] = "0".repeat(64).into();
    let stranger = protocol::attach(&command, stranger);
    step_refused(&mut inner, &stranger)?.speaks("supervised_command.identity")?;
    inner.rollback()?;
    // Rolled back, it never happened: another descriptor may come instead.
    run(&mut transaction, &stranger)?;
    transaction.commit()?;
    step_refused(&mut app, &attach)?.speaks("supervised_command.identity")
}

/// Inserts the process with these columns set beside its identity, and takes it back.
fn insert_with(
    client: &mut Client,
    tenant: &Tenant,
    columns: &str,
    values: &str,
) -> Result<Option<Refusal>> {
    let command = Command::new(1);
    let mut transaction = client.transaction()?;
    run(&mut transaction, &protocol::admit(tenant, &command))?;
    let inserted = transaction.execute(
        &format!(
            "INSERT INTO sandbox_retained_processes
               (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id,
                parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, lease_epoch,
                provider_backend, provider_instance_id, route_kind, route_epoch, provider_session_id,
                provider_command, {columns})
             SELECT $2::uuid, account_id, workspace_id, session_id, lease_id, sandbox_group_id,
                id, $3::text, actor_kind, actor_id, lease_epoch,
                provider_backend, provider_instance_id, route_kind, route_epoch, 1, $4::jsonb, {values}
             FROM sandbox_workspace_mutation_admissions WHERE id = $1"
        ),
        &[
            &command.admission,
            &command.process,
            &command.holder(),
            &command.provider_command(tenant),
        ],
    );
    transaction.rollback()?;
    inserted.err().map(|error| Refusal::of(&error)).transpose()
}

fn attached_at_once(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    for (columns, values) in [
        ("state", "'active'"),
        ("supervision_retention_xid", "NULL::xid8"),
        ("provider_command_input_index", "17"),
        (
            "cancellation_requested_at, cancellation_reason",
            "now(), 'explicit_stop'",
        ),
    ] {
        let refusal = insert_with(&mut app, &tenant, columns, values)?;
        ensure!(refusal.is_none(), "{columns}: {refusal:?}");
    }
    for (columns, values, rule) in [
        (
            "cancellation_reason",
            "'explicit_stop'",
            "supervised_command.cancellation_intent",
        ),
        (
            "supervision_receipt",
            "'{}'::jsonb",
            "supervised_command.receipt",
        ),
        (
            "supervision_output_captured",
            "true",
            "supervised_command.capture_incomplete",
        ),
        (
            "state, settled_at, settlement_reason",
            "'lost', now(), 'provider_instance_lost'",
            "supervised_command.loss_fabricated",
        ),
        (
            "state, settled_at, exit_code",
            "'exited', now(), 0",
            "supervised_command.settlement",
        ),
        ("settled_at", "now()", "supervised_command.settlement"),
    ] {
        insert_with(&mut app, &tenant, columns, values)?
            .with_context(|| format!("{columns} accepted"))?
            .speaks(rule)?;
    }
    let contain = "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1";
    accepted(&mut db.admin()?, contain, &[&tenant.lease])?;
    insert_with(&mut app, &tenant, "state", "'active'")?
        .context("attached into containment")?
        .speaks("supervised_command.containment")
}
