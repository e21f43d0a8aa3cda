//! What the fleet queues cost: each contract function on the PL/pgSQL originals and on ours, over the same
//! fleets, called by an application role; interleaved, every call rolled back. Linux only: it reads what a
//! backend has spent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::error::SqlState;
use postgres::{Client, Transaction};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds per call; fifteen times as many for a short one, one for one of more than five seconds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Numbers of leases
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000")]
    leases: Vec<usize>,
    /// Also 1,000,000 leases, without the originals
    #[arg(long)]
    million: bool,
    /// Where an original takes longer than this many seconds, that is all that is said
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Directory of the oracle's build.sh [default: ../shared/oracle, where it is there]
    #[arg(long, value_name = "DIR")]
    oracle: Option<PathBuf>,
    /// Only calls whose name contains one of these
    #[arg(long, value_delimiter = ',', value_name = "TEXT")]
    only: Vec<String>,
}

/// Who calls.
const ROLE: &str = "opengeni_app";
/// Who owns our tables: it sees no other tenant's rows by itself.
const OWNER: &str = "opengeni_fleet_owner";

const MILLION: usize = 1_000_000;
/// A call that takes this long is not repeated.
const LONG: Duration = Duration::from_secs(5);
/// Calls of fewer milliseconds are repeated that many times as often: others disturb them more.
const SHORT: f64 = 10.0;
const SHORT_ROUNDS: usize = 15;

/// A state of the fleet.
struct Fleet {
    /// What the fixture loads, unless the fleet before was the same.
    load: &'static str,
    /// What is done to it then.
    change: &'static str,
    calls: &'static [Call],
}

struct Call {
    name: &'static str,
    sql: &'static str,
    /// Whether rows are written: the checks at COMMIT belong to the call then, and what it leaves behind
    /// is vacuumed away.
    writes: bool,
}

const REAP: &str =
    "SELECT count(*) FROM opengeni_private.reap_sandbox_leases(60000, 3600000, 600000)";

const fn reads(name: &'static str, sql: &'static str) -> Call {
    Call {
        name,
        sql,
        writes: false,
    }
}

const fn writes(name: &'static str, sql: &'static str) -> Call {
    Call {
        name,
        sql,
        writes: true,
    }
}

const CLAIM_ARTIFACTS: &str = "SELECT count(*) FROM opengeni_private.claim_sandbox_checkpoint_artifacts(gen_random_uuid(), 100, 600000)";
const LEGACY_SLOTS: &str =
    "SELECT count(*) FROM opengeni_private.list_legacy_modal_checkpoint_slots(100)";

const FLEETS: &[Fleet] = &[
    Fleet {
        load: "cold",
        change: "",
        calls: &[writes("reap: idle, all cold", REAP)],
    },
    Fleet {
        load: "live",
        change: "",
        calls: &[
            writes("reap: idle, one live holder each", REAP),
            writes("claim artifacts: all referred to", CLAIM_ARTIFACTS),
            reads("list legacy slots: none", LEGACY_SLOTS),
            reads(
                "list live Modal leases: all",
                "SELECT count(*) FROM opengeni_private.list_live_modal_sandbox_leases()",
            ),
            reads(
                "rotation backlog: none",
                "SELECT * FROM opengeni_private.sandbox_rotation_backlog()",
            ),
        ],
    },
    Fleet {
        load: "live",
        change: "UPDATE sandbox_lease_holders SET last_heartbeat_at = now() - interval '1 day'
            WHERE substr(holder_id, 3)::integer % 100 = 0",
        calls: &[writes("reap: 1 % of the holders stale", REAP)],
    },
    Fleet {
        load: "live",
        change: "UPDATE sandbox_lease_holders SET last_heartbeat_at = now() - interval '1 day'",
        calls: &[writes("reap: every holder stale", REAP)],
    },
    Fleet {
        load: "mixed",
        change: "",
        calls: &[
            writes(
                "claim processes: 100 of leases/10",
                "SELECT count(*) FROM opengeni_private.claim_terminal_retained_processes(gen_random_uuid(), 100, 60000)",
            ),
            writes("claim artifacts: 100", CLAIM_ARTIFACTS),
            writes(
                "settle an artifact",
                "SELECT opengeni_private.settle_sandbox_checkpoint_artifact(md5('deleting1')::uuid, md5('claim1')::uuid, true, NULL, 0)",
            ),
            writes(
                "prune artifacts: 100",
                "SELECT opengeni_private.prune_deleted_sandbox_checkpoint_artifacts(86400000, 100)",
            ),
            writes(
                "request rotations: 500",
                "SELECT opengeni_private.request_due_sandbox_rotations(3600000, 500)",
            ),
            reads("list legacy slots: 100", LEGACY_SLOTS),
            reads(
                "list live Modal leases: half",
                "SELECT count(*) FROM opengeni_private.list_live_modal_sandbox_leases()",
            ),
            reads(
                "count processes by owner",
                "SELECT count(*) FROM opengeni_private.count_active_retained_processes_by_owner_state()",
            ),
            reads(
                "count expired leases",
                "SELECT count(*) FROM opengeni_private.count_expired_draining_sandbox_leases()",
            ),
            reads(
                "count artifacts",
                "SELECT count(*) FROM opengeni_private.sandbox_checkpoint_artifact_inventory()",
            ),
            reads(
                "rotation backlog",
                "SELECT * FROM opengeni_private.sandbox_rotation_backlog()",
            ),
        ],
    },
];

/// One of the two implementations in its database.
struct Side {
    database: &'static str,
    owner: Client,
    caller: Client,
    /// The caller's backend.
    pid: i32,
}

/// What a call took.
#[derive(Default)]
struct Taken {
    times: Vec<Duration>,
    /// Heap tuples that the last call updated or deleted.
    written: i64,
    gave_up: bool,
}

impl Taken {
    fn median(&self) -> Option<f64> {
        let mut times = self.times.clone();
        times.sort();
        let median = times.get(times.len() / 2)?;
        (!self.gave_up).then_some(median.as_secs_f64() * 1e3)
    }

    fn is_short(&self) -> bool {
        self.median().is_some_and(|ms| ms < SHORT)
    }

    fn cell(&self, limit: u64) -> String {
        match self.median() {
            Some(ms) if ms < 10.0 => format!("{ms:.2}"),
            Some(ms) => format!("{ms:.0}"),
            None => format!("> {limit} s"),
        }
    }
}

/// Measures and prints a table.
pub fn run(server: &Server, options: &Options) -> Result<()> {
    let oracle = options.oracle.clone().or_else(find_oracle);
    let native = build_native(server)?;
    let original = match &oracle {
        Some(oracle) => Some(build_original(server, oracle)?),
        None => {
            println!("skipped: the PL/pgSQL originals (no oracle directory given or found)");
            None
        }
    };
    let mut sides: Vec<Side> = [Some(native), original].into_iter().flatten().collect();
    println!(
        "PostgreSQL {}, medians of {} interleaved rounds in ms of CPU time, checks at COMMIT included; written: heap tuples updated or deleted.\n",
        server.major, options.rounds
    );
    println!(
        "{:<36} {:>9} {:>10} {:>10} {:>8} {:>17}",
        "call", "leases", "original", "native", "ratio", "written"
    );
    for &leases in &options.leases {
        measure(&mut sides, leases, options)?;
    }
    if options.million {
        sides.truncate(1);
        measure(&mut sides, MILLION, options)?;
    }
    Ok(())
}

fn measure(sides: &mut [Side], leases: usize, options: &Options) -> Result<()> {
    let mut loaded = "";
    for fleet in FLEETS {
        let wanted = |call: &&Call| {
            let only = &options.only;
            only.is_empty() || only.iter().any(|part| call.name.contains(part))
        };
        let calls: Vec<&Call> = fleet.calls.iter().filter(wanted).collect();
        if calls.is_empty() {
            continue;
        }
        for side in &mut *sides {
            if fleet.load != loaded {
                side.load(fleet.load, leases)
                    .with_context(|| format!("loading {} into {}", fleet.load, side.database))?;
            }
            side.change(fleet.change)?;
        }
        loaded = fleet.load;
        for call in calls {
            let mut taken: Vec<Taken> = sides.iter().map(|_| Taken::default()).collect();
            let mut rounds = options.rounds;
            let mut round = 0;
            while round <= rounds {
                for (side, taken) in sides.iter_mut().zip(&mut taken) {
                    let long = taken.times.iter().any(|time| *time > LONG);
                    if taken.gave_up || long {
                        continue;
                    }
                    let (time, written) = side.time(call, options.limit)?;
                    taken.written = written;
                    match time {
                        // The first round fills caches.
                        Some(time) if round == 0 && time <= LONG => {}
                        Some(time) => taken.times.push(time),
                        None => taken.gave_up = true,
                    }
                }
                if round == options.rounds && taken.iter().all(|taken| taken.is_short()) {
                    rounds *= SHORT_ROUNDS;
                }
                round += 1;
            }
            print_line(call, leases, &taken, options.limit);
        }
    }
    Ok(())
}

fn print_line(call: &Call, leases: usize, taken: &[Taken], limit: u64) {
    let native = &taken[0];
    let original = taken.get(1);
    let ratio = match original.map(|original| (original.median(), native.median())) {
        Some((Some(original), Some(native))) => format!("{:.1}", original / native),
        Some((None, Some(native))) => format!("> {:.0}", limit as f64 * 1e3 / native),
        _ => "-".to_owned(),
    };
    let written = match original {
        Some(original) if original.gave_up => format!("? / {}", native.written),
        Some(original) => format!("{} / {}", original.written, native.written),
        None => native.written.to_string(),
    };
    println!(
        "{:<36} {:>9} {:>10} {:>10} {:>8} {:>17}",
        call.name,
        leases,
        original.map_or_else(|| "-".to_owned(), |original| original.cell(limit)),
        native.cell(limit),
        ratio,
        if call.writes { &written } else { "" },
    );
}

impl Side {
    fn open(server: &Server, database: &'static str) -> Result<Side> {
        let mut owner = server.connect(SUPERUSER, database)?;
        owner.batch_execute("SET client_min_messages = warning")?;
        let mut caller = server.connect(ROLE, database)?;
        let pid = caller.query_one("SELECT pg_backend_pid()", &[])?.get(0);
        Ok(Side {
            database,
            owner,
            caller,
            pid,
        })
    }

    fn load(&mut self, state: &str, leases: usize) -> Result<()> {
        let fixture = include_str!("../bench/fleet.sql")
            .replace(":state", state)
            .replace(":leases", &leases.to_string());
        self.owner.batch_execute(&fixture)?;
        self.owner.batch_execute("VACUUM ANALYZE")?;
        self.owner.batch_execute("CHECKPOINT")?;
        Ok(())
    }

    fn change(&mut self, change: &str) -> Result<()> {
        if !change.is_empty() {
            self.owner.batch_execute(&format!(
                "SET session_replication_role = replica; {change}; SET session_replication_role = origin"
            ))?;
            self.owner.batch_execute("VACUUM ANALYZE")?;
        }
        Ok(())
    }

    /// How long a call takes, `None` if longer than the limit, and how many tuples it wrote.
    fn time(&mut self, call: &Call, limit: u64) -> Result<(Option<Duration>, i64)> {
        let statement = self.caller.prepare(call.sql)?;
        let mut transaction = self.caller.transaction()?;
        transaction.batch_execute(&format!("SET LOCAL statement_timeout = '{limit}s'"))?;
        let before = written(&mut transaction)?;
        let start = cpu_time(self.pid)?;
        let mut answer = transaction.query(&statement, &[]).map(drop);
        if call.writes && answer.is_ok() {
            answer = transaction.batch_execute("SET CONSTRAINTS ALL IMMEDIATE");
        }
        let time = cpu_time(self.pid)?.saturating_sub(start);
        let (time, tuples) = match answer {
            Ok(()) => (Some(time), written(&mut transaction)? - before),
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => (None, 0),
            Err(error) => {
                return Err(error).with_context(|| format!("{}: {}", self.database, call.name));
            }
        };
        transaction.rollback()?;
        if call.writes && (tuples > 0 || time.is_none()) {
            self.owner.batch_execute(
                "VACUUM sandbox_leases, sandbox_lease_holders, sandbox_retained_processes, sandbox_checkpoint_artifacts",
            )?;
        }
        Ok((time, tuples))
    }
}

/// What a backend has spent on a CPU so far: unlike the clock, it does not depend on who else is busy.
fn cpu_time(pid: i32) -> Result<Duration> {
    // Asleep again: the kernel has accounted for all of it.
    while !fs::read_to_string(format!("/proc/{pid}/stat"))?.contains(") S ") {
        thread::sleep(Duration::from_micros(50));
    }
    let times = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let spent = times.split_whitespace().next().context("no schedstat")?;
    Ok(Duration::from_nanos(spent.parse()?))
}

/// The heap tuples that this backend has updated or deleted and not reported yet.
fn written(transaction: &mut Transaction<'_>) -> Result<i64> {
    let row = transaction.query_one(
        "SELECT sum(n_tup_upd + n_tup_del)::bigint FROM pg_stat_xact_user_tables",
        &[],
    )?;
    Ok(row.get(0))
}

fn build_native(server: &Server) -> Result<Side> {
    const DATABASE: &str = "opengeni_fleet_native";
    let mut client = server.connect(SUPERUSER, "postgres")?;
    client.batch_execute(&format!("DROP DATABASE IF EXISTS {DATABASE}"))?;
    client.batch_execute(&format!(
        "DO $$ BEGIN CREATE ROLE {ROLE} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
         DO $$ BEGIN CREATE ROLE {OWNER}; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    ))?;
    client.batch_execute(&format!("CREATE DATABASE {DATABASE} OWNER {OWNER}"))?;
    let mut client = server.connect(SUPERUSER, DATABASE)?;
    client.batch_execute(&format!(
        "CREATE EXTENSION opengeni_guards;
         SELECT opengeni_guards.provision('public', '{OWNER}');
         SELECT opengeni_guards.grant_usage('{ROLE}')"
    ))?;
    Side::open(server, DATABASE)
}

/// The originals, owned by a superuser: under any other owner they see an empty fleet.
fn build_original(server: &Server, oracle: &Path) -> Result<Side> {
    const DATABASE: &str = "opengeni_fleet_original";
    build(server, oracle, DATABASE, &[])?;
    Side::open(server, DATABASE)
}

/// Builds the PL/pgSQL originals in a database of their own.
pub fn build(
    server: &Server,
    oracle: &Path,
    database: &str,
    settings: &[(&str, &str)],
) -> Result<()> {
    let mut build = Command::new("bash");
    let path = std::env::var("PATH").unwrap_or_default();
    let output = build
        .arg(oracle.join("build.sh"))
        .envs(server.environment())
        .env("ORACLE_DB", database)
        .envs(settings.iter().copied())
        .env("PATH", format!("{}:{path}", server.bindir.display()))
        .output()
        .context("cannot run the oracle's build.sh")?;
    if !output.status.success() {
        bail!(
            "the oracle's build.sh failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Where the originals can be built from, if they are at hand.
pub fn find_oracle() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle");
    directory.join("build.sh").exists().then_some(directory)
}
