//! `cargo xtask`: everything around the extension, on a machine that has nothing but Rust.

mod account;
mod bench;
mod capture_bench;
mod cluster;
mod extension;
mod fleet;
mod memory_bench;
mod outcome;
mod pgspot;
mod progress;
mod setup;
mod tiers;
mod tree;
mod upgrade;
mod workspace;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use opengeni_guards_harness::demo;

use crate::cluster::Cluster;
use crate::setup::{Setup, Wanted};
use crate::tiers::Tier;
use crate::tree::Trees;

/// Builds, shows and tests the opengeni_guards extension; installs what is missing for that.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show the extension at work in a server of its own
    Demo {
        /// Open psql in the demonstration's database afterwards
        #[arg(long, conflicts_with = "keep")]
        psql: bool,
        /// Leave the server running afterwards
        #[arg(long)]
        keep: bool,
        /// Show a command's output arriving in one session while another captures it
        #[arg(long)]
        tail: bool,
        /// Use this PostgreSQL major
        #[arg(long, value_name = "MAJOR", value_parser = major())]
        pg: Option<u32>,
    },
    /// Run the tests: all tiers or the given ones
    Test {
        /// Test against this PostgreSQL major (may be repeated) [default: all that are here]
        #[arg(long, value_name = "MAJOR", value_parser = major(), conflicts_with = "all")]
        pg: Vec<u32>,
        /// Fetch the majors that can be fetched and test against those as well
        #[arg(long)]
        all: bool,
        /// What to run, in this order if nothing is given
        tiers: Vec<Tier>,
    },
    /// Measure the extension
    Bench {
        /// Use this PostgreSQL major
        #[arg(long, value_name = "MAJOR", value_parser = major())]
        pg: Option<u32>,
        /// Only what a captured page of output costs, against the statements of the reference
        #[arg(long)]
        capture: bool,
        /// Only what one statement over all processes costs, in time and memory (with --others 200000)
        #[arg(long, conflicts_with = "capture")]
        memory: bool,
        #[command(flatten)]
        options: bench::Options,
    },
    /// Measure the fleet queues
    Fleet {
        /// Use this PostgreSQL major
        #[arg(long, value_name = "MAJOR", value_parser = major())]
        pg: Option<u32>,
        #[command(flatten)]
        options: fleet::Options,
    },
    /// Only install what the other commands need
    Setup {
        /// Fetch the other PostgreSQL majors as well
        #[arg(long)]
        all: bool,
    },
}

fn major() -> clap::builder::RangedI64ValueParser<u32> {
    let (first, last) = (*setup::MAJORS.start(), *setup::MAJORS.end());
    clap::value_parser!(u32).range(i64::from(first)..=i64::from(last))
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `false` if everything ran but something was not as it should be.
fn run(action: Action) -> Result<bool> {
    cluster::clear_on_interrupt()?;
    match action {
        Action::Demo {
            psql,
            keep,
            tail,
            pg,
        } => run_demo(&ready(&one(pg))?, psql, keep, tail),
        Action::Test { pg, all, tiers } => {
            let wanted = match (all, pg.is_empty()) {
                (true, _) => Wanted::All,
                (false, true) => Wanted::AtHand,
                (false, false) => Wanted::These(pg),
            };
            let counts = tiers::run(&ready(&wanted)?, &tiers)?;
            println!("{counts}");
            Ok(counts.failed == 0)
        }
        Action::Bench {
            pg,
            capture,
            memory,
            options,
        } => {
            let setup = ready(&one(pg))?;
            let trees = first(&setup)?;
            extension::install(&setup, &trees.release)?;
            let cluster = Cluster::start(&setup, &trees.release, "bench")?;
            if capture {
                capture_bench::run(&cluster.server)?;
            } else if memory {
                memory_bench::run(&cluster.server, &options)?;
            } else {
                bench::run(&cluster.server, &options)?;
            }
            Ok(true)
        }
        Action::Fleet { pg, options } => {
            let setup = ready(&one(pg))?;
            let trees = first(&setup)?;
            extension::install(&setup, &trees.release)?;
            let cluster = Cluster::start(&setup, &trees.release, "fleet")?;
            fleet::run(&cluster.server, &options)?;
            Ok(true)
        }
        Action::Setup { all } => {
            let setup = ready(if all { &Wanted::All } else { &Wanted::AtHand })?;
            let majors: Vec<String> = setup.trees.keys().map(u32::to_string).collect();
            println!("Ready for PostgreSQL {}.", majors.join(", "));
            Ok(true)
        }
    }
}

fn one(pg: Option<u32>) -> Wanted {
    pg.map_or(Wanted::One, |major| Wanted::These(vec![major]))
}

fn ready(wanted: &Wanted) -> Result<Setup> {
    let setup = setup::run(wanted)?;
    cluster::sweep(&setup)?;
    Ok(setup)
}

fn first(setup: &Setup) -> Result<&Trees> {
    setup.trees.values().next().context("no PostgreSQL at hand")
}

fn run_demo(setup: &Setup, psql: bool, keep: bool, tail: bool) -> Result<bool> {
    let tree = &first(setup)?.release;
    extension::install(setup, tree)?;
    if keep && cluster::stop_kept(setup)? > 0 {
        println!("The server that an earlier --keep left running is stopped.");
    }
    let cluster = Cluster::start(setup, tree, "demo")?;
    let right = if tail {
        demo::run_tail(&cluster.server)?
    } else {
        demo::run(&cluster.server)?
    };

    if psql {
        let mut command = cluster.server.program("psql");
        command.arg(demo::DATABASE);
        cluster::lend_terminal(&mut command)?;
    }
    if keep {
        let server = cluster.server.clone();
        let stop = cluster.keep()?;
        println!("\nThe server keeps running. To connect and to stop it:");
        println!(
            "    {} -h {} -p {} -U postgres {}",
            server.bindir.join("psql").display(),
            server.socket_dir.display(),
            server.port,
            demo::DATABASE
        );
        println!("    {stop}");
    }
    Ok(right)
}
