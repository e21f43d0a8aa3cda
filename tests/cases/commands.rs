//! The retained-command operations as the application calls them: from roles under row-level security, in
//! transactions that are rolled back or killed, beside other readers.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::random::Random;
use opengeni_guards_harness::reader::{Output, Page, Place};
use opengeni_guards_harness::server::Server;
use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;
use serde_json::Value;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    type Body = fn(&Db) -> Result<()>;
    let all: [(&str, Body); 12] = [
        (
            "settings are the caller's again afterwards, also after an error",
            settings,
        ),
        (
            "a tenant's commands and output are out of another's reach",
            tenants,
        ),
        (
            "a page is announced when it is committed, and only then",
            announced,
        ),
        (
            "a schema without an output table has its chunks shown",
            unstored,
        ),
        (
            "a page and its cursor are stored together or not at all",
            atomic,
        ),
        (
            "a capture waits for the session before it takes the process",
            lock_order,
        ),
        (
            "of two readers at once one is told to read again",
            two_at_once,
        ),
        (
            "a snapshot that is too old is a serialization failure",
            old_snapshot,
        ),
        ("characters split anywhere come out whole", split_characters),
        (
            "two readers, retries, rollbacks and kills store each byte once",
            interleavings,
        ),
        ("a membership fence that is held is refused at once", fences),
        ("rules() lists every reason of every operation", listed),
    ];
    all.into_iter()
        .map(|(name, body)| case(server, &format!("commands: {name}"), body))
        .collect()
}

/// An application session that has set nothing.
fn plain(db: &Db) -> Result<Client> {
    db.session(APP)
}

fn at<'a>(tenant: &'a Tenant, command: &Command) -> Place<'a> {
    Place {
        schema: SCHEMA,
        tenant,
        process: command.process,
    }
}

fn command_now(db: &Db, command: &Command) -> Result<Value> {
    value(
        &mut db.admin()?,
        "SELECT provider_command FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )
}

/// What is stored of one stream, in the order in which a reader sees it.
fn stored(db: &Db, command: &Command, stream: &str) -> Result<String> {
    value(
        &mut db.admin()?,
        "SELECT coalesce(string_agg(chunk, '' ORDER BY sequence), '') FROM sandbox_command_output
         WHERE process_id = $1 AND stream = $2",
        &[&command.process, &stream],
    )
}

const SETTINGS: &str = "SELECT concat_ws(',', current_setting('opengeni.account_id', true),
    current_setting('opengeni.workspace_id', true), current_setting('opengeni.sandbox_recovery_protocol_v2', true),
    current_setting('opengeni.supervised_output_capture_process_id', true), current_setting('search_path'),
    current_setting('enable_seqscan'), current_user)";

fn settings(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let output = Output {
        stdout: "hello".into(),
        stderr: String::new(),
    };
    let page = output.page(&command_now(db, &command)?, 5);
    let mut app = plain(db)?;
    for prepare in [
        "",
        "SELECT set_config('opengeni.account_id', 'mine', false), set_config('opengeni.workspace_id', 'mine', false),
            set_config('opengeni.sandbox_recovery_protocol_v2', '7', false), set_config('enable_seqscan', 'off', false),
            set_config('opengeni.supervised_output_capture_process_id', 'mine', false)",
    ] {
        app.batch_execute(prepare)?;
        // A setting that was never set reads '' once it has been one.
        app.batch_execute("SELECT set_config(name, coalesce(current_setting(name, true), ''), false) FROM unnest(ARRAY[
            'opengeni.account_id', 'opengeni.workspace_id', 'opengeni.sandbox_recovery_protocol_v2',
            'opengeni.supervised_output_capture_process_id']) AS name")?;
        let before: String = value(&mut app, SETTINGS, &[])?;
        let mut transaction = app.transaction()?;
        let captured = page.capture(&mut transaction, at(&tenant, &command))?;
        ensure!(captured.captured, "{captured:?}");
        let inside: String = value(&mut transaction, SETTINGS, &[])?;
        ensure!(inside == before, "in the transaction: {before} -> {inside}");
        let mut savepoint = transaction.transaction()?;
        let error = savepoint.execute(
            "SELECT opengeni_guards.record_supervision_receipt($1, $2, $3, $4, $5, $6)",
            &[&tenant.account, &tenant.workspace, &tenant.session, &command.process,
              &Command::new(9).receipt(0), &SCHEMA],
        );
        let refusal = match error {
            Ok(_) => anyhow::bail!("another invocation's receipt was accepted"),
            Err(error) => Refusal::of(&error)?,
        };
        refusal.speaks("supervised_command.receipt")?;
        savepoint.rollback()?;
        let after: String = value(&mut transaction, SETTINGS, &[])?;
        ensure!(after == before, "after the error: {before} -> {after}");
        transaction.rollback()?;
        let after: String = value(&mut app, SETTINGS, &[])?;
        ensure!(after == before, "after ROLLBACK: {before} -> {after}");
    }
    Ok(())
}

fn tenants(db: &Db) -> Result<()> {
    let (ours, command) = db.supervised()?;
    let (theirs, _) = db.supervised()?;
    let output = Output {
        stdout: "secret".into(),
        stderr: String::new(),
    };
    let page = output.page(&command_now(db, &command)?, 6);
    ensure!(page.capture(&mut plain(db)?, at(&ours, &command))?.captured);
    let visible = "SELECT count(*) FROM sandbox_command_output";
    ensure!(value::<i64>(&mut db.app(&ours)?, visible, &[])? == 1);
    ensure!(value::<i64>(&mut db.app(&theirs)?, visible, &[])? == 0);
    ensure!(value::<i64>(&mut plain(db)?, visible, &[])? == 0);
    ensure!(
        value::<i64>(&mut db.owner()?, visible, &[])? == 0,
        "the owner sees past forced RLS"
    );

    // Each part of the scope has to be the command's.
    let mixed = [
        Tenant {
            account: theirs.account,
            ..ours.clone()
        },
        Tenant {
            workspace: theirs.workspace,
            ..ours.clone()
        },
        Tenant {
            session: theirs.session,
            ..ours.clone()
        },
        theirs.clone(),
    ];
    for wrong in &mixed {
        for (call, state) in [
            (
                "opengeni_guards.load_supervision_receipt($1, $2, $3, $4, data_schema => $5)",
                "P0002",
            ),
            (
                "opengeni_guards.cancellation_requested($1, $2, $3, $4, $5)",
                "P0002",
            ),
            (
                "opengeni_guards.request_cancellation($1, $2, $3, $4, 'explicit_stop', $5)",
                "P0002",
            ),
            (
                "opengeni_guards.reserve_input($1, $2, $3, $4, 5, $5)",
                "P0002",
            ),
        ] {
            let refusal = refused(
                &mut db.app(&theirs)?,
                &format!("SELECT {call}"),
                &[
                    &wrong.account,
                    &wrong.workspace,
                    &wrong.session,
                    &command.process,
                    &SCHEMA,
                ],
            )?;
            refusal.has_state(state)?;
        }
        let Err(error) = page.capture(&mut db.app(&theirs)?, at(wrong, &command)) else {
            anyhow::bail!("captured as {wrong:?}");
        };
        Refusal::of(&error)?.has_state("P0002")?;
    }
    // A role without privileges gets nowhere with the right scope.
    let Err(error) = page.capture(&mut db.session(STRANGER)?, at(&ours, &command)) else {
        anyhow::bail!("captured as a stranger");
    };
    Refusal::of(&error)?.has_state("42501")
}

fn announced(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let output = Output {
        stdout: "one two".into(),
        stderr: String::new(),
    };
    let mut listener = plain(db)?;
    listener.batch_execute("LISTEN opengeni_command_output")?;
    let mut heard = |wait: u64| -> Result<Vec<String>> {
        let mut notifications = listener.notifications();
        let mut all = Vec::new();
        let mut pending = notifications.timeout_iter(Duration::from_millis(wait));
        while let Some(notification) = pending.next()? {
            all.push(notification.payload().to_owned());
        }
        Ok(all)
    };
    let mut app = plain(db)?;
    let first = output.page(&command_now(db, &command)?, 3);
    let mut transaction = app.transaction()?;
    first.capture(&mut transaction, at(&tenant, &command))?;
    transaction.rollback()?;
    ensure!(heard(100)?.is_empty(), "a rolled-back page is announced");

    let mut transaction = app.transaction()?;
    let command_then = first
        .capture(&mut transaction, at(&tenant, &command))?
        .command;
    output
        .page(&command_then, 4)
        .capture(&mut transaction, at(&tenant, &command))?;
    ensure!(
        heard(100)?.is_empty(),
        "a page is announced before it is committed"
    );
    transaction.commit()?;
    ensure!(heard(500)? == [command.process.to_string()]);

    // A stale page and an empty one say nothing new.
    ensure!(!first.capture(&mut app, at(&tenant, &command))?.captured);
    let now = command_now(db, &command)?;
    let nothing = Page {
        expected: now.clone(),
        command: now,
        stdout: String::new(),
        stderr: String::new(),
    };
    ensure!(nothing.capture(&mut app, at(&tenant, &command))?.captured);
    ensure!(heard(100)?.is_empty(), "nothing new is announced");
    Ok(())
}

fn unstored(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    db.admin()?
        .batch_execute("DROP TABLE sandbox_command_output")?;
    let output = Output {
        stdout: "shown".into(),
        stderr: "too".into(),
    };
    let page = output.page(&command_now(db, &command)?, 9);
    let captured = page.capture(&mut plain(db)?, at(&tenant, &command))?;
    let chunks: Vec<_> = captured
        .events
        .as_array()
        .into_iter()
        .flatten()
        .map(|e| e["chunk"].clone())
        .collect();
    ensure!(
        captured.captured && chunks == ["shown", "too"],
        "{captured:?}"
    );

    // Nothing else misses it.
    let mut owner = db.owner()?;
    let missed = lines(
        &mut owner,
        "SELECT object FROM opengeni_guards.status($1) WHERE object ~ 'sandbox_command_output'",
        &[&SCHEMA],
    )?;
    ensure!(missed.is_empty(), "{missed:?}");
    ensure!(value::<bool>(
        &mut owner,
        "SELECT opengeni_guards.ready($1)",
        &[&SCHEMA]
    )?);
    owner.execute("SELECT opengeni_guards.attach($1)", &[&SCHEMA])?;
    let skipped = lines(
        &mut owner,
        "SELECT note FROM opengeni_guards.attach() WHERE action = 'skipped'",
        &[],
    )?;
    ensure!(skipped.is_empty(), "{skipped:?}");

    // Something else under its name is not used.
    db.admin()?
        .batch_execute("CREATE VIEW sandbox_command_output AS SELECT 1 AS chunk")?;
    let Err(error) = output
        .page(&captured.command, 9)
        .capture(&mut plain(db)?, at(&tenant, &command))
    else {
        // The last page has no chunk to store.
        return Ok(());
    };
    Refusal::of(&error)?.has_state("42809")
}

fn atomic(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let output = Output {
        stdout: "x".repeat(10_000),
        stderr: String::new(),
    };
    let start = command_now(db, &command)?;
    let page = output.page(&start, 10_000);
    // The store fails after the cursor has moved.
    db.admin()?.batch_execute(
        "ALTER TABLE sandbox_command_output ADD CONSTRAINT small CHECK (length(chunk) < 100)",
    )?;
    let Err(error) = page.capture(&mut plain(db)?, at(&tenant, &command)) else {
        anyhow::bail!("stored against a constraint");
    };
    Refusal::of(&error)?.has_state("23514")?;
    ensure!(
        command_now(db, &command)? == start,
        "the cursor moved alone"
    );
    db.admin()?
        .batch_execute("ALTER TABLE sandbox_command_output DROP CONSTRAINT small")?;

    // A retry of a committed page, its answer lost.
    for again in [false, true, true] {
        let captured = page.capture(&mut plain(db)?, at(&tenant, &command))?;
        ensure!(
            captured.captured != again && captured.command == page.command,
            "{captured:?}"
        );
        ensure!(
            again == captured.events.as_array().is_some_and(Vec::is_empty),
            "{captured:?}"
        );
    }
    ensure!(stored(db, &command, "stdout")? == output.stdout);

    // Output goes with its process.
    let (tenant, command) = db.legacy()?;
    let page = output.page(&command_now(db, &command)?, 10_000);
    ensure!(
        page.capture(&mut plain(db)?, at(&tenant, &command))?
            .captured
    );
    let mut app = db.app(&tenant)?;
    commit(&mut app, &[protocol::settle(&tenant, &command, 0)])?;
    ensure!(stored(db, &command, "stdout")? == output.stdout);
    accepted(
        &mut app,
        "DELETE FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )?;
    ensure!(stored(db, &command, "stdout")?.is_empty());
    Ok(())
}

fn lock_order(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let output = Output {
        stdout: "x".into(),
        stderr: String::new(),
    };
    let page = output.page(&command_now(db, &command)?, 1);
    let mut settling = db.app(&tenant)?;
    let mut transaction = settling.transaction()?;
    transaction.execute(
        "SELECT FROM sessions WHERE id = $1 FOR UPDATE",
        &[&tenant.session],
    )?;
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<bool> {
            Ok(page
                .capture(&mut plain(db)?, at(&tenant, &command))?
                .captured)
        });
        wait_for_lock(db)?;
        // It holds nothing that a settlement needs next.
        transaction.execute(
            "SELECT FROM sandbox_retained_processes WHERE id = $1 FOR UPDATE NOWAIT",
            &[&command.process],
        )?;
        transaction.commit()?;
        ensure!(
            reader
                .join()
                .map_err(|_| anyhow::anyhow!("the reader panicked"))??
        );
        Ok(())
    })
}

/// Waits until some session of the database waits for a lock.
fn wait_for_lock(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    for _ in 0..400 {
        let waiting: i64 = value(
            &mut admin,
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
            &[],
        )?;
        if waiting > 0 {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(25));
    }
    anyhow::bail!("nobody waits")
}

fn two_at_once(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let output = Output::random(&mut Random::new(1), 100, 0);
    let start = command_now(db, &command)?;
    let (long, short) = (output.page(&start, 60), output.page(&start, 40));
    let mut first = plain(db)?;
    let mut transaction = first.transaction()?;
    ensure!(
        long.capture(&mut transaction, at(&tenant, &command))?
            .captured
    );
    thread::scope(|scope| {
        let second = scope
            .spawn(|| -> Result<_> { Ok(short.capture(&mut plain(db)?, at(&tenant, &command))?) });
        wait_for_lock(db)?;
        transaction.commit()?;
        let answer = second
            .join()
            .map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        ensure!(
            !answer.captured && answer.command == long.command,
            "{answer:?}"
        );
        Ok(())
    })?;
    ensure!(stored(db, &command, "stdout")? == long.stdout);
    Ok(())
}

fn old_snapshot(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let output = Output::random(&mut Random::new(1), 100, 0);
    let page = output.page(&command_now(db, &command)?, 60);
    let mut old = plain(db)?;
    let mut transaction = begin(&mut old, "REPEATABLE READ")?;
    transaction.execute("SELECT FROM sessions", &[])?;
    ensure!(
        page.capture(&mut plain(db)?, at(&tenant, &command))?
            .captured
    );
    let Err(error) = page.capture(&mut transaction, at(&tenant, &command)) else {
        anyhow::bail!("captured twice");
    };
    Refusal::of(&error)?.has_state("40001")
}

fn split_characters(db: &Db) -> Result<()> {
    let text = "aß€😀z";
    let tenant = db.tenant()?;
    let mut app = plain(db)?;
    for at_byte in 0..=text.len() {
        let command = Command::new(at_byte as i32 + 1);
        commit(&mut db.admin()?, &[protocol::launch(&tenant, &command)])?;
        let output = Output {
            stdout: text.into(),
            stderr: text.chars().rev().collect(),
        };
        let mut now = command_now(db, &command)?;
        for bytes in [at_byte, text.len(), 1, 1] {
            let captured = output
                .page(&now, bytes)
                .capture(&mut app, at(&tenant, &command))?;
            ensure!(captured.captured, "{captured:?}");
            now = captured.command;
        }
        ensure!(
            Output::is_read(&now) && now == command_now(db, &command)?,
            "{now}"
        );
        for (stream, wanted) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            let found = stored(db, &command, stream)?;
            ensure!(&found == wanted, "split at {at_byte}, {stream}: {found}");
        }
    }
    Ok(())
}

/// Each step is a reader's that goes on from what it saw last. It may commit, roll back, be killed before it
/// commits, or never hear that it has.
fn interleavings(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let command = Command::new(seed as i32 + 1);
        commit(&mut db.admin()?, &[protocol::launch(&tenant, &command)])?;
        let output = Output::random(&mut random, 120, 30);
        let place = at(&tenant, &command);
        let start = command_now(db, &command)?;
        let mut readers = [(plain(db)?, start.clone()), (plain(db)?, start)];
        let mut steps = 0;
        while !readers.iter().any(|(_, seen)| Output::is_read(seen)) {
            steps += 1;
            ensure!(steps < 2000, "seed {seed}: no end");
            let (client, seen) = &mut readers[random.below(2)];
            let page = output.page(seen, 1 + random.below(12));
            match random.below(8) {
                0 => {
                    let mut transaction = client.transaction()?;
                    page.capture(&mut transaction, place)?;
                    transaction.rollback()?;
                }
                1 => {
                    let pid: i32 = value(client, "SELECT pg_backend_pid()", &[])?;
                    let mut transaction = client.transaction()?;
                    page.capture(&mut transaction, place)?;
                    accepted(
                        &mut db.admin()?,
                        "SELECT pg_terminate_backend($1, 10000)",
                        &[&pid],
                    )?;
                    ensure!(transaction.commit().is_err(), "a killed session committed");
                    *client = plain(db)?;
                }
                2 => {
                    // Committed, but the answer is lost.
                    page.capture(client, place)?;
                }
                _ => *seen = page.capture(client, place)?.command,
            }
        }
        for (stream, wanted) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            let found = stored(db, &command, stream)?;
            ensure!(
                &found == wanted,
                "seed {seed}, {stream}: {found:?} instead of {wanted:?}"
            );
        }
        let gaps: i64 = value(
            &mut db.admin()?,
            "SELECT count(*) FROM (
               SELECT byte_start < lag(byte_end, 1, 0) OVER (PARTITION BY stream ORDER BY sequence) AS crossed
               FROM sandbox_command_output WHERE process_id = $1) ranges WHERE crossed",
            &[&command.process],
        )?;
        ensure!(gaps == 0, "seed {seed}: {gaps} ranges overlap");
    }
    Ok(())
}

fn fences(db: &Db) -> Result<()> {
    let tenant = Tenant::new();
    let (mut one, mut other) = (plain(db)?, plain(db)?);
    for (fence, rule) in [
        ("enrollment_membership_fence", "fence.enrollment"),
        ("workspace_membership_fence", "fence.workspace"),
    ] {
        let call = format!("SELECT opengeni_guards.{fence}($1)");
        let mut transaction = one.transaction()?;
        // The application's own, taken with the key of the reference.
        transaction.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('organization-membership:' || $1::uuid::text, 0))",
            &[&tenant.account],
        )?;
        let refusal = refused(&mut other, &call, &[&tenant.account])?;
        refusal.has_state("55P03")?;
        ensure!(refusal.rule.as_deref() == Some(rule), "{refusal:?}");
        ensure!(
            refusal
                .message
                .ends_with(" membership is changing; retry the transaction"),
            "{refusal:?}"
        );
        accepted(&mut other, &call, &[&Tenant::new().account])?;
        transaction.commit()?;
        accepted(&mut other, &call, &[&tenant.account])?;
    }

    let check = "SELECT opengeni_guards.assert_application_roles_stopped($1)";
    let roles = serde_json::json!([APP, "og_cases_nobody"]);
    let mut admin = db.admin()?;
    let refusal = refused(&mut admin, check, &[&roles])?;
    refusal.has_state("55000")?;
    ensure!(
        refusal.rule.as_deref() == Some("fence.roles_running"),
        "{refusal:?}"
    );
    ensure!(
        refusal.message == "enrollment membership migration requires stopped application roles",
        "{refusal:?}"
    );
    drop((one, other));
    for _ in 0..200 {
        if admin.execute(check, &[&roles]).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(25));
    }
    anyhow::bail!("the sessions are gone and still in the way")
}

fn listed(db: &Db) -> Result<()> {
    let operations = [
        ("record_supervision_receipt", 4),
        ("load_supervision_receipt", 2),
        ("request_cancellation", 3),
        ("cancellation_requested", 2),
        ("request_deadline_cancellation", 1),
        ("reserve_input", 6),
        ("acknowledge_output", 9),
        ("capture_router_output", 15),
    ];
    for (operation, reasons) in operations {
        let listed: i64 = value(
            &mut plain(db)?,
            "SELECT count(*) FROM opengeni_guards.rules() WHERE guard = $1 AND rule LIKE 'command.' || $1 || '._%'
               AND sqlstate IN ('22023', 'P0002', '55000') AND message <> '' AND hint LIKE '%_.'",
            &[&operation],
        )?;
        ensure!(listed == reasons, "{operation}: {listed}");
    }
    Ok(())
}
