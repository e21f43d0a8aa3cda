//! Replicas of a guarded database: by logical replication, and as a hot standby.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Cursor, streams};
use opengeni_guards_harness::server::Server;
use postgres::Client;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "operations: logical replication, fired on origin and always",
            logical_replication,
        ),
        case(
            server,
            "operations: a hot standby answers inventories, counts and status",
            hot_standby,
        ),
    ]
}

/// Asks until the answer is true.
fn wait_for(client: &mut Client, sql: &str, params: Params<'_>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if value::<bool>(client, sql, params)? {
            return Ok(());
        }
        sleep(Duration::from_millis(50));
    }
    bail!("never came true: {sql}")
}

const SUBSCRIBED: &[&str] = &[
    "managed_accounts",
    "workspaces",
    "sessions",
    "sandbox_leases",
    "sandbox_lease_holders",
    "sandbox_workspace_mutation_admissions",
    "sandbox_retained_processes",
];

/// Ends a subscription without asking the publisher, then its slot.
struct Subscription<'d> {
    publisher: &'d Db,
    subscriber: &'d Db,
    name: String,
}

impl Subscription<'_> {
    fn end(&self) -> Result<()> {
        let name = &self.name;
        let mut admin = self.subscriber.admin()?;
        admin.batch_execute(&format!("ALTER SUBSCRIPTION {name} DISABLE"))?;
        admin.batch_execute(&format!("ALTER SUBSCRIPTION {name} SET (slot_name = NONE)"))?;
        admin.batch_execute(&format!("DROP SUBSCRIPTION {name}"))?;
        let mut publisher = self.publisher.admin()?;
        wait_for(
            &mut publisher,
            "SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1",
            &[name],
        )?;
        publisher.execute("SELECT pg_drop_replication_slot($1::text::name)", &[name])?;
        Ok(())
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("subscription {}: {error:#}", self.name);
        }
    }
}

fn logical_replication(db: &Db) -> Result<()> {
    let subscriber = Db::provisioned(&db.server)?;
    let tables = SUBSCRIBED.join(", ");
    let name = format!("sub_{}", db.name);
    let mut publisher = db.admin()?;
    publisher.batch_execute(&format!("CREATE PUBLICATION guarded FOR TABLE {tables}"))?;
    publisher.execute(
        "SELECT pg_create_logical_replication_slot($1::text::name, 'pgoutput')",
        &[&name],
    )?;
    let mut there = subscriber.admin()?;
    // From 16 on the worker becomes the tables' owner otherwise, whom their forced row-level security stops.
    let as_whom = match db.server.major {
        15 => "",
        _ => ", run_as_owner = true",
    };
    there.batch_execute(&format!(
        "CREATE SUBSCRIPTION {name} CONNECTION 'host={} port={} user=postgres dbname={}' PUBLICATION guarded
           WITH (create_slot = false, slot_name = '{name}', copy_data = false{as_whom})",
        db.server.socket_dir.display(),
        db.server.port,
        db.name
    ))?;
    let subscription = Subscription {
        publisher: db,
        subscriber: &subscriber,
        name: name.clone(),
    };

    // Fired on origin: what the publisher accepted arrives, settings or not.
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let cursor = |offset| streams(&Cursor::at(offset), &Cursor::START);
    commit(&mut app, &[protocol::capture(&command, cursor(5), false)])?;
    let arrived = "SELECT EXISTS (SELECT FROM sandbox_retained_processes WHERE id = $1
        AND provider_command #>> '{streams,stdout,byteOffset}' = $2)";
    wait_for(&mut there, arrived, &[&command.process, &"5"])?;

    // Fired always: the worker is refused, under its empty search_path, and tries again; nothing crashes.
    let mut owner = subscriber.owner()?;
    let told = subscriber
        .server
        .program("psql")
        .args(["-X", "-q", "-d", &subscriber.name, "-c"])
        .arg("SELECT FROM opengeni_guards.attach('opengeni', fire => 'always')")
        .output()?;
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    ensure!(told.contains("filled by a subscription"), "{told}");
    commit(&mut app, &[protocol::capture(&command, cursor(9), false)])?;
    wait_for(
        &mut there,
        "SELECT apply_error_count > 0 FROM pg_stat_subscription_stats WHERE subname = $1",
        &[&name],
    )?;
    ensure!(!value::<bool>(
        &mut there,
        arrived,
        &[&command.process, &"9"]
    )?);

    // On origin again it goes on where it stood.
    let triggers = lines(
        &mut owner,
        "SELECT format('ALTER TABLE %s ENABLE TRIGGER %I', tgrelid::regclass, tgname)
           FROM pg_trigger WHERE tgenabled = 'A' AND NOT tgisinternal",
        &[],
    )?;
    owner.batch_execute(&triggers.join("; "))?;
    wait_for(&mut there, arrived, &[&command.process, &"9"])?;
    drop(subscription);
    Ok(())
}

/// A second server from a base backup of the first.
struct Standby {
    server: Server,
    directory: PathBuf,
    uid: u32,
}

impl Standby {
    fn program(&self, name: &str) -> Program {
        as_user(self.uid, &self.server.bindir.join(name))
    }

    fn start(primary: &Server) -> Result<Standby> {
        let uid = fs::metadata(&primary.socket_dir)?.uid();
        let directory = primary.socket_dir.join("standby");
        let standby = Standby {
            server: Server {
                socket_dir: directory.clone(),
                ..primary.clone()
            },
            directory: directory.clone(),
            uid,
        };
        let data = directory.join("data");
        run(as_user(uid, Path::new("/bin/mkdir"))
            .arg("-m")
            .arg("700")
            .arg(&directory))?;
        run(standby
            .program("pg_basebackup")
            .args([
                "--checkpoint=fast",
                "--write-recovery-conf",
                "--no-sync",
                "-U",
                "postgres",
            ])
            .arg("-h")
            .arg(&primary.socket_dir)
            .args(["-p", &primary.port.to_string(), "-D"])
            .arg(&data))?;
        run(standby
            .program("pg_ctl")
            .args(["start", "--wait", "--silent", "-D"])
            .arg(&data)
            .arg("-l")
            .arg(directory.join("log"))
            .arg("-o")
            .arg(format!(
                "-c unix_socket_directories={}",
                directory.display()
            )))?;
        Ok(standby)
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let mut stop = self.program("pg_ctl");
        stop.args(["stop", "--wait", "--silent", "-m", "immediate", "-D"])
            .arg(self.directory.join("data"));
        let removed = run(&mut stop).and_then(|()| Ok(fs::remove_dir_all(&self.directory)?));
        if let Err(error) = removed {
            eprintln!("standby: {error:#}");
        }
    }
}

/// A program as the account that the server runs as.
fn as_user(uid: u32, program: &Path) -> Program {
    let own = fs::metadata("/proc/self")
        .map(|own| own.uid())
        .unwrap_or(uid);
    let mut command = match own == uid {
        true => return Program::new(program),
        false => Program::new("setpriv"),
    };
    command
        .arg(format!("--reuid={uid}"))
        .arg("--clear-groups")
        .arg(program)
        .current_dir("/");
    command
}

fn run(command: &mut Program) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn hot_standby(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let standby = Standby::start(&db.server)?;
    let there = Db {
        server: standby.server.clone(),
        name: db.name.clone(),
    };
    // The database is dropped on the primary.
    let there = std::mem::ManuallyDrop::new(there);
    let mut admin = there.admin()?;
    wait_for(
        &mut admin,
        "SELECT count(*) = 1 FROM sandbox_retained_processes",
        &[],
    )?;
    let mut app = there.app(&tenant)?;
    for call in [
        "count_active_retained_processes_by_owner_state()",
        "count_expired_draining_sandbox_leases()",
        "list_live_modal_sandbox_leases()",
        "sandbox_checkpoint_artifact_inventory()",
        "sandbox_rotation_backlog()",
    ] {
        app.execute(&format!("SELECT * FROM opengeni_private.{call}"), &[])
            .with_context(|| call.to_owned())?;
    }
    let live: i64 = value(
        &mut app,
        "SELECT count(*) FROM opengeni_private.list_live_modal_sandbox_leases()",
        &[],
    )?;
    ensure!(live == 1, "{live} live leases");
    let mut owner = there.owner()?;
    ensure!(value::<bool>(
        &mut owner,
        "SELECT opengeni_guards.ready('opengeni')",
        &[]
    )?);
    let odd = lines(
        &mut owner,
        "SELECT object || ' ' || state FROM opengeni_guards.status('opengeni') WHERE state NOT IN ('native', 'present')",
        &[],
    )?;
    ensure!(odd.is_empty(), "{odd:?}");
    for (session, sql) in [
        (
            &mut owner,
            "SELECT * FROM opengeni_guards.detach('opengeni', force => true)",
        ),
        (&mut app, "DELETE FROM opengeni.sandbox_retained_processes"),
    ] {
        let Err(error) = session.batch_execute(sql) else {
            bail!("accepted on a standby: {sql}");
        };
        Refusal::of(&error)?.has_state("25006")?;
    }
    // What the primary does arrives.
    commit(
        &mut db.app(&tenant)?,
        &[protocol::cancel(&command, "explicit_stop")],
    )?;
    wait_for(
        &mut admin,
        "SELECT cancellation_reason IS NOT DISTINCT FROM 'explicit_stop' FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )
}
