//! What the guards cost: the same statements without a trigger, with an empty C trigger, with the native
//! guard and, where the oracle is at hand, with the PL/pgSQL original; interleaved in one session.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds per path: each runs every variant once
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Rows written per variant and round
    #[arg(long, default_value_t = 200)]
    rows: usize,
    /// Directory of the oracle's build.sh [default: ../shared/oracle, where it is there]
    #[arg(long, value_name = "DIR")]
    oracle: Option<PathBuf>,
    /// Only paths whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

const DATABASE: &str = "opengeni_bench";

/// One kind of write: which guard it meets, and one statement that writes all `step` rows of a kind.
struct Case {
    name: &'static str,
    table: &'static str,
    guard: &'static str,
    kind: &'static str,
    statement: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "supervised row, nothing relevant changed",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "supervised",
        statement: "UPDATE sandbox_retained_processes p SET reconcile_attempts = reconcile_attempts + 1
            FROM step WHERE p.id = step.process",
    },
    Case {
        name: "legacy row",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_retained_processes p SET reconcile_attempts = reconcile_attempts + 1
            FROM step WHERE p.id = step.process",
    },
    Case {
        name: "output capture",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "supervised",
        // The new row is computed just before its trigger fires: the setting names each row in turn.
        statement: "UPDATE sandbox_retained_processes p SET provider_command =
              jsonb_set(provider_command, '{streams,stdout,byteOffset}',
                CASE WHEN set_config('opengeni.supervised_output_capture_process_id', p.id::text, true) <> '' THEN '4096'::jsonb END)
            FROM step WHERE p.id = step.process",
    },
    Case {
        name: "stdin reservation (one question)",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "supervised",
        statement: "UPDATE sandbox_retained_processes p SET provider_command_input_index = provider_command_input_index + 80
            FROM step WHERE p.id = step.process",
    },
    Case {
        name: "settlement (one question)",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "read",
        statement: "UPDATE sandbox_retained_processes p SET state = 'exited', exit_code = 0, settled_at = now()
            FROM step WHERE p.id = step.process",
    },
    Case {
        name: "attachment by INSERT (lease lock)",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "supervised",
        statement: "INSERT INTO sandbox_retained_processes
              (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id, parent_admission_id, holder_id, owner_actor_kind, owner_actor_id,
               lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, provider_session_id, provider_command)
            SELECT step.spare, account_id, workspace_id, session_id, lease_id, sandbox_group_id, step.spare, 'spare', owner_actor_kind, owner_actor_id,
               lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, 2, provider_command
            FROM sandbox_retained_processes p JOIN step ON p.id = step.process",
    },
    Case {
        name: "protocol marker",
        table: "sandbox_leases",
        guard: "enforce_sandbox_recovery_protocol_v2",
        kind: "supervised",
        statement: "UPDATE sandbox_leases l SET last_meter_tick = last_meter_tick + 1 FROM step WHERE l.id = step.lease",
    },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Bare,
    Empty,
    Native,
    Plpgsql,
    PlpgsqlGeneric,
}

impl Variant {
    fn trigger(self) -> Option<&'static str> {
        match self {
            Variant::Bare => None,
            Variant::Empty => Some("bench_empty"),
            Variant::Native => Some("bench_native"),
            Variant::Plpgsql | Variant::PlpgsqlGeneric => Some("bench_plpgsql"),
        }
    }
}

/// Measures and prints a table.
pub fn run(server: &Server, options: &Options) -> Result<()> {
    let oracle = options.oracle.clone().or_else(find_oracle);
    build_database(server, oracle.as_deref(), options.rows)?;
    let mut client = server.connect(SUPERUSER, DATABASE)?;
    client.batch_execute("SET search_path = public; SET client_min_messages = warning")?;
    let mut variants = vec![Variant::Bare, Variant::Empty, Variant::Native];
    if oracle.is_some() {
        variants.extend([Variant::Plpgsql, Variant::PlpgsqlGeneric]);
    } else {
        println!("skipped: the PL/pgSQL originals (no oracle directory given or found)");
    }
    println!(
        "PostgreSQL {}, {} rounds of {} rows; medians in µs per row. Overhead is over the same statement without a trigger.\n",
        server.major, options.rounds, options.rows
    );
    println!(
        "{:<42} {:>8} {:>8} {:>8} {:>9} {:>9} {:>8} {:>9}",
        "path", "bare", "+empty", "+native", "+plpgsql", "+generic", "ratio", "ratio gen"
    );
    for case in CASES {
        if options
            .only
            .as_ref()
            .is_some_and(|only| !case.name.contains(only.as_str()))
        {
            continue;
        }
        let times = measure(&mut client, case, &variants, options)?;
        print_line(case, &times);
    }
    println!(
        "\nratio: PL/pgSQL's overhead with its default plan cache over ours; ratio gen: with force_generic_plan."
    );
    Ok(())
}

/// Per variant: the median of the whole statement and of its overhead, in µs.
type Times = Vec<(f64, f64)>;

fn print_line(case: &Case, times: &Times) {
    let overhead = |i: usize| times.get(i).map(|t| t.1);
    let cell = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"))
    };
    let ratio = |i: usize| Some(overhead(i)? / overhead(2)?);
    println!(
        "{:<42} {:>8} {:>8} {:>8} {:>9} {:>9} {:>8} {:>9}",
        case.name,
        cell(times.first().map(|t| t.0), 1),
        cell(overhead(1), 2),
        cell(overhead(2), 2),
        cell(overhead(3), 1),
        cell(overhead(4), 1),
        cell(ratio(3), 1),
        cell(ratio(4), 1),
    );
}

fn find_oracle() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle");
    directory.join("build.sh").exists().then_some(directory)
}

/// A database with the protocol's tables, the extension and the rows to write to.
fn build_database(server: &Server, oracle: Option<&Path>, rows: usize) -> Result<()> {
    let mut client = server.connect(SUPERUSER, "postgres")?;
    client.batch_execute(&format!("DROP DATABASE IF EXISTS {DATABASE}"))?;
    match oracle {
        Some(oracle) => {
            let mut build = Command::new("bash");
            for (key, value) in server.environment() {
                build.env(key, value);
            }
            let path = std::env::var("PATH").unwrap_or_default();
            let output = build
                .arg(oracle.join("build.sh"))
                .env("ORACLE_DB", DATABASE)
                .env("PATH", format!("{}:{path}", server.bindir.display()))
                .output()
                .context("cannot run the oracle's build.sh")?;
            if !output.status.success() {
                bail!(
                    "the oracle's build.sh failed: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
        }
        None => client.batch_execute(&format!("CREATE DATABASE {DATABASE}"))?,
    }
    let mut client = server.connect(SUPERUSER, DATABASE)?;
    client.batch_execute("CREATE EXTENSION opengeni_guards")?;
    if oracle.is_none() {
        client.batch_execute("SELECT opengeni_guards.provision()")?;
    }
    for table in [
        "sandbox_leases",
        "sandbox_lease_holders",
        "sandbox_retained_processes",
        "sandbox_workspace_mutation_admissions",
    ] {
        client.batch_execute(&format!("ALTER TABLE {table} DISABLE TRIGGER USER"))?;
    }
    let fixture = include_str!("../bench/fixture.sql").replace(":commands", &rows.to_string());
    client.batch_execute(&fixture)?;
    client.batch_execute("VACUUM ANALYZE")?;
    let library = build_empty_trigger(server)?;
    client.batch_execute(&format!(
        "CREATE FUNCTION bench.empty() RETURNS trigger LANGUAGE c AS '{}', 'empty_trigger'",
        library.display()
    ))?;
    Ok(())
}

/// Compiles the empty trigger against the server's headers, into its library directory.
fn build_empty_trigger(server: &Server) -> Result<PathBuf> {
    let ask = |what: &str| -> Result<String> {
        let output = Command::new(server.bindir.join("pg_config"))
            .arg(what)
            .output()?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let library = Path::new(&ask("--pkglibdir")?).join("opengeni_guards_bench.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/empty_trigger.c");
    let status = Command::new("cc")
        .args(["-O2", "-fPIC", "-shared", "-I"])
        .arg(ask("--includedir-server")?)
        .arg("-o")
        .arg(&library)
        .arg(&source)
        .status()
        .context("cannot run cc")?;
    if !status.success() {
        bail!("cannot compile {}", source.display());
    }
    fs::metadata(&library)?;
    Ok(library)
}

/// Runs every variant of a path, round by round.
fn measure(
    client: &mut Client,
    case: &Case,
    variants: &[Variant],
    options: &Options,
) -> Result<Times> {
    let table = case.table;
    let mut functions = vec![("bench_empty", "bench.empty".to_owned())];
    functions.push(("bench_native", format!("opengeni_guards.{}", case.guard)));
    if variants.contains(&Variant::Plpgsql) {
        functions.push(("bench_plpgsql", format!("opengeni_private.{}", case.guard)));
    }
    for (trigger, function) in &functions {
        client.batch_execute(&format!(
            "CREATE TRIGGER {trigger} BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}()"
        ))?;
    }
    // Timed in the server, so that no round trip blurs the difference. One row in twenty warms up what a
    // session keeps: plans, attribute maps.
    let statement = |rows: &str| {
        format!(
            "WITH step AS MATERIALIZED (SELECT * FROM bench.step WHERE kind = '{}' AND n % 20 {rows}) {}",
            case.kind, case.statement
        )
    };
    client.batch_execute(&format!(
        "CREATE FUNCTION bench.run() RETURNS double precision LANGUAGE plpgsql AS $run$
         DECLARE started timestamptz; done timestamptz; written integer;
         BEGIN
           {};
           started := clock_timestamp();
           {};
           done := clock_timestamp();
           GET DIAGNOSTICS written = ROW_COUNT;
           RETURN extract(epoch FROM done - started) * 1e6 / written;
         END $run$",
        statement("= 0"),
        statement("<> 0")
    ))?;
    let mut samples = vec![Vec::with_capacity(options.rounds); variants.len()];
    for round in 0..=options.rounds {
        for (variant, samples) in variants.iter().zip(&mut samples) {
            client.batch_execute(&format!("ALTER TABLE {table} DISABLE TRIGGER USER"))?;
            if let Some(trigger) = variant.trigger() {
                client.batch_execute(&format!("ALTER TABLE {table} ENABLE TRIGGER {trigger}"))?;
            }
            let mode = match variant {
                Variant::PlpgsqlGeneric => "force_generic_plan",
                _ => "auto",
            };
            client.batch_execute(&format!(
                "BEGIN; SET LOCAL plan_cache_mode = {mode}; SET LOCAL opengeni.sandbox_recovery_protocol_v2 = '1'"
            ))?;
            let time: f64 = client.query_one("SELECT bench.run()", &[])?.get(0);
            client.batch_execute("ROLLBACK")?;
            // The first round fills caches.
            if round > 0 {
                samples.push(time);
            }
        }
        client.batch_execute(&format!("VACUUM {table}"))?;
    }
    client.batch_execute("DROP FUNCTION bench.run()")?;
    for (trigger, _) in &functions {
        client.batch_execute(&format!("DROP TRIGGER {trigger} ON {table}"))?;
    }
    let bare = samples[0].clone();
    Ok(samples
        .into_iter()
        .map(|times| {
            let overhead = times.iter().zip(&bare).map(|(t, b)| t - b).collect();
            (median(times), median(overhead))
        })
        .collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
