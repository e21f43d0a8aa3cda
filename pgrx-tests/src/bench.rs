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
/// Who writes: an application role under row-level security, as in life.
const ROLE: &str = "opengeni_app";

/// One kind of write: which guard it meets, and one statement that writes all `step` rows of a kind.
struct Case {
    name: &'static str,
    table: &'static str,
    guard: &'static str,
    kind: &'static str,
    statement: &'static str,
    /// A constraint trigger, checked at the end of the timed section as COMMIT would.
    deferred: bool,
    /// What the session has written before: the mix decides which plans PL/pgSQL keeps.
    before: &'static str,
}

const PLAIN_LEASES: &str =
    "UPDATE sandbox_leases l SET resume_state = resume_state FROM step WHERE l.id = step.lease";
const PLAIN_HOLDERS: &str = "UPDATE sandbox_lease_holders h SET last_heartbeat_at = now()
            FROM step WHERE h.lease_id = step.lease AND h.kind = 'viewer'";

const CASES: &[Case] = &[
    Case {
        name: "supervised row, nothing relevant changed",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "supervised",
        statement: "UPDATE sandbox_retained_processes p SET reconcile_attempts = reconcile_attempts + 1
            FROM step WHERE p.id = step.process",
        deferred: false,
        before: "",
    },
    Case {
        name: "legacy row",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_retained_processes p SET reconcile_attempts = reconcile_attempts + 1
            FROM step WHERE p.id = step.process",
        deferred: false,
        before: "",
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
        deferred: false,
        before: "",
    },
    Case {
        name: "stdin reservation (one question)",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "supervised",
        statement: "UPDATE sandbox_retained_processes p SET provider_command_input_index = provider_command_input_index + 80
            FROM step WHERE p.id = step.process",
        deferred: false,
        before: "",
    },
    Case {
        name: "settlement (one question)",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "read",
        statement: "UPDATE sandbox_retained_processes p SET state = 'exited', exit_code = 0, settled_at = now()
            FROM step WHERE p.id = step.process",
        deferred: false,
        before: "",
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
        deferred: false,
        before: "",
    },
    Case {
        name: "protocol marker",
        table: "sandbox_leases",
        guard: "enforce_sandbox_recovery_protocol_v2",
        kind: "supervised",
        statement: "UPDATE sandbox_leases l SET last_meter_tick = last_meter_tick + 1 FROM step WHERE l.id = step.lease",
        deferred: false,
        before: "",
    },
    Case {
        name: "child admission INSERT (process lock)",
        table: "sandbox_workspace_mutation_admissions",
        guard: "supervised_command_blocker_guard",
        kind: "supervised",
        statement: "INSERT INTO sandbox_workspace_mutation_admissions
              (account_id, workspace_id, lease_id, sandbox_group_id, session_id, actor_kind, actor_id, holder_kind, holder_id,
               lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, workspace_generation, operation)
            SELECT account_id, workspace_id, lease_id, sandbox_group_id, session_id, 'process', id, 'process', holder_id,
               lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, 20, 'stdin'
            FROM sandbox_retained_processes p JOIN step ON p.id = step.process",
        deferred: false,
        before: "",
    },
    Case {
        name: "parent admission UPDATE (one question)",
        table: "sandbox_workspace_mutation_admissions",
        guard: "supervised_command_blocker_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_workspace_mutation_admissions a SET provider_outcome = 'resolved', settled_at = now()
            FROM step, sandbox_retained_processes p WHERE p.id = step.process AND a.id = p.parent_admission_id",
        deferred: false,
        before: "",
    },
    Case {
        name: "holder UPDATE, not a process",
        table: "sandbox_lease_holders",
        guard: "supervised_command_blocker_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_lease_holders h SET last_heartbeat_at = now() FROM step WHERE h.lease_id = step.lease AND h.kind = 'viewer'",
        deferred: false,
        before: "",
    },
    Case {
        name: "holder UPDATE, process (one question)",
        table: "sandbox_lease_holders",
        guard: "supervised_command_blocker_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_lease_holders h SET last_heartbeat_at = now() FROM step WHERE h.lease_id = step.lease AND h.kind = 'process'",
        deferred: false,
        before: PLAIN_HOLDERS,
    },
    Case {
        name: "lease UPDATE, nothing guarded changed",
        table: "sandbox_leases",
        guard: "supervised_command_capture_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_leases l SET resume_state = resume_state FROM step WHERE l.id = step.lease",
        deferred: false,
        before: "",
    },
    Case {
        name: "lease UPDATE that must ask",
        table: "sandbox_leases",
        guard: "supervised_command_capture_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_leases l SET archive_capture_id = step.spare FROM step WHERE l.id = step.lease",
        deferred: false,
        before: PLAIN_LEASES,
    },
    Case {
        name: "process identity at COMMIT",
        table: "sandbox_retained_processes",
        guard: "validate_sandbox_retained_process_v2",
        kind: "supervised",
        statement: "UPDATE sandbox_retained_processes p SET reconcile_attempts = reconcile_attempts + 1 FROM step WHERE p.id = step.process",
        deferred: true,
        before: "",
    },
    Case {
        name: "PTY identity at COMMIT",
        table: "sandbox_pty_sessions",
        guard: "validate_sandbox_pty_process_v2",
        kind: "supervised",
        statement: "UPDATE sandbox_pty_sessions t SET last_input_at = now() FROM step WHERE t.retained_process_id = step.process",
        deferred: true,
        before: "",
    },
    Case {
        name: "checkpoint references at COMMIT",
        table: "sandbox_leases",
        guard: "validate_sandbox_checkpoint_refs",
        kind: "legacy",
        statement: "UPDATE sandbox_leases l SET updated_at = now() FROM step WHERE l.id = step.lease",
        deferred: true,
        before: "",
    },
    Case {
        name: "artifact references at COMMIT",
        table: "sandbox_checkpoint_artifacts",
        guard: "validate_sandbox_checkpoint_artifact_refs",
        kind: "legacy",
        statement: "UPDATE sandbox_checkpoint_artifacts a SET updated_at = now() FROM step WHERE a.source_lease_id = step.lease",
        deferred: true,
        before: "",
    },
    Case {
        name: "artifact UPDATE",
        table: "sandbox_checkpoint_artifacts",
        guard: "enforce_sandbox_checkpoint_artifact_immutability",
        kind: "legacy",
        statement: "UPDATE sandbox_checkpoint_artifacts a SET updated_at = now() FROM step WHERE a.source_lease_id = step.lease",
        deferred: false,
        before: "",
    },
    Case {
        name: "policy revision link",
        table: "workspace_instruction_policy_revisions",
        guard: "workspace_instruction_policy_validate_revision_link",
        kind: "legacy",
        statement: "INSERT INTO workspace_instruction_policy_revisions
              (account_id, workspace_id, kind, scope, role_key, content, content_hash, provenance_source, created_by_subject_id, supersedes_revision_id)
            SELECT r.account_id, r.workspace_id, r.kind, r.scope, r.role_key, r.content, r.content_hash, r.provenance_source, r.created_by_subject_id, r.id
            FROM workspace_instruction_policy_revisions r JOIN step ON r.role_key = 'role-' || step.n WHERE r.supersedes_revision_id IS NOT NULL",
        deferred: false,
        before: "",
    },
    Case {
        name: "policy head",
        table: "workspace_instruction_policy_heads",
        guard: "workspace_instruction_policy_validate_head",
        kind: "legacy",
        statement: "UPDATE workspace_instruction_policy_heads h SET activated_at = now() FROM step WHERE h.role_key = 'role-' || step.n",
        deferred: false,
        before: "",
    },
    Case {
        name: "policy event",
        table: "workspace_instruction_policy_activation_events",
        guard: "workspace_instruction_policy_validate_event",
        kind: "legacy",
        statement: "INSERT INTO workspace_instruction_policy_activation_events
              (account_id, workspace_id, kind, scope, role_key, type, activation_version, new_revision_id, new_revision, new_content_hash, actor_subject_id, reason)
            SELECT h.account_id, h.workspace_id, h.kind, h.scope, h.role_key, 'activate', 1, h.revision_id, h.revision, h.content_hash, 'me', 'because'
            FROM workspace_instruction_policy_heads h JOIN step ON h.role_key = 'role-' || step.n",
        deferred: false,
        before: "",
    },
];

/// The tables whose own triggers are out of the way, so that one guard is measured at a time.
const TABLES: &[&str] = &[
    "sandbox_leases",
    "sandbox_lease_holders",
    "sandbox_retained_processes",
    "sandbox_workspace_mutation_admissions",
    "sandbox_pty_sessions",
    "sandbox_checkpoint_artifacts",
    "workspace_instruction_policy_revisions",
    "workspace_instruction_policy_heads",
    "workspace_instruction_policy_activation_events",
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
        "PostgreSQL {}, {} rounds of {} rows; medians in µs per row, written by an application role under row-level security. Overhead is over the same statement without a trigger.\n",
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
        client.batch_execute(&format!(
            "SELECT opengeni_guards.provision();
             DO $$ BEGIN CREATE ROLE {ROLE}; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
             SELECT opengeni_guards.grant_usage('{ROLE}')"
        ))?;
    }
    for table in TABLES {
        client.batch_execute(&format!("ALTER TABLE {table} DISABLE TRIGGER USER"))?;
    }
    let fixture = include_str!("../bench/fixture.sql").replace(":commands", &rows.to_string());
    client.batch_execute(&fixture)?;
    client.batch_execute(&format!(
        "GRANT USAGE ON SCHEMA bench TO {ROLE}; GRANT SELECT ON ALL TABLES IN SCHEMA bench TO {ROLE}"
    ))?;
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
        functions.push(("bench_plpgsql", original(case.guard)));
    }
    for (trigger, function) in &functions {
        let (kind, events) = if case.deferred {
            (
                "CONSTRAINT TRIGGER",
                format!("AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED"),
            )
        } else {
            // The holder guard for holders that were; the one for new holders fires on INSERT as well.
            let events = match table {
                "sandbox_lease_holders" => "UPDATE OR DELETE",
                _ => "INSERT OR UPDATE OR DELETE",
            };
            ("TRIGGER", format!("BEFORE {events} ON {table}"))
        };
        client.batch_execute(&format!(
            "CREATE {kind} {trigger} {events} FOR EACH ROW EXECUTE FUNCTION {function}()"
        ))?;
    }
    // Timed in the server, so that no round trip blurs the difference. One row in twenty warms up what a
    // session keeps: plans, attribute maps.
    let statement = |written: &str, rows: &str| {
        format!(
            "WITH step AS MATERIALIZED (SELECT * FROM bench.step WHERE kind = '{}' AND n % 20 {rows}) {written}",
            case.kind
        )
    };
    let before = match case.before {
        "" => "NULL".to_owned(),
        before => statement(before, "= 0"),
    };
    client.batch_execute(&format!(
        "CREATE FUNCTION bench.run() RETURNS double precision LANGUAGE plpgsql AS $run$
         DECLARE started timestamptz; done timestamptz; written integer;
         BEGIN
           {before};
           {};
           SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED;
           started := clock_timestamp();
           {};
           GET DIAGNOSTICS written = ROW_COUNT;
           SET CONSTRAINTS ALL IMMEDIATE;
           done := clock_timestamp();
           RETURN extract(epoch FROM done - started) * 1e6 / written;
         END $run$",
        statement(case.statement, "= 0"),
        statement(case.statement, "<> 0")
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
                "BEGIN; SET LOCAL plan_cache_mode = {mode}; SET LOCAL opengeni.sandbox_recovery_protocol_v2 = '1';
                 SET LOCAL ROLE {ROLE}; SELECT set_config('opengeni.account_id', bench.id('account', 1)::text, true),
                   set_config('opengeni.workspace_id', bench.id('workspace', 1)::text, true)"
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

/// Where the application keeps an original.
fn original(guard: &str) -> String {
    if guard.starts_with("workspace_instruction_policy") {
        format!("public.{guard}")
    } else {
        format!("opengeni_private.{guard}")
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
