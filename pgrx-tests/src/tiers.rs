//! The test tiers, from formatting to client sessions against a live server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use opengeni_guards_harness::server::Server;

use crate::cluster::{Cluster, RunDir};
use crate::extension;
use crate::outcome::{Counts, Outcome, libtest_line, libtest_summary, pg_regress_line};
use crate::progress::{Step, Stream, Tail};
use crate::setup::Setup;
use crate::tree::Trees;
use crate::workspace::{EXTENSION, HARNESS};
use crate::{pgspot, upgrade};

/// What can be tested by itself, in the order in which everything runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Tier {
    /// Formatting
    Fmt,
    /// Lints, warnings are errors
    Clippy,
    /// Unit tests that need no server
    Unit,
    /// Tests inside a server (`cargo pgrx test`)
    Pgrx,
    /// SQL scripts and their expected output (pg_regress)
    Regress,
    /// Interleaved sessions (isolationtester)
    Isolation,
    /// Client sessions, dumps and roles against a live server
    Cases,
    /// The native guards against the PL/pgSQL originals, where those are at hand
    Differential,
    /// Many sessions at once on few leases
    Storm,
    /// Readers that capture the same output, killed now and then
    Capture,
    /// Databases in use, carried from major to major by pg_upgrade
    PgUpgrade,
    /// Timescale's pgspot on every line of SQL that the extension brings or creates
    Pgspot,
}

/// In the name of every test that `#[pg_test]` makes, and of no other.
const IN_SERVER: &str = "::pg_";

/// Runs the given tiers, or all, for the majors of `setup`.
pub fn run(setup: &Setup, tiers: &[Tier]) -> Result<Counts> {
    let chosen = Tier::value_variants()
        .iter()
        .filter(|tier| tiers.is_empty() || tiers.contains(tier));
    let mut total = Counts::default();
    for tier in chosen {
        match tier {
            Tier::Fmt => total += report(tier, None, || fmt(setup)),
            Tier::Clippy => total += report(tier, None, || clippy(setup)),
            Tier::Unit => total += report(tier, None, || unit(setup)),
            Tier::PgUpgrade => total += report(tier, None, || upgrade::run(setup)),
            Tier::Pgspot => total += report(tier, None, || pgspot::run(setup)),
            _ => {
                for trees in setup.trees.values() {
                    let major = trees.release.major;
                    total += report(tier, Some(major), || match tier {
                        Tier::Pgrx => pgrx(setup, trees),
                        Tier::Regress => suite(setup, trees, &REGRESS),
                        Tier::Isolation => suite(setup, trees, &ISOLATION),
                        Tier::Differential => {
                            program(setup, trees, "differential", "Against the originals")
                        }
                        Tier::Storm => program(setup, trees, "storm", "Colliding sessions"),
                        Tier::Capture => program(setup, trees, "capture", "Killed readers"),
                        _ => program(setup, trees, "cases", "Client cases"),
                    });
                }
            }
        }
    }
    Ok(total)
}

/// Frames a tier's lines. A tier that could not do its work counts as a failure, with the reason.
fn report(tier: &Tier, major: Option<u32>, run: impl FnOnce() -> Result<Counts>) -> Counts {
    let mut title = tier
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_string());
    if let Some(major) = major {
        title += &format!(", PostgreSQL {major}");
    }
    println!("== {title}");
    let counts = match run() {
        Ok(counts) if counts.is_empty() => {
            println!("  {} (nothing here yet)", Outcome::Skipped);
            Counts::of(Outcome::Skipped)
        }
        Ok(counts) => counts,
        Err(error) => {
            println!("  {} could not run: {error:#}", Outcome::Failed);
            Counts::of(Outcome::Failed)
        }
    };
    println!("   = {title}: {counts}");
    counts
}

fn fmt(setup: &Setup) -> Result<Counts> {
    ensure_component(setup, "fmt", "rustfmt")?;
    let mut command = setup.workspace.cargo();
    command.args(["fmt", "--all", "--check"]);
    check(setup, "cargo fmt", "fmt", &mut command)
}

/// One test, whatever it takes: the extension for each major, and the harness, which has no
/// feature per major and must not be asked for one.
fn clippy(setup: &Setup) -> Result<Counts> {
    ensure_component(setup, "clippy", "clippy")?;
    let mut failed = Counts::default();
    for major in setup.trees.keys() {
        let mut command = setup.workspace.cargo();
        command.args(["clippy", "--package", EXTENSION, "--all-targets"]);
        command.args(["--no-default-features", "--features"]);
        command.arg(format!("pg{major}"));
        command.args(["--", "-D", "warnings"]);
        let title = format!("cargo clippy, PostgreSQL {major}");
        failed += check(setup, &title, &format!("clippy-pg{major}"), &mut command)?;
    }
    let mut command = setup.workspace.cargo();
    command.args(["clippy", "--package", HARNESS, "--all-targets"]);
    command.args(["--", "-D", "warnings"]);
    failed += check(
        setup,
        "cargo clippy, harness",
        "clippy-harness",
        &mut command,
    )?;
    Ok(Counts::of(match failed.failed {
        0 => Outcome::Passed,
        _ => Outcome::Failed,
    }))
}

/// A program that says yes or no; what it prints matters only for a no.
fn check(setup: &Setup, title: &str, log: &str, command: &mut Command) -> Result<Counts> {
    let step = Step::start(title);
    let log = setup.workspace.dir("logs")?.join(format!("{log}.log"));
    let status = step.stream(command, &log, |_, _| {})?;
    step.clear();
    let outcome = if status.success() {
        Outcome::Passed
    } else {
        println!("{}", fs::read_to_string(&log)?);
        Outcome::Failed
    };
    println!("  {outcome} {title}");
    Ok(Counts::of(outcome))
}

/// Adds a part of the Rust toolchain that a minimal installation lacks.
fn ensure_component(setup: &Setup, subcommand: &str, component: &str) -> Result<()> {
    let present = setup
        .workspace
        .cargo()
        .args([subcommand, "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    if present {
        return Ok(());
    }
    let log = setup.workspace.dir("logs")?.join("rustup.log");
    let mut command = Command::new("rustup");
    command.args(["component", "add", component]);
    command.current_dir(&setup.workspace.root);
    crate::progress::run_step(format!("Adding {component}"), &mut command, &log)
}

fn unit(setup: &Setup) -> Result<Counts> {
    // Any major will do: none of these tests knows of a server.
    let major = setup.trees.keys().next().context("no PostgreSQL at hand")?;
    let mut command = setup.workspace.cargo();
    command.args(["test", "--package", EXTENSION, "--lib"]);
    command.args(["--no-default-features", "--features"]);
    command.arg(format!("pg{major}"));
    command.args(["--", "--skip", IN_SERVER]);
    let mut counts = libtest(setup, "Unit tests of the extension", "unit", &mut command)?;

    let mut command = setup.workspace.cargo();
    command.args(["test", "--package", HARNESS, "--lib", "--bins"]);
    counts += libtest(
        setup,
        "Unit tests of the harness",
        "unit-harness",
        &mut command,
    )?;
    Ok(counts)
}

fn pgrx(setup: &Setup, trees: &Trees) -> Result<Counts> {
    let major = trees.test.major;
    // Also stops the server of a test program that was interrupted or crashed.
    let run = RunDir::create(setup, &format!("pgrx-pg{major}"), &trees.test.bindir)?;
    let mut command = setup.cargo_pgrx();
    command.arg("test").arg(format!("pg{major}")).arg(IN_SERVER);
    command.args(["--no-default-features", "--pgdata"]);
    command.arg(run.server());
    command.env("USER", &setup.account.user.name);
    if setup.account.switch {
        let shim = sudo_shim(setup)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut directories = vec![shim];
        directories.extend(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(directories)?);
        command.args(["--runas", &setup.account.user.name]);
    }
    let title = format!("Tests inside PostgreSQL {major}");
    libtest(setup, &title, &format!("pgrx-pg{major}"), &mut command)
}

/// The directory of a `sudo` for `cargo pgrx test --runas`, which knows no other way to become
/// another user. We are root already, and a machine with only root rarely has sudo.
fn sudo_shim(setup: &Setup) -> Result<PathBuf> {
    const SHIM: &str = r#"#!/bin/sh
# sudo [-u USER] [NAME=VALUE]... PROGRAM [ARGUMENT]..., for a caller who is root.
user=root
if [ "$1" = -u ]; then
    user=$2
    shift 2
fi
cd / || exit
if [ "$user" = root ]; then
    exec env "$@"
fi
exec runuser -u "$user" -- env -i PATH="$PATH" "$@"
"#;
    let directory = setup.workspace.dir("sudo")?;
    let shim = directory.join("sudo");
    fs::write(&shim, SHIM).with_context(|| format!("cannot write {}", shim.display()))?;
    fs::set_permissions(&shim, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(directory)
}

/// One of the harness's own test programs, on a server of its own.
fn program(setup: &Setup, trees: &Trees, name: &str, title: &str) -> Result<Counts> {
    let major = trees.release.major;
    extension::install(setup, &trees.release)?;
    let cluster = Cluster::start(setup, &trees.release, name)?;
    let title = format!("{title}, PostgreSQL {major}");
    program_on(setup, &cluster.server, name, &title, |_| {})
}

/// One of the harness's own test programs, on a server that runs already.
pub fn program_on(
    setup: &Setup,
    server: &Server,
    name: &str,
    title: &str,
    more: impl FnOnce(&mut Command),
) -> Result<Counts> {
    let mut command = setup.workspace.cargo();
    command.args(["test", "--package", HARNESS, "--test", name]);
    server.export(&mut command);
    more(&mut command);
    let log = format!("{name}-pg{}", server.major);
    libtest(setup, title, &log, &mut command)
}

/// Runs a program that ends in libtest's output, and shows a line per test.
fn libtest(setup: &Setup, title: &str, log: &str, command: &mut Command) -> Result<Counts> {
    let log = setup.workspace.dir("logs")?.join(format!("{log}.log"));
    let step = Step::start(title);
    let mut counts = Counts::default();
    let mut ended = false;
    let mut details = Vec::new();
    let mut tail = Tail::default();
    let status = step.stream(command, &log, |stream, line| {
        tail.push(line);
        if stream == Stream::Stderr {
            return;
        }
        if let Some((outcome, name)) = libtest_line(line) {
            step.print(&format!("  {outcome} {name}"));
        } else if let Some(summary) = libtest_summary(line) {
            counts += summary;
            ended = true;
        } else {
            details.push(line.to_string());
        }
    })?;
    step.clear();
    if counts.failed > 0 {
        // From libtest's first "failures:" on: what each failed test printed.
        let start = details.iter().position(|line| line == "failures:");
        println!("{}", details[start.unwrap_or(0)..].join("\n"));
        println!("  (all output: {})", log.display());
    } else if !status.success() || !ended {
        counts.failed += 1;
        println!("  {} {title} ended with {status}", Outcome::Failed);
        println!("{}\n  (all output: {})", tail.text(), log.display());
    }
    Ok(counts)
}

/// A suite for one of PostgreSQL's own test drivers.
struct Suite {
    name: &'static str,
    directory: &'static str,
    inputs: &'static str,
    extension: &'static str,
    driver: &'static str,
}

const REGRESS: Suite = Suite {
    name: "regress",
    directory: "tests/pg_regress",
    inputs: "sql",
    extension: "sql",
    driver: "regress/pg_regress",
};

const ISOLATION: Suite = Suite {
    name: "isolation",
    directory: "tests/isolation",
    inputs: "specs",
    extension: "spec",
    driver: "isolation/pg_isolation_regress",
};

impl Suite {
    /// The test names: the files, in order.
    fn tests(&self, directory: &Path) -> Result<Vec<String>> {
        let inputs = directory.join(self.inputs);
        if !inputs.is_dir() {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(inputs)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == self.extension)
                && let Some(stem) = path.file_stem()
            {
                names.push(stem.to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}

fn suite(setup: &Setup, trees: &Trees, suite: &Suite) -> Result<Counts> {
    let directory = setup.workspace.root.join(suite.directory);
    let tests = suite.tests(&directory)?;
    if tests.is_empty() {
        return Ok(Counts::default());
    }
    let tree = &trees.release;
    extension::install(setup, tree)?;
    let cluster = Cluster::start(setup, tree, suite.name)?;
    prepare_database(&cluster, suite.name, &directory)?;

    // Results of an earlier run would only mislead.
    let output = setup
        .workspace
        .work
        .join(format!("{}-{}", suite.name, tree.major));
    if output.exists() {
        fs::remove_dir_all(&output)?;
    }
    fs::create_dir_all(&output)?;
    let mut command = Command::new(tree.driver(suite.driver)?);
    setup.workspace.prepare(&mut command);
    command
        .arg("--use-existing")
        .arg(format!("--dbname={}", suite.name))
        .arg(format!("--inputdir={}", directory.display()))
        .arg(format!("--outputdir={}", output.display()))
        .arg(format!("--bindir={}", tree.bindir.display()))
        .arg(format!("--host={}", cluster.server.socket_dir.display()))
        .arg(format!("--port={}", cluster.server.port))
        .arg("--user=postgres");
    let schedule = directory.join("schedule");
    if schedule.is_file() {
        command.arg(format!("--schedule={}", schedule.display()));
    } else {
        command.args(&tests);
    }

    let log = setup
        .workspace
        .dir("logs")?
        .join(format!("{}-pg{}.log", suite.name, tree.major));
    let step = Step::start(format!("{} against PostgreSQL {}", suite.name, tree.major));
    let mut counts = Counts::default();
    let mut tail = Tail::default();
    let status = step.stream(&mut command, &log, |_, line| {
        tail.push(line);
        if let Some((outcome, name)) = pg_regress_line(line) {
            step.print(&format!("  {outcome} {name}"));
            counts += Counts::of(outcome);
        }
    })?;
    step.clear();
    if counts.failed > 0 {
        let differences = output.join("regression.diffs");
        println!("{}", fs::read_to_string(&differences).unwrap_or_default());
        println!("  (results: {})", output.display());
    } else if !status.success() || counts.is_empty() {
        counts.failed += 1;
        println!("  {} {} ended with {status}", Outcome::Failed, suite.driver);
        println!("{}", tail.text());
    }
    Ok(counts)
}

/// A database with the extension and what the suite's `setup.sql` adds.
fn prepare_database(cluster: &Cluster, name: &str, directory: &Path) -> Result<()> {
    let psql = |database: &str, arguments: &[&str]| -> Result<()> {
        let output = cluster
            .server
            .program("psql")
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database])
            .args(arguments)
            .current_dir(directory)
            .output()
            .context("cannot run psql")?;
        ensure!(
            output.status.success(),
            "cannot prepare the database {name}:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    psql("postgres", &["-c", &format!("CREATE DATABASE {name}")])?;
    psql(name, &["-c", &format!("CREATE EXTENSION {EXTENSION}")])?;
    if directory.join("setup.sql").is_file() {
        psql(name, &["-f", "setup.sql"])?;
    }
    Ok(())
}
