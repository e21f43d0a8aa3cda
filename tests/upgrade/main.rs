//! Databases that pg_upgrade carries from one major to the next: used before, judged afterwards, used again.
//!
//! On the first server this makes the databases; on one that `OPENGENI_GUARDS_UPGRADED_FROM` says to be the
//! upgrade of another major's it finds them, compares them with what was written down before, and goes on with the
//! commands that were running. What is left is where the next upgrade starts.

mod facts;
mod life;
#[path = "../cases/support.rs"]
#[allow(dead_code, reason = "the client cases need more of it")]
mod support;

use std::env;
use std::mem::ManuallyDrop;

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;

use life::Life;
use support::*;

/// What is done with a database on a server.
type Act = fn(&Db, &Life) -> Result<()>;

/// The same, of one life.
type Check = Box<dyn Fn(&Db) -> Result<()> + Send>;

/// One of the databases.
struct Scene {
    name: &'static str,
    /// Brings the extension to it, on the first server.
    open: fn(&Db) -> Result<()>,
    /// What must be so after an upgrade, given the life that was led before it.
    checks: &'static [(&'static str, Act)],
}

static PROVISIONED: Scene = Scene {
    name: "provisioned",
    open: |_| Ok(()),
    checks: &[
        UNCHANGED,
        ("every guard is native and fires", ready),
        ("guards refuse", life::refusals),
        ("contract functions, for the application", contract),
        ("operations, for the application", life::operations),
        ("commands go on to their ends", life::goes_on),
    ],
};

static ATTACHED: Scene = Scene {
    name: "attached",
    open: open_attached,
    checks: &[
        UNCHANGED,
        ("every guard is native and fires", ready),
        ("guards refuse", life::refusals),
        ("contract functions, for the application", contract),
        ("the way back to PL/pgSQL, and here again", there_and_back),
        ("commands go on to their ends", life::goes_on),
    ],
};

static SHADOW: Scene = Scene {
    name: "shadow",
    open: open_shadow,
    checks: &[
        UNCHANGED,
        ("guards watch, count and decide nothing", watching),
        ("from watching to enforcing, and back", onward),
    ],
};

const UNCHANGED: (&str, Act) = (
    "definitions, members, privileges, rows and status are as before",
    facts::unchanged,
);

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    // A database's checks build on one another.
    arguments.test_threads = Some(1);
    let server = Server::from_env()?;
    let trials = match env::var("OPENGENI_GUARDS_UPGRADED_FROM") {
        Ok(from) => upgraded(&server, from.parse()?)?,
        Err(_) => {
            if !arguments.list {
                prepare(&server)?;
                facts::prepare(&server)?;
            }
            let title =
                |scene: &Scene| format!("{}: is used on PostgreSQL {}", scene.name, server.major);
            vec![
                case(&server, &title(&PROVISIONED), |db| make(db, &PROVISIONED)),
                original_case(&server, &title(&ATTACHED), |db| make(db, &ATTACHED)),
                original_case(&server, &title(&SHADOW), |db| make(db, &SHADOW)),
            ]
        }
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        clear(&server)?;
    }
    conclusion.exit()
}

/// Uses a case's database and keeps a copy, for the case's own goes with it.
fn make(db: &Db, scene: &Scene) -> Result<()> {
    (scene.open)(db)?;
    start(db, scene)?;
    let (kept, made) = (kept_name(scene), &db.name);
    db.server
        .connect(SUPERUSER, "postgres")?
        .batch_execute(&format!(
            "CREATE DATABASE {kept} TEMPLATE {made} OWNER {OWNER}"
        ))?;
    Ok(())
}

/// Leads a life and writes down how the database stands.
fn start(db: &Db, scene: &Scene) -> Result<()> {
    // The harness saw to that: a retention id that lost its upper half would be another.
    let epoch: i64 = value(
        &mut db.admin()?,
        "SELECT pg_current_xact_id()::text::bigint >> 32",
        &[],
    )?;
    ensure!(epoch > 0, "the cluster's first epoch");
    life::begins(db, &Life::made_on(db.server.major))?;
    facts::write_down(db, scene.name)
}

/// Judges what an upgrade from `from` has made of the databases.
fn upgraded(server: &Server, from: u32) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    let mut admin = server.connect(SUPERUSER, "postgres")?;
    for scene in [&PROVISIONED, &ATTACHED, &SHADOW] {
        let name = kept_name(scene);
        let here = admin
            .query_opt("SELECT FROM pg_database WHERE datname = $1", &[&name])?
            .is_some();
        ensure!(here || scene.name != PROVISIONED.name, "{name} is gone");
        let mut add = |title: &str, check: Check| {
            // Not dropped with the trial: the next one needs it, and the next upgrade.
            let db = ManuallyDrop::new(Db {
                server: server.clone(),
                name: name.clone(),
            });
            let body = move || check(&db).map_err(|error| Failed::from(format!("{error:?}")));
            let title = format!("{}, from {from}: {title}", scene.name);
            trials.push(Trial::test(title, body).with_ignored_flag(!here));
        };
        for (title, check) in scene.checks {
            add(title, Box::new(move |db| check(db, &Life::made_on(from))));
        }
        add("new commands are launched", Box::new(|db| start(db, scene)));
    }
    Ok(trials)
}

fn kept_name(scene: &Scene) -> String {
    format!("og_upgrade_{}", scene.name)
}

/// What a session of the owner's is told by attach or detach, as `action object (note)`.
fn switch(client: &mut Client, call: &str) -> Result<Vec<String>> {
    lines(
        client,
        &format!(
            "SELECT action || ' ' || object || coalesce(' (' || note || ')', '') FROM opengeni_guards.{call}"
        ),
        &[],
    )
}

fn mode(client: &mut Client) -> Result<String> {
    value(
        client,
        "SELECT state FROM opengeni_guards.status('opengeni') WHERE object = 'mode'",
        &[],
    )
}

/// The originals as they were, for the way back; then the extension.
fn install(db: &Db) -> Result<Client> {
    without_pgcrypto(&mut db.admin()?)?;
    facts::write_down_original(db)?;
    db.admin()?.batch_execute(
        "SET opengeni_guards.bind_on_create = off; CREATE EXTENSION opengeni_guards",
    )?;
    db.owner()
}

/// The next server may not have pgcrypto, of which the originals use one function, for one digest.
fn without_pgcrypto(admin: &mut Client) -> Result<()> {
    if admin
        .query_opt("SELECT FROM pg_extension WHERE extname = 'pgcrypto'", &[])?
        .is_some()
    {
        admin.batch_execute(
            "ALTER EXTENSION pgcrypto DROP FUNCTION public.digest(bytea, text);
             DROP EXTENSION pgcrypto;
             CREATE OR REPLACE FUNCTION public.digest(bytea, text) RETURNS bytea
               LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT sha256($1)'",
        )?;
    }
    Ok(())
}

fn open_attached(db: &Db) -> Result<()> {
    let done = switch(&mut install(db)?, "attach('opengeni')")?;
    ensure!(
        done.iter().all(|line| !line.starts_with("left ")),
        "{done:#?}"
    );
    Ok(())
}

fn open_shadow(db: &Db) -> Result<()> {
    let done = switch(&mut install(db)?, "attach('opengeni', mode => 'shadow')")?;
    ensure!(
        done.iter().all(|line| line.starts_with("created ")),
        "{done:#?}"
    );
    Ok(())
}

fn ready(db: &Db, _: &Life) -> Result<()> {
    let mut app = db.session(APP)?;
    let ready: bool = value(&mut app, "SELECT opengeni_guards.ready('opengeni')", &[])?;
    ensure!(ready, "not ready");
    let mut owner = db.owner()?;
    ensure!(mode(&mut owner)? == "native", "{}", mode(&mut owner)?);
    let odd = amiss(&mut owner, SCHEMA)?;
    ensure!(odd.is_empty(), "{odd:#?}");
    Ok(())
}

/// Under the contract's own names, which run as the tables' owner.
fn contract(db: &Db, life: &Life) -> Result<()> {
    callable(db)?;
    // They see the fleet, whichever tenant the session is.
    let mut app = db.session(APP)?;
    let live = lines(
        &mut app,
        "SELECT lease_id::text FROM opengeni_private.list_live_modal_sandbox_leases()",
        &[],
    )?;
    ensure!(live.contains(&life.tenant.lease.to_string()), "{live:?}");
    let active: i64 = value(
        &mut app,
        "SELECT coalesce(sum(active_count), 0)::bigint
           FROM opengeni_private.count_active_retained_processes_by_owner_state()",
        &[],
    )?;
    ensure!(active > 0, "no active process");
    let requested: i32 = value(
        &mut app,
        "SELECT opengeni_private.request_due_sandbox_rotations(0, 10)",
        &[],
    )?;
    ensure!(requested == 0, "{requested} rotations requested");
    Ok(())
}

fn callable(db: &Db) -> Result<()> {
    let mut app = db.session(APP)?;
    for call in [
        "reap_sandbox_leases(60000, 60000, 60000)",
        "count_active_retained_processes_by_owner_state()",
        "count_expired_draining_sandbox_leases()",
        "claim_sandbox_checkpoint_artifacts(gen_random_uuid(), 10, 60000)",
        "claim_terminal_retained_processes(gen_random_uuid(), 10, 60000)",
        "sandbox_checkpoint_artifact_inventory()",
        "sandbox_rotation_backlog()",
        "list_legacy_modal_checkpoint_slots(10)",
        "list_live_modal_sandbox_leases()",
    ] {
        app.batch_execute(&format!("SELECT * FROM opengeni_private.{call}"))
            .with_context(|| call.to_owned())?;
    }
    Ok(())
}

fn there_and_back(db: &Db, life: &Life) -> Result<()> {
    let mut owner = db.owner()?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    // The policy stood there before and stays.
    let restored = |line: &String| {
        ["restored ", "dropped ", "present policy "]
            .iter()
            .any(|action| line.starts_with(action))
    };
    ensure!(done.iter().all(restored), "{done:#?}");
    facts::original_again(db)?;
    ensure!(mode(&mut owner)? == "plpgsql", "{}", mode(&mut owner)?);
    life::refused_by_originals(db, life)?;
    // Owned by an ordinary role they see no fleet.
    callable(db).context("the originals' contract functions")?;
    switch(&mut owner, "attach('opengeni')")?;
    ready(db, life)
}

fn watching(db: &Db, life: &Life) -> Result<()> {
    let mut owner = db.owner()?;
    ensure!(mode(&mut owner)? == "shadow", "{}", mode(&mut owner)?);
    life::refused_by_originals(db, life)?;
    let before = reported(&mut owner)?;
    life::forgets_its_cursor(db, life)?;
    let counted = reported(&mut owner)? - before;
    ensure!(counted == 1, "{counted} counted");
    Ok(())
}

/// Refusals that the log has of a cursor taken back.
fn reported(owner: &mut Client) -> Result<i64> {
    value(
        owner,
        "SELECT coalesce(sum(refusals), 0)::bigint FROM opengeni_guards.shadow_report('opengeni')
          WHERE rule = 'supervised_command.output_regress'",
        &[],
    )
}

fn onward(db: &Db, life: &Life) -> Result<()> {
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni')")?;
    ready(db, life)?;
    life::refusals(db, life)?;
    switch(&mut owner, "detach('opengeni')")?;
    switch(&mut owner, "attach('opengeni', mode => 'shadow')")?;
    ensure!(mode(&mut owner)? == "shadow", "{}", mode(&mut owner)?);
    Ok(())
}
