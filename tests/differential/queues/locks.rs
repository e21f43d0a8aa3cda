//! Two sessions at once: what waits, what passes by, and who dies of it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use opengeni_guards_harness::server::SUPERUSER;
use postgres::Client;

use super::side::{Answer, Side, rows};
use super::{
    CLAIM, Fleets, Test, Want, claim_artifacts, claim_processes, prune, reap, rotate, test,
};
use crate::database::{APP, first_value, refusal};

/// Two leases in the order of their ids. The second is due for rotation, its viewer for the sweep.
const CROSSING: &str = "CALL fleet.lease('m', '{\"id\": \"10000000-0000-4000-8000-000000000000\", \"refcount\": 3}');
    CALL fleet.lease('l', '{\"id\": \"20000000-0000-4000-8000-000000000000\", \"refcount\": 2, \"viewer_holders\": 1,
      \"provider_created_at\": \"@-1 day\", \"provider_deadline_at\": \"@-1 minute\"}');
    INSERT INTO public.sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, last_heartbeat_at)
      SELECT account_id, workspace_id, id, kind, kind, beat FROM public.sandbox_leases,
        (VALUES ('viewer', now() - interval '1 hour'), ('direct', now())) AS holders (kind, beat) WHERE image = 'l'";
const FIRST: &str = "SELECT FROM public.sandbox_leases WHERE image = 'm' FOR UPDATE";
const VIEWER: &str = "SELECT FROM public.sandbox_lease_holders WHERE kind = 'viewer' FOR UPDATE";
const LEASE: &str = "SELECT concat_ws(' ', liveness, refcount, viewer_holders, rotation_reason)
    FROM public.sandbox_leases WHERE image = 'l'";

pub fn all() -> Vec<Test> {
    vec![
        test("D17: a sweep and a rotation cross", crossing),
        test("D17: a sweep passes by a locked holder", locked_holder),
        test("D16: a sweep waits for no idle lease", locked_lease),
        test("a sweep waits for a lease that it has to write", |fleets| {
            let plant = "CALL fleet.lease('m', '{\"refcount\": 3}')";
            alone(
                fleets,
                plant,
                &[
                    Step::Lock(FIRST),
                    Step::Timeout(&reap("1000", "1000", "1000")),
                ],
            )
        }),
        test("claims pass by what is locked", |fleets| {
            alone(
                fleets,
                "CALL fleet.plant('owners', 'checkpoints', 'deadlines')",
                &[
                    Step::Lock(
                        "SELECT FROM public.sandbox_retained_processes WHERE holder_id LIKE '%direct -1 day'
                           OR holder_id LIKE '%completed%' FOR UPDATE",
                    ),
                    Step::Lock(
                        "SELECT FROM public.sandbox_checkpoint_artifacts WHERE object_id LIKE 'candidate%no'
                           OR object_id LIKE 'deleting%' OR object_id LIKE 'deleted -3 days -5 days%' FOR UPDATE",
                    ),
                    Step::Lock(
                        "SELECT FROM public.sandbox_leases WHERE image LIKE 'warm -1 day%turn%' FOR UPDATE",
                    ),
                    Step::Same(&claim_processes(CLAIM, "100", "60000")),
                    Step::Same(&claim_artifacts(CLAIM, "30", "1000")),
                    Step::Same(&prune("86400000", "1000")),
                    Step::Same(&rotate("60000", "500")),
                    Step::Look(
                        "SELECT holder_id, reconcile_claim_id, last_reconcile_outcome, reconcile_attempts
                           FROM public.sandbox_retained_processes",
                    ),
                    Step::Look(
                        "SELECT object_id, state, delete_attempts, last_delete_error FROM public.sandbox_checkpoint_artifacts",
                    ),
                    Step::Look(
                        "SELECT image, liveness, rotation_reason, refcount, turn_holders, viewer_holders
                           FROM public.sandbox_leases",
                    ),
                    Step::Look("SELECT lease_id, kind FROM public.sandbox_lease_holders"),
                ],
            )
        }),
    ]
}

enum Step<'a> {
    /// By another session.
    Lock(&'static str),
    /// The application's, with the same answer on both sides.
    Same(&'a str),
    /// The application's, which waits on both sides.
    Timeout(&'a str),
    /// The same rows on both sides.
    Look(&'static str),
}

fn plant(side: &mut Side, sql: &str) -> Result<()> {
    side.client
        .batch_execute(&format!(
            "BEGIN; SET LOCAL session_replication_role = replica; CALL fleet.clear(); {sql}; COMMIT"
        ))
        .with_context(|| side.name)
}

/// A session of the application that gives up waiting soon, with its process id.
fn application(fleets: &Fleets, side: &Side) -> Result<(Client, String)> {
    let mut client = fleets.another(SUPERUSER, side)?;
    client.batch_execute(&format!(
        "SET deadlock_timeout = '100ms'; SET lock_timeout = '3s'; SET SESSION AUTHORIZATION {APP}"
    ))?;
    let pid = first_value(&mut client, "SELECT pg_backend_pid()")?;
    Ok((client, pid))
}

fn ask(client: &mut Client, sql: &str) -> Answer {
    match client.simple_query(sql) {
        Ok(messages) => Answer::Rows(rows(&messages)),
        Err(error) => Answer::Refused(refusal(&error)),
    }
}

/// The same steps on both sides, one after the other.
fn alone(fleets: &mut Fleets, rows: &str, steps: &[Step<'_>]) -> Result<()> {
    let mut saw = Vec::new();
    plant(&mut fleets.native, rows)?;
    plant(&mut fleets.original, rows)?;
    for side in [&fleets.native, &fleets.original] {
        let mut other = fleets.another(SUPERUSER, side)?;
        let mut looking = fleets.another(SUPERUSER, side)?;
        let (mut app, _) = application(fleets, side)?;
        app.batch_execute("SET lock_timeout = '200ms'")?;
        other.batch_execute("BEGIN")?;
        let mut answers = Vec::new();
        for step in steps {
            match step {
                Step::Lock(sql) => {
                    let locked = other.simple_query(sql)?.len();
                    ensure!(locked > 1, "nothing to lock: {sql}");
                }
                Step::Timeout(sql) => {
                    Want::Refused("55P03", "lock timeout").check(&ask(&mut app, sql))?
                }
                Step::Same(sql) => answers.push((sql.to_string(), sorted(ask(&mut app, sql))?)),
                Step::Look(sql) => answers.push((sql.to_string(), sorted(ask(&mut looking, sql))?)),
            }
        }
        saw.push(answers);
    }
    for ((sql, ours), (_, theirs)) in saw[0].iter().zip(&saw[1]) {
        ensure!(!ours.is_empty(), "no rows: {sql}");
        ensure!(
            ours == theirs,
            "{sql}\n  native   {ours:?}\n  original {theirs:?}"
        );
    }
    clear(fleets)
}

fn sorted(answer: Answer) -> Result<Vec<String>> {
    match answer {
        Answer::Rows(mut rows) => {
            rows.sort();
            Ok(rows)
        }
        Answer::Refused(refusal) => bail!("{} {}", refusal.state, refusal.message),
    }
}

fn clear(fleets: &mut Fleets) -> Result<()> {
    for side in [&mut fleets.native, &mut fleets.original] {
        side.client.batch_execute("CALL fleet.clear()")?;
    }
    Ok(())
}

/// A sweep waits for a lease. Meanwhile a rotation takes the next one and its viewer, which the sweep wants too:
/// the original has the viewer and wants the lease, so one of the two dies.
fn crossing(fleets: &mut Fleets) -> Result<()> {
    let mut saw = Vec::new();
    plant(&mut fleets.native, CROSSING)?;
    plant(&mut fleets.original, CROSSING)?;
    for side in [&fleets.native, &fleets.original] {
        let mut other = fleets.another(SUPERUSER, side)?;
        let mut watching = fleets.another(SUPERUSER, side)?;
        let (mut sweep, sweeping) = application(fleets, side)?;
        let (mut rotation, rotating) = application(fleets, side)?;
        other.batch_execute("BEGIN")?;
        other.batch_execute(FIRST)?;
        saw.push(thread::scope(|scope| -> Result<_> {
            let swept = scope.spawn(|| ask(&mut sweep, &reap("60000", "0", "60000")));
            wait(&mut watching, &sweeping, || swept.is_finished())?;
            let rotated = scope.spawn(|| ask(&mut rotation, &rotate("0", "500")));
            wait(&mut watching, &rotating, || rotated.is_finished())?;
            other.batch_execute("ROLLBACK")?;
            match (swept.join(), rotated.join()) {
                (Ok(swept), Ok(rotated)) => {
                    Ok((swept, rotated, first_value(&mut watching, LEASE)?))
                }
                _ => bail!("a session panicked"),
            }
        })?);
    }
    let (swept, rotated, lease) = &saw[0];
    Want::Rows(0).check(swept)?;
    Want::Row("1").check(rotated)?;
    ensure!(lease == "warm 1 0 provider_deadline", "{lease}");
    let (swept, rotated, _) = &saw[1];
    let deadlock = Want::Refused("40P01", "deadlock detected");
    ensure!(
        deadlock.check(swept).is_ok() != deadlock.check(rotated).is_ok(),
        "D17 no longer shows: {swept:?} {rotated:?}"
    );
    clear(fleets)
}

/// Until a session waits for a lock, or is done.
fn wait(watching: &mut Client, pid: &str, done: impl Fn() -> bool) -> Result<()> {
    let since = Instant::now();
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'"
    );
    while !done() && first_value(watching, &sql)? == "0" {
        ensure!(
            since.elapsed() < Duration::from_secs(10),
            "a session neither waits nor ends"
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Somebody is renewing a stale heartbeat: the original waits for them, ours leaves the holder to the next sweep.
fn locked_holder(fleets: &mut Fleets) -> Result<()> {
    let (native, original, lease) = beside(fleets, CROSSING, VIEWER)?;
    Want::Rows(0).check(&native)?;
    Want::Refused("55P03", "lock timeout").check(&original)?;
    // The counters follow the holders that are there.
    ensure!(lease == "warm 2 1", "{lease}");
    let (mut app, _) = application(fleets, &fleets.native)?;
    Want::Rows(0).check(&ask(&mut app, &reap("60000", "0", "60000")))?;
    let lease = first_value(&mut fleets.native.client, LEASE)?;
    ensure!(lease == "warm 1 0", "{lease}");
    clear(fleets)
}

fn locked_lease(fleets: &mut Fleets) -> Result<()> {
    let plant = CROSSING.replace(", \"refcount\": 3", ", \"liveness\": \"draining\"");
    let (native, original, lease) = beside(fleets, &plant, FIRST)?;
    Want::Rows(0).check(&native)?;
    Want::Refused("55P03", "lock timeout").check(&original)?;
    ensure!(lease == "warm 1 0", "{lease}");
    clear(fleets)
}

/// What a sweep says on either side while somebody holds a lock, and what the native one leaves of the second lease.
fn beside(fleets: &mut Fleets, rows: &str, lock: &str) -> Result<(Answer, Answer, String)> {
    let mut answers = Vec::new();
    plant(&mut fleets.native, rows)?;
    plant(&mut fleets.original, rows)?;
    for side in [&fleets.native, &fleets.original] {
        let mut other = fleets.another(SUPERUSER, side)?;
        let (mut app, _) = application(fleets, side)?;
        app.batch_execute("SET lock_timeout = '200ms'")?;
        other.batch_execute("BEGIN")?;
        other.batch_execute(lock)?;
        answers.push(ask(&mut app, &reap("60000", "0", "60000")));
    }
    let lease = first_value(&mut fleets.native.client, LEASE)?;
    let original = answers.pop().context("two answers")?;
    let native = answers.pop().context("two answers")?;
    Ok((native, original, lease))
}
