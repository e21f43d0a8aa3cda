//! The PL/pgSQL originals at work, and the extension coming to them: what `attach`, `detach` and CREATE
//! EXTENSION change, keep and refuse.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command};
use opengeni_guards_harness::server::Server;
use postgres::Client;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    let cases: [(&str, Body); 18] = [
        (
            "there and back leaves the catalogue as it was",
            there_and_back,
        ),
        ("provision ends with it", provisioned),
        ("a second run changes nothing and locks nothing", idempotent),
        ("what a DBA changed about a trigger is kept", kept),
        ("fire => 'always' survives the way back", always),
        (
            "CREATE EXTENSION binds triggers and nothing else",
            bound_on_create,
        ),
        (
            "CREATE EXTENSION leaves what it may not, or cannot lock",
            bound_in_part,
        ),
        (
            "the application may do none of it",
            refused_to_the_application,
        ),
        ("nothing that runs as its owner is everybody's", closed),
        ("pending deferred checks speak first", pending),
        (
            "a lock that is not to be had leaves nothing changed",
            timeout,
        ),
        (
            "an unknown function and an altered trigger are left",
            unknown,
        ),
        (
            "a function that works for another schema is left to it",
            two_schemas,
        ),
        (
            "detach refuses where nothing is there to go back to",
            nothing_to_go_back_to,
        ),
        ("DROP EXTENSION CASCADE, and back", dropped),
        (
            "status() finds what was opened, altered or restored",
            findings,
        ),
        ("ready() and status() see guards go", ready),
        (
            "an owner's code does not run with a superuser's rights",
            restricted,
        ),
    ];
    cases
        .into_iter()
        .map(|(name, body)| original_case(server, &format!("attach: {name}"), body))
        .collect()
}

/// The extension without its last step.
pub fn extension(db: &Db) -> Result<()> {
    db.admin()?.batch_execute(
        "SET opengeni_guards.bind_on_create = off; CREATE EXTENSION opengeni_guards",
    )?;
    Ok(())
}

/// Runs attach or detach; each line as `action object (note)`.
pub fn switch(client: &mut Client, call: &str) -> Result<Vec<String>> {
    lines(
        client,
        &format!(
            "SELECT action || ' ' || object || coalesce(' (' || note || ')', '') FROM opengeni_guards.{call}"
        ),
        &[],
    )
}

fn count(lines: &[String], action: &str) -> usize {
    lines
        .iter()
        .filter(|line| line.starts_with(&format!("{action} ")))
        .count()
}

/// How many triggers are in each state.
fn states(client: &mut Client, state: &str) -> Result<i64> {
    value(
        client,
        "SELECT count(*) FROM opengeni_guards.status($1) WHERE object LIKE 'trigger %' AND state = $2",
        &[&SCHEMA, &state],
    )
}

fn mode(client: &mut Client) -> Result<String> {
    value(
        client,
        "SELECT state FROM opengeni_guards.status($1) WHERE object = 'mode'",
        &[&SCHEMA],
    )
}

fn is_ready(client: &mut Client) -> Result<bool> {
    value(client, "SELECT opengeni_guards.ready($1)", &[&SCHEMA])
}

fn without_extension(client: &mut Client) -> Result<Vec<String>> {
    let mut all = definitions(client)?;
    all.retain(|line| !line.contains("opengeni_guards"));
    Ok(all)
}

/// A command's life, and one thing that must not happen in it.
pub fn works(db: &Db, speaks: bool) -> Result<()> {
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let mut app = db.app(&tenant)?;
    commit(&mut app, &[protocol::admit(&tenant, &command)])?;
    commit(
        &mut app,
        &[
            protocol::retain(&tenant, &command),
            protocol::attach(&command, command.provider_command(&tenant)),
        ],
    )?;
    let refusal = refused(
        &mut app,
        "DELETE FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )?;
    match speaks {
        true => refusal.speaks("supervised_command.delete_unsettled"),
        false => {
            ensure!(refusal.rule.is_none(), "the native guard: {refusal:?}");
            refusal.has_state("55000")
        }
    }
}

fn there_and_back(db: &Db) -> Result<()> {
    works(db, false)?;
    let before = definitions(&mut db.admin()?)?;
    extension(db)?;
    let mut owner = db.owner()?;
    ensure!(mode(&mut owner)? == "plpgsql" && !is_ready(&mut owner)?);

    let done = switch(&mut owner, "attach('opengeni')")?;
    ensure!(count(&done, "rebound") == 21, "{done:#?}");
    ensure!(count(&done, "created") == 6, "{done:#?}");
    ensure!(count(&done, "replaced") == 14, "{done:#?}");
    ensure!(count(&done, "left") == 0, "{done:#?}");
    ensure!(mode(&mut owner)? == "native" && is_ready(&mut owner)?);
    let odd = amiss(&mut owner, SCHEMA)?;
    ensure!(odd.is_empty(), "{odd:#?}");
    works(db, true)?;
    // The contract is served as before, by its own names.
    let mut app = db.session(APP)?;
    for call in [
        "reap_sandbox_leases(60000, 60000, 60000)",
        "count_active_retained_processes_by_owner_state()",
        "sandbox_rotation_backlog()",
        "list_live_modal_sandbox_leases()",
        "claim_terminal_retained_processes(gen_random_uuid(), 10, 60000)",
    ] {
        app.batch_execute(&format!("SELECT * FROM opengeni_private.{call}"))
            .with_context(|| call.to_owned())?;
    }

    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(count(&done, "restored") == 35, "{done:#?}");
    ensure!(count(&done, "left") == 0, "{done:#?}");
    same(&before, &without_extension(&mut db.admin()?)?)?;
    works(db, false)?;
    let again = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        again.iter().all(|line| line.starts_with("present ")),
        "{again:#?}"
    );
    db.admin()?
        .batch_execute("DROP EXTENSION opengeni_guards")?;
    Ok(())
}

fn provisioned(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    let done = switch(&mut owner, "provision('opengeni')")?;
    ensure!(count(&done, "rebound") == 21, "{done:#?}");
    ensure!(count(&done, "replaced") == 14, "{done:#?}");
    ensure!(count(&done, "left") == 0, "{done:#?}");
    let mut objects: Vec<&str> = done
        .iter()
        .filter_map(|line| Some(line.split_once(' ')?.1))
        .collect();
    let lines = objects.len();
    objects.sort_unstable();
    objects.dedup();
    ensure!(
        objects.len() == lines,
        "an object is told of twice: {done:#?}"
    );
    ensure!(is_ready(&mut owner)?);
    works(db, true)?;
    let again = switch(&mut owner, "provision('opengeni')")?;
    ensure!(count(&again, "present") == again.len(), "{again:#?}");
    let back = switch(&mut owner, "detach('opengeni')")?;
    ensure!(count(&back, "restored") == 35, "{back:#?}");
    works(db, false)
}

fn idempotent(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach()")?;
    let before = snapshot(&mut db.admin()?)?;
    // Also while somebody writes: it does not want a lock.
    let mut writer = db.admin()?;
    let mut writing = writer.transaction()?;
    writing.batch_execute(
        "LOCK TABLE sandbox_leases, sandbox_retained_processes IN ROW EXCLUSIVE MODE",
    )?;
    let mut transaction = owner.transaction()?;
    let again = lines(
        &mut transaction,
        "SELECT DISTINCT action FROM opengeni_guards.attach(lock_timeout => '100ms')",
        &[],
    )?;
    ensure!(again == ["present"], "{again:?}");
    let locked = lines(
        &mut transaction,
        "SELECT relation::regclass || ' ' || mode FROM pg_locks JOIN pg_class ON pg_class.oid = relation
          WHERE pid = pg_backend_pid() AND relnamespace = 'opengeni'::regnamespace AND mode <> 'AccessShareLock'",
        &[],
    )?;
    ensure!(locked.is_empty(), "{locked:?}");
    transaction.commit()?;
    writing.rollback()?;
    same(&before, &snapshot(&mut db.admin()?)?)
}

fn kept(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "ALTER TABLE sandbox_leases ENABLE ALWAYS TRIGGER sandbox_checkpoint_refs_guard;
         ALTER TABLE sandbox_leases DISABLE TRIGGER sandbox_recovery_protocol_v2_lease_guard;
         COMMENT ON TRIGGER sandbox_checkpoint_refs_guard ON sandbox_leases IS 'of the DBA';
         DROP TRIGGER sandbox_pty_sessions_process_identity_v2 ON sandbox_pty_sessions;
         CREATE CONSTRAINT TRIGGER sandbox_pty_sessions_process_identity_v2 AFTER UPDATE OF status ON sandbox_pty_sessions
           DEFERRABLE INITIALLY IMMEDIATE FOR EACH ROW WHEN (NEW.status = 'open')
           EXECUTE FUNCTION opengeni_private.validate_sandbox_pty_process_v2();
         DROP TRIGGER supervised_command_capture_guard ON sandbox_leases;
         CREATE TRIGGER supervised_command_capture_guard BEFORE UPDATE OF resume_state ON sandbox_leases
           FOR EACH ROW WHEN (NEW.liveness <> 'EXECUTE FUNCTION x()')
           EXECUTE FUNCTION opengeni_private.supervised_command_capture_guard()",
    )?;
    let triggers = |client: &mut Client| {
        lines(
            client,
            "SELECT regexp_replace(pg_get_triggerdef(t.oid), ' EXECUTE FUNCTION [^ ]*$', '')
               || ' ' || tgenabled::text || ' ' || coalesce(obj_description(t.oid, 'pg_trigger'), '')
               FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
              WHERE relnamespace = 'opengeni'::regnamespace AND NOT tgisinternal
                AND tgname !~ 'truncate_guard|holder_insert_guard' ORDER BY 1",
            &[],
        )
    };
    let before = triggers(&mut owner)?;
    let definitions_before = definitions(&mut db.admin()?)?;
    let done = switch(&mut owner, "attach('opengeni')")?;
    ensure!(
        done.iter()
            .any(|line| line.contains("lease_guard") && line.contains("disabled")),
        "{done:#?}"
    );
    same(&before, &triggers(&mut owner)?)?;
    let called = lines(
        &mut owner,
        "SELECT DISTINCT tgfoid::regproc::text FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
          WHERE relnamespace = 'opengeni'::regnamespace AND NOT tgisinternal AND tgfoid::regproc::text !~ '^opengeni_guards\\.'",
        &[],
    )?;
    ensure!(called.is_empty(), "{called:?}");
    ensure!(!is_ready(&mut owner)? && states(&mut owner, "disabled")? == 1);
    ensure!(states(&mut owner, "altered")? == 2);
    switch(&mut owner, "detach('opengeni')")?;
    same(&before, &triggers(&mut owner)?)?;
    let mut after = definitions(&mut db.admin()?)?;
    after.retain(|line| definitions_before.contains(line) || !line.contains("opengeni_guards"));
    same(&definitions_before, &after)
}

fn always(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni')")?;
    let done = switch(&mut owner, "attach('opengeni', fire => 'always')")?;
    ensure!(count(&done, "set") == 26, "{done:#?}");
    let of_kind = |client: &mut Client| -> Result<Vec<String>> {
        lines(
            client,
            "SELECT tgenabled::text || ' ' || count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
              WHERE relnamespace = 'opengeni'::regnamespace AND NOT tgisinternal GROUP BY tgenabled",
            &[],
        )
    };
    ensure!(of_kind(&mut owner)? == ["A 26"] && is_ready(&mut owner)?);
    let told = "SELECT DISTINCT concat_ws(', ', state, detail) FROM opengeni_guards.status('opengeni') WHERE object LIKE 'trigger %'";
    ensure!(lines(&mut owner, told, &[])? == ["native, fires always"]);
    // Enforced where replication applies; skipped there with origin.
    let (_, command) = db.supervised()?;
    let mut admin = db.admin()?;
    admin.batch_execute("SET session_replication_role = replica; SET search_path = ''")?;
    let delete = "DELETE FROM opengeni.sandbox_retained_processes WHERE id = $1";
    refused(&mut admin, delete, &[&command.process])?
        .speaks("supervised_command.delete_unsettled")?;
    let again = switch(&mut owner, "attach('opengeni')")?;
    ensure!(
        count(&again, "present") == again.len(),
        "origin takes nothing back: {again:#?}"
    );
    switch(&mut owner, "detach('opengeni')")?;
    ensure!(of_kind(&mut owner)? == ["A 21"]);
    owner.batch_execute(
        "ALTER TABLE sandbox_retained_processes ENABLE TRIGGER supervised_command_guard",
    )?;
    switch(&mut owner, "attach('opengeni')")?;
    let mut attempt = admin.transaction()?;
    let gone = attempt.execute(delete, &[&command.process])?;
    ensure!(gone == 1, "fired under replica");
    attempt.rollback()?;
    Ok(())
}

/// What a session was told beside its results.
pub fn create_extension(db: &Db) -> Result<String> {
    let output = db
        .server
        .program("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &db.name])
        .args(["-c", "CREATE EXTENSION opengeni_guards"])
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{told}");
    Ok(told)
}

fn bound_on_create(db: &Db) -> Result<()> {
    let before = definitions(&mut db.admin()?)?;
    let told = create_extension(db)?;
    ensure!(
        told.contains("26 guards of schema opengeni are native"),
        "{told}"
    );
    let mut owner = db.owner()?;
    ensure!(is_ready(&mut owner)? && mode(&mut owner)? == "native");
    ensure!(states(&mut owner, "native")? == 26);
    let mut after = without_extension(&mut db.admin()?)?;
    let mut before: Vec<String> = before;
    before.retain(|line| !line.starts_with("trigger "));
    after.retain(|line| !line.starts_with("trigger "));
    same(&before, &after)?;
    let helper: Option<String> = value(
        &mut owner,
        "SELECT to_regprocedure('opengeni_guards.bind_on_create()')::text",
        &[],
    )?;
    ensure!(helper.is_none(), "the script's helper is left");
    works(db, true)?;
    let done = switch(&mut owner, "attach('opengeni')")?;
    ensure!(
        count(&done, "replaced") == 14 && count(&done, "rebound") == 0,
        "{done:#?}"
    );
    let told = refused(&mut db.admin()?, "DROP EXTENSION opengeni_guards", &[])?;
    told.has_state("2BP01")
}

fn bound_in_part(db: &Db) -> Result<()> {
    // Incomplete: a column is missing.
    let mut owner = db.owner()?;
    owner.batch_execute("ALTER TABLE sandbox_pty_sessions RENAME COLUMN status TO condition")?;
    let told = create_extension(db)?;
    ensure!(
        told.contains("guards of schema opengeni are left")
            && told.contains("sandbox_pty_sessions")
            && told.contains("attach('opengeni')"),
        "{told}"
    );
    ensure!(mode(&mut owner)? == "plpgsql");
    owner.batch_execute("ALTER TABLE sandbox_pty_sessions RENAME COLUMN condition TO status")?;
    db.admin()?
        .batch_execute("DROP EXTENSION opengeni_guards")?;

    // Locked for longer than anybody wants to wait.
    let mut writer = db.admin()?;
    let mut writing = writer.transaction()?;
    writing.batch_execute("LOCK TABLE sandbox_lease_holders IN ROW EXCLUSIVE MODE")?;
    let began = Instant::now();
    let told = create_extension(db)?;
    ensure!(told.contains("could not be locked"), "{told}");
    ensure!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    ensure!(mode(&mut owner)? == "plpgsql");
    writing.rollback()?;
    switch(&mut owner, "attach()")?;
    ensure!(mode(&mut owner)? == "native");
    Ok(())
}

fn refused_to_the_application(db: &Db) -> Result<()> {
    extension(db)?;
    for attached in [false, true] {
        for role in [APP, STRANGER] {
            let mut session = db.session(role)?;
            for call in [
                "attach('opengeni')",
                "attach()",
                "attach('opengeni', mode => 'shadow')",
                "detach('opengeni')",
                "detach()",
                "provision('opengeni')",
                "grant_usage('og_cases_app', 'opengeni')",
                "revoke_usage('og_cases_app', 'opengeni')",
                "shadow_report('opengeni')",
            ] {
                let refusal = refused(&mut session, &format!("SELECT opengeni_guards.{call}"), &[])
                    .with_context(|| format!("{role}: {call}"))?;
                refusal.has_state("42501")?;
                ensure!(refusal.hint.is_some(), "{refusal:?}");
            }
        }
        if !attached {
            switch(&mut db.owner()?, "attach('opengeni')")?;
        }
    }
    let mut owner = db.owner()?;
    for call in [
        "attach(mode => 'both')",
        "attach(mode => NULL)",
        "attach(fire => 'replica')",
        "attach(lock_timeout => '0')",
        "attach(lock_timeout => '-1s')",
        "attach(lock_timeout => NULL)",
        "detach(force => NULL)",
        "attach('pg_catalog')",
        "ready(NULL)",
        "shadow_report(NULL)",
    ] {
        refused(&mut owner, &format!("SELECT opengeni_guards.{call}"), &[])?.has_state("22023")?;
    }
    for call in ["attach('nowhere')", "detach('nowhere')", "ready('nowhere')"] {
        refused(&mut owner, &format!("SELECT opengeni_guards.{call}"), &[])?.has_state("3F000")?;
    }
    Ok(())
}

fn closed(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC, {APP};
         ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {STRANGER};
         DROP FUNCTION opengeni_private.sandbox_rotation_backlog()"
    ))?;
    let done = switch(&mut owner, "attach('opengeni')")?;
    ensure!(
        done.iter()
            .any(|line| line
                .starts_with("created function opengeni_private.sandbox_rotation_backlog")),
        "{done:#?}"
    );
    let open = "SELECT p.oid::regprocedure || ' ' || r.rolname
         FROM pg_proc p CROSS JOIN (VALUES ('public'), ('og_cases_stranger')) AS r (rolname)
        WHERE p.prosecdef AND p.pronamespace IN ('opengeni'::regnamespace, 'opengeni_private'::regnamespace, 'opengeni_guards'::regnamespace)
          AND has_function_privilege(r.rolname, p.oid, 'EXECUTE')";
    ensure!(
        lines(&mut owner, open, &[])?.is_empty(),
        "{:?}",
        lines(&mut owner, open, &[])?
    );
    owner.batch_execute(&format!(
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_private TO {APP}"
    ))?;
    ensure!(lines(&mut owner, open, &[])?.is_empty());
    // Everything of ours that the blanket grant opened is one of the contract's own functions, not an entrance to set-up.
    let ours = lines(
        &mut owner,
        "SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'opengeni_private'::regnamespace AND p.prosecdef
           AND p.proname !~ '^(reap|claim|count|settle|prune|list|request|sandbox)_' AND p.prosqlbody IS NOT NULL",
        &[],
    )?;
    ensure!(ours.is_empty(), "{ours:?}");
    let ledgers = lines(
        &mut owner,
        "SELECT relname::text FROM pg_class WHERE relname IN ('opengeni_guards_replaced', 'opengeni_guards_shadow',
           'modal_inventory_read_capabilities')
           AND (has_table_privilege('public', oid, 'SELECT') OR has_any_column_privilege('og_cases_app', oid, 'SELECT, INSERT, UPDATE'))",
        &[],
    )?;
    ensure!(ledgers.is_empty(), "{ledgers:?}");
    refused(
        &mut db.session(APP)?,
        "SELECT * FROM opengeni_guards_replaced",
        &[],
    )?
    .has_state("42501")?;
    // Created because it was missing, and gone again.
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        done.iter()
            .any(|line| line
                .starts_with("dropped function opengeni_private.sandbox_rotation_backlog")),
        "{done:#?}"
    );
    Ok(())
}

fn pending(db: &Db) -> Result<()> {
    extension(db)?;
    let (tenant, command) = db.supervised()?;
    let mut owner = db.owner()?;
    for (name, text) in [
        ("opengeni.account_id", tenant.account.to_string()),
        ("opengeni.workspace_id", tenant.workspace.to_string()),
        (MARKER, "1".to_owned()),
    ] {
        set(&mut owner, name, &text)?;
    }
    let forge =
        "UPDATE sandbox_retained_processes SET owner_actor_id = gen_random_uuid() WHERE id = $1";
    for call in ["attach('opengeni')", "attach()"] {
        let mut transaction = owner.transaction()?;
        transaction.execute(forge, &[&command.process])?;
        refused(
            &mut transaction,
            &format!("SELECT opengeni_guards.{call}"),
            &[],
        )?
        .has_state("55000")?;
        transaction.rollback()?;
    }
    // A good row passes, and what comes after is deferred as before.
    let mut transaction = owner.transaction()?;
    transaction.execute(
        "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = $1",
        &[&command.process],
    )?;
    transaction.execute("SELECT opengeni_guards.attach('opengeni')", &[])?;
    transaction.execute(forge, &[&command.process])?;
    let Err(error) = transaction.commit() else {
        anyhow::bail!("the forged row was committed");
    };
    ensure!(
        Refusal::of(&error)?.rule.is_some(),
        "not judged by the native check"
    );
    ensure!(
        mode(&mut owner)? == "plpgsql",
        "rolled back with the transaction"
    );
    Ok(())
}

fn timeout(db: &Db) -> Result<()> {
    extension(db)?;
    let before = snapshot(&mut db.admin()?)?;
    let tenant = db.tenant()?;
    let mut holder = db.admin()?;
    let mut held = holder.transaction()?;
    held.execute(
        "UPDATE sandbox_lease_holders SET subject_id = subject_id",
        &[],
    )?;
    let mut owner = db.owner()?;
    let began = Instant::now();
    let call = "SELECT opengeni_guards.attach('opengeni', lock_timeout => '900ms')";
    let refusal = refused(&mut owner, call, &[])?;
    refusal.has_state("55P03")?;
    ensure!(
        refusal.hint.is_some() && began.elapsed() < Duration::from_secs(3),
        "{refusal:?}"
    );
    same(&before, &snapshot(&mut db.admin()?)?)?;

    // Meanwhile others get in between the attempts.
    let waiting = std::thread::scope(|scope| -> Result<Duration> {
        let switching = scope.spawn(|| {
            owner.execute(
                "SELECT opengeni_guards.attach('opengeni', lock_timeout => '20s')",
                &[],
            )
        });
        let mut app = db.app(&tenant)?;
        let (mut longest, began) = (Duration::ZERO, Instant::now());
        while began.elapsed() < Duration::from_secs(2) {
            let start = Instant::now();
            app.execute(
                "UPDATE sandbox_leases SET updated_at = now() WHERE id = $1",
                &[&tenant.lease],
            )?;
            longest = longest.max(start.elapsed());
        }
        held.commit()?;
        let done = switching
            .join()
            .map_err(|_| anyhow::anyhow!("attach panicked"))?;
        done.context("attach after the lock was free")?;
        Ok(longest)
    })?;
    ensure!(
        waiting < Duration::from_millis(900),
        "somebody waited {waiting:?}"
    );
    ensure!(is_ready(&mut db.owner()?)?);
    Ok(())
}

fn unknown(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "ALTER FUNCTION opengeni_private.reap_sandbox_leases(bigint, bigint, bigint) SET search_path = opengeni;
         DO $$ BEGIN EXECUTE replace(pg_get_functiondef('opengeni_private.sandbox_rotation_backlog()'::regprocedure), 'overdue', 'overdue'); END $$;
         DO $$ BEGIN EXECUTE regexp_replace(pg_get_functiondef('opengeni_private.count_expired_draining_sandbox_leases()'::regprocedure),
           '(AS .function.)', E'\\\\1\\n   -- of a newer release\\n'); END $$;
         CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         DROP TRIGGER supervised_command_capture_guard ON sandbox_leases;
         CREATE TRIGGER supervised_command_capture_guard BEFORE UPDATE ON sandbox_leases FOR EACH ROW EXECUTE FUNCTION audited()",
    )?;
    let done = switch(&mut owner, "attach('opengeni')")?;
    let left: Vec<&String> = done
        .iter()
        .filter(|line| line.starts_with("left "))
        .collect();
    ensure!(left.len() == 3, "{done:#?}");
    for (word, note) in [
        ("reap_sandbox_leases", "unknown definition"),
        ("count_expired_draining", "unknown definition"),
        ("supervised_command_capture_guard", "altered"),
    ] {
        ensure!(
            left.iter()
                .any(|line| line.contains(word) && line.contains(note)),
            "{word}: {left:#?}"
        );
    }
    ensure!(count(&done, "replaced") == 12, "{done:#?}");
    let state: Vec<String> = lines(
        &mut owner,
        "SELECT state FROM opengeni_guards.status('opengeni') WHERE object ~ 'reap_sandbox_leases|capture_guard' ORDER BY 1",
        &[],
    )?;
    ensure!(state == ["altered", "unknown definition"], "{state:?}");
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(count(&done, "left") == 1, "{done:#?}");
    let reap: bool = value(
        &mut owner,
        "SELECT prosrc ~ 'FROM sandbox_leases' FROM pg_proc WHERE proname = 'reap_sandbox_leases' AND pronamespace = 'opengeni_private'::regnamespace",
        &[],
    )?;
    ensure!(reap);
    Ok(())
}

fn two_schemas(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute("CREATE SCHEMA second")?;
    // Provisioned: the contract's functions are there already and serve the first schema, but for one that
    // serves every schema alike.
    provision(&mut owner, "second")?;
    let done = switch(&mut owner, "attach()")?;
    let left: Vec<&String> = done
        .iter()
        .filter(|line| line.starts_with("left "))
        .collect();
    ensure!(
        left.iter()
            .any(|line| line.contains("claim_terminal_retained_processes")
                && line.contains("serves schema opengeni")),
        "{left:#?}"
    );
    ensure!(
        left.iter()
            .any(|line| line.contains("reap_sandbox_leases") && line.contains("search_path")),
        "{left:#?}"
    );
    ensure!(count(&done, "rebound") == 21, "{done:#?}");
    for schema in [SCHEMA, "second"] {
        ensure!(
            value::<bool>(&mut owner, "SELECT opengeni_guards.ready($1)", &[&schema])?,
            "{schema}"
        );
    }
    // One session serves both in turn.
    let tenant = db.tenant()?;
    let mut admin = db.admin()?;
    admin.batch_execute("SET search_path = second")?;
    commit(&mut admin, &[protocol::seed(&tenant)])?;
    owner.batch_execute(&format!(
        "SELECT opengeni_guards.grant_usage('{APP}', 'second')"
    ))?;
    let mut app = db.app(&tenant)?;
    for round in 1..=5 {
        for schema in [SCHEMA, "second"] {
            app.batch_execute(&format!("SET search_path = {schema}"))?;
            let command = Command::new(round);
            commit(&mut app, &[protocol::launch(&tenant, &command)])?;
            let refusal = refused(
                &mut app,
                "DELETE FROM sandbox_retained_processes WHERE id = $1",
                &[&command.process],
            )?;
            refusal.speaks("supervised_command.delete_unsettled")?;
            ensure!(refusal.schema.as_deref() == Some(schema), "{refusal:?}");
        }
    }
    // The second has nothing to go back to; the first has.
    refused(&mut owner, "SELECT opengeni_guards.detach('second')", &[])?.has_state("55000")?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(count(&done, "restored") > 21, "{done:#?}");
    let shared: Vec<&String> = done
        .iter()
        .filter(|line| line.contains("warming_reset"))
        .collect();
    ensure!(
        matches!(shared[..], [line] if line.starts_with("left ") && line.contains("another schema")),
        "{shared:?}"
    );
    Ok(())
}

fn nothing_to_go_back_to(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni')")?;
    owner.batch_execute("DROP FUNCTION opengeni_private.supervised_command_blocker_guard()")?;
    let before = snapshot(&mut db.admin()?)?;
    let refusal = refused(&mut owner, "SELECT opengeni_guards.detach('opengeni')", &[])?;
    refusal.has_state("55000")?;
    refusal.names(&[
        "supervised_command_admission_guard",
        "supervised_command_holder_guard",
        "force",
    ])?;
    same(&before, &snapshot(&mut db.admin()?)?)?;
    let done = switch(&mut owner, "detach('opengeni', force => true)")?;
    ensure!(
        done.iter().any(|line| line
            .starts_with("dropped trigger supervised_command_admission_guard")
            && line.contains("this guard is gone")),
        "{done:#?}"
    );
    db.admin()?
        .batch_execute("DROP EXTENSION opengeni_guards")?;
    Ok(())
}

fn dropped(db: &Db) -> Result<()> {
    let before = definitions(&mut db.admin()?)?;
    extension(db)?;
    switch(&mut db.owner()?, "attach('opengeni')")?;
    let mut admin = db.admin()?;
    refused(&mut admin, "DROP EXTENSION opengeni_guards", &[])?.has_state("2BP01")?;
    admin.batch_execute("DROP EXTENSION opengeni_guards CASCADE")?;
    let told = create_extension(db)?;
    ensure!(
        told.contains("26 guards of schema opengeni are native"),
        "{told}"
    );
    let mut owner = db.owner()?;
    ensure!(is_ready(&mut owner)?);
    works(db, true)?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(count(&done, "restored") >= 35, "{done:#?}");
    same(&before, &without_extension(&mut db.admin()?)?)
}

fn findings(db: &Db) -> Result<()> {
    extension(db)?;
    let (_, command) = db.supervised()?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni')")?;
    let found = |client: &mut Client| {
        lines(
            client,
            "SELECT state FROM opengeni_guards.status('opengeni')
              WHERE state NOT IN ('native', 'present', 'missing') ORDER BY 1",
            &[],
        )
    };
    ensure!(found(&mut owner)?.is_empty(), "{:?}", found(&mut owner)?);
    db.plant(
        "UPDATE sandbox_retained_processes SET supervision_retention_xid = '9223372036854775000'::xid8,
           provider_command = jsonb_set(provider_command, '{streams}', '{\"stdout\": {\"byteOffset\": \"x\"}}') WHERE id = $1",
        &[&command.process],
    )?;
    owner
        .batch_execute(&format!(
            "GRANT SELECT (object) ON opengeni_guards_replaced TO {APP};
         GRANT SELECT ON opengeni_private.modal_inventory_read_capabilities TO PUBLIC;
         DROP POLICY modal_inventory_owner_read ON sandbox_leases;
         CREATE POLICY modal_inventory_owner_read ON sandbox_leases FOR SELECT
           USING (current_user = 'somebody' AND modal_inventory_read_capability_active());
         DROP INDEX sandbox_retained_processes_active_idx"
        ))
        .or_else(|_| {
            owner.batch_execute(&format!(
                "GRANT SELECT (object) ON opengeni_guards_replaced TO {APP};
         GRANT SELECT ON opengeni_private.modal_inventory_read_capabilities TO PUBLIC;
         DROP POLICY modal_inventory_owner_read ON sandbox_leases;
         CREATE POLICY modal_inventory_owner_read ON sandbox_leases FOR SELECT
           USING (current_user = 'somebody' AND modal_inventory_read_capability_active())"
            ))
        })?;
    let expected = [
        "altered",
        "open",
        "open",
        "poisoned stream cursor",
        "retention id in the future",
    ];
    let seen = found(&mut owner)?;
    ensure!(seen == expected, "{seen:?}");
    // Rows are for who may act as the owner.
    let seen = found(&mut db.session(STRANGER)?)?;
    ensure!(seen == expected[..3], "{seen:?}");
    db.admin()?
        .batch_execute("ALTER TABLE sandbox_pty_sessions OWNER TO postgres")?;
    let seen = found(&mut db.admin()?)?;
    ensure!(seen.contains(&"foreign".to_owned()), "{seen:?}");
    Ok(())
}

fn ready(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni')")?;
    ensure!(is_ready(&mut db.session(STRANGER)?)?, "anybody may ask");
    for (harm, state) in [
        (
            "ALTER TABLE sandbox_leases DISABLE TRIGGER supervised_command_capture_guard",
            "disabled",
        ),
        (
            "ALTER TABLE sandbox_leases DROP COLUMN archive_capture_id CASCADE",
            "missing",
        ),
        (
            "DROP TRIGGER workspace_instruction_policy_heads_validate_revision ON workspace_instruction_policy_heads",
            "missing",
        ),
        (
            "ALTER TABLE sandbox_pty_sessions RENAME TO elsewhere",
            "missing",
        ),
    ] {
        let mut attempt = owner.transaction()?;
        attempt.batch_execute(harm)?;
        let ready: bool = value(
            &mut attempt,
            "SELECT opengeni_guards.ready('opengeni')",
            &[],
        )?;
        let seen: i64 = value(
            &mut attempt,
            "SELECT count(*) FROM opengeni_guards.status('opengeni') WHERE object LIKE 'trigger %' AND state = $1",
            &[&state],
        )?;
        ensure!(!ready && seen > 0, "{harm}");
        attempt.rollback()?;
    }
    ensure!(is_ready(&mut owner)?);
    // Names may change under the guards.
    owner.batch_execute("ALTER SCHEMA opengeni RENAME TO moved")?;
    ensure!(value::<bool>(
        &mut owner,
        "SELECT opengeni_guards.ready('moved')",
        &[]
    )?);
    owner.batch_execute("SELECT * FROM opengeni_private.sandbox_rotation_backlog()")?;
    owner.batch_execute("ALTER SCHEMA moved RENAME TO opengeni")?;
    Ok(())
}

fn restricted(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!(
        "CREATE TABLE trap (ran_as text);
         CREATE FUNCTION spring() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO opengeni.trap VALUES (current_user); RETURN NULL; END $$;
         CREATE FUNCTION spring_default() RETURNS timestamptz LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO opengeni.trap VALUES (current_user); RETURN now(); END $$;
         CREATE TABLE opengeni_guards_replaced (object text PRIMARY KEY, data_schema text, definition text, owner text NOT NULL,
           executors text[] NOT NULL, may_grant text[] NOT NULL,
           replaced_at timestamptz NOT NULL DEFAULT spring_default());
         CREATE CONSTRAINT TRIGGER late AFTER INSERT OR DELETE ON opengeni_guards_replaced DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION spring();
         ALTER ROLE {OWNER} SET search_path = opengeni"
    ))?;
    // A deferred trigger would run at COMMIT, as the superuser: what it lies on is not written.
    let done = switch(&mut db.admin()?, "attach('opengeni')")?;
    ensure!(
        count(&done, "left") == 14 && count(&done, "rebound") == 21,
        "{done:#?}"
    );
    let ran = |client: &mut Client| lines(client, "SELECT DISTINCT ran_as FROM trap", &[]);
    ensure!(ran(&mut owner)?.is_empty(), "{:?}", ran(&mut owner)?);
    refused(
        &mut db.admin()?,
        "SELECT opengeni_guards.detach('opengeni')",
        &[],
    )?
    .has_state("55000")?;
    // A default runs at once: as the owner.
    owner.batch_execute("DROP TRIGGER late ON opengeni_guards_replaced")?;
    let done = switch(&mut db.admin()?, "attach('opengeni')")?;
    ensure!(count(&done, "replaced") == 14, "{done:#?}");
    ensure!(ran(&mut owner)? == [OWNER], "{:?}", ran(&mut owner)?);
    owner.batch_execute(&format!("ALTER ROLE {OWNER} RESET search_path"))?;
    let owners = lines(
        &mut owner,
        "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'opengeni_private'::regnamespace",
        &[],
    )?;
    ensure!(owners == [OWNER], "{owners:?}");
    // A view under a table's name is not touched, nor a look-alike elsewhere.
    owner.batch_execute(
        "CREATE SCHEMA alike; CREATE TABLE alike.sandbox_retained_processes (id varchar);
         CREATE VIEW alike.sandbox_leases AS SELECT 1 AS id",
    )?;
    let before = snapshot(&mut db.admin()?)?;
    refused(&mut owner, "SELECT opengeni_guards.attach('alike')", &[])?.has_state("42P01")?;
    let done = switch(&mut owner, "attach()")?;
    ensure!(!done.iter().any(|line| line.contains("alike")), "{done:#?}");
    same(&before, &snapshot(&mut db.admin()?)?)
}
