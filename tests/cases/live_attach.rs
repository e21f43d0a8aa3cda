//! `attach` and `detach` under traffic: eight sessions of the application at work, ten switches meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, Tenant, streams};
use opengeni_guards_harness::server::Server;

use crate::attach::{extension, switch};
use crate::support::*;

const SESSIONS: usize = 8;
const SWITCHES: usize = 10;
/// No transaction of the application waits longer than this for a switch.
const LONGEST: Duration = Duration::from_secs(5);

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![original_case(
        server,
        "live attach: eight sessions at work, ten switches, no error and nothing lost",
        under_traffic,
    )]
}

/// One session's share of the traffic.
#[derive(Default)]
struct Traffic {
    settled: Vec<uuid::Uuid>,
    /// When each transaction began and how long it took.
    transactions: Vec<(Instant, Duration)>,
    refusals: usize,
}

impl Traffic {
    fn run(db: &Db, tenant: &Tenant, stop: &AtomicBool) -> Result<Traffic> {
        let mut app = db.app(tenant)?;
        let mut traffic = Traffic::default();
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            let command = Command::new(number);
            let steps = [
                protocol::admit(tenant, &command),
                [
                    protocol::retain(tenant, &command),
                    protocol::attach(&command, command.provider_command(tenant)),
                ]
                .concat_all(),
                protocol::capture(&command, streams(&Cursor::at(5), &Cursor::START), false),
                protocol::cancel(&command, "explicit_stop"),
                protocol::record_receipt(&command, command.receipt(0)),
                protocol::capture(&command, streams(&Cursor::end(9), &Cursor::end(0)), true),
                protocol::settle(tenant, &command, 0),
            ];
            for (i, step) in steps.into_iter().enumerate() {
                let began = Instant::now();
                commit(&mut app, &[step])
                    .with_context(|| format!("step {i} of command {number}"))?;
                traffic.transactions.push((began, began.elapsed()));
                if i == 1 {
                    // At every moment one of the two guards stands: evidence is never unguarded.
                    let began = Instant::now();
                    refused(
                        &mut app,
                        "DELETE FROM sandbox_retained_processes WHERE id = $1",
                        &[&command.process],
                    )?
                    .has_state("55000")?;
                    traffic.transactions.push((began, began.elapsed()));
                    traffic.refusals += 1;
                }
            }
            traffic.settled.push(command.process);
        }
        Ok(traffic)
    }
}

trait ConcatAll<T> {
    fn concat_all(self) -> Vec<T>;
}

impl<T, const N: usize> ConcatAll<T> for [Vec<T>; N] {
    fn concat_all(self) -> Vec<T> {
        self.into_iter().flatten().collect()
    }
}

fn under_traffic(db: &Db) -> Result<()> {
    extension(db)?;
    let tenants: Vec<Tenant> = (0..SESSIONS).map(|_| db.tenant()).collect::<Result<_>>()?;
    let stop = AtomicBool::new(false);
    let (traffic, windows) = thread::scope(|scope| -> Result<_> {
        let sessions: Vec<_> = tenants
            .iter()
            .map(|tenant| scope.spawn(|| Traffic::run(db, tenant, &stop)))
            .collect();
        let switched = switches(db);
        stop.store(true, Ordering::Relaxed);
        let traffic = sessions
            .into_iter()
            .map(|session| session.join().map_err(|_| anyhow!("a session panicked"))?)
            .collect::<Result<Vec<Traffic>>>()?;
        Ok((traffic, switched?))
    })?;

    let mut admin = db.admin()?;
    let mut settled = 0;
    for one in &traffic {
        ensure!(one.refusals > 0, "a session did nothing");
        for process in &one.settled {
            let whole: bool = value(
                &mut admin,
                "SELECT state = 'exited' AND exit_code = 0 AND supervision_receipt IS NOT NULL AND supervision_output_captured
                   AND cancellation_reason = 'explicit_stop' AND provider_command #>> '{streams,stdout,byteOffset}' = '9'
                   FROM sandbox_retained_processes WHERE id = $1",
                &[process],
            )?;
            ensure!(whole, "evidence of {process} is lost");
            settled += 1;
        }
    }
    let deadlocks: i64 = value(
        &mut admin,
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
        &[],
    )?;
    ensure!(deadlocks == 0, "{deadlocks} deadlocks");

    let during = |began: &Instant, took: &Duration| {
        windows
            .iter()
            .any(|(from, to)| *began < *to && *began + *took > *from)
    };
    let mut all: Vec<(bool, Duration)> = traffic
        .iter()
        .flat_map(|one| &one.transactions)
        .map(|(began, took)| (during(began, took), *took))
        .collect();
    all.sort_by_key(|(_, took)| *took);
    for (name, switching) in [("otherwise", false), ("during a switch", true)] {
        let some: Vec<Duration> = all
            .iter()
            .filter(|(during, _)| *during == switching)
            .map(|(_, took)| *took)
            .collect();
        ensure!(!some.is_empty(), "no transaction {name}");
        let at = |part: usize| some[(some.len() - 1) * part / 100];
        println!(
            "  {name}: {} transactions, median {:?}, 99th percentile {:?}, longest {:?}",
            some.len(),
            at(50),
            at(99),
            at(100)
        );
        ensure!(at(100) < LONGEST, "a transaction took {:?} {name}", at(100));
    }
    let switching: Vec<Duration> = windows.iter().map(|(from, to)| *to - *from).collect();
    println!("  {settled} commands settled; the switches took {switching:?}");
    ensure!(settled > SESSIONS, "{settled} commands settled");
    Ok(())
}

/// Attaches and detaches in turn; when each switch began and ended.
fn switches(db: &Db) -> Result<Vec<(Instant, Instant)>> {
    let mut owner = db.owner()?;
    let mut windows = Vec::new();
    for number in 0..SWITCHES {
        thread::sleep(Duration::from_millis(300));
        let call = match number % 2 {
            0 => "attach('opengeni', lock_timeout => '30s')",
            _ => "detach('opengeni')",
        };
        let began = Instant::now();
        let done = switch(&mut owner, call).with_context(|| format!("{call}, number {number}"))?;
        windows.push((began, Instant::now()));
        ensure!(
            !done.iter().any(|line| line.starts_with("left ")),
            "{call}: {done:#?}"
        );
    }
    Ok(windows)
}
