//! Many sessions at once on few leases: whatever order their transactions come in, nobody deadlocks, nothing
//! breaks inside, and what is left agrees with itself.
//!
//! `--operations N`, `--seed N` and `--sessions N`, or `OG_STORM_OPERATIONS` and so on, change the run. The same
//! seed gives each session the same wishes; what becomes of them is up to the server.

mod invariants;
mod operations;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use anyhow::{Context, Result, anyhow};
use opengeni_guards_harness::server::Server;

use invariants::Watch;
use opengeni_guards_harness::random::Random;
use operations::{Kind, Outcome};
use world::World;

struct Options {
    operations: u64,
    sessions: u64,
    seed: u64,
}

impl Options {
    fn read() -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let given = |name: &str, default: u64| -> Result<u64> {
            let mut arguments = env::args().skip_while(|argument| argument != &format!("--{name}"));
            let value = arguments
                .nth(1)
                .or_else(|| env::var(format!("OG_STORM_{}", name.to_uppercase())).ok());
            value.map_or(Ok(default), |text| {
                text.parse().with_context(|| format!("--{name} {text}"))
            })
        };
        Ok(Self {
            operations: given("operations", 10_000)?,
            sessions: given("sessions", 8)?,
            seed: given("seed", now as u64 % 1_000_000)?,
        })
    }
}

/// How often each kind of operation ended in each way.
type Tally = BTreeMap<(Kind, String), u64>;

fn main() -> ExitCode {
    // As libtest does, for whoever asks what there is.
    if env::args().any(|argument| argument == "--list") {
        println!("storm: test\n\n1 test, 0 benchmarks");
        return ExitCode::SUCCESS;
    }
    println!("\nrunning 1 test");
    let began = Instant::now();
    let result = run();
    let verdict = if result.is_ok() { "ok" } else { "FAILED" };
    println!("test storm ... {verdict}");
    if let Err(error) = &result {
        println!("\nfailures:\n\n---- storm ----\n{error:#}\n\nfailures:\n    storm");
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
        "{} operations of {} sessions, seed {}",
        options.operations, options.sessions, options.seed
    );
    let world = World::create(&Server::from_env()?)?;
    let left = AtomicU64::new(options.operations);
    let mut watch = Watch::new(&world)?;
    let mut failures = Vec::new();
    let tallies: Vec<Result<Tally>> = thread::scope(|scope| {
        let sessions: Vec<_> = (0..options.sessions)
            .map(|number| {
                let random = Random::new(options.seed.wrapping_mul(1_000_003) + number);
                let (world, left) = (&world, &left);
                scope.spawn(move || session(world, left, random))
            })
            .collect();
        // Every state between two commits has to agree with itself, not only the last one.
        while failures.is_empty() && sessions.iter().any(|session| !session.is_finished()) {
            match watch.violations() {
                Ok(found) => failures = found,
                Err(error) => failures.push(format!("{error:#}")),
            }
            thread::sleep(Duration::from_millis(50));
        }
        sessions
            .into_iter()
            .map(|session| session.join().map_err(|_| anyhow!("a session panicked"))?)
            .collect()
    });
    let mut tally = Tally::new();
    for one in tallies {
        match one {
            Ok(one) => {
                for (key, count) in one {
                    *tally.entry(key).or_default() += count;
                }
            }
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    for ((kind, end), count) in &tally {
        println!("  {kind:?} {end}: {count}");
    }
    watch.describe()?;
    failures.extend(watch.violations()?);
    drop(watch);
    if options.operations >= 2000 {
        // A storm in which something never happens shows nothing about it.
        for (kind, _) in Kind::ALL {
            if !tally.contains_key(&(*kind, "done".into())) {
                failures.push(format!("{kind:?} never succeeded"));
            }
        }
    }
    if failures.is_empty() {
        return world.drop();
    }
    Err(anyhow!(
        "seed {}, database {} is left:\n{}",
        options.seed,
        world.database,
        failures.join("\n")
    ))
}

/// One session's share: an operation after another until all are used up.
fn session(world: &World, left: &AtomicU64, mut random: Random) -> Result<Tally> {
    let mut client = world.session()?;
    let mut tally = Tally::new();
    while left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        .is_ok()
    {
        let kind = Kind::any(&mut random);
        let end = match operations::run(kind, world, &mut client, &mut random)
            .with_context(|| format!("{kind:?}"))?
        {
            Outcome::Done => "done".into(),
            Outcome::Nothing => "nothing to do".into(),
            Outcome::Refused(state) => state,
        };
        *tally.entry((kind, end)).or_default() += 1;
    }
    Ok(tally)
}
