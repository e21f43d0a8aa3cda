//! 26: cancelled at any moment, a call leaves its session as it was.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Cursor, streams};
use opengeni_guards_harness::server::Server;
use postgres::Client;
use postgres::error::SqlState;

use crate::attach::{extension, works};
use crate::fleet;
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "hazard 26: a guard is cancelled in a statement of many rows, and at its end",
            guards,
        ),
        case(
            server,
            "hazard 26: an operation on a command is cancelled",
            operations,
        ),
        original_case(
            server,
            "hazard 26: attach, detach and what else a DBA calls are cancelled",
            set_up,
        ),
    ]
}

/// Another session that cancels whatever a backend runs, while it is armed and never when it is not.
pub struct Canceller {
    armed: Mutex<bool>,
    stop: AtomicBool,
    /// The longest that it waits once it is armed.
    patience: Duration,
}

impl Canceller {
    /// Runs `body` beside a canceller of `client`'s backend.
    pub fn beside(
        db: &Db,
        client: &mut Client,
        patience: Duration,
        body: impl FnOnce(&mut Client, &Canceller) -> Result<()>,
    ) -> Result<()> {
        let pid = backend_pid(client)?;
        let canceller = Canceller {
            armed: Mutex::new(false),
            stop: AtomicBool::new(false),
            patience,
        };
        thread::scope(|scope| -> Result<()> {
            let running = scope.spawn(|| canceller.run(db, pid));
            let done = body(client, &canceller);
            canceller.stop.store(true, Ordering::Relaxed);
            running
                .join()
                .map_err(|_| anyhow!("the canceller panicked"))??;
            done
        })
    }

    fn armed(&self) -> std::sync::MutexGuard<'_, bool> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, db: &Db, pid: i32) -> Result<()> {
        let mut admin = db.admin()?;
        let cancel = admin.prepare("SELECT pg_cancel_backend($1)")?;
        for turn in 0_u32.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            // Without looking, so that it is in time for what takes no time.
            sleep(self.patience * (turn * 37 % 100) / 100);
            if *self.armed() {
                admin.execute(&cancel, &[&pid])?;
            }
        }
        Ok(())
    }

    /// Runs a statement again and again, undone each time, until it was cancelled so often. What it leaves is looked
    /// at each time.
    pub fn interrupt(
        &self,
        client: &mut Client,
        sql: &str,
        times: u32,
        look: &dyn Fn(&mut Client) -> Result<()>,
    ) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        let mut ended = 0;
        while ended < times {
            client.batch_execute("BEGIN; SAVEPOINT before")?;
            *self.armed() = true;
            let outcome = client.batch_execute(sql);
            *self.armed() = false;
            // A signal on its way may still meet what undoes it, or what looks afterwards.
            let mut undo = 0;
            let undone = |client: &mut Client| -> Result<()> {
                client.batch_execute("ROLLBACK TO before")?;
                look(client)
            };
            while let Err(error) = undone(client) {
                undo += 1;
                ensure!(undo < 100 && is_cancel(&error), "{sql}: {error:?}");
            }
            client.batch_execute("ROLLBACK")?;
            if let Err(error) = outcome {
                Refusal::of(&error)?
                    .has_state("57014")
                    .with_context(|| sql.to_owned())?;
                ended += 1;
            }
            ensure!(
                Instant::now() < end,
                "{sql} was cancelled {ended} times in a minute"
            );
        }
        look(client)
    }
}

fn is_cancel(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<postgres::Error>()
        .and_then(postgres::Error::code)
        .is_some_and(|state| *state == SqlState::QUERY_CANCELED)
}

/// The session is still the application's, and sees its own tenant only.
fn is_the_applications(client: &mut Client) -> Result<()> {
    let row = client.query_one(
        "SELECT current_user::text, count(DISTINCT workspace_id), current_setting('search_path')
           FROM sandbox_leases",
        &[],
    )?;
    let found: (String, i64, String) = (row.get(0), row.get(1), row.get(2));
    ensure!(
        found == (APP.to_owned(), 1, SCHEMA.to_owned()),
        "(user, workspaces seen, search_path) = {found:?}"
    );
    Ok(())
}

fn guards(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 2)?;
    fleet::processes(db, SCHEMA, 3000)?;
    fleet::artifacts(db, SCHEMA, 2000)?;
    let mut app = fleet::app(db, 1)?;
    set(&mut app, MARKER, "1")?;
    let child = "INSERT INTO sandbox_workspace_mutation_admissions (account_id, workspace_id, lease_id, sandbox_group_id,
          session_id, actor_kind, actor_id, holder_kind, holder_id, lease_epoch, provider_backend, provider_instance_id,
          route_kind, route_epoch, workspace_generation, operation)
        SELECT account_id, workspace_id, lease_id, sandbox_group_id, session_id, 'process', id, 'process',
          holder_id, lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch,
          100000 + row_number() OVER (), 'stdin'
          FROM sandbox_retained_processes";
    let rows_of = |table: &str, assignment: &str| format!("UPDATE {table} SET {assignment}");
    let statements = [
        rows_of("sandbox_retained_processes", "reconcile_attempts = 1"),
        rows_of(
            "sandbox_retained_processes",
            "reconcile_attempts = 1; SET CONSTRAINTS ALL IMMEDIATE",
        ),
        rows_of("sandbox_lease_holders", "last_heartbeat_at = now()"),
        rows_of(
            "sandbox_workspace_mutation_admissions",
            "operation = operation",
        ),
        rows_of(
            "sandbox_checkpoint_artifacts",
            "state = 'candidate', delete_after = NULL; SET CONSTRAINTS ALL IMMEDIATE",
        ),
        child.to_owned(),
    ];
    Canceller::beside(db, &mut app, Duration::from_millis(30), |app, canceller| {
        for sql in &statements {
            canceller.interrupt(app, sql, 20, &is_the_applications)?;
        }
        Ok(())
    })?;
    // Uninterrupted, each goes through in this session.
    for sql in &statements {
        app.batch_execute("BEGIN")?;
        app.batch_execute(sql).with_context(|| sql.clone())?;
        app.batch_execute("ROLLBACK")?;
    }
    Ok(())
}

fn operations(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let ids = [
        tenant.account,
        tenant.workspace,
        tenant.session,
        command.process,
    ]
    .map(|id| format!("'{id}'"))
    .join(", ");
    let page = |at| {
        let mut document = command.provider_command(&tenant);
        document["streams"] = streams(&Cursor::at(at), &Cursor::START);
        document.to_string()
    };
    let receipt = command.receipt(0).to_string();
    let calls = [
        format!("record_supervision_receipt({ids}, '{receipt}', '{SCHEMA}')"),
        format!("load_supervision_receipt({ids}, '{SCHEMA}')"),
        format!("request_cancellation({ids}, 'explicit_stop', '{SCHEMA}')"),
        format!("cancellation_requested({ids}, '{SCHEMA}')"),
        format!("request_deadline_cancellation({ids}, '{SCHEMA}')"),
        format!(
            "capture_router_output({ids}, '{}', '{}', repeat('.', 1000000), '', '{SCHEMA}')",
            page(0),
            page(1_000_000)
        ),
    ];
    let marker = "SELECT concat_ws('|', current_setting('opengeni.sandbox_recovery_protocol_v2'),
        current_setting('opengeni.account_id'), current_setting('opengeni.supervised_output_capture_process_id', true))";
    let settings: String = value(&mut app, marker, &[])?;
    let look = |client: &mut Client| {
        is_the_applications(client)?;
        let now: String = client.query_one(marker, &[])?.get(0);
        ensure!(now == settings, "{now} instead of {settings}");
        Ok(())
    };
    Canceller::beside(db, &mut app, Duration::from_millis(1), |app, canceller| {
        for call in &calls {
            // A moment's work: often enough in one statement to be met in it.
            let sql = format!(
                "DO $x$ BEGIN FOR i IN 1..200 LOOP
                   BEGIN
                     PERFORM opengeni_guards.{call};
                     RAISE SQLSTATE 'OG001';
                   EXCEPTION WHEN SQLSTATE 'OG001' THEN NULL;
                   END;
                 END LOOP; END $x$"
            );
            canceller.interrupt(app, &sql, 20, &look)?;
        }
        Ok(())
    })?;
    for call in &calls {
        app.batch_execute(&format!(
            "BEGIN; SELECT * FROM opengeni_guards.{call}; ROLLBACK"
        ))
        .with_context(|| call.clone())?;
    }
    let odd = amiss(&mut db.admin()?, SCHEMA)?;
    ensure!(odd.is_empty(), "{odd:?}");
    commit(&mut app, &[protocol::cancel(&command, "explicit_stop")])
}

fn set_up(db: &Db) -> Result<()> {
    extension(db)?;
    let mut admin = db.admin()?;
    admin.batch_execute("CREATE SCHEMA second AUTHORIZATION og_cases_owner")?;
    let look = |client: &mut Client| {
        let row = client.query_one(
            "SELECT concat_ws(' ', current_user, current_setting('search_path'), current_setting('lock_timeout'),
               current_setting('row_security'), current_setting('check_function_bodies'))",
            &[],
        )?;
        let found: String = row.get(0);
        ensure!(found == format!("{OWNER} {SCHEMA} 0 on on"), "{found}");
        Ok(())
    };
    let calls = [
        "attach('opengeni', mode => 'shadow')",
        "attach('opengeni')",
        "detach('opengeni')",
        "provision('second')",
        "grant_usage('og_cases_app', 'opengeni')",
        "revoke_usage('og_cases_app', 'opengeni')",
        "status('opengeni')",
        "shadow_report('opengeni')",
    ];
    let mut owner = db.owner()?;
    for call in calls {
        let before = snapshot(&mut admin)?;
        let sql = format!("SELECT * FROM opengeni_guards.{call}");
        // Spread over as long as it takes.
        let started = Instant::now();
        owner.batch_execute(&format!("BEGIN; {sql}; ROLLBACK"))?;
        let patience = started.elapsed().max(Duration::from_millis(1));
        Canceller::beside(db, &mut owner, patience, |owner, canceller| {
            canceller.interrupt(owner, &sql, 25, &look)
        })?;
        same(&before, &snapshot(&mut admin)?).context(call)?;
        owner.batch_execute(&sql).context(call)?;
    }
    works(db, false)?;
    owner.batch_execute("SELECT opengeni_guards.attach('opengeni')")?;
    works(db, true)
}
