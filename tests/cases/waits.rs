//! What attach, detach and the like make of what happened while they waited.

use std::thread;

use anyhow::{Result, anyhow, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;

use crate::attach::{extension, switch, works};
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    let on_originals: [(&str, Body); 4] = [
        ("a function that was redefined is left as it is", redefined),
        (
            "guards are not changed within a trigger, whose checks would go with them",
            within_trigger,
        ),
        ("ready looks at everything at once", at_once),
        ("somebody's own lock error stays theirs", own_lock_error),
    ];
    let provisioned: [(&str, Body); 2] = [
        ("who may act is asked again", former_member),
        ("which schema is meant is asked again", renamed),
    ];
    let name = |name: &str| format!("waits: {name}");
    on_originals
        .into_iter()
        .map(|(n, body)| original_case(server, &name(n), body))
        .chain(
            provisioned
                .into_iter()
                .map(|(n, body)| case(server, &name(n), body)),
        )
        .collect()
}

/// Runs a call of `late` that has to wait, and `then`, which lets it go on.
fn meanwhile<T: Send>(
    db: &Db,
    late: &mut Client,
    call: impl FnOnce(&mut Client) -> Result<T> + Send,
    then: impl FnOnce() -> Result<()>,
) -> Result<T> {
    let pid = backend_pid(late)?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| call(late));
        wait_for_lock(&mut db.admin()?, pid)?;
        then()?;
        waiting.join().map_err(|_| anyhow!("panicked"))?
    })
}

/// The refusal of a function of ours that had to wait.
fn refused_then(
    db: &Db,
    late: &mut Client,
    call: &str,
    then: impl FnOnce() -> Result<()>,
) -> Result<Refusal> {
    let sql = format!("SELECT opengeni_guards.{call}");
    meanwhile(db, late, |late| refused(late, &sql, &[]), then)
}

const BACKLOG: &str = "opengeni_private.sandbox_rotation_backlog()";

/// Has the function say something else, and still do the same.
fn release_two(client: &mut Client) -> Result<()> {
    let definition: String = value(
        client,
        "SELECT replace(pg_get_functiondef($1::text::regprocedure::oid), 'AS $function$', E'AS $function$\\n-- release 2\\n')",
        &[&BACKLOG.to_owned()],
    )?;
    Ok(client.batch_execute(&definition)?)
}

fn redefined(db: &Db) -> Result<()> {
    extension(db)?;
    let (mut reader, mut late, mut other) = (db.owner()?, db.owner()?, db.admin()?);
    let original: String = value(
        &mut other,
        "SELECT pg_get_functiondef($1::text::regprocedure::oid)",
        &[&BACKLOG.to_owned()],
    )?;
    switch(&mut late, "attach('opengeni')")?;
    for (call, mode) in [("attach", "SHARE"), ("detach", "ACCESS SHARE")] {
        if call == "attach" {
            other.batch_execute(&original)?;
        } else {
            switch(&mut other, "attach('opengeni')")?;
        }
        let mut reading = reader.transaction()?;
        reading.batch_execute(&format!(
            "LOCK TABLE opengeni.opengeni_guards_replaced IN {mode} MODE"
        ))?;
        refused_then(db, &mut late, &format!("{call}('opengeni')"), || {
            match call {
                "attach" => release_two(&mut other)?,
                _ => other.batch_execute(&original)?,
            }
            Ok(reading.commit()?)
        })?
        .has_state("55006")?;
        let kept: bool = value(
            &mut other,
            "SELECT prosrc LIKE '%release 2%' FROM pg_proc WHERE oid = $1::text::regprocedure",
            &[&BACKLOG.to_owned()],
        )?;
        ensure!(kept == (call == "attach"), "{call}");
        other.batch_execute(&original)?;
    }
    Ok(())
}

fn within_trigger(db: &Db) -> Result<()> {
    extension(db)?;
    let (tenant, command) = (db.tenant()?, Command::new(1));
    commit(
        &mut db.app(&tenant)?,
        &[
            protocol::admit(&tenant, &command),
            protocol::retain(&tenant, &command),
        ],
    )?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "CREATE TABLE opengeni.jobs (call text);
         CREATE FUNCTION opengeni.run_job() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN EXECUTE 'SELECT count(*) FROM opengeni_guards.' || NEW.call; RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER run_job AFTER INSERT ON opengeni.jobs DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION opengeni.run_job()",
    )?;
    let mut admin = db.admin()?;
    for call in ["attach(''opengeni'')", "detach(''opengeni'')"] {
        if call.starts_with("detach") {
            switch(&mut owner, "attach('opengeni')")?;
        }
        let mut work = admin.transaction()?;
        work.batch_execute(&format!(
            "SET LOCAL opengeni.sandbox_recovery_protocol_v2 = '1';
             INSERT INTO opengeni.jobs VALUES ('{call}');
             UPDATE opengeni.sandbox_retained_processes SET holder_id = 'nobody'"
        ))?;
        let Err(error) = work.commit() else {
            anyhow::bail!("{call} was done")
        };
        Refusal::of(&error)?.has_state("55006")?;
        let bad: i64 = value(
            &mut admin,
            "SELECT count(*) FROM opengeni.sandbox_retained_processes WHERE holder_id = 'nobody'",
            &[],
        )?;
        ensure!(bad == 0, "{call}");
    }
    works(db, true)
}

fn at_once(db: &Db) -> Result<()> {
    extension(db)?;
    let (mut owner, mut other) = (db.owner()?, db.owner()?);
    switch(&mut owner, "attach('opengeni')")?;
    let set = |verb: &str, trigger: &str| {
        format!("ALTER TABLE opengeni.sandbox_leases {verb} TRIGGER {trigger};")
    };
    // One of the two is disabled all the time, the first that is looked at before the wait, the other after it.
    let (before, after) = (
        "sandbox_recovery_protocol_v2_lease_guard",
        "supervised_command_truncate_guard",
    );
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        owner.batch_execute(&set("DISABLE", after))?;
        let mut leading = owner.transaction()?;
        leading.batch_execute("LOCK TABLE opengeni.sandbox_lease_holders")?;
        leading.batch_execute(&(set("ENABLE", after) + &set("DISABLE", before)))?;
        other.batch_execute(&format!(
            "SET default_transaction_isolation = '{isolation}'"
        ))?;
        let ready = meanwhile(
            db,
            &mut other,
            |client| value::<bool>(client, "SELECT opengeni_guards.ready('opengeni')", &[]),
            || Ok(leading.commit()?),
        )?;
        ensure!(!ready, "{isolation}: one of two was disabled all the time");
        owner.batch_execute(&set("ENABLE", before))?;
    }
    Ok(())
}

fn own_lock_error(db: &Db) -> Result<()> {
    extension(db)?;
    let mut admin = db.admin()?;
    for (state, message) in [
        ("55P03", "lease is frozen"),
        ("XX000", "tuple concurrently updated"),
    ] {
        admin.batch_execute(&format!(
            "CREATE FUNCTION opengeni.frozen() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
               RAISE '{message}' USING ERRCODE = '{state}', DETAIL = 'd', HINT = 'h', TABLE = 't', CONSTRAINT = 'c';
             END $$;
             CREATE EVENT TRIGGER frozen ON ddl_command_end WHEN tag IN ('CREATE TRIGGER')
               EXECUTE FUNCTION opengeni.frozen()"
        ))?;
        let refusal = refused(&mut admin, "SELECT opengeni_guards.attach('opengeni')", &[])?;
        refusal.is_by(state, "c")?;
        ensure!(
            refusal.message == message && refusal.table.as_deref() == Some("t"),
            "{refusal:?}"
        );
        admin.batch_execute("DROP FUNCTION opengeni.frozen() CASCADE")?;
    }
    Ok(())
}

fn former_member(db: &Db) -> Result<()> {
    let (mut admin, mut late) = (db.admin()?, db.session(STRANGER)?);
    for call in [
        "grant_usage('og_cases_app', 'opengeni')",
        "provision('opengeni')",
    ] {
        admin.batch_execute(&format!("GRANT {OWNER} TO {STRANGER}"))?;
        let mut leading = admin.transaction()?;
        leading.batch_execute(&format!(
            "SELECT opengeni_guards.revoke_usage('{APP}', 'opengeni'); REVOKE {OWNER} FROM {STRANGER}"
        ))?;
        refused_then(db, &mut late, call, || Ok(leading.commit()?))?.has_state("42501")?;
    }
    let granted: bool = value(
        &mut admin,
        "SELECT has_table_privilege($1, 'opengeni.sandbox_leases', 'DELETE')",
        &[&APP],
    )?;
    ensure!(!granted);
    Ok(())
}

fn renamed(db: &Db) -> Result<()> {
    let (mut admin, mut late) = (db.session(SUPERUSER)?, db.owner()?);
    let calls = [
        "provision('opengeni')",
        "detach('opengeni', true)",
        "grant_usage('og_cases_app', 'opengeni')",
        "revoke_usage('og_cases_app', 'opengeni')",
    ];
    for call in calls {
        for (change, state) in [
            ("", "3F000"),
            (
                "CREATE SCHEMA opengeni AUTHORIZATION og_cases_owner",
                "55006",
            ),
        ] {
            let mut leading = admin.transaction()?;
            leading.batch_execute(&format!(
                "SELECT opengeni_guards.grant_usage('og_cases_app', 'opengeni');
                 ALTER SCHEMA opengeni RENAME TO old; {change}"
            ))?;
            refused_then(db, &mut late, call, || Ok(leading.commit()?))?.has_state(state)?;
            admin.batch_execute(
                "DROP SCHEMA IF EXISTS opengeni; ALTER SCHEMA old RENAME TO opengeni",
            )?;
        }
    }
    Ok(())
}
