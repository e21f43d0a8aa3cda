//! Who sees the fleet: the read capability of the inventory, one session under many identities, read-only
//! transactions and a standby.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::{Client, GenericClient};

use crate::fleet::{self, READERS, WRITERS};
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "inventory: the capability is closed after success, LIMIT, a cursor and in every row's own call",
            closed_after_success,
        ),
        case(
            server,
            "inventory: the capability is closed after an error, a savepoint and a cancel",
            closed_after_errors,
        ),
        case(
            server,
            "inventory: a nested call leaves the outer one open, and ends with it",
            nested,
        ),
        case(
            server,
            "inventory: only the tables' owner opens it",
            only_the_owner,
        ),
        case(
            server,
            "inventory: the application sees other tenants through nothing but the contract's functions",
            tenants_apart,
        ),
        case(
            server,
            "inventory: one session under four identities, planned for each and for all",
            identities,
        ),
        case(
            server,
            "inventory: lists and counts work READ ONLY and take no transaction id",
            read_only,
        ),
        case(
            server,
            "inventory: lists and counts work on a hot standby",
            standby,
        ),
    ]
}

const LIST: &str = "opengeni_private.list_live_modal_sandbox_leases()";
const NATIVE: &str = "opengeni_guards.list_live_modal_sandbox_leases('opengeni')";
/// The live leases of the pair of tenants: a warm one each, one drained of the first and two of the second.
const FLEET: usize = 5;

fn sees_the_fleet(client: &mut impl GenericClient) -> Result<()> {
    for call in [LIST, NATIVE] {
        let seen = fleet::answer(client, call)?.len();
        ensure!(seen == FLEET, "{call}: {seen} leases");
    }
    Ok(())
}

pub fn closed_after_success(db: &Db) -> Result<()> {
    fleet::pair(db, SCHEMA)?;
    let mut owner = db.owner()?;
    fleet::closed(&mut owner)?;
    sees_the_fleet(&mut owner)?;
    fleet::closed(&mut owner)?;
    for call in [LIST, NATIVE] {
        let mut transaction = owner.transaction()?;
        // In one statement with the table, in either order.
        for sql in [
            format!("SELECT (SELECT count(*) FROM {call}), (SELECT count(*) FROM sandbox_leases)"),
            format!(
                "SELECT count(DISTINCT f), count(DISTINCT l.id) FROM {call} f LEFT JOIN sandbox_leases l ON true"
            ),
            format!(
                "WITH f AS MATERIALIZED (SELECT * FROM {call}), l AS (SELECT * FROM sandbox_leases)
                     SELECT (SELECT count(*) FROM f), (SELECT count(*) FROM l)"
            ),
        ] {
            let row = transaction.query_one(&sql, &[])?;
            let seen: (i64, i64) = (row.get(0), row.get(1));
            ensure!(seen == (FLEET as i64, 0), "{sql}: {seen:?}");
        }
        // Some rows only, and no look at the others.
        for sql in [
            format!("SELECT 1 FROM {call} LIMIT 1"),
            format!("SELECT {call} LIMIT 1"),
            format!("SELECT EXISTS (SELECT FROM {call})"),
        ] {
            ensure!(transaction.query(&sql, &[])?.len() == 1, "{sql}");
            fleet::closed(&mut transaction).context(sql)?;
        }
        for query in [
            format!("SELECT * FROM {call}"),
            format!("SELECT {call}"),
            format!("SELECT f, (SELECT count(*) FROM sandbox_leases) FROM {call} f"),
        ] {
            for kind in ["", "SCROLL", "NO SCROLL"] {
                transaction.batch_execute(&format!("DECLARE c {kind} CURSOR FOR {query}"))?;
                fleet::closed(&mut transaction)?;
                ensure!(transaction.query("FETCH 1 FROM c", &[])?.len() == 1);
                fleet::closed(&mut transaction)
                    .with_context(|| format!("FETCH 1 of {kind} {query}"))?;
                let rest = transaction.query("FETCH ALL FROM c", &[])?.len();
                ensure!(rest == FLEET - 1, "{rest} more");
                fleet::closed(&mut transaction)?;
                transaction.batch_execute("CLOSE c")?;
            }
        }
        transaction.batch_execute(&format!(
            "DECLARE kept CURSOR WITH HOLD FOR SELECT * FROM {call}"
        ))?;
        transaction.commit()?;
        fleet::closed(&mut owner)?;
        ensure!(owner.query("FETCH ALL FROM kept", &[])?.len() == FLEET);
        owner.batch_execute("CLOSE kept")?;
    }
    // Prepared, the transaction takes nothing along.
    owner.batch_execute(&format!(
        "BEGIN; SELECT count(*) FROM {LIST}; CREATE TABLE written (); PREPARE TRANSACTION 'inventory'"
    ))?;
    fleet::closed(&mut owner)?;
    owner.batch_execute("ROLLBACK PREPARED 'inventory'")?;
    Ok(())
}

/// A policy that trips over the last live lease, by which time others have been read.
fn with_a_trap(db: &Db) -> Result<()> {
    db.admin()?.batch_execute(
        "CREATE FUNCTION trap(lease uuid) RETURNS boolean LANGUAGE plpgsql AS $$
         BEGIN
           IF lease = md5('gone/2/2')::uuid AND opengeni.modal_inventory_read_capability_active() THEN
             CASE current_setting('og_case.trap', true)
               WHEN 'raise' THEN RAISE 'trapped';
               WHEN 'sleep' THEN PERFORM pg_sleep(10);
               WHEN 'zero' THEN PERFORM 1 / (lease IS NULL)::integer;
               ELSE NULL;
             END CASE;
           END IF;
           RETURN true;
         END $$;
         CREATE POLICY trap ON sandbox_leases AS RESTRICTIVE FOR SELECT USING (trap(id));
         CREATE FUNCTION caught(call text) RETURNS text LANGUAGE plpgsql AS $$
         BEGIN
           EXECUTE 'SELECT FROM ' || call;
           RETURN '00000';
         EXCEPTION WHEN OTHERS THEN
           -- Still inside: the error is caught, and what the call opened is closed.
           IF (SELECT count(*) FROM opengeni.sandbox_leases) > 0 THEN
             RETURN 'open';
           END IF;
           RETURN sqlstate;
         END $$",
    )?;
    Ok(())
}

pub fn closed_after_errors(db: &Db) -> Result<()> {
    fleet::pair(db, SCHEMA)?;
    with_a_trap(db)?;
    let mut owner = db.owner()?;
    sees_the_fleet(&mut owner)?;
    for (trap, state) in [("raise", "P0001"), ("zero", "22012"), ("sleep", "57014")] {
        for call in [LIST, NATIVE] {
            let sql = format!("SELECT FROM {call}");
            let limit = if trap == "sleep" { 300 } else { 0 };
            owner.batch_execute(&format!(
                "SET og_case.trap = '{trap}'; SET statement_timeout = {limit}"
            ))?;
            // The transaction ends.
            let error = match owner.execute(&sql, &[]) {
                Err(error) => error,
                Ok(_) => bail!("{trap} was not met"),
            };
            Refusal::of(&error)?.has_state(state)?;
            fleet::closed(&mut owner).with_context(|| format!("{trap}: {call}"))?;
            // It goes on behind a savepoint, which was set before or after a call that succeeded.
            let mut transaction = owner.transaction()?;
            for _ in 0..3 {
                refused(&mut transaction, &sql, &[])?.has_state(state)?;
                fleet::closed(&mut transaction)?;
                transaction.batch_execute(
                    "SAVEPOINT outside; SET LOCAL og_case.trap = 'off'; SAVEPOINT inside",
                )?;
                sees_the_fleet(&mut transaction)?;
                transaction.batch_execute("ROLLBACK TO inside")?;
                fleet::closed(&mut transaction)?;
                sees_the_fleet(&mut transaction)?;
                transaction.batch_execute("RELEASE inside; ROLLBACK TO outside")?;
                fleet::closed(&mut transaction)?;
            }
            transaction.commit()?;
            fleet::closed(&mut owner)?;
            // An exception block catches it, at most depths.
            if state != "57014" {
                let caught: String = value(&mut owner, "SELECT caught($1)", &[&call])?;
                ensure!(caught == state, "{call}: {caught}");
                fleet::closed(&mut owner)?;
            }
        }
    }
    owner.batch_execute("RESET og_case.trap; RESET statement_timeout")?;
    sees_the_fleet(&mut owner)?;
    fleet::closed(&mut owner)
}

pub fn nested(db: &Db) -> Result<()> {
    fleet::pair(db, SCHEMA)?;
    // Every row of the outer call's scan makes a call of its own, which may fail.
    db.admin()?.batch_execute(
        "CREATE FUNCTION nest() RETURNS boolean LANGUAGE plpgsql AS $$
         DECLARE
           kind text := current_setting('og_case.nest', true);
         BEGIN
           IF coalesce(kind, '') = '' THEN RETURN true; END IF;
           PERFORM set_config('og_case.nest', '', true);
           BEGIN
             IF (SELECT count(*) FROM opengeni_private.list_live_modal_sandbox_leases()) <> 5 THEN
               RAISE 'the inner call is blind';
             END IF;
             IF kind = 'fails' THEN RAISE division_by_zero; END IF;
             IF kind = 'fails inside' THEN
               PERFORM set_config('og_case.inner', 'on', true);
               PERFORM count(*) FROM opengeni_private.list_live_modal_sandbox_leases();
               RAISE 'did not fail inside';
             END IF;
           EXCEPTION WHEN division_by_zero THEN NULL;
           END;
           IF NOT opengeni.modal_inventory_read_capability_active() THEN
             RAISE 'closed by a call inside';
           END IF;
           PERFORM set_config('og_case.nest', kind, true);
           RETURN true;
         END $$;
         CREATE FUNCTION inner_fails() RETURNS boolean LANGUAGE plpgsql AS $$
         BEGIN
           IF current_setting('og_case.inner', true) = 'on' THEN RAISE division_by_zero; END IF;
           RETURN true;
         END $$;
         CREATE POLICY nest ON sandbox_leases AS RESTRICTIVE FOR SELECT USING (nest());
         CREATE POLICY inner_fails ON sandbox_leases AS RESTRICTIVE FOR SELECT USING (inner_fails());
         CREATE FUNCTION pair() RETURNS bigint LANGUAGE plpgsql AS $$
         DECLARE seen bigint;
         BEGIN
           SELECT count(*) INTO seen FROM opengeni_private.list_live_modal_sandbox_leases() a,
             opengeni_guards.list_live_modal_sandbox_leases('opengeni') b,
             LATERAL (SELECT count(*) FROM opengeni_private.list_live_modal_sandbox_leases() WHERE a = a) c;
           RETURN seen + (SELECT count(*) FROM opengeni.sandbox_leases) * 1000;
         END $$",
    )?;
    let mut owner = db.owner()?;
    for kind in ["succeeds", "fails", "fails inside"] {
        for call in [LIST, NATIVE] {
            let mut transaction = owner.transaction()?;
            set(&mut transaction, "og_case.nest", kind)?;
            let seen = fleet::answer(&mut transaction, call)
                .with_context(|| kind.to_owned())?
                .len();
            ensure!(seen == FLEET, "{kind}: {seen} leases");
            set(&mut transaction, "og_case.nest", "")?;
            set(&mut transaction, "og_case.inner", "")?;
            fleet::closed(&mut transaction)?;
            transaction.rollback()?;
            fleet::closed(&mut owner)?;
        }
    }
    let seen: i64 = value(&mut owner, "SELECT pair()", &[])?;
    ensure!(seen == 25, "{seen}");
    fleet::closed(&mut owner)
}

fn only_the_owner(db: &Db) -> Result<()> {
    fleet::pair(db, SCHEMA)?;
    let wrapper = |name: &str| {
        format!(
            "CREATE FUNCTION wrappers.{name}() RETURNS TABLE (lease_id uuid, workspace_id uuid, sandbox_group_id uuid,
               instance_id text, liveness text) LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
             BEGIN ATOMIC SELECT * FROM {NATIVE}; END"
        )
    };
    let mut admin = db.admin()?;
    admin.batch_execute(&format!(
        "CREATE SCHEMA wrappers; GRANT ALL ON SCHEMA wrappers TO {APP}, {STRANGER}, {OWNER};
         GRANT USAGE ON SCHEMA opengeni TO {STRANGER};
         SET ROLE {APP}; {}; RESET ROLE; SET ROLE {STRANGER}; {}; RESET ROLE",
        wrapper("of_app"),
        wrapper("of_stranger"),
    ))?;
    for role in [OWNER, APP, STRANGER, SUPERUSER] {
        let mut session = db.session(role)?;
        let seen = fleet::answer(&mut session, "wrappers.of_app()")?;
        ensure!(seen.is_empty(), "{role}: {seen:?}");
        refused(&mut session, "SELECT FROM wrappers.of_stranger()", &[])?.has_state("42501")?;
        refused(
            &mut db.session(STRANGER)?,
            &format!("SELECT FROM {NATIVE}"),
            &[],
        )?
        .has_state("42501")?;
    }
    // A superuser has no policy to pass; what it calls opens nothing for the owner.
    ensure!(fleet::answer(&mut admin, NATIVE)?.len() == FLEET);
    admin.batch_execute(&format!("SET ROLE {OWNER}"))?;
    fleet::closed(&mut admin)?;
    admin.batch_execute("RESET ROLE")?;

    // The wrapper's owner has lost the table: it reads as anybody who has the grants.
    admin.batch_execute(&format!(
        "ALTER TABLE sandbox_leases OWNER TO {SUPERUSER}; GRANT SELECT ON sandbox_leases TO {OWNER}"
    ))?;
    let seen = fleet::answer(&mut db.session(APP)?, LIST)?;
    ensure!(seen.is_empty(), "{seen:?}");
    // It got another owner, whose name is not the policy's.
    admin.batch_execute(&format!(
        "ALTER TABLE sandbox_leases OWNER TO {OWNER};
         ALTER FUNCTION opengeni_private.list_live_modal_sandbox_leases() OWNER TO {APP}"
    ))?;
    let seen = fleet::answer(&mut db.session(APP)?, LIST)?;
    ensure!(seen.is_empty(), "{seen:?}");
    Ok(())
}

fn tenants_apart(db: &Db) -> Result<()> {
    fleet::pair(db, SCHEMA)?;
    for tenant in [1, 2] {
        let mut app = fleet::app(db, tenant)?;
        let mine: Vec<Vec<String>> = fleet::answers(&mut app, READERS, |f| f.native(SCHEMA))?;
        let list = mine.last().context("no list")?;
        let workspace = fleet::id(&mut app, &format!("workspace/{tenant}"))?.to_string();
        ensure!(
            list.len() == 1 + tenant as usize && list.iter().all(|line| line.contains(&workspace)),
            "{list:?}"
        );
        let fleet = fleet::answers(&mut app, READERS, |f| f.contract())?;
        let differing = mine.iter().zip(&fleet).filter(|(a, b)| a != b).count();
        ensure!(differing == READERS.len(), "{differing} differ: {mine:?}");
        // Nothing of the extension's shows more than the tenant's own rows afterwards.
        for function in READERS.iter().chain(WRITERS) {
            for call in [function.contract(), function.native(SCHEMA)] {
                let mut transaction = app.transaction()?;
                transaction.query(&format!("SELECT FROM {call}"), &[])?;
                let foreign: i64 = value(
                    &mut transaction,
                    "SELECT (SELECT count(*) FROM sandbox_leases WHERE workspace_id::text <> $1)
                       + (SELECT count(*) FROM sandbox_retained_processes WHERE workspace_id::text <> $1)
                       + (SELECT count(*) FROM sandbox_checkpoint_artifacts WHERE workspace_id::text <> $1)
                       + modal_inventory_read_capability_active()::integer",
                    &[&workspace],
                )?;
                ensure!(foreign == 0, "{call}: {foreign} rows of others");
                transaction.rollback()?;
            }
        }
        // A writer, called without the wrapper, writes its caller's rows only.
        let mut transaction = app.transaction()?;
        for function in WRITERS {
            transaction.query(&format!("SELECT FROM {}", function.native(SCHEMA)), &[])?;
        }
        transaction.commit()?;
        let written = lines(
            &mut db.admin()?,
            "SELECT workspace_id::text FROM sandbox_retained_processes WHERE reconcile_claim_id IS NOT NULL
             UNION SELECT workspace_id::text FROM sandbox_checkpoint_artifacts WHERE delete_attempts > 0",
            &[],
        )?;
        ensure!(written == [workspace], "{written:?}");
        fleet::plant(
            db,
            SCHEMA,
            "UPDATE sandbox_retained_processes SET reconcile_claim_id = NULL, reconcile_claimed_at = NULL;
             UPDATE sandbox_checkpoint_artifacts SET delete_attempts = 0",
        )?;
    }
    Ok(())
}

pub fn identities(db: &Db) -> Result<()> {
    const SECOND: &str = "og_cases_second_app";
    fleet::pair(db, SCHEMA)?;
    let mut admin = db.admin()?;
    if admin
        .query_opt("SELECT FROM pg_roles WHERE rolname = $1", &[&SECOND])?
        .is_none()
    {
        admin.batch_execute(&format!("CREATE ROLE {SECOND} NOLOGIN"))?;
    }
    grant_usage(&mut db.owner()?, SECOND, SCHEMA)?;

    // What each sees by itself, in a session of its own.
    let native = |f: &fleet::Function| f.native(SCHEMA);
    let contract = |f: &fleet::Function| f.contract();
    let fleet = fleet::answers(&mut db.session(APP)?, READERS, contract)?;
    ensure!(fleet == fleet::answers(&mut db.owner()?, READERS, native)?);
    let first = fleet::answers(&mut fleet::app(db, 1)?, READERS, native)?;
    let second = fleet::answers(&mut fleet::app(db, 2)?, READERS, native)?;
    let nobody = fleet::answers(&mut db.session(APP)?, READERS, native)?;
    ensure!(first != second && first != nobody && second != nobody && fleet != second);

    for mode in ["auto", "force_generic_plan", "force_custom_plan"] {
        let mut session = db.admin()?;
        set(&mut session, "plan_cache_mode", mode)?;
        for turn in 0..8 {
            for (role, tenant, own) in [
                (APP, 1, &first),
                (SECOND, 2, &second),
                (OWNER, 9, &fleet),
                (APP, 2, &second),
                (SECOND, 9, &nobody),
                (SECOND, 1, &first),
            ] {
                session.batch_execute(&format!("SET ROLE {role}"))?;
                fleet::enter(&mut session, tenant)?;
                let context = || format!("{mode}, turn {turn}: {role}, tenant {tenant}");
                let direct = fleet::answers(&mut session, READERS, native)?;
                ensure!(direct == *own, "{}: {direct:?}", context());
                let wrapped = fleet::answers(&mut session, READERS, contract)?;
                ensure!(wrapped == fleet, "{}: {wrapped:?}", context());
            }
            session.batch_execute("RESET ROLE")?;
        }
    }
    Ok(())
}

/// Every function that only reads does, and the others say that they cannot.
fn reads(client: &mut Client, expected: &[Vec<String>]) -> Result<()> {
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        let mut transaction = client.transaction()?;
        transaction.batch_execute(&format!(
            "SET TRANSACTION ISOLATION LEVEL {isolation} READ ONLY"
        ))?;
        let found = fleet::answers(&mut transaction, READERS, |f| f.contract())?;
        ensure!(found == expected, "{found:?}");
        if !value::<bool>(&mut transaction, "SELECT pg_is_in_recovery()", &[])? {
            let idle = "SELECT pg_current_xact_id_if_assigned() IS NULL";
            ensure!(
                value::<bool>(&mut transaction, idle, &[])?,
                "a transaction id was taken"
            );
        }
        for function in WRITERS {
            // One that finds nothing to write may well succeed.
            let sql = format!("SELECT FROM {}", function.contract());
            let mut attempt = transaction.transaction()?;
            if let Err(error) = attempt.execute(&sql, &[]) {
                Refusal::of(&error)?.has_state("25006").context(sql)?;
            }
            attempt.rollback()?;
        }
        let found = fleet::answers(&mut transaction, READERS, |f| f.contract())?;
        ensure!(found == expected, "{found:?}");
        transaction.commit()?;
    }
    Ok(())
}

fn read_only(db: &Db) -> Result<()> {
    fleet::pair(db, SCHEMA)?;
    let mut app = db.session(APP)?;
    let expected = fleet::answers(&mut app, READERS, |f| f.contract())?;
    ensure!(expected.iter().all(|rows| !rows.is_empty()), "{expected:?}");
    reads(&mut app, &expected)?;
    // READ WRITE takes none either.
    let mut transaction = app.transaction()?;
    fleet::answers(&mut transaction, READERS, |f| f.contract())?;
    let idle = "SELECT pg_current_xact_id_if_assigned() IS NULL";
    ensure!(value::<bool>(&mut transaction, idle, &[])?);
    Ok(())
}

/// A standby of the cases' server, beside it. Stopped and removed when dropped.
struct Standby {
    server: Server,
    data: PathBuf,
}

impl Standby {
    /// A program of the server's release, as the user that the server runs as.
    fn program(server: &Server, name: &str) -> Result<Command> {
        let owner = fs::metadata(&server.socket_dir)?;
        let mut command = server.program(name);
        command.uid(owner.uid()).gid(owner.gid()).current_dir("/");
        Ok(command)
    }

    fn start(primary: &Server) -> Result<Self> {
        let standby = Standby {
            server: Server {
                port: primary.port + 1,
                ..primary.clone()
            },
            data: primary.socket_dir.join("standby"),
        };
        run(Self::program(primary, "pg_basebackup")?
            .args([
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
                "-D",
            ])
            .arg(&standby.data))?;
        run(Self::program(primary, "pg_ctl")?
            .args(["start", "--wait", "--silent", "-D"])
            .arg(&standby.data)
            .arg("-l")
            .arg(standby.data.join("log"))
            .arg("-o")
            .arg(format!("-p {}", standby.server.port)))?;
        Ok(standby)
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let stopped = Self::program(&self.server, "pg_ctl").and_then(|mut command| {
            run(command
                .args(["stop", "--wait", "--silent", "-m", "immediate", "-D"])
                .arg(&self.data))
        });
        if let Err(error) = stopped {
            eprintln!("the standby is left behind: {error:#}");
        }
        let _ = fs::remove_dir_all(&self.data);
    }
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| name.clone())?;
    ensure!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn standby(db: &Db) -> Result<()> {
    let standby = Standby::start(&db.server)?;
    // What the primary writes now arrives as a standby's rows do.
    fleet::pair(db, SCHEMA)?;
    let expected = fleet::answers(&mut db.session(APP)?, READERS, |f| f.contract())?;
    let mut admin = db.admin()?;
    let written: String = value(&mut admin, "SELECT pg_current_wal_flush_lsn()::text", &[])?;
    let there = Db {
        server: standby.server.clone(),
        name: db.name.clone(),
    };
    let arrived = (|| {
        let mut admin = there.admin()?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !value::<bool>(
            &mut admin,
            "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn",
            &[&written],
        )? {
            ensure!(Instant::now() < deadline, "the standby does not follow");
            sleep(Duration::from_millis(20));
        }
        ensure!(value::<bool>(
            &mut admin,
            "SELECT pg_is_in_recovery()",
            &[]
        )?);
        reads(&mut there.session(APP)?, &expected)?;
        let mut owner = there.owner()?;
        sees_the_fleet(&mut owner)?;
        fleet::closed(&mut owner)
    })();
    // Not a database of its own to drop.
    std::mem::forget(there);
    arrived
}
