//! 13: what waits for somebody, and who waits for it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use opengeni_guards_harness::demo::protocol::{self, Tenant};

use super::attached;
use crate::attach::extension;
use crate::support::*;

/// Somebody holds what a call needs at its end: the call gives up, and the application never waits for both.
pub fn nobody_else_waits(db: &Db) -> Result<()> {
    extension(db)?;
    for (holds, call, before) in [
        (
            "SELECT count(*) FROM opengeni_guards_replaced",
            "SELECT opengeni_guards.detach('opengeni')",
            "SELECT opengeni_guards.attach('opengeni')",
        ),
        (
            "GRANT EXECUTE ON FUNCTION opengeni_private.sandbox_rotation_backlog() TO og_cases_stranger",
            "SELECT opengeni_guards.provision('opengeni')",
            "SELECT opengeni_guards.detach('opengeni')",
        ),
        (
            "GRANT EXECUTE ON FUNCTION opengeni_private.sandbox_rotation_backlog() TO og_cases_stranger",
            "SELECT opengeni_guards.attach('opengeni')",
            "SELECT opengeni_guards.detach('opengeni')",
        ),
    ] {
        let mut owner = db.owner()?;
        owner.batch_execute(before)?;
        let snapshot_before = snapshot(&mut db.admin()?)?;
        let mut holder = db.owner()?;
        let mut held = holder.transaction()?;
        held.batch_execute(holds)?;
        let longest = thread::scope(|scope| -> Result<Duration> {
            let calling = scope.spawn(|| refused(&mut owner, call, &[]));
            let mut app = db.session(APP)?;
            let mut longest = Duration::ZERO;
            while !calling.is_finished() {
                let start = Instant::now();
                app.execute("SELECT FROM sandbox_leases", &[])?;
                longest = longest.max(start.elapsed());
                thread::sleep(Duration::from_millis(20));
            }
            let refusal = calling.join().map_err(|_| anyhow!("panicked"))??;
            refusal.has_state("55P03").context(call)?;
            Ok(longest)
        })?;
        ensure!(
            longest < Duration::from_millis(900),
            "{call}: the application waited {longest:?}"
        );
        held.rollback()?;
        same(&snapshot_before, &snapshot(&mut db.admin()?)?).context(call)?;
        db.owner()?.batch_execute(call).context(call)?;
    }
    Ok(())
}

/// Schemas share the contract's: who comes second waits for its turn.
pub fn two_schemas_at_once(db: &Db) -> Result<()> {
    extension(db)?;
    let (mut first, mut second, mut impatient) = (db.owner()?, db.owner()?, db.owner()?);
    first.batch_execute("CREATE SCHEMA second")?;
    let mut open = first.transaction()?;
    open.batch_execute("SELECT opengeni_guards.attach('opengeni')")?;
    thread::scope(|scope| -> Result<()> {
        let waiting =
            scope.spawn(|| second.batch_execute("SELECT opengeni_guards.provision('second')"));
        thread::sleep(Duration::from_millis(500));
        ensure!(!waiting.is_finished(), "it did not wait");
        // The tables are locked against readers until then, and a plan reads them: that waits no longer either.
        for call in [
            "attach('opengeni', mode => 'shadow', lock_timeout => '300ms')",
            "detach('opengeni')",
        ] {
            refused(
                &mut impatient,
                &format!("SELECT opengeni_guards.{call}"),
                &[],
            )?
            .has_state("55P03")
            .context(call)?;
        }
        open.commit()?;
        waiting
            .join()
            .map_err(|_| anyhow!("panicked"))?
            .context("provision of the second")
    })
}

/// A check that the session itself has deferred.
pub fn deferred_by_the_session(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    owner.batch_execute(
        "SELECT opengeni_guards.detach('opengeni');
         CREATE OR REPLACE FUNCTION opengeni_private.validate_sandbox_checkpoint_refs() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE EXCEPTION 'checked'; END $$;
         DROP TRIGGER sandbox_checkpoint_refs_guard ON sandbox_leases;
         CREATE CONSTRAINT TRIGGER sandbox_checkpoint_refs_guard AFTER INSERT OR UPDATE ON sandbox_leases
           DEFERRABLE INITIALLY IMMEDIATE FOR EACH ROW EXECUTE FUNCTION opengeni_private.validate_sandbox_checkpoint_refs()",
    )?;
    let mut admin = db.admin()?;
    let mut transaction = admin.transaction()?;
    transaction.batch_execute(
        "SET CONSTRAINTS ALL DEFERRED; SET LOCAL opengeni.sandbox_recovery_protocol_v2 = '1'",
    )?;
    let tenant = Tenant::new();
    run(&mut transaction, &protocol::seed(&tenant))?;
    refused(
        &mut transaction,
        "SELECT opengeni_guards.attach('opengeni')",
        &[],
    )?
    .names(&["checked"])?;
    transaction.rollback()?;
    Ok(())
}
