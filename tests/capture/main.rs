//! Readers that capture the same output at once and are killed now and then, a server's restart included: what is
//! stored is what the commands printed.
//!
//! `--pages N` (of 4 KiB, over all commands), `--commands N`, `--sessions N`, `--kills N` (backends ended by
//! SIGTERM), `--crashes N` (by SIGKILL: the server restarts) and `--seed N`, or `OG_CAPTURE_PAGES` and so on, change the run.

use std::process::{Command as Program, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, process, thread};

use anyhow::{Context, Result, anyhow, bail, ensure};
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::random::Random;
use opengeni_guards_harness::reader::{Output, Place, STREAMS};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;
use serde_json::Value;

const OWNER: &str = "og_capture_owner";
const APP: &str = "og_capture_app";
const SCHEMA: &str = "opengeni";
const PAGE: usize = 4096;
/// Commands of one tenant share a session, so that their captures take turns.
const PER_TENANT: usize = 4;
/// How long a server may take to come back.
const RESTART: Duration = Duration::from_secs(60);

struct Options {
    pages: u64,
    commands: u64,
    sessions: u64,
    kills: u64,
    crashes: u64,
    seed: u64,
}

impl Options {
    fn read() -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let given = |name: &str, default: u64| -> Result<u64> {
            let mut arguments = env::args().skip_while(|argument| argument != &format!("--{name}"));
            let value = arguments
                .nth(1)
                .or_else(|| env::var(format!("OG_CAPTURE_{}", name.to_uppercase())).ok());
            value.map_or(Ok(default), |text| {
                text.parse().with_context(|| format!("--{name} {text}"))
            })
        };
        Ok(Self {
            pages: given("pages", 10_000)?,
            commands: given("commands", 100)?,
            sessions: given("sessions", 8)?,
            kills: given("kills", 20)?,
            crashes: given("crashes", 2)?,
            seed: given("seed", now as u64 % 1_000_000)?,
        })
    }
}

struct Job {
    tenant: Tenant,
    command: Command,
    output: Output,
    read: AtomicBool,
}

struct World {
    server: Server,
    database: String,
    jobs: Vec<Job>,
    /// The backends of the sessions, for whoever kills one.
    backends: Vec<AtomicI32>,
    captured: AtomicU64,
    stale: AtomicU64,
    lost: AtomicU64,
    over: AtomicBool,
}

fn main() -> ExitCode {
    // As libtest does, for whoever asks what there is.
    if env::args().any(|argument| argument == "--list") {
        println!("capture: test\n\n1 test, 0 benchmarks");
        return ExitCode::SUCCESS;
    }
    println!("\nrunning 1 test");
    let began = Instant::now();
    let result = run();
    let verdict = if result.is_ok() { "ok" } else { "FAILED" };
    println!("test capture ... {verdict}");
    if let Err(error) = &result {
        println!("\nfailures:\n\n---- capture ----\n{error:#}\n\nfailures:\n    capture");
    }
    let (passed, failed) = if result.is_ok() { (1, 0) } else { (0, 1) };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; \
         finished in {:.2}s\n",
        began.elapsed().as_secs_f64()
    );
    ExitCode::from(failed)
}

fn run() -> Result<()> {
    let options = Options::read()?;
    println!(
        "{} pages of {} commands, {} sessions, seed {}",
        options.pages, options.commands, options.sessions, options.seed
    );
    let world = create(&Server::from_env()?, &options)?;
    let began = Instant::now();
    let mut failures = Vec::new();
    let (mut kills, mut crashes) = (0, 0);
    thread::scope(|scope| {
        let sessions: Vec<_> = (0..options.sessions)
            .map(|number| {
                let (world, options) = (&world, &options);
                scope.spawn(move || session(world, options, number))
            })
            .collect();
        let mut random = Random::new(options.seed);
        // Spread over the run: by pages captured, not by time.
        let all = options.kills + options.crashes;
        while !sessions.iter().all(|session| session.is_finished()) {
            thread::sleep(Duration::from_millis(10));
            let done = world.captured.load(Ordering::Relaxed);
            if kills + crashes >= all || done < options.pages * (kills + crashes + 1) / (all + 1) {
                continue;
            }
            let backend =
                world.backends[random.below(world.backends.len())].load(Ordering::Relaxed);
            if backend == 0 {
                continue;
            }
            let crash = crashes * options.kills < options.crashes * kills || kills == options.kills;
            let signal = if crash && crashes < options.crashes {
                "-KILL"
            } else {
                "-TERM"
            };
            let sent = Program::new("kill")
                .arg(signal)
                .arg(backend.to_string())
                .status();
            if sent.is_ok_and(|status| status.success()) {
                if signal == "-KILL" {
                    crashes += 1
                } else {
                    kills += 1
                }
            }
        }
        for session in sessions {
            match session.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failures.push(format!("{error:#}")),
                Err(_) => failures.push("a session panicked".to_string()),
            }
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let captured = world.captured.load(Ordering::Relaxed);
    println!(
        "  {captured} pages captured in {seconds:.1} s ({:.0} a second), {} stale, {} answers lost, {kills} backends killed, \
         {crashes} restarts",
        captured as f64 / seconds,
        world.stale.load(Ordering::Relaxed),
        world.lost.load(Ordering::Relaxed),
    );
    if failures.is_empty() {
        failures = verify(&world)?;
    }
    if failures.is_empty() {
        world
            .server
            .connect(SUPERUSER, "postgres")?
            .batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", world.database))?;
        return Ok(());
    }
    Err(anyhow!(
        "seed {}, database {} is left:\n{}",
        options.seed,
        world.database,
        failures.join("\n")
    ))
}

/// A provisioned database, tenants, and commands that have printed and that nobody has read.
fn create(server: &Server, options: &Options) -> Result<World> {
    let database = format!("og_capture_{}", process::id());
    let mut admin = server.connect(SUPERUSER, "postgres")?;
    for role in [OWNER, APP] {
        let known = admin.query_opt("SELECT FROM pg_roles WHERE rolname = $1", &[&role])?;
        let verb = if known.is_some() { "ALTER" } else { "CREATE" };
        admin.batch_execute(&format!(
            "{verb} ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEROLE NOCREATEDB"
        ))?;
    }
    admin.batch_execute(&format!("CREATE DATABASE {database} OWNER {OWNER}"))?;
    admin.batch_execute(&format!(
        "ALTER DATABASE {database} SET deadlock_timeout = '50ms';
         ALTER DATABASE {database} SET statement_timeout = '60s';
         ALTER DATABASE {database} SET search_path = {SCHEMA}"
    ))?;
    let mut admin = server.connect(SUPERUSER, &database)?;
    admin
        .batch_execute(&format!(
            "CREATE SCHEMA {SCHEMA} AUTHORIZATION {OWNER}; CREATE EXTENSION opengeni_guards;
             SELECT opengeni_guards.provision('{SCHEMA}', '{OWNER}');
             SELECT opengeni_guards.grant_usage('{APP}', '{SCHEMA}')"
        ))
        .context("provision the schema")?;
    let mut random = Random::new(options.seed);
    let bytes = options.pages as usize / options.commands.max(1) as usize * PAGE;
    let mut jobs: Vec<Job> = Vec::new();
    for number in 0..options.commands as usize {
        let known = jobs.last().filter(|_| !number.is_multiple_of(PER_TENANT));
        let tenant = known.map(|job| job.tenant.clone());
        let mut transaction = admin.transaction()?;
        let tenant = match tenant {
            Some(tenant) => tenant,
            None => {
                let tenant = Tenant::new();
                for statement in protocol::seed(&tenant) {
                    statement.run(&mut transaction)?;
                }
                tenant
            }
        };
        let command = Command::new(number as i32 + 1);
        for statement in protocol::launch(&tenant, &command) {
            statement.run(&mut transaction)?;
        }
        transaction.commit()?;
        jobs.push(Job {
            tenant,
            command,
            // Both streams are read in pages, stderr ends earlier.
            output: Output::random(&mut random, bytes, bytes / 16),
            read: AtomicBool::new(false),
        });
    }
    Ok(World {
        server: server.clone(),
        database,
        jobs,
        backends: (0..options.sessions).map(|_| AtomicI32::new(0)).collect(),
        captured: AtomicU64::new(0),
        stale: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        over: AtomicBool::new(false),
    })
}

/// Connects, however long a restart takes, and lets others know whom to kill.
fn connect(world: &World, number: u64) -> Result<Client> {
    let began = Instant::now();
    loop {
        let pid = world
            .server
            .connect(APP, &world.database)
            .and_then(|mut client| {
                let row = client.query_one("SELECT pg_backend_pid()", &[])?;
                Ok((client, row.get::<_, i32>(0)))
            });
        match pid {
            Ok((client, pid)) => {
                world.backends[number as usize].store(pid, Ordering::Relaxed);
                return Ok(client);
            }
            Err(error) if began.elapsed() > RESTART => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Reads commands, mostly one that another session reads as well, until all are read.
fn session(world: &World, options: &Options, number: u64) -> Result<()> {
    let result = read_all(world, options, number);
    world.backends[number as usize].store(0, Ordering::Relaxed);
    if result.is_err() {
        world.over.store(true, Ordering::Relaxed);
    }
    result
}

fn read_all(world: &World, options: &Options, number: u64) -> Result<()> {
    let mut random = Random::new(options.seed.wrapping_mul(1_000_003) + number);
    let mut client = connect(world, number)?;
    // Two sessions begin at the same place.
    let mut next =
        (number as usize / 2) * world.jobs.len() / (options.sessions as usize).div_ceil(2);
    let mut unread = world.jobs.len();
    while unread > 0 && !world.over.load(Ordering::Relaxed) {
        let job = &world.jobs[next % world.jobs.len()];
        next += 1;
        if job.read.load(Ordering::Relaxed) {
            unread -= 1;
            continue;
        }
        unread = world.jobs.len();
        read(world, number, job, &mut client, &mut random)?;
    }
    Ok(())
}

fn read(
    world: &World,
    number: u64,
    job: &Job,
    client: &mut Client,
    random: &mut Random,
) -> Result<()> {
    let place = Place {
        schema: SCHEMA,
        tenant: &job.tenant,
        process: job.command.process,
    };
    let mut seen = job.command.provider_command(&job.tenant);
    while !Output::is_read(&seen) && !world.over.load(Ordering::Relaxed) {
        // Readers do not agree on where a page ends.
        let bytes = PAGE
            - if random.one_in(4) {
                random.below(64)
            } else {
                0
            };
        match job.output.page(&seen, bytes).capture(client, place) {
            Ok(answer) => {
                let counter = if answer.captured {
                    &world.captured
                } else {
                    &world.stale
                };
                counter.fetch_add(1, Ordering::Relaxed);
                seen = answer.command;
            }
            // Whether the page was committed the next attempt will tell.
            Err(error) if gone(&error) => {
                world.lost.fetch_add(1, Ordering::Relaxed);
                world.backends[number as usize].store(0, Ordering::Relaxed);
                *client = connect(world, number)?;
            }
            Err(error) => bail!("a capture failed: {error:?}"),
        }
    }
    job.read.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether the session ended, as killed ones and those of a crashed server do.
fn gone(error: &postgres::Error) -> bool {
    match error.code() {
        Some(code) => ["57P01", "57P02", "57P03"].contains(&code.code()),
        None => true,
    }
}

/// What is stored against what was printed.
fn verify(world: &World) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    let mut admin = world.server.connect(SUPERUSER, &world.database)?;
    for (number, job) in world.jobs.iter().enumerate() {
        let row = admin.query_one(
            "SELECT provider_command, supervision_output_captured FROM sandbox_retained_processes WHERE id = $1",
            &[&job.command.process],
        )?;
        let command: Value = row.get(0);
        let mut check = || -> Result<()> {
            ensure!(row.get::<_, bool>(1), "not captured");
            for stream in STREAMS {
                let printed = if stream == "stdout" {
                    &job.output.stdout
                } else {
                    &job.output.stderr
                };
                let row = admin.query_one(
                    "SELECT coalesce(string_agg(chunk, '' ORDER BY sequence), ''), count(*),
                        count(*) FILTER (WHERE byte_start <> before), coalesce(max(byte_end), 0)
                     FROM (SELECT *, lag(byte_end, 1, 0) OVER (ORDER BY sequence) AS before
                           FROM sandbox_command_output WHERE process_id = $1 AND stream = $2) ranges",
                    &[&job.command.process, &stream],
                )?;
                let (stored, gaps): (String, i64) = (row.get(0), row.get(2));
                ensure!(
                    gaps == 0,
                    "{stream}: {gaps} ranges do not follow the one before"
                );
                ensure!(
                    &stored == printed,
                    "{stream}: {} bytes stored in {} chunks, {} printed",
                    stored.len(),
                    row.get::<_, i64>(1),
                    printed.len()
                );
                let offset = command["streams"][stream]["byteOffset"].as_u64();
                ensure!(
                    offset == Some(printed.len() as u64)
                        && row.get::<_, i64>(3) == printed.len() as i64,
                    "{stream}: the cursor is at {offset:?} of {}",
                    printed.len()
                );
            }
            Ok(())
        };
        if let Err(error) = check() {
            failures.push(format!("command {number}: {error:#}"));
        }
    }
    Ok(failures)
}
