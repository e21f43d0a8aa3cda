//! D10, both sides: what two sessions of the originals lose between them, and that ours do not.

use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::server::Server;

use crate::attach::extension;
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    let cases: [(&str, Body); 2] = [
        (
            "a capture whose snapshot is older than the command",
            old_snapshot,
        ),
        (
            "a holder that goes while its command is attached",
            holder_goes,
        ),
    ];
    cases
        .into_iter()
        .map(|(name, body)| original_case(server, &format!("race: {name}"), body))
        .collect()
}

/// Runs the race with the originals, then with the native guards.
fn both(db: &Db, race: impl Fn(bool) -> Result<()>) -> Result<()> {
    race(false).context("with the originals")?;
    extension(db)?;
    db.owner()?
        .batch_execute("SELECT opengeni_guards.attach('opengeni')")?;
    race(true).context("with the native guards")
}

/// A tenant with a command that is admitted and nothing more.
fn admitted(db: &Db) -> Result<(Tenant, Command)> {
    let (tenant, command) = (db.tenant()?, Command::new(1));
    commit(&mut db.app(&tenant)?, &[protocol::admit(&tenant, &command)])?;
    Ok((tenant, command))
}

fn old_snapshot(db: &Db) -> Result<()> {
    both(db, |native| {
        let (tenant, command) = admitted(db)?;
        let (mut capturing, mut launching) = (db.app(&tenant)?, db.app(&tenant)?);
        let mut capture = begin(&mut capturing, "REPEATABLE READ")?;
        capture.query("SELECT FROM sandbox_leases", &[])?;
        commit(
            &mut launching,
            &[
                protocol::retain(&tenant, &command),
                protocol::attach(&command, command.provider_command(&tenant)),
            ],
        )?;
        let sql = "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1";
        if native {
            refused(&mut capture, sql, &[&tenant.lease])?
                .is_by("55000", "lease_capture.blocked")?;
            capture.rollback()?;
        } else {
            accepted(&mut capture, sql, &[&tenant.lease])?;
            capture.commit()?;
        }
        let captured: bool = value(
            &mut db.admin()?,
            "SELECT archive_capture_id IS NOT NULL FROM sandbox_leases WHERE id = $1",
            &[&tenant.lease],
        )?;
        ensure!(captured != native);
        Ok(())
    })
}

fn holder_goes(db: &Db) -> Result<()> {
    both(db, |native| {
        let (tenant, command) = admitted(db)?;
        let mut app = db.app(&tenant)?;
        // The holder is there before its process is.
        let step = protocol::retain(&tenant, &command);
        let (process, parent, held) = (&step[..1], &step[1..2], &step[2..]);
        let mut transaction = app.transaction()?;
        run(&mut transaction, parent)?;
        run(&mut transaction, held)?;
        transaction.commit()?;

        let (mut launching, mut releasing) = (db.app(&tenant)?, db.app(&tenant)?);
        let pid = backend_pid(&mut launching)?;
        let mut launch = launching.transaction()?;
        run(&mut launch, process)?;
        run(
            &mut launch,
            &protocol::attach(&command, command.provider_command(&tenant)),
        )?;
        let mut release = releasing.transaction()?;
        run(&mut release, &[protocol::release_holder(&tenant, &command)])?;
        let launched = thread::scope(|scope| -> Result<Result<(), postgres::Error>> {
            let committing = scope.spawn(|| launch.commit());
            if native {
                wait_for_lock(&mut db.admin()?, pid)?;
            }
            let done = |committing: thread::ScopedJoinHandle<'_, _>| {
                committing.join().map_err(|_| anyhow!("panicked"))
            };
            if native {
                release.commit()?;
                done(committing)
            } else {
                let launched = done(committing)?;
                release.commit()?;
                Ok(launched)
            }
        })?;
        match (native, launched) {
            (false, launched) => launched.context("COMMIT")?,
            (true, Ok(())) => return Err(anyhow!("a command without its holder is committed")),
            (true, Err(error)) => {
                Refusal::of(&error)?.is_by("55000", "retained_process.identity")?
            }
        }
        let orphans: i64 = value(
            &mut db.admin()?,
            "SELECT count(*) FROM sandbox_retained_processes p WHERE p.id = $1 AND p.state = 'active' AND NOT EXISTS (
               SELECT FROM sandbox_lease_holders h WHERE h.lease_id = p.lease_id AND h.kind = 'process' AND h.holder_id = p.holder_id)",
            &[&command.process],
        )?;
        ensure!(orphans == i64::from(!native), "{orphans} orphans");
        Ok(())
    })
}
