//! Who does what: a plain owner provisions, a plain application role works.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, Tenant, streams};
use opengeni_guards_harness::server::Server;
use postgres::Client;
use uuid::Uuid;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        bare_case(
            server,
            "roles: a plain owner provisions an empty database and an application uses it",
            owner_provisions_application_works,
        ),
        case(
            server,
            "roles: a supervised command lives from admission to settlement under row-level security",
            whole_life,
        ),
        case(
            server,
            "roles: a command is lost with its provider and the next sandbox takes over",
            provider_loss,
        ),
        case(
            server,
            "roles: a launch the provider rejected ends as lost",
            launch_rejection,
        ),
        case(
            server,
            "roles: a cancelled command is settled with its proof",
            cancellation,
        ),
        case(
            server,
            "roles: settled and lost evidence can be deleted",
            finished_evidence_goes,
        ),
        case(
            server,
            "roles: an application role cannot switch a guard off",
            guards_stay_on,
        ),
    ]
}

fn owner_provisions_application_works(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!("CREATE SCHEMA {SCHEMA}"))?;
    provision(&mut owner, SCHEMA)?;
    grant_usage(&mut owner, APP, SCHEMA)?;

    let strangers = lines(
        &mut admin,
        "SELECT oid::regclass::text FROM pg_class
         WHERE relnamespace = $1::text::regnamespace AND relowner <> $2::text::regrole",
        &[&SCHEMA, &OWNER],
    )?;
    ensure!(strangers.is_empty(), "not the owner's: {strangers:?}");

    // The owner is bound by row-level security and by the marker like anybody else.
    let tenant = Tenant::new();
    commit(
        &mut owner,
        &[
            vec![
                protocol::tenant_settings(&tenant),
                protocol::protocol_marker(),
            ],
            protocol::seed(&tenant),
        ],
    )?;
    live(&mut db.app(&tenant)?, &tenant, &Command::new(1), 0)
}

fn whole_life(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    for (number, exit_code) in [(1, 0), (2, 7), (3, -1)] {
        live(&mut app, &tenant, &Command::new(number), exit_code)?;
    }
    let left: i64 = value(
        &mut app,
        "SELECT count(*) FROM sandbox_lease_holders WHERE lease_id = $1",
        &[&tenant.lease],
    )?;
    ensure!(left == 0, "{left} holders left on the lease");
    Ok(())
}

/// Admission, retention, supervision, two inputs, two captures, receipt, final capture, settlement.
fn live(app: &mut Client, tenant: &Tenant, command: &Command, exit_code: i32) -> Result<()> {
    commit(app, &[protocol::admit(tenant, command)])?;
    commit(
        app,
        &[
            protocol::retain(tenant, command),
            protocol::attach(command, command.provider_command(tenant)),
        ],
    )?;
    for index in [10, 25] {
        let child = Uuid::new_v4();
        commit(app, &[protocol::admit_input(tenant, command, child)])?;
        commit(app, &[protocol::advance_input(command, index)])?;
        commit(app, &[protocol::settle_input(child)])?;
    }
    let partial = Cursor {
        remainder: "4g==",
        ..Cursor::at(4096)
    };
    for (stdout, stderr) in [
        (&partial, &Cursor::START),
        (&Cursor::at(9000), &Cursor::at(120)),
    ] {
        commit(
            app,
            &[protocol::capture(command, streams(stdout, stderr), false)],
        )?;
    }
    finish(app, tenant, command, exit_code)
}

/// Receipt, final capture and settlement, each in its own transaction.
fn finish(app: &mut Client, tenant: &Tenant, command: &Command, exit_code: i32) -> Result<()> {
    let ends = streams(&Cursor::end(9100), &Cursor::end(120));
    commit(
        app,
        &[protocol::record_receipt(
            command,
            command.receipt(exit_code),
        )],
    )?;
    commit(app, &[protocol::capture(command, ends, true)])?;
    commit(app, &[protocol::settle(tenant, command, exit_code)])?;
    ends_as(app, command, "exited", Some(exit_code))
}

fn ends_as(app: &mut Client, command: &Command, state: &str, exit_code: Option<i32>) -> Result<()> {
    let row = app.query_one(
        "SELECT state, exit_code, settled_at IS NOT NULL FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )?;
    let found: (String, Option<i32>, bool) = (row.get(0), row.get(1), row.get(2));
    ensure!(
        found == (state.to_string(), exit_code, true),
        "ended as {found:?}"
    );
    Ok(())
}

fn provider_loss(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    commit(&mut app, &[protocol::lose_provider(&tenant, &command)])?;
    ends_as(&mut app, &command, "lost", None)?;

    let next = tenant.successor();
    commit(&mut app, &[protocol::warm(&next)])?;
    live(&mut app, &next, &Command::new(1), 0)
}

fn launch_rejection(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    commit(&mut app, &[protocol::reject_launch(&tenant, &command)])?;
    ends_as(&mut app, &command, "lost", None)
}

fn cancellation(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    commit(&mut app, &[protocol::cancel(&command, "provider_deadline")])?;
    step_refused(&mut app, &protocol::advance_input(&command, 1))?
        .speaks("supervised_command.stdin_closed")?;
    finish(&mut app, &tenant, &command, 137)
}

fn finished_evidence_goes(db: &Db) -> Result<()> {
    let delete = "DELETE FROM sandbox_retained_processes WHERE id = $1";
    let tenant = db.tenant()?;
    let (settled, lost) = (Command::new(1), Command::new(2));
    let mut app = db.app(&tenant)?;
    commit(&mut app, &[protocol::launch(&tenant, &settled)])?;
    commit(&mut app, &[protocol::launch(&tenant, &lost)])?;
    for command in [&settled, &lost] {
        refused(&mut app, delete, &[&command.process])?
            .speaks("supervised_command.delete_unsettled")?;
    }
    finish(&mut app, &tenant, &settled, 0)?;
    accepted(&mut app, delete, &[&settled.process])?;
    commit(&mut app, &[protocol::lose_provider(&tenant, &lost)])?;
    accepted(&mut app, delete, &[&lost.process])
}

fn guards_stay_on(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    for sql in [
        "ALTER TABLE sandbox_retained_processes DISABLE TRIGGER supervised_command_guard",
        "DROP TRIGGER supervised_command_guard ON sandbox_retained_processes",
        "SET session_replication_role = replica",
        "TRUNCATE sandbox_retained_processes CASCADE",
    ] {
        refused(&mut app, sql, &[])?.has_state("42501")?;
    }
    Ok(())
}
