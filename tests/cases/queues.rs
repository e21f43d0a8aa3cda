//! The fleet's queues from outside: claims, sweeps and rotations by the application's role, over the tables of
//! an owner whom row-level security binds.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::server::Server;
use postgres::{Client, GenericClient};
use uuid::Uuid;

use crate::fleet::{self, READERS, WRITERS};
use crate::interrupts::Canceller;
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "queues: eight sessions claim 10,000 processes, each once, though one session dies",
            processes_by_eight,
        ),
        case(
            server,
            "queues: eight sessions claim 10,000 checkpoint artifacts, each once, though one session dies",
            artifacts_by_eight,
        ),
        case(
            server,
            "queues: a lease that cannot be reset does not stop the sweep",
            blocked_lease,
        ),
        case(
            server,
            "queues: what refers to the wrong checkpoint stops neither the sweep nor the claim",
            wrong_references,
        ),
        case(
            server,
            "queues: a process that cannot be claimed does not stop the claim",
            blocked_process,
        ),
        case(
            server,
            "queues: an error that is no refusal ends the call, and nothing is done",
            other_errors,
        ),
        case(
            server,
            "queues: a sweep that finds nothing to do writes nothing",
            idle_sweep,
        ),
        case(
            server,
            "queues: a sweep writes the leases that change and no others",
            frugal_sweep,
        ),
        case(
            server,
            "queues: sweeps, rotations, arrivals and heartbeats in eight sessions never deadlock",
            colliding_sweeps,
        ),
        case(
            server,
            "queues: every NULL and every value out of range is 22023 with a hint",
            arguments,
        ),
        case(
            server,
            "queues: a schema or table that is not there, or not one, is named",
            wrong_tables,
        ),
        case(
            server,
            "queues: cancelled anywhere, a call leaves the session as it was",
            cancelled,
        ),
        case(
            server,
            "queues: a hundred thousand claims in one transaction do not grow the session",
            flat_memory,
        ),
    ]
}

// Claims ---------------------------------------------------------------------------------------------

const BATCH: usize = 100;
const TOTAL: usize = 10_000;

fn claim(client: &mut impl GenericClient, sql: &str) -> Result<Vec<Uuid>> {
    let rows = client
        .query(sql, &[&Uuid::new_v4()])
        .map_err(|error| anyhow!("{}", describe(&error)))?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

fn terminate(admin: &mut Client, pid: i32) -> Result<()> {
    admin.execute("SELECT pg_terminate_backend($1)", &[&pid])?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if admin
            .query("SELECT FROM pg_stat_activity WHERE pid = $1", &[&pid])?
            .is_empty()
        {
            return Ok(());
        }
        sleep(Duration::from_millis(10));
    }
    bail!("backend {pid} does not end")
}

/// Eight sessions claim until nothing is left while a ninth dies with a batch in its hands.
fn drained(db: &Db, sql: &str, order: &str) -> Result<()> {
    let mut admin = db.admin()?;
    let place: HashMap<Uuid, i64> = admin
        .query(order, &[])?
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    ensure!(place.len() == TOTAL, "{} rows are due", place.len());

    let mut victim = db.session(APP)?;
    let pid = backend_pid(&mut victim)?;
    let mut open = victim.transaction()?;
    let lost = claim(&mut open, sql)?;
    ensure!(lost.len() == BATCH, "{} claimed", lost.len());

    let batches = thread::scope(|scope| -> Result<Vec<Vec<Uuid>>> {
        let claimers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(move || -> Result<Vec<Vec<Uuid>>> {
                    let mut app = db.session(APP)?;
                    let mut batches = Vec::new();
                    loop {
                        let batch = claim(&mut app, sql)?;
                        if batch.is_empty() {
                            return Ok(batches);
                        }
                        batches.push(batch);
                    }
                })
            })
            .collect();
        sleep(Duration::from_millis(100));
        terminate(&mut admin, pid)?;
        let mut batches = Vec::new();
        for claimer in claimers {
            batches.extend(
                claimer
                    .join()
                    .map_err(|_| anyhow!("a session panicked"))??,
            );
        }
        Ok(batches)
    })?;
    drop(open);

    // Whoever found everything locked went home; the rest is there for the next.
    let mut app = db.session(APP)?;
    let mut batches = batches;
    loop {
        let batch = claim(&mut app, sql)?;
        if batch.is_empty() {
            break;
        }
        batches.push(batch);
    }

    let mut seen = HashSet::new();
    for batch in &batches {
        ensure!(batch.len() <= BATCH, "a batch of {}", batch.len());
        let places: Vec<_> = batch.iter().map(|id| place.get(id)).collect();
        ensure!(places.iter().all(Option::is_some), "claimed out of nowhere");
        ensure!(places.is_sorted(), "out of order: {places:?}");
        for id in batch {
            ensure!(seen.insert(*id), "claimed twice: {id}");
        }
    }
    ensure!(seen.len() == TOTAL, "{} of {TOTAL} claimed", seen.len());
    ensure!(
        lost.iter().all(|id| seen.contains(id)),
        "the dead session's are lost"
    );
    Ok(())
}

fn processes_by_eight(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 8)?;
    fleet::processes(db, SCHEMA, (TOTAL / 8) as u32)?;
    drained(
        db,
        "SELECT process_id FROM opengeni_private.claim_terminal_retained_processes($1, 100, 3600000)",
        "SELECT id, row_number() OVER (ORDER BY reconcile_after, started_at, id) FROM sandbox_retained_processes",
    )?;
    let odd: i64 = value(
        &mut db.admin()?,
        "SELECT count(*) FROM sandbox_retained_processes
         WHERE reconcile_claim_id IS NULL OR reconcile_attempts <> 1 OR reconcile_after < now() + interval '50 minutes'
           OR last_reconcile_outcome <> 'claimed'",
        &[],
    )?;
    ensure!(odd == 0, "{odd} are claimed by halves");
    Ok(())
}

fn artifacts_by_eight(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 8)?;
    fleet::artifacts(db, SCHEMA, (TOTAL / 8) as u32)?;
    drained(
        db,
        "SELECT id FROM opengeni_private.claim_sandbox_checkpoint_artifacts($1, 100, 3600000)",
        "SELECT id, row_number() OVER (ORDER BY coalesce(delete_after, created_at), id)
         FROM sandbox_checkpoint_artifacts",
    )?;
    let odd: i64 = value(
        &mut db.admin()?,
        "SELECT count(*) FROM sandbox_checkpoint_artifacts
         WHERE state <> 'deleting' OR delete_claim_id IS NULL OR delete_attempts <> 1",
        &[],
    )?;
    ensure!(odd == 0, "{odd} are claimed by halves");
    Ok(())
}

// What is refused is left ------------------------------------------------------------------------------

/// The one warning of a call: message, detail, hint.
fn warned(notices: &fleet::Notices, message: &str, detail: &str) -> Result<()> {
    let told = notices.take();
    ensure!(told.len() == 1, "{told:#?}");
    let told = &told[0];
    ensure!(
        told.code().code() == "01000" && told.message() == message,
        "{told:?}"
    );
    ensure!(
        told.detail().is_some_and(|text| text.contains(detail)) && told.hint().is_some(),
        "{told:?}"
    );
    Ok(())
}

fn blocked_lease(db: &Db) -> Result<()> {
    let (tenant, _) = db.supervised()?;
    fleet::tenants(db, SCHEMA, 6)?;
    // An archive's reference goes with the reset: a capture, to the guard.
    let expired = "liveness = 'warming', expires_at = now() - interval '1 minute'";
    fleet::plant(
        db,
        SCHEMA,
        &format!(
            "UPDATE sandbox_leases SET {expired}, instance_id = NULL,
               resume_state = '{{\"sessionState\": {{\"workspaceArchive\": \"YQ==\", \"workspaceArchiveRef\": \"r\"}}}}'
               WHERE id = '{}';
             UPDATE sandbox_leases SET {expired}, instance_id = NULL
               WHERE id IN (md5('lease/1')::uuid, md5('lease/2')::uuid, md5('lease/3')::uuid);
             UPDATE sandbox_leases SET {expired} WHERE id = md5('lease/4')::uuid;
             INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, last_heartbeat_at)
               SELECT account_id, workspace_id, id, 'viewer', 'v', now() - interval '1 hour'
               FROM sandbox_leases WHERE id = md5('lease/5')::uuid",
            tenant.lease
        ),
    )?;
    let (mut app, notices) = fleet::listening(&db.server, APP, &db.name)?;
    let mut admin = db.admin()?;
    for total in [4, 1] {
        let drained: Vec<String> = fleet::answer(
            &mut app,
            "opengeni_private.reap_sandbox_leases(60000, 0, 60000)",
        )?;
        ensure!(
            drained.len() == 1 && drained[0].contains(",sb-4,"),
            "{drained:?}"
        );
        warned(
            &notices,
            &format!("1 of {total} expired warming leases left as they are"),
            "checkpoint publication",
        )?;
        let stand = lines(
            &mut admin,
            "SELECT concat_ws(' ', coalesce(substring(instance_id FROM '^sb-.$'), 'none'), liveness, refcount,
               viewer_holders, lease_epoch)
             FROM sandbox_leases WHERE id <> $1 ORDER BY md5(workspace_id::text), 1",
            &[&tenant.lease],
        )?;
        let mut stand = stand;
        stand.sort();
        ensure!(
            stand
                == [
                    "none cold 0 0 2",
                    "none cold 0 0 2",
                    "none cold 0 0 2",
                    "sb-4 draining 0 0 2",
                    "sb-5 draining 0 0 1",
                    "sb-6 draining 0 0 1"
                ],
            "{stand:?}"
        );
        let left: String = value(
            &mut admin,
            "SELECT concat_ws(' ', liveness, lease_epoch, refcount, resume_state ? 'opengeniRecovery')
             FROM sandbox_leases WHERE id = $1",
            &[&tenant.lease],
        )?;
        ensure!(left == "warming 1 1 f", "{left}");
    }
    Ok(())
}

fn wrong_references(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 4)?;
    fleet::artifacts(db, SCHEMA, 4)?;
    // The guards would refuse each of these at COMMIT, with everything that the call did.
    fleet::plant(
        db,
        SCHEMA,
        "UPDATE sandbox_leases SET liveness = 'warming', instance_id = NULL, expires_at = now() - interval '1 minute'
           WHERE id IN (md5('lease/1')::uuid, md5('lease/2')::uuid);
         UPDATE sandbox_leases SET current_checkpoint_artifact_id = md5('artifact/3/1')::uuid
           WHERE id = md5('lease/1')::uuid;
         UPDATE sandbox_checkpoint_artifacts SET state = 'deleting', delete_claim_id = md5('gone')::uuid,
           delete_claimed_at = now() - interval '1 day' WHERE id IN (md5('artifact/3/1')::uuid, md5('artifact/3/2')::uuid)",
    )?;
    let (mut app, notices) = fleet::listening(&db.server, APP, &db.name)?;
    fleet::answer(
        &mut app,
        "opengeni_private.reap_sandbox_leases(60000, 0, 60000)",
    )?;
    warned(
        &notices,
        "1 of 2 expired warming leases left as they are",
        "current checkpoint artifact does not match its exact lease scope",
    )?;
    let stand = lines(
        &mut db.admin()?,
        "SELECT liveness FROM sandbox_leases ORDER BY coalesce(instance_id, ''), liveness",
        &[],
    )?;
    ensure!(
        stand == ["cold", "warming", "draining", "draining"],
        "{stand:?}"
    );
    // Within one transaction the constraint waits for COMMIT again.
    let mut admin = db.admin()?;
    let mut transaction = admin.transaction()?;
    fleet::answer(
        &mut transaction,
        "opengeni_private.reap_sandbox_leases(60000, 0, 60000)",
    )?;
    transaction.batch_execute(
        "UPDATE sandbox_leases SET archive_generation = 1 WHERE id = md5('lease/1')::uuid",
    )?;
    transaction.rollback()?;

    let claimed = fleet::answer(
        &mut app,
        "opengeni_private.claim_sandbox_checkpoint_artifacts(gen_random_uuid(), 500, 60000)",
    )?;
    ensure!(claimed.len() == 15, "{} claimed", claimed.len());
    let left = lines(
        &mut admin,
        "SELECT id::text FROM sandbox_checkpoint_artifacts WHERE delete_claim_id = md5('gone')::uuid",
        &[],
    )?;
    ensure!(
        left == [fleet::id(&mut admin, "artifact/3/1")?.to_string()],
        "{left:?}"
    );
    Ok(())
}

fn blocked_process(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 1)?;
    fleet::processes(db, SCHEMA, 10)?;
    // One whose cursors were malformed long ago: nothing about them changes (D3).
    let (tenant, command) = db.supervised()?;
    db.plant(
        "UPDATE sandbox_retained_processes SET provider_command =
           jsonb_set(provider_command, '{streams}', '{\"stdout\": {\"byteOffset\": \"x\"}, \"stderr\": 7}')
         WHERE id = $1",
        &[&command.process],
    )?;
    let unheld = fleet::id(&mut db.admin()?, "process/1/4")?;
    fleet::plant(
        db,
        SCHEMA,
        "DELETE FROM sandbox_lease_holders WHERE id = md5('holder/1/4')::uuid",
    )?;
    let mut admin = db.admin()?;
    let due: Vec<Uuid> = admin
        .query(
            "SELECT id FROM sandbox_retained_processes WHERE id <> $1 ORDER BY reconcile_after, started_at, id",
            &[&unheld],
        )?
        .iter()
        .map(|row| row.get(0))
        .collect();
    ensure!(due.len() == 10 && due.contains(&command.process));

    let (mut app, notices) = fleet::listening(&db.server, APP, &db.name)?;
    let sql = "SELECT process_id FROM opengeni_private.claim_terminal_retained_processes($1, 100, 3600000)";
    let message = |total| format!("1 of {total} due retained processes left as they are");
    // At the head of the queue it keeps nobody else from being claimed, whatever the limit.
    db.plant(
        "UPDATE sandbox_retained_processes SET reconcile_after = now() - interval '1 year' WHERE id = $1",
        &[&unheld],
    )?;
    let mut transaction = app.transaction()?;
    let one = claim(&mut transaction, &sql.replace("100", "1"))?;
    transaction.rollback()?;
    ensure!(one == due[..1], "{one:?}");
    warned(&notices, &message(2), "retained process does not match")?;
    let claimed = claim(&mut app, sql)?;
    ensure!(claimed == due, "{claimed:?} of {due:?}");
    warned(
        &notices,
        &message(11),
        "retained process does not match its parent admission and holder state",
    )?;
    // It is as it was, and is tried again.
    let left: bool = value(
        &mut admin,
        "SELECT reconcile_claim_id IS NULL AND reconcile_attempts = 0 AND reconcile_after < now()
         FROM sandbox_retained_processes WHERE id = $1",
        &[&unheld],
    )?;
    ensure!(left, "the refused one was written");
    ensure!(claim(&mut app, sql)?.is_empty());
    warned(&notices, &message(1), "retained process does not match")?;
    // Repaired, it is claimed like any other.
    fleet::plant(
        db,
        SCHEMA,
        &format!(
            "INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
             SELECT account_id, workspace_id, lease_id, 'process', holder_id, session_id
             FROM sandbox_retained_processes WHERE id = '{unheld}'"
        ),
    )?;
    ensure!(claim(&mut app, sql)? == [unheld]);
    ensure!(notices.take().is_empty());
    drop(tenant);
    Ok(())
}

fn other_errors(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 4)?;
    fleet::processes(db, SCHEMA, 3)?;
    fleet::artifacts(db, SCHEMA, 3)?;
    let mut admin = db.admin()?;
    admin.batch_execute(
        "CREATE FUNCTION trip() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
           CASE current_setting('og_case.trip', true)
             WHEN 'sleep' THEN PERFORM pg_sleep(10);
             WHEN 'raise' THEN RAISE EXCEPTION 'tripped';
             WHEN 'again' THEN RAISE serialization_failure;
             ELSE NULL;
           END CASE;
           RETURN NEW;
         END $$;
         SET session_replication_role = replica;
         UPDATE sandbox_leases SET liveness = 'warming', instance_id = NULL, expires_at = now() - interval '1 minute'
           WHERE id = md5('lease/3')::uuid;
         UPDATE sandbox_leases SET provider_created_at = now() - interval '2 hours', provider_deadline_at = now();
         INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, last_heartbeat_at)
           SELECT account_id, workspace_id, id, 'viewer', 'v', now() - interval '1 hour' FROM sandbox_leases;
         RESET session_replication_role;
         CREATE TRIGGER trip BEFORE UPDATE ON sandbox_leases FOR EACH ROW
           WHEN (OLD.id = md5('lease/3')::uuid) EXECUTE FUNCTION trip();
         CREATE TRIGGER trip BEFORE UPDATE ON sandbox_retained_processes FOR EACH ROW
           WHEN (OLD.id = md5('process/1/2')::uuid) EXECUTE FUNCTION trip();
         CREATE TRIGGER trip BEFORE UPDATE ON sandbox_checkpoint_artifacts FOR EACH ROW
           WHEN (OLD.id = md5('artifact/1/2')::uuid) EXECUTE FUNCTION trip()",
    )?;
    let rows = "SELECT l::text FROM (
           SELECT l::text FROM sandbox_leases l UNION ALL SELECT h::text FROM sandbox_lease_holders h
           UNION ALL SELECT p::text FROM sandbox_retained_processes p
           UNION ALL SELECT a::text FROM sandbox_checkpoint_artifacts a) l ORDER BY 1";
    let before = lines(&mut admin, rows, &[])?;
    let (mut app, notices) = fleet::listening(&db.server, APP, &db.name)?;
    for call in [
        "reap_sandbox_leases(60000, 0, 60000)",
        "claim_terminal_retained_processes(gen_random_uuid(), 100, 1000)",
        "claim_sandbox_checkpoint_artifacts(gen_random_uuid(), 100, 1000)",
        "request_due_sandbox_rotations(1000, 100)",
    ] {
        let sql = format!("SELECT FROM opengeni_private.{call}");
        for (trip, state) in [("sleep", "57014"), ("raise", "P0001"), ("again", "40001")] {
            let limit = if trip == "sleep" { 300 } else { 0 };
            app.batch_execute(&format!(
                "SET og_case.trip = '{trip}'; SET statement_timeout = {limit}"
            ))?;
            refused(&mut app, &sql, &[])?
                .has_state(state)
                .with_context(|| format!("{call}: {trip}"))?;
        }
        same(&before, &lines(&mut admin, rows, &[])?).context(call)?;
    }
    ensure!(notices.take().is_empty(), "somebody was left");

    // A lock that is not to be had in time is no refusal either.
    let mut other = db.admin()?;
    let mut holding = other.transaction()?;
    holding.execute(
        "SELECT FROM sandbox_leases WHERE id = md5('lease/2')::uuid FOR UPDATE",
        &[],
    )?;
    app.batch_execute(
        "SET og_case.trip = ''; SET lock_timeout = '50ms'; SET statement_timeout = 0",
    )?;
    let reap = "SELECT FROM opengeni_private.reap_sandbox_leases(60000, 0, 60000)";
    refused(&mut app, reap, &[])?.has_state("55P03")?;
    same(&before, &lines(&mut admin, rows, &[])?)?;
    holding.rollback()?;
    app.execute(reap, &[])?;
    ensure!(before != lines(&mut admin, rows, &[])?, "nothing was done");
    Ok(())
}

// Sweeps write what changes (D16, D17) -----------------------------------------------------------------

const VERSIONS: &str = "SELECT concat_ws(' ', tableoid::regclass, id, ctid, xmin, xmax, updated_at) FROM sandbox_leases
     UNION ALL SELECT concat_ws(' ', tableoid::regclass, id, ctid, xmin, xmax) FROM sandbox_lease_holders ORDER BY 1";

fn idle_sweep(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 200)?;
    fleet::processes(db, SCHEMA, 2)?;
    let mut admin = db.admin()?;
    let before = lines(&mut admin, VERSIONS, &[])?;
    let mut app = db.session(APP)?;
    for call in [
        "reap_sandbox_leases(60000, 60000, 60000)",
        "request_due_sandbox_rotations(1000, 500)",
        "prune_deleted_sandbox_checkpoint_artifacts(86400000, 1000)",
        "claim_sandbox_checkpoint_artifacts(gen_random_uuid(), 500, 1000)",
        "settle_sandbox_checkpoint_artifact(gen_random_uuid(), gen_random_uuid(), true, NULL, 0)",
    ] {
        let mut transaction = app.transaction()?;
        transaction.execute(&format!("SELECT FROM opengeni_private.{call}"), &[])?;
        let idle: bool = value(
            &mut transaction,
            "SELECT pg_current_xact_id_if_assigned() IS NULL",
            &[],
        )?;
        ensure!(idle, "{call} took a transaction id");
        transaction.commit()?;
    }
    same(&before, &lines(&mut admin, VERSIONS, &[])?)
}

fn frugal_sweep(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 100)?;
    fleet::processes(db, SCHEMA, 1)?;
    fleet::plant(
        db,
        SCHEMA,
        "INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, last_heartbeat_at)
           SELECT account_id, workspace_id, id, 'viewer', 'v', now() - interval '1 hour'
           FROM sandbox_leases WHERE id = md5('lease/7')::uuid;
         UPDATE sandbox_leases SET refcount = 2, viewer_holders = 1 WHERE id = md5('lease/7')::uuid;
         UPDATE sandbox_leases SET refcount = 0 WHERE id = md5('lease/8')::uuid;
         UPDATE sandbox_leases SET updated_at = now() - interval '1 day'",
    )?;
    let mut admin = db.admin()?;
    let before = lines(&mut admin, VERSIONS, &[])?;
    fleet::answer(
        &mut db.session(APP)?,
        "opengeni_private.reap_sandbox_leases(60000, 60000, 60000)",
    )?;
    let after = lines(&mut admin, VERSIONS, &[])?;
    let changed: Vec<_> = before
        .iter()
        .filter(|line| !after.contains(line))
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .collect();
    let (seven, eight) = (
        fleet::id(&mut admin, "lease/7")?,
        fleet::id(&mut admin, "lease/8")?,
    );
    let leases = |line: &&String| line.starts_with("sandbox_leases");
    let written: HashSet<String> = changed.iter().filter(leases).cloned().collect();
    ensure!(
        written == HashSet::from([seven, eight].map(|id| format!("sandbox_leases {id}"))),
        "{changed:?}"
    );
    ensure!(changed.len() == 3, "more than one holder: {changed:?}");
    let counted: Vec<String> = lines(
        &mut admin,
        "SELECT concat_ws(' ', refcount, viewer_holders, updated_at > now() - interval '1 hour') FROM sandbox_leases
         WHERE id IN ($1, $2)",
        &[&seven, &eight],
    )?;
    ensure!(counted == ["1 0 t", "1 0 t"], "{counted:?}");
    Ok(())
}

/// What the sessions of the storm do, again and again. `$1` is a lease.
fn collide(db: &Db, role: usize, stop: &AtomicBool) -> Result<u32> {
    let mut session = match role {
        0..4 => db.session(APP)?,
        _ => db.admin()?,
    };
    set(&mut session, MARKER, "1")?;
    let mut turns = 0;
    while !stop.load(Ordering::Relaxed) {
        turns += 1;
        let lease = format!("lease/{}", turns as usize * 7 % 12 + 1);
        let run = |session: &mut Client, sql: &str| {
            let params: Params<'_> = if sql.contains("$1") { &[&lease] } else { &[] };
            session
                .execute(sql, params)
                .map_err(|error| anyhow!("{}: {sql}", describe(&error)))
        };
        match role {
            0 | 1 => {
                run(
                    &mut session,
                    "SELECT FROM opengeni_private.reap_sandbox_leases(15, 25, 3600000)",
                )?;
            }
            2 | 3 => {
                run(
                    &mut session,
                    "SELECT FROM opengeni_private.request_due_sandbox_rotations(86400000, 3)",
                )?;
            }
            4 | 5 => {
                // Arrival, as the application writes it: the lease, then the holder.
                let mut transaction = session.transaction()?;
                for sql in [
                    "UPDATE sandbox_leases SET refcount = refcount + 1, liveness = 'warm',
                       provider_created_at = now() - interval '2 hours', provider_deadline_at = now(),
                       rotation_requested_at = NULL, rotation_reason = NULL
                     WHERE id = md5($1)::uuid",
                    "INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id)
                     SELECT account_id, workspace_id, id,
                       (ARRAY['turn', 'viewer', 'direct'])[1 + floor(random() * 3)], gen_random_uuid()::text
                     FROM sandbox_leases WHERE id = md5($1)::uuid",
                ] {
                    transaction
                        .execute(sql, &[&lease])
                        .map_err(|error| anyhow!("{}: {sql}", describe(&error)))?;
                }
                transaction.commit()?;
            }
            6 => {
                run(
                    &mut session,
                    "UPDATE sandbox_lease_holders SET last_heartbeat_at = now() WHERE id = (
                       SELECT id FROM sandbox_lease_holders WHERE lease_id = md5($1)::uuid LIMIT 1)",
                )?;
            }
            _ => {
                run(
                    &mut session,
                    "DELETE FROM sandbox_lease_holders WHERE id = (
                       SELECT id FROM sandbox_lease_holders WHERE lease_id = md5($1)::uuid
                       ORDER BY created_at LIMIT 1)",
                )?;
            }
        }
    }
    Ok(turns)
}

fn colliding_sweeps(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 12)?;
    db.admin()?.batch_execute(&format!(
        "ALTER DATABASE {} SET deadlock_timeout = '20ms'",
        db.name
    ))?;
    let stop = AtomicBool::new(false);
    let turns = thread::scope(|scope| -> Result<Vec<u32>> {
        let sessions: Vec<_> = (0..8)
            .map(|role| {
                let stop = &stop;
                scope.spawn(move || {
                    let ended = collide(db, role, stop);
                    if ended.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    ended
                })
            })
            .collect();
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        sessions
            .into_iter()
            .map(|session| session.join().map_err(|_| anyhow!("a session panicked"))?)
            .collect()
    })?;
    ensure!(
        turns.iter().all(|turns| *turns > 5),
        "hardly moved: {turns:?}"
    );
    let mut app = db.session(APP)?;
    let reap = "opengeni_private.reap_sandbox_leases(3600000, 3600000, 3600000)";
    fleet::answer(&mut app, reap)?;
    let wrong: i64 = value(
        &mut db.admin()?,
        "SELECT count(*) FROM sandbox_leases l,
           LATERAL (SELECT count(*) AS total, count(*) FILTER (WHERE kind = 'turn') AS turns,
             count(*) FILTER (WHERE kind = 'viewer') AS viewers
             FROM sandbox_lease_holders WHERE lease_id = l.id) held
         WHERE (refcount, turn_holders, viewer_holders) <> (total, turns, viewers)",
        &[],
    )?;
    ensure!(wrong == 0, "{wrong} leases miscounted");
    Ok(())
}

// Arguments -------------------------------------------------------------------------------------------

fn arguments(db: &Db) -> Result<()> {
    const ID: &str = "gen_random_uuid()";
    // Each function with arguments that are fine, and what is not.
    type Values = &'static [&'static str];
    let cases: &[(&str, Values, &[Values])] = &[
        (
            "reap_sandbox_leases",
            &["1", "0", "1"],
            &[&["NULL"], &["NULL"], &["NULL"]],
        ),
        (
            "claim_terminal_retained_processes",
            &[ID, "1", "0"],
            &[
                &["NULL"],
                &["NULL", "0", "-1", "101", "2147483647"],
                &["NULL", "-1", "3600001", "9223372036854775807"],
            ],
        ),
        (
            "claim_sandbox_checkpoint_artifacts",
            &[ID, "1", "1000"],
            &[
                &["NULL"],
                &["NULL", "0", "-1", "501"],
                &["NULL", "999", "-1", "3600001"],
            ],
        ),
        (
            "settle_sandbox_checkpoint_artifact",
            &[ID, ID, "true", "NULL", "0"],
            &[
                &["NULL"],
                &["NULL"],
                &["NULL"],
                &[],
                &["NULL", "-1", "86400001"],
            ],
        ),
        (
            "prune_deleted_sandbox_checkpoint_artifacts",
            &["86400000", "1"],
            &[
                &["NULL", "86399999", "31536000001", "-1"],
                &["NULL", "0", "-1", "1001"],
            ],
        ),
        (
            "list_legacy_modal_checkpoint_slots",
            &["1"],
            &[&["NULL", "0", "-1", "501"]],
        ),
        (
            "request_due_sandbox_rotations",
            &["0", "1"],
            &[&["NULL", "-1", "86400001"], &["NULL", "0", "-1", "501"]],
        ),
    ];
    let mut app = db.session(APP)?;
    let mut owner = db.owner()?;
    for (name, fine, wrong) in cases {
        let contract = |arguments: &[&str]| {
            format!(
                "SELECT FROM opengeni_private.{name}({})",
                arguments.join(", ")
            )
        };
        let native = |arguments: &[&str]| {
            format!(
                "SELECT FROM opengeni_guards.{name}('opengeni', {})",
                arguments.join(", ")
            )
        };
        app.execute(&contract(fine), &[])
            .with_context(|| contract(fine))?;
        owner.execute(&native(fine), &[])?;
        for (place, values) in wrong.iter().enumerate() {
            for value in *values {
                let mut arguments = fine.to_vec();
                arguments[place] = value;
                for (session, sql) in [
                    (&mut app, contract(&arguments)),
                    (&mut owner, native(&arguments)),
                ] {
                    let refusal = refused(session, &sql, &[])?;
                    refusal.has_state("22023").with_context(|| sql.clone())?;
                    ensure!(refusal.hint.is_some(), "{sql}: no hint");
                }
            }
        }
    }
    // At the edges of the ranges.
    for call in [
        "claim_terminal_retained_processes(gen_random_uuid(), 100, 3600000)",
        "claim_sandbox_checkpoint_artifacts(gen_random_uuid(), 500, 3600000)",
        "settle_sandbox_checkpoint_artifact(gen_random_uuid(), gen_random_uuid(), false, 'e', 86400000)",
        "prune_deleted_sandbox_checkpoint_artifacts(31536000000, 1000)",
        "list_legacy_modal_checkpoint_slots(500)",
        "request_due_sandbox_rotations(86400000, 500)",
        "reap_sandbox_leases(0, 0, 0)",
        "reap_sandbox_leases(-1, -1, -1)",
    ] {
        app.execute(&format!("SELECT FROM opengeni_private.{call}"), &[])
            .with_context(|| call.to_owned())?;
    }
    Ok(())
}

fn wrong_tables(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    let functions = || READERS.iter().chain(WRITERS);
    for function in functions() {
        for (call, state) in [
            (function.native("no such schema"), "3F000"),
            (
                function
                    .native("no'such")
                    .replace("'no'such'", "'no''such'"),
                "3F000",
            ),
            (
                function.native("opengeni").replace("'opengeni'", "NULL"),
                "22023",
            ),
        ] {
            let refusal = refused(&mut owner, &format!("SELECT FROM {call}"), &[])?;
            refusal.has_state(state).with_context(|| call.clone())?;
            ensure!(refusal.hint.is_some(), "{call}: no hint");
        }
    }
    for schema in ["NULL", "'no such schema'"] {
        let sql =
            format!("SELECT opengeni_guards.modal_inventory_read_capability_active({schema})");
        // Nothing is open anywhere: it need not look, and a policy that asks must not fail.
        let open: bool = value(&mut owner, &sql, &[])?;
        ensure!(!open, "{sql}");
    }

    // One table after the other is away, or something else stands in its place.
    for table in [
        "sandbox_leases",
        "sandbox_lease_holders",
        "sandbox_retained_processes",
        "sandbox_checkpoint_artifacts",
        "session_turns",
        "session_turn_attempts",
    ] {
        let mut touched = 0;
        for (replacement, state) in [
            ("", "42P01"),
            ("CREATE VIEW {t} AS SELECT * FROM {t}_away", "42809"),
            (
                "CREATE TABLE {t} (LIKE {t}_away) PARTITION BY LIST (id)",
                "42809",
            ),
            (
                "CREATE MATERIALIZED VIEW {t} AS SELECT * FROM {t}_away",
                "42809",
            ),
        ] {
            let mut transaction = owner.transaction()?;
            transaction.batch_execute(&format!(
                "ALTER TABLE {table} RENAME TO {table}_away; {}",
                replacement.replace("{t}", table)
            ))?;
            for function in functions() {
                let call = function.native(SCHEMA);
                let mut attempt = transaction.transaction()?;
                if let Err(error) = attempt.execute(&format!("SELECT FROM {call}"), &[]) {
                    attempt.rollback()?;
                    let refusal = Refusal::of(&error)?;
                    refusal
                        .has_state(state)
                        .with_context(|| format!("{call}: {table} {replacement}"))?;
                    refusal.names(&[table])?;
                    ensure!(refusal.hint.is_some(), "{call}: no hint");
                    touched += 1;
                }
            }
            transaction.rollback()?;
        }
        ensure!(touched >= 8, "{table}: only {touched} missed it");
    }
    for function in functions() {
        owner.execute(&format!("SELECT FROM {}", function.native(SCHEMA)), &[])?;
    }
    Ok(())
}

// Interrupts and memory ---------------------------------------------------------------------------------

fn cancelled(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 20)?;
    fleet::processes(db, SCHEMA, 100)?;
    fleet::artifacts(db, SCHEMA, 100)?;
    // A lease a tenant is not enough to be interrupted at.
    fleet::plant(
        db,
        SCHEMA,
        "INSERT INTO sandbox_leases (account_id, workspace_id, sandbox_group_id, liveness, instance_id, backend,
            expires_at, provider_created_at, provider_deadline_at)
           SELECT account_id, workspace_id, gen_random_uuid(), 'warm', 'x', 'modal', now(), now() - interval '1 day', now()
           FROM sandbox_leases, generate_series(1, 250)",
    )?;
    let mut owner = db.owner()?;
    set(&mut owner, MARKER, "")?;
    Canceller::beside(
        db,
        &mut owner,
        Duration::from_millis(1),
        |owner, canceller| {
            for function in READERS.iter().chain(WRITERS) {
                for call in [function.contract(), function.native(SCHEMA)] {
                    let sql = format!("SELECT FROM {call}");
                    canceller.interrupt(owner, &sql, 4, &|owner| fleet::closed(owner))?;
                }
            }
            Ok(())
        },
    )?;
    // Waiting for a table that somebody has locked.
    let mut other = db.owner()?;
    let mut locking = other.transaction()?;
    locking.batch_execute(
        "LOCK TABLE sandbox_leases, sandbox_checkpoint_artifacts, sandbox_retained_processes",
    )?;
    set(&mut owner, "statement_timeout", "50")?;
    for function in READERS.iter().chain(WRITERS) {
        for call in [function.contract(), function.native(SCHEMA)] {
            refused(&mut owner, &format!("SELECT FROM {call}"), &[])?
                .has_state("57014")
                .with_context(|| call.clone())?;
        }
    }
    locking.rollback()?;
    set(&mut owner, "statement_timeout", "0")?;
    fleet::closed(&mut owner)?;
    // Uninterrupted, each still works in this session.
    for function in READERS.iter().chain(WRITERS) {
        fleet::answer(&mut owner, &function.contract())?;
    }
    fleet::closed(&mut owner)
}

fn flat_memory(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 10)?;
    fleet::processes(db, SCHEMA, 10_000)?;
    // Only a superuser may look at the memory; the wrapper runs as the owner all the same.
    let mut admin = db.admin()?;
    let mut transaction = admin.transaction()?;
    let memory = "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts";
    let step = transaction.prepare(
        "SELECT count(*) FROM opengeni_private.claim_terminal_retained_processes($1, 100, 3600000)",
    )?;
    let mut used: Vec<i64> = Vec::new();
    let mut claimed = 0;
    for turn in 0..1000 {
        let batch: i64 = transaction.query_one(&step, &[&Uuid::new_v4()])?.get(0);
        claimed += batch;
        if [20, 999].contains(&turn) {
            used.push(value(&mut transaction, memory, &[])?);
        }
    }
    ensure!(claimed == 100_000, "{claimed} claims");
    ensure!(
        used[1] - used[0] < 256 << 10,
        "from {} to {} bytes",
        used[0],
        used[1]
    );
    transaction.commit()?;
    Ok(())
}
