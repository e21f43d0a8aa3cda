//! Guards that only watch: what they count, what they leave alone, and the way from watching to enforcing.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command};
use opengeni_guards_harness::server::Server;
use postgres::Client;

use crate::attach::{extension, switch};
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    let cases: [(&str, Body); 6] = [
        (
            "what PL/pgSQL accepts and ours would refuse is counted",
            counted,
        ),
        ("rolled back is forgotten", forgotten),
        ("nothing is decided, raised or locked", harmless),
        ("a log that cannot be written costs nothing", without_a_log),
        (
            "a log that writes guarded tables itself comes to an end",
            log_that_writes,
        ),
        ("from watching to enforcing, and to nothing", onward),
    ];
    cases
        .into_iter()
        .map(|(name, body)| original_case(server, &format!("shadow: {name}"), body))
        .collect()
}

fn watch(db: &Db) -> Result<Client> {
    extension(db)?;
    let mut owner = db.owner()?;
    let done = switch(&mut owner, "attach('opengeni', mode => 'shadow')")?;
    ensure!(
        done.iter().all(|line| line.starts_with("created ")),
        "{done:#?}"
    );
    ensure!(done.len() == 1 + 26 + 9, "{done:#?}");
    let mode: String = value(
        &mut owner,
        "SELECT state FROM opengeni_guards.status('opengeni') WHERE object = 'mode'",
        &[],
    )?;
    ensure!(mode == "shadow", "{mode}");
    Ok(owner)
}

fn report(owner: &mut Client) -> Result<Vec<String>> {
    lines(
        owner,
        "SELECT concat_ws(' ', rule, refusals, object) FROM opengeni_guards.shadow_report('opengeni')
          WHERE first_seen <= last_seen ORDER BY 1",
        &[],
    )
}

/// Takes the output cursor back: the originals compare with NULL and let it pass (D11).
const FORGET_STREAMS: &str = "UPDATE sandbox_retained_processes SET provider_command = provider_command - 'streams' WHERE id = $1";

fn capture_setting(command: &Command) -> String {
    format!("SET {CAPTURE} = '{}'", command.process)
}

fn counted(db: &Db) -> Result<()> {
    let mut owner = watch(db)?;
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let mut app = db.app(&tenant)?;
    commit(&mut app, &[protocol::launch(&tenant, &command)])?;
    ensure!(report(&mut owner)?.is_empty(), "{:?}", report(&mut owner)?);
    commit(
        &mut app,
        &[protocol::capture(
            &command,
            protocol::streams(&protocol::Cursor::at(5), &protocol::Cursor::START),
            false,
        )],
    )?;
    app.batch_execute(&capture_setting(&command))?;
    accepted(&mut app, FORGET_STREAMS, &[&command.process])?;
    app.batch_execute(&format!("RESET {CAPTURE}"))?;
    ensure!(
        report(&mut owner)?
            == [
                "supervised_command.output_regress 1 trigger supervised_command_guard on sandbox_retained_processes"
            ],
        "{:?}",
        report(&mut owner)?
    );
    // TRUNCATE, which the originals do not see (D14); nothing refers to holders.
    db.admin()?
        .batch_execute("TRUNCATE sandbox_lease_holders")?;
    let seen = report(&mut owner)?;
    ensure!(
        seen.len() == 2
            && seen
                .iter()
                .any(|line| line
                    .contains("supervised_command_truncate_guard on sandbox_lease_holders")),
        "{seen:?}"
    );
    // What the originals refuse is not in the log.
    refused(
        &mut app,
        "DELETE FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )?
    .has_state("55000")?;
    ensure!(report(&mut owner)? == seen);
    Ok(())
}

fn forgotten(db: &Db) -> Result<()> {
    let mut owner = watch(db)?;
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let mut transaction = app.transaction()?;
    transaction.batch_execute(&capture_setting(&command))?;
    for _ in 0..2 {
        let mut savepoint = transaction.savepoint("here")?;
        savepoint.execute(FORGET_STREAMS, &[&command.process])?;
        savepoint.rollback()?;
    }
    transaction.execute(FORGET_STREAMS, &[&command.process])?;
    transaction.rollback()?;
    ensure!(report(&mut owner)?.is_empty(), "{:?}", report(&mut owner)?);
    // A later statement does not bring a failed one's count along.
    app.batch_execute(&capture_setting(&command))?;
    let half = "UPDATE sandbox_retained_processes SET provider_command = provider_command - 'streams',
                  provider_command_input_index = 1 / (provider_command_input_index - provider_command_input_index) WHERE id = $1";
    refused(&mut app, half, &[&command.process])?.has_state("22012")?;
    accepted(
        &mut app,
        "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts WHERE id = $1",
        &[&command.process],
    )?;
    ensure!(report(&mut owner)?.is_empty(), "{:?}", report(&mut owner)?);
    Ok(())
}

fn harmless(db: &Db) -> Result<()> {
    let mut owner = watch(db)?;
    let (tenant, ended) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    for step in [
        protocol::capture(
            &ended,
            protocol::streams(&protocol::Cursor::end(9), &protocol::Cursor::end(0)),
            false,
        ),
        protocol::record_receipt(&ended, ended.receipt(0)),
        protocol::capture(
            &ended,
            protocol::streams(&protocol::Cursor::end(9), &protocol::Cursor::end(0)),
            true,
        ),
        protocol::settle(&tenant, &ended, 0),
    ] {
        commit(&mut app, &[step])?;
    }
    // The holder of an ended command, made again (D13): enforcing waits for the process row and refuses.
    let mut other = db.admin()?;
    let mut holding = other.transaction()?;
    holding.execute(
        "SELECT FROM sandbox_retained_processes WHERE id = $1 FOR UPDATE",
        &[&ended.process],
    )?;
    app.batch_execute("SET lock_timeout = '500ms'")?;
    let mut transaction = app.transaction()?;
    accepted(
        &mut transaction,
        "INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
         VALUES ($1, $2, $3, 'process', $4, $5)",
        &[&tenant.account, &tenant.workspace, &tenant.lease, &ended.holder(), &tenant.session],
    )?;
    let locks: i64 = value(
        &mut transaction,
        "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'sandbox_retained_processes'::regclass",
        &[],
    )?;
    ensure!(locks == 0, "{locks} locks are kept");
    transaction.commit()?;
    holding.rollback()?;
    let seen = report(&mut owner)?;
    ensure!(
        seen.len() == 1
            && seen[0].contains(
                "trigger supervised_command_holder_insert_guard on sandbox_lease_holders"
            ),
        "{seen:?}"
    );
    let command = Command::new(2);
    commit(&mut app, &[protocol::launch(&tenant, &command)])?;
    // A cancel passes through.
    app.batch_execute("SET statement_timeout = '1ms'; SET lock_timeout = 0")?;
    let mut cancelled = 0;
    for _ in 0..50 {
        let outcome = app.execute(
            "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + (SELECT count(*) FROM generate_series(1, 200000))::int * 0
              WHERE id = $1",
            &[&command.process],
        );
        if let Err(error) = outcome {
            Refusal::of(&error)?.has_state("57014")?;
            cancelled += 1;
        }
    }
    ensure!(cancelled > 0);
    app.batch_execute("RESET statement_timeout")?;
    accepted(
        &mut app,
        "UPDATE sandbox_retained_processes SET reconcile_attempts = 0 WHERE id = $1",
        &[&command.process],
    )?;
    ensure!(report(&mut owner)? == seen);
    Ok(())
}

fn without_a_log(db: &Db) -> Result<()> {
    let mut owner = watch(db)?;
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    app.batch_execute(&capture_setting(&command))?;
    refused(&mut app, "SELECT * FROM opengeni_guards_shadow", &[])?.has_state("42501")?;
    for harm in [
        "ALTER TABLE opengeni_guards_shadow RENAME TO elsewhere",
        "CREATE VIEW opengeni_guards_shadow AS SELECT 1 AS rule",
    ] {
        owner.batch_execute(harm)?;
        let mut transaction = app.transaction()?;
        transaction.execute(FORGET_STREAMS, &[&command.process])?;
        transaction.rollback()?;
        let reported = "SELECT * FROM opengeni_guards.shadow_report('opengeni')";
        match harm.starts_with("CREATE VIEW") {
            // Nothing was found, as far as it can say: it says that it cannot.
            true => refused(&mut owner, reported, &[])?.has_state("55000")?,
            false => ensure!(report(&mut owner)?.is_empty()),
        }
    }
    accepted(&mut app, FORGET_STREAMS, &[&command.process])
}

fn log_that_writes(db: &Db) -> Result<()> {
    let mut owner = watch(db)?;
    let (tenant, ended) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let ends = || protocol::Cursor::end(20);
    for step in [
        protocol::record_receipt(&ended, ended.receipt(0)),
        protocol::capture(&ended, protocol::streams(&ends(), &ends()), true),
        protocol::settle(&tenant, &ended, 0),
    ] {
        commit(&mut app, &[step])?;
    }
    // The holder of an ended command, made again; each time is counted.
    let again = format!(
        "DELETE FROM sandbox_lease_holders WHERE holder_id = '{0}';
         INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
           VALUES ('{1}', '{2}', '{3}', 'process', '{0}', '{4}')",
        ended.holder(),
        tenant.account,
        tenant.workspace,
        tenant.lease,
        tenant.session
    );
    let lines =
        "SELECT count(*) FROM opengeni_guards_shadow WHERE rule = 'process_holder.released'";
    for time in 1..=2 {
        app.batch_execute(&again)?;
        let seen: i64 = value(&mut owner, lines, &[])?;
        ensure!(seen == time, "{seen} lines");
    }
    owner.batch_execute(&format!(
        "CREATE TABLE runs ();
         CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql SET search_path = opengeni AS
           $$ BEGIN INSERT INTO runs DEFAULT VALUES; {again}; RETURN NEW; END $$;
         CREATE TRIGGER again AFTER INSERT ON opengeni_guards_shadow FOR EACH ROW EXECUTE FUNCTION again()"
    ))?;
    app.batch_execute(&again)?;
    let seen: i64 = value(&mut owner, lines, &[])?;
    let runs: i64 = value(&mut owner, "SELECT count(*) FROM runs", &[])?;
    ensure!(seen == 3 && runs == 1, "{seen} lines, {runs} runs");
    Ok(())
}

fn onward(db: &Db) -> Result<()> {
    let mut owner = watch(db)?;
    let again = switch(&mut owner, "attach('opengeni', mode => 'shadow')")?;
    ensure!(
        again.iter().all(|line| line.starts_with("present ")),
        "{again:#?}"
    );
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    app.batch_execute(&capture_setting(&command))?;
    accepted(&mut app, FORGET_STREAMS, &[&command.process])?;
    let seen = report(&mut owner)?;
    ensure!(seen.len() == 1, "{seen:?}");

    let done = switch(&mut owner, "attach('opengeni')")?;
    ensure!(
        done.iter()
            .filter(|line| line.starts_with("dropped "))
            .count()
            == 35,
        "{done:#?}"
    );
    ensure!(value::<bool>(
        &mut owner,
        "SELECT opengeni_guards.ready('opengeni')",
        &[]
    )?);
    ensure!(report(&mut owner)? == seen, "the log is kept");
    // Watching again where everything is enforced already changes nothing.
    let again = switch(&mut owner, "attach('opengeni', mode => 'shadow')")?;
    ensure!(
        again.iter().all(|line| line.starts_with("present ")),
        "{again:#?}"
    );
    ensure!(value::<bool>(
        &mut owner,
        "SELECT opengeni_guards.ready('opengeni')",
        &[]
    )?);
    switch(&mut owner, "detach('opengeni')")?;
    switch(&mut owner, "attach('opengeni', mode => 'shadow')")?;
    switch(&mut owner, "detach('opengeni')")?;
    let left: i64 = value(
        &mut owner,
        "SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = tgfoid WHERE pronamespace = 'opengeni_guards'::regnamespace",
        &[],
    )?;
    ensure!(left == 0, "{left} triggers are left");
    db.admin()?
        .batch_execute("DROP EXTENSION opengeni_guards")?;
    ensure!(lines(&mut owner, "SELECT rule FROM opengeni_guards_shadow", &[])?.len() == 1);
    Ok(())
}
