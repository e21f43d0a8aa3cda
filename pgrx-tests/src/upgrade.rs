//! pg_upgrade from each major at hand to the next, under databases that are in use.

use anyhow::Result;
use opengeni_guards_harness::server::{SUPERUSER, Server};

use crate::cluster::Cluster;
use crate::extension;
use crate::outcome::{Counts, Outcome};
use crate::progress::Step;
use crate::setup::Setup;
use crate::tiers::program_on;
use crate::tree::Tree;

const PROGRAM: &str = "upgrade";

/// Of the transaction ids in the first cluster: supervision records them, and their lower half alone would mean another.
const EPOCH: u32 = 3;

/// What pg_upgrade runs besides itself, of the old release and of the new.
const OLD: [&str; 3] = ["pg_controldata", "pg_ctl", "postgres"];
const NEW: [&str; 7] = [
    "initdb",
    "pg_dump",
    "pg_dumpall",
    "pg_resetwal",
    "pg_restore",
    "pg_upgrade",
    "vacuumdb",
];

pub fn run(setup: &Setup) -> Result<Counts> {
    let mut majors = setup.trees.values().map(|trees| &trees.release);
    let (Some(first), true) = (majors.next(), setup.trees.len() > 1) else {
        return Ok(skipped("one PostgreSQL major is at hand, two are needed"));
    };
    extension::install(setup, first)?;
    let mut cluster = Cluster::start(setup, first, PROGRAM)?;
    cluster.skip_to_epoch(EPOCH)?;
    let mut counts = use_databases(setup, &cluster, None)?;
    for tree in majors {
        let from = cluster.server.major;
        let title = format!("pg_upgrade, PostgreSQL {from} to {}", tree.major);
        if let Some(missing) = missing(&cluster, tree) {
            counts += skipped(&format!("{title}: there is no {missing}"));
            continue;
        }
        extension::install(setup, tree)?;
        let step = Step::start(&title);
        let next = Cluster::start(setup, tree, "upgrade-next")?;
        if stamps_columns(&cluster.server)? && !stamps_columns(&next.server)? {
            unstamp_columns(&cluster.server)?;
        }
        drop(next);
        let upgraded = cluster.upgrade(setup, tree, PROGRAM);
        step.clear();
        cluster = match upgraded {
            Ok(upgraded) => upgraded,
            Err(error) => {
                println!("  {} {title}: {error:#}", Outcome::Failed);
                counts += Counts::of(Outcome::Failed);
                return Ok(counts);
            }
        };
        println!("  {} {title}", Outcome::Passed);
        counts += Counts::of(Outcome::Passed);
        counts += use_databases(setup, &cluster, Some(from))?;
    }
    Ok(counts)
}

/// Makes the databases and uses them or, after an upgrade `from` another major, judges them and goes on.
fn use_databases(setup: &Setup, cluster: &Cluster, from: Option<u32>) -> Result<Counts> {
    let title = format!("Databases in use, PostgreSQL {}", cluster.server.major);
    program_on(setup, &cluster.server, PROGRAM, &title, |command| {
        if let Some(from) = from {
            command.env("OPENGENI_GUARDS_UPGRADED_FROM", from.to_string());
        }
    })
}

/// Whether the server gives new columns an option `pg_attver`: 15.20 does, 16.14 and 18.6 do not. pg_upgrade carries it along,
/// and fails at the first table of any kind where the new server does not know it.
fn stamps_columns(server: &Server) -> Result<bool> {
    let mut session = server.connect(SUPERUSER, "postgres")?;
    session.batch_execute("CREATE TEMP TABLE stamped (it int)")?;
    let stamped = session.query_one(
        "SELECT attoptions::text LIKE '%pg_attver=%' IS TRUE FROM pg_attribute
          WHERE attrelid = 'stamped'::regclass AND attname = 'it'",
        &[],
    )?;
    Ok(stamped.get(0))
}

/// As if an earlier release had made the tables.
fn unstamp_columns(server: &Server) -> Result<()> {
    let databases = server.connect(SUPERUSER, "postgres")?.query(
        "SELECT datname::text FROM pg_database WHERE datallowconn",
        &[],
    )?;
    for database in databases {
        server
            .connect(SUPERUSER, database.get(0))?
            .batch_execute(
                "UPDATE pg_attribute
                SET attoptions = NULLIF(ARRAY(SELECT o FROM unnest(attoptions) o WHERE o NOT LIKE 'pg_attver=%'), '{}')
              WHERE attoptions::text LIKE '%pg_attver=%'",
            )?;
    }
    Ok(())
}

fn missing(old: &Cluster, new: &Tree) -> Option<String> {
    let of_old = OLD.map(|name| old.server.bindir.join(name));
    let of_new = NEW.map(|name| new.bindir.join(name));
    let lacking = of_old
        .iter()
        .chain(&of_new)
        .find(|program| !program.is_file())?;
    Some(lacking.display().to_string())
}

fn skipped(reason: &str) -> Counts {
    println!("  {} {reason}", Outcome::Skipped);
    Counts::of(Outcome::Skipped)
}
