//! What the guards cost: the same statements without a trigger, with an empty C trigger, with the native
//! guard and, where the oracle is at hand, with the PL/pgSQL original; interleaved in one session.
//!
//! A table that the protocol marker guards has a BEFORE ROW trigger in life, whoever wrote the other guards,
//! and the first such trigger has the server lock each row before it is called. So there the statement is
//! measured over the one with an empty trigger in the marker's place, which every variant but the bare one has.

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
    pub rows: usize,
    /// Leases that nobody measures, each with a command and a holder of every kind
    #[arg(long, default_value_t = 20_000)]
    pub others: usize,
    /// Directory of the oracle's build.sh [default: ../shared/oracle, where it is there]
    #[arg(long, value_name = "DIR")]
    oracle: Option<PathBuf>,
    /// Measure the guards as they watch beside PL/pgSQL (attach with mode 'shadow')
    #[arg(long)]
    shadow: bool,
    /// Only paths whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

pub const DATABASE: &str = "opengeni_bench";
/// Who writes: an application role under row-level security, as in life.
pub const ROLE: &str = "opengeni_app";

/// One kind of write: which guard it meets, and one statement that writes all `step` rows of a kind.
struct Case {
    name: &'static str,
    table: &'static str,
    guard: &'static str,
    kind: &'static str,
    statement: &'static str,
    /// A constraint trigger, checked at the end of the timed section as COMMIT would.
    deferred: bool,
    /// What the session writes before each round, to three times as many rows: the mix decides which plans
    /// PL/pgSQL keeps.
    before: &'static str,
    /// Written by a role that row-level security does not apply to.
    exempt: bool,
}

const CASE: Case = Case {
    name: "",
    table: "",
    guard: "",
    kind: "",
    statement: "",
    deferred: false,
    before: "",
    exempt: false,
};

impl Case {
    /// Whether the protocol marker, and so a BEFORE ROW trigger, stands on the table beside this guard.
    fn beside_marker(&self) -> bool {
        self.guard != "enforce_sandbox_recovery_protocol_v2"
            && !self.guard.starts_with("workspace_")
    }
}

/// Leases whose `resume_state` is written and nothing that a capture is about.
const PLAIN_LEASES: &str =
    "UPDATE sandbox_leases l SET resume_state = resume_state FROM step WHERE l.id = step.lease";
/// The other three kinds of holder.
const PLAIN_HOLDERS: &str = "UPDATE sandbox_lease_holders h SET last_heartbeat_at = now()
            FROM step WHERE h.lease_id = step.lease AND h.kind <> 'process'";

const CASES: &[Case] = &[
    Case {
        name: "supervised row, nothing relevant changed",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "supervised",
        statement: "UPDATE sandbox_retained_processes p SET reconcile_attempts = reconcile_attempts + 1
            FROM step WHERE p.id = step.process",
        ..CASE
    },
    Case {
        name: "legacy row",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_retained_processes p SET reconcile_attempts = reconcile_attempts + 1
            FROM step WHERE p.id = step.process",
        ..CASE
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
        ..CASE
    },
    Case {
        name: "stdin reservation (one question)",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "supervised",
        statement: "UPDATE sandbox_retained_processes p SET provider_command_input_index = provider_command_input_index + 80
            FROM step WHERE p.id = step.process",
        ..CASE
    },
    Case {
        name: "settlement (one question)",
        table: "sandbox_retained_processes",
        guard: "supervised_command_guard",
        kind: "read",
        statement: "UPDATE sandbox_retained_processes p SET state = 'exited', exit_code = 0, settled_at = now()
            FROM step WHERE p.id = step.process",
        ..CASE
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
        ..CASE
    },
    Case {
        name: "protocol marker",
        table: "sandbox_leases",
        guard: "enforce_sandbox_recovery_protocol_v2",
        kind: "supervised",
        statement: "UPDATE sandbox_leases l SET last_meter_tick = last_meter_tick + 1 FROM step WHERE l.id = step.lease",
        ..CASE
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
        ..CASE
    },
    Case {
        name: "parent admission UPDATE (one question)",
        table: "sandbox_workspace_mutation_admissions",
        guard: "supervised_command_blocker_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_workspace_mutation_admissions a SET provider_outcome = 'resolved', settled_at = now()
            FROM step, sandbox_retained_processes p WHERE p.id = step.process AND a.id = p.parent_admission_id",
        ..CASE
    },
    Case {
        name: "holder UPDATE, not a process",
        table: "sandbox_lease_holders",
        guard: "supervised_command_blocker_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_lease_holders h SET last_heartbeat_at = now() FROM step WHERE h.lease_id = step.lease AND h.kind = 'viewer'",
        ..CASE
    },
    Case {
        name: "holder UPDATE, process (one question)",
        table: "sandbox_lease_holders",
        guard: "supervised_command_blocker_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_lease_holders h SET last_heartbeat_at = now() FROM step WHERE h.lease_id = step.lease AND h.kind = 'process'",
        before: PLAIN_HOLDERS,
        ..CASE
    },
    Case {
        name: "holder UPDATE, process, and no others",
        table: "sandbox_lease_holders",
        guard: "supervised_command_blocker_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_lease_holders h SET last_heartbeat_at = now() FROM step WHERE h.lease_id = step.lease AND h.kind = 'process'",
        ..CASE
    },
    Case {
        name: "holder UPDATE, process, exempt from RLS",
        table: "sandbox_lease_holders",
        guard: "supervised_command_blocker_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_lease_holders h SET last_heartbeat_at = now() FROM step WHERE h.lease_id = step.lease AND h.kind = 'process'",
        before: PLAIN_HOLDERS,
        exempt: true,
        ..CASE
    },
    Case {
        name: "lease UPDATE, nothing guarded changed",
        table: "sandbox_leases",
        guard: "supervised_command_capture_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_leases l SET resume_state = resume_state FROM step WHERE l.id = step.lease",
        ..CASE
    },
    Case {
        name: "lease UPDATE that must ask",
        table: "sandbox_leases",
        guard: "supervised_command_capture_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_leases l SET archive_capture_id = step.spare FROM step WHERE l.id = step.lease",
        before: PLAIN_LEASES,
        ..CASE
    },
    Case {
        name: "lease UPDATE that must ask, and no others",
        table: "sandbox_leases",
        guard: "supervised_command_capture_guard",
        kind: "legacy",
        statement: "UPDATE sandbox_leases l SET archive_capture_id = step.spare FROM step WHERE l.id = step.lease",
        ..CASE
    },
    Case {
        name: "process identity at COMMIT",
        table: "sandbox_retained_processes",
        guard: "validate_sandbox_retained_process_v2",
        kind: "supervised",
        statement: "UPDATE sandbox_retained_processes p SET reconcile_attempts = reconcile_attempts + 1 FROM step WHERE p.id = step.process",
        deferred: true,
        ..CASE
    },
    Case {
        name: "PTY identity at COMMIT",
        table: "sandbox_pty_sessions",
        guard: "validate_sandbox_pty_process_v2",
        kind: "supervised",
        statement: "UPDATE sandbox_pty_sessions t SET last_input_at = now() FROM step WHERE t.retained_process_id = step.process",
        deferred: true,
        ..CASE
    },
    Case {
        name: "checkpoint references at COMMIT",
        table: "sandbox_leases",
        guard: "validate_sandbox_checkpoint_refs",
        kind: "legacy",
        statement: "UPDATE sandbox_leases l SET updated_at = now() FROM step WHERE l.id = step.lease",
        deferred: true,
        ..CASE
    },
    Case {
        name: "artifact references at COMMIT",
        table: "sandbox_checkpoint_artifacts",
        guard: "validate_sandbox_checkpoint_artifact_refs",
        kind: "legacy",
        statement: "UPDATE sandbox_checkpoint_artifacts a SET updated_at = now() FROM step WHERE a.source_lease_id = step.lease",
        deferred: true,
        ..CASE
    },
    Case {
        name: "artifact UPDATE",
        table: "sandbox_checkpoint_artifacts",
        guard: "enforce_sandbox_checkpoint_artifact_immutability",
        kind: "legacy",
        statement: "UPDATE sandbox_checkpoint_artifacts a SET updated_at = now() FROM step WHERE a.source_lease_id = step.lease",
        ..CASE
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
        ..CASE
    },
    Case {
        name: "policy head",
        table: "workspace_instruction_policy_heads",
        guard: "workspace_instruction_policy_validate_head",
        kind: "legacy",
        statement: "UPDATE workspace_instruction_policy_heads h SET activated_at = now() FROM step WHERE h.role_key = 'role-' || step.n",
        ..CASE
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
        ..CASE
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

/// The native guard's trigger, and the one that keeps the log where the guard only watches.
const NATIVE: &str = "bench_native";
const LOG: &str = "bench_shadow_log";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Bare,
    /// What the overhead is over.
    Base,
    Empty,
    Native,
    Plpgsql,
    PlpgsqlGeneric,
}

impl Variant {
    fn trigger(self) -> Option<&'static str> {
        match self {
            Variant::Bare | Variant::Base => None,
            Variant::Empty => Some("bench_empty"),
            Variant::Native => Some(NATIVE),
            Variant::Plpgsql | Variant::PlpgsqlGeneric => Some("bench_plpgsql"),
        }
    }
}

/// Measures and prints a table.
pub fn run(server: &Server, options: &Options) -> Result<()> {
    let oracle = options.oracle.clone().or_else(find_oracle);
    build_database(server, oracle.as_deref(), options)?;
    let mut client = server.connect(SUPERUSER, DATABASE)?;
    client.batch_execute("SET search_path = public; SET client_min_messages = warning")?;
    let mut variants = vec![
        Variant::Bare,
        Variant::Base,
        Variant::Empty,
        Variant::Native,
    ];
    if oracle.is_some() {
        variants.extend([Variant::Plpgsql, Variant::PlpgsqlGeneric]);
    } else {
        println!("skipped: the PL/pgSQL originals (no oracle directory given or found)");
    }
    println!(
        "PostgreSQL {}, {} rounds of {} rows among {} leases, as many commands and four times as many holders; medians in µs of the backend's
CPU per row, written by an application role under row-level security where nothing else is said.
bare: without any trigger. base: with an empty BEFORE ROW trigger in the place of the protocol marker, which stands there in
life and has the server lock the row first; bare where it does not. What has a + is over base: another empty C trigger, the
native guard, PL/pgSQL with its default plan cache, and with force_generic_plan.\n",
        server.major,
        options.rounds,
        options.rows,
        options.others + 3 * options.rows,
    );
    if options.shadow {
        println!("+native is the guard in shadow mode, in addition to PL/pgSQL.\n");
    }
    println!(
        "{:<42} {:>6} {:>6} {:>7} {:>8} {:>9} {:>9} {:>6} {:>8} {:>7} {:>8}",
        "path",
        "bare",
        "base",
        "+empty",
        "+native",
        "+plpgsql",
        "+generic",
        "ratio",
        "generic",
        "whole",
        "plpgsql"
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
        "
ratio: PL/pgSQL's overhead over ours, with its default plan cache and with force_generic_plan; over 2 % of the bare write where
ours is less, for that is noise. whole: the whole write with the guard over the bare one, native and with PL/pgSQL's default.
The default plan cache plans each call anew for as long as that looks cheaper on the session's average. So each round first
writes what a session writes beside: the other three kinds of holder of a lease, heartbeaten as often, and three lease
updates without a capture for each with one. \"and no others\": without that."
    );
    Ok(())
}

/// The part of a bare write that cannot be told from nothing: no ratio is over less.
const NOISE: f64 = 0.02;

/// Per variant: the median of the whole statement and of its overhead over base, in µs.
type Times = Vec<(f64, f64)>;

fn print_line(case: &Case, times: &Times) {
    let whole = |i: usize| times.get(i).map(|t| t.0);
    let overhead = |i: usize| times.get(i).map(|t| t.1);
    let cell = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"))
    };
    let ratio = |i: usize| Some(overhead(i)? / overhead(3)?.max(NOISE * whole(0)?));
    let of_bare = |i: usize| Some(whole(i)? / whole(0)?);
    println!(
        "{:<42} {:>6} {:>6} {:>7} {:>8} {:>9} {:>9} {:>6} {:>8} {:>7} {:>8}",
        case.name,
        cell(whole(0), 1),
        cell(whole(1), 1),
        cell(overhead(2), 2),
        cell(overhead(3), 2),
        cell(overhead(4), 1),
        cell(overhead(5), 1),
        cell(ratio(4), 1),
        cell(ratio(5), 1),
        cell(of_bare(3), 2),
        cell(of_bare(4), 2),
    );
}

fn find_oracle() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle");
    directory.join("build.sh").exists().then_some(directory)
}

/// A database with the protocol's tables, the extension and the rows to write to.
pub fn build_database(server: &Server, oracle: Option<&Path>, options: &Options) -> Result<()> {
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
    client.batch_execute(
        "SET opengeni_guards.bind_on_create = off; CREATE EXTENSION opengeni_guards",
    )?;
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
    let fixture = include_str!("../bench/fixture.sql")
        .replace(":commands", &options.rows.to_string())
        .replace(":others", &options.others.to_string());
    client.batch_execute(&fixture)?;
    client.batch_execute(&format!(
        "GRANT USAGE ON SCHEMA bench TO {ROLE}; GRANT SELECT ON ALL TABLES IN SCHEMA bench TO {ROLE}"
    ))?;
    client.batch_execute("VACUUM ANALYZE")?;
    client.batch_execute("ALTER SYSTEM SET autovacuum = off")?;
    client.batch_execute("SELECT pg_reload_conf()")?;
    let library = build_empty_trigger(server)?;
    client.batch_execute(&format!(
        "CREATE FUNCTION bench.empty() RETURNS trigger LANGUAGE c AS '{0}', 'empty_trigger';
         CREATE FUNCTION bench.cpu_time() RETURNS double precision LANGUAGE c AS '{0}', 'cpu_time'",
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
    let mut functions = vec![
        ("bench_empty", "bench.empty".to_owned()),
        (NATIVE, format!("opengeni_guards.{}", case.guard)),
    ];
    if variants.contains(&Variant::Plpgsql) {
        functions.push(("bench_plpgsql", original(case.guard)));
    }
    let watches = |trigger: &str| options.shadow && trigger == NATIVE;
    for (trigger, function) in &functions {
        let argument = if watches(trigger) { "'shadow'" } else { "" };
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
            "CREATE {kind} {trigger} {events} FOR EACH ROW EXECUTE FUNCTION {function}({argument})"
        ))?;
        if watches(trigger) {
            client.batch_execute(&format!(
                "CREATE TRIGGER {LOG} AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH STATEMENT
                   EXECUTE FUNCTION opengeni_guards.record_shadow_refusals()"
            ))?;
        }
    }
    // Triggers fire in the order of their names.
    if case.beside_marker() {
        client.batch_execute(&format!(
            "CREATE TRIGGER bench_base BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION bench.empty()"
        ))?;
    }
    // Timed in the server, so that no round trip blurs the difference, and by what its process spends, so that
    // nobody else on the machine does. One row in twenty warms up what a
    // session keeps: plans, attribute maps.
    let statement = |written: &str, rows: &str| {
        format!("WITH step AS MATERIALIZED (SELECT * FROM bench.step WHERE {rows}) {written}")
    };
    let measured = |part: &str| {
        statement(
            case.statement,
            &format!("kind = '{}' AND n % 20 {part}", case.kind),
        )
    };
    // Three times as many rows as are measured, whether a lease has one of them or three.
    let before = match case.before {
        "" => "NULL".to_owned(),
        before => {
            let leases = options.rows * if before == PLAIN_HOLDERS { 1 } else { 3 };
            statement(before, &format!("kind = 'other' AND nth <= {leases}"))
        }
    };
    client.batch_execute(&format!(
        "CREATE FUNCTION bench.run() RETURNS double precision LANGUAGE plpgsql AS $run$
         DECLARE started double precision; spent double precision; written integer;
         BEGIN
           {before};
           {};
           SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED;
           started := bench.cpu_time();
           {};
           GET DIAGNOSTICS written = ROW_COUNT;
           SET CONSTRAINTS ALL IMMEDIATE;
           spent := bench.cpu_time() - started;
           RETURN spent / written;
         END $run$",
        measured("= 0"),
        measured("<> 0")
    ))?;
    let mut samples = vec![Vec::with_capacity(options.rounds); variants.len()];
    for round in 0..=options.rounds {
        // Each takes each place in turn.
        for place in 0..variants.len() {
            let at = (round + place) % variants.len();
            let variant = variants[at];
            client.batch_execute(&format!("ALTER TABLE {table} DISABLE TRIGGER USER"))?;
            if case.beside_marker() && variant != Variant::Bare {
                client.batch_execute(&format!("ALTER TABLE {table} ENABLE TRIGGER bench_base"))?;
            }
            if let Some(trigger) = variant.trigger() {
                client.batch_execute(&format!("ALTER TABLE {table} ENABLE TRIGGER {trigger}"))?;
                if watches(trigger) {
                    client.batch_execute(&format!("ALTER TABLE {table} ENABLE TRIGGER {LOG}"))?;
                }
            }
            let mode = match variant {
                Variant::PlpgsqlGeneric => "force_generic_plan",
                _ => "auto",
            };
            let role = if case.exempt { SUPERUSER } else { ROLE };
            client.batch_execute(&format!(
                "BEGIN; SET LOCAL plan_cache_mode = {mode}; SET LOCAL opengeni.sandbox_recovery_protocol_v2 = '1';
                 SET LOCAL ROLE {role}; SELECT set_config('opengeni.account_id', bench.id('account', 1)::text, true),
                   set_config('opengeni.workspace_id', bench.id('workspace', 1)::text, true)"
            ))?;
            let time: f64 = client.query_one("SELECT bench.run()", &[])?.get(0);
            // No variant finds the dead rows of another in its way, and nobody cleans up meanwhile.
            client.batch_execute("ROLLBACK")?;
            client.batch_execute(&format!("VACUUM (INDEX_CLEANUP ON) {table}"))?;
            // The first round fills caches.
            if round > 0 {
                samples[at].push(time);
            }
        }
    }
    client.batch_execute("DROP FUNCTION bench.run()")?;
    for (trigger, _) in &functions {
        client.batch_execute(&format!("DROP TRIGGER {trigger} ON {table}"))?;
    }
    client.batch_execute(&format!(
        "DROP TRIGGER IF EXISTS bench_base ON {table}; DROP TRIGGER IF EXISTS {LOG} ON {table}"
    ))?;
    let base = samples[1].clone();
    Ok(samples
        .into_iter()
        .map(|times| {
            let overhead = times.iter().zip(&base).map(|(t, b)| t - b).collect();
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
