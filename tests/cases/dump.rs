//! Dump and restore: the application's tables are ordinary tables, and the guards come along.

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::server::Server;

use postgres::Client;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "dump: pg_dump | psql into an empty database gives the same definitions and live guards",
            into_an_empty_database,
        ),
        case(
            server,
            "dump: the extension may stand in the target already",
            into_a_database_with_the_extension,
        ),
        case(
            server,
            "dump: nothing of the extension itself is dumped but its CREATE EXTENSION",
            only_the_extension_statement,
        ),
        original_case(
            server,
            "dump: of an attached database, and detached after the restore",
            of_an_attached_database,
        ),
        case(
            server,
            "dump: schema and data by themselves, in custom format",
            schema_then_data,
        ),
    ]
}

pub fn dump(db: &Db) -> Result<Vec<u8>> {
    let output = db
        .server
        .program("pg_dump")
        .arg(&db.name)
        .output()
        .context("pg_dump")?;
    ensure!(
        output.status.success(),
        "pg_dump: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

pub fn restore(target: &Db, script: &[u8]) -> Result<()> {
    let mut psql = target
        .server
        .program("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &target.name])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("psql")?;
    let written = psql.stdin.take().context("psql's stdin")?.write_all(script);
    let output = psql.wait_with_output()?;
    ensure!(
        output.status.success(),
        "psql: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(written?)
}

/// Restores the dump of `db` into `target` and works there.
fn restored(db: &Db, target: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let (legacy_tenant, legacy) = db.legacy()?;
    restore(target, &dump(db)?)?;
    same(&flat(&mut db.admin()?)?, &flat(&mut target.admin()?)?)?;
    guards_live(target, &tenant, &command)?;

    // Rows that were retained before the dump stay legacy after it.
    let mut app = target.app(&legacy_tenant)?;
    let attach = protocol::attach(&legacy, legacy.provider_command(&legacy_tenant));
    step_refused(&mut app, &attach)?.speaks("supervised_command.initial_retention")?;
    commit(&mut app, &[protocol::settle(&legacy_tenant, &legacy, 0)])
}

/// Definitions without parentheses: reading an expression back, the server may nest its ANDs otherwise.
fn flat(client: &mut Client) -> Result<Vec<String>> {
    let lines = definitions(client)?;
    Ok(lines
        .iter()
        .map(|line| line.replace(['(', ')'], ""))
        .collect())
}

fn guards_live(target: &Db, tenant: &Tenant, command: &Command) -> Result<()> {
    let delete = "DELETE FROM sandbox_retained_processes WHERE id = $1";
    for session in [target.admin()?, target.owner()?, target.app(tenant)?].iter_mut() {
        set(session, "opengeni.account_id", &tenant.account.to_string())?;
        set(
            session,
            "opengeni.workspace_id",
            &tenant.workspace.to_string(),
        )?;
        set(session, MARKER, "1")?;
        refused(session, delete, &[&command.process])?
            .speaks("supervised_command.delete_unsettled")?;
    }
    let mut app = target.app(tenant)?;
    commit(&mut app, &[protocol::cancel(command, "explicit_stop")])?;
    commit(&mut app, &[protocol::launch(tenant, &Command::new(2))])?;
    app.batch_execute(&format!("RESET {MARKER}"))?;
    refused(&mut app, delete, &[&command.process])?.speaks("protocol_v2.marker")
}

fn into_an_empty_database(db: &Db) -> Result<()> {
    restored(db, &Db::empty(&db.server)?)
}

fn into_a_database_with_the_extension(db: &Db) -> Result<()> {
    let target = Db::empty(&db.server)?;
    target
        .admin()?
        .batch_execute("CREATE EXTENSION opengeni_guards")?;
    restored(db, &target)
}

fn only_the_extension_statement(db: &Db) -> Result<()> {
    let script = String::from_utf8(dump(db)?)?;
    ensure!(script.contains("CREATE EXTENSION IF NOT EXISTS opengeni_guards"));
    for member in [
        "CREATE SCHEMA opengeni_guards",
        "CREATE FUNCTION opengeni_guards.",
        "GRANT ALL ON FUNCTION opengeni_guards.",
    ] {
        ensure!(!script.contains(member), "dumped: {member}");
    }
    // One of each, not two: what CREATE EXTENSION binds is not created again.
    let triggers = script
        .matches("CREATE TRIGGER supervised_command_guard ")
        .count();
    ensure!(triggers == 1, "{triggers} triggers");
    Ok(())
}

/// What was replaced is restored too, so that the way back is open.
fn of_an_attached_database(db: &Db) -> Result<()> {
    let before = flat(&mut db.admin()?)?;
    db.admin()?.batch_execute(
        "SET opengeni_guards.bind_on_create = off; CREATE EXTENSION opengeni_guards",
    )?;
    let (tenant, command) = db.supervised()?;
    let mut owner = db.owner()?;
    owner.batch_execute("SELECT opengeni_guards.attach('opengeni')")?;
    let target = Db::empty(&db.server)?;
    restore(&target, &dump(db)?)?;
    same(&flat(&mut db.admin()?)?, &flat(&mut target.admin()?)?)?;
    guards_live(&target, &tenant, &command)?;
    let mut owner = target.owner()?;
    ensure!(value::<bool>(
        &mut owner,
        "SELECT opengeni_guards.ready('opengeni')",
        &[]
    )?);
    owner.batch_execute("SELECT opengeni_guards.detach('opengeni')")?;
    let mut after = flat(&mut target.admin()?)?;
    after.retain(|line| !line.contains("opengeni_guards"));
    same(&before, &after)
}

fn schema_then_data(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let file = std::env::temp_dir().join(format!("{}.dump", db.name));
    let run = |program: &str, arguments: &[&str]| -> Result<()> {
        let output = db.server.program(program).args(arguments).output()?;
        ensure!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    let path = file.to_string_lossy();
    run("pg_dump", &["-Fc", "-f", &path, &db.name])?;
    let target = Db::empty(&db.server)?;
    run(
        "pg_restore",
        &[
            "--schema-only",
            "--exit-on-error",
            "-d",
            &target.name,
            &path,
        ],
    )?;
    // With the guards firing, rows would be judged before their siblings are there.
    run(
        "pg_restore",
        &[
            "--data-only",
            "--disable-triggers",
            "--exit-on-error",
            "-d",
            &target.name,
            &path,
        ],
    )?;
    std::fs::remove_file(&file)?;
    same(&flat(&mut db.admin()?)?, &flat(&mut target.admin()?)?)?;
    guards_live(&target, &tenant, &command)
}
