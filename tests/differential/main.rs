//! The native guards against the PL/pgSQL originals: the same statements on the same tables, once with each.

mod cases;
mod database;
mod deviations;
mod moves;
mod queues;
mod tenants;
mod walk;

use std::env;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use opengeni_guards_harness::server::Server;

use crate::database::Pair;

#[derive(Parser)]
struct Options {
    /// Transactions of the random walk.
    #[arg(
        long,
        default_value_t = 20_000,
        env = "OPENGENI_GUARDS_DIFFERENTIAL_TRANSACTIONS"
    )]
    transactions: usize,
    /// Where the random walk starts.
    #[arg(long, default_value_t = 20_240_601)]
    seed: u64,
    /// `walk`, or the beginning of the names of cases.
    #[arg(long)]
    only: Option<String>,
    /// Taken and ignored, as `cargo test` may hand them down.
    #[arg(hide = true)]
    filters: Vec<String>,
}

/// Where the originals are: a directory with a `build.sh`.
fn oracle() -> PathBuf {
    match env::var_os("OPENGENI_GUARDS_ORACLE") {
        Some(directory) => directory.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle"),
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let started = Instant::now();
    let oracle = oracle();
    if !oracle.join("build.sh").is_file() {
        println!("skipped: no oracle directory");
        conclude(0, 0, 1, started);
        return Ok(());
    }
    let server = Server::from_env()?;
    let (mut passed, mut failed) = (0, 0);
    let mut report = |name: &str, ok: bool| {
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        match ok {
            true => passed += 1,
            false => failed += 1,
        }
    };
    let wanted = |name: &str| {
        options
            .only
            .as_ref()
            .is_none_or(|only| name.starts_with(only.as_str()))
    };
    let mut failures = Vec::new();
    let tests: Vec<queues::Test> = queues::all()
        .into_iter()
        .filter(|t| wanted(&t.name))
        .collect();
    if !tests.is_empty() {
        let mut fleets = queues::Fleets::build(&server, &oracle)?;
        for test in tests {
            let result = fleets.tidy().and_then(|()| (test.run)(&mut fleets));
            report(&test.name, result.is_ok());
            if let Err(error) = result {
                failures.push(format!("---- {} ----\n{error:#}", test.name));
            }
        }
    }
    let cases: Vec<cases::Case> = cases::all()
        .into_iter()
        .filter(|c| wanted(&c.name))
        .collect();
    let mut pair = match cases.is_empty() && !wanted("walk") {
        true => None,
        false => Some(Pair::build(&server, &oracle)?),
    };
    if let Some(pair) = &mut pair {
        for case in cases {
            let result = case.run(pair);
            report(&case.name, result.is_ok());
            if let Err(error) = result {
                failures.push(format!("---- {} ----\n{error:#}", case.name));
            }
        }
    }
    if !failures.is_empty() {
        println!("\nfailures:\n\n{}\n", failures.join("\n\n"));
    }
    if let Some(pair) = pair.filter(|_| wanted("walk")) {
        let divergences = walk::run(pair, options.transactions, options.seed)?;
        report("walk", divergences == 0);
    }
    conclude(passed, failed, 0, started);
    if failed > 0 {
        std::process::exit(101);
    }
    Ok(())
}

/// The last line, as libtest prints it.
fn conclude(passed: usize, failed: usize, ignored: usize, started: Instant) {
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; \
         finished in {:.2}s",
        if failed == 0 { "ok" } else { "FAILED" },
        started.elapsed().as_secs_f64()
    );
}
