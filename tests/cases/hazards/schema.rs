//! 12: tables, columns and the schema are renamed, dropped and made again under attached guards.

use anyhow::{Context, Result, bail, ensure};
use opengeni_guards_harness::demo::protocol::{self, Command};
use postgres::{Client, GenericClient};
use uuid::Uuid;

use super::{
    GUARDED, HISTORY_BAIT, PARENTS, Scene, activation, answers, attached, committed, is_ready, pty,
    revision, speaks_again, states,
};
use crate::attach::switch;
use crate::fleet::{self, READERS, WRITERS};
use crate::support::*;

pub fn columns_renamed(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let mut scene = Scene::set(db)?;
    let process = scene.running.process;
    let lease = scene.tenant.lease;
    let [first, second] = scene.revisions;
    let touch = format!(
        "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = '{process}'"
    );
    let capture = format!(
        "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = '{lease}'"
    );
    let parent = format!(
        "UPDATE sandbox_workspace_mutation_admissions SET operation = 'other' WHERE id = '{}'",
        scene.running.admission
    );
    let blocked = Some(("55000", "lease_capture.blocked"));
    let activate = activation(second, first);
    let third = revision(&scene.tenant, Uuid::new_v4(), Some(second));
    let head =
        "UPDATE workspace_instruction_policy_heads SET activation_version = activation_version + 1";
    // Deletes history as deep as a cascade does.
    scene.app.batch_execute(HISTORY_BAIT)?;
    let bait = "INSERT INTO bait VALUES (1)";
    // Table and column; a write, which writes `{}` where it has to name the column; the guard that cannot read it;
    // what the write is answered with the column in place.
    for (table, column, write, guard, answer) in [
        (
            "sandbox_retained_processes",
            "provider_session_id",
            touch.as_str(),
            "supervised_command_guard",
            None,
        ),
        (
            "sandbox_retained_processes",
            "state",
            &capture,
            "supervised_command_capture_guard",
            blocked,
        ),
        (
            "sandbox_retained_processes",
            "provider_session_id",
            "UPDATE sandbox_pty_sessions SET cols = cols + 1",
            "validate_sandbox_pty_process_v2",
            None,
        ),
        (
            "sandbox_workspace_mutation_admissions",
            "actor_id",
            &parent,
            "supervised_command_blocker_guard",
            Some(("55000", "parent_admission.retained")),
        ),
        (
            "sandbox_workspace_mutation_admissions",
            "settled_at",
            &touch,
            "validate_sandbox_retained_process_v2",
            None,
        ),
        (
            "sandbox_lease_holders",
            "holder_id",
            "UPDATE sandbox_lease_holders SET last_heartbeat_at = '2030-01-01Z'",
            "supervised_command_blocker_guard",
            Some(("55000", "process_holder.retained")),
        ),
        (
            "sandbox_lease_holders",
            "subject_id",
            &touch,
            "validate_sandbox_retained_process_v2",
            None,
        ),
        (
            "sandbox_leases",
            "archive_generation",
            &capture,
            "supervised_command_capture_guard",
            blocked,
        ),
        (
            "sandbox_leases",
            "current_checkpoint_artifact_id",
            "UPDATE sandbox_leases SET workspace_generation = workspace_generation + 1",
            "validate_sandbox_checkpoint_refs",
            None,
        ),
        (
            "sandbox_pty_sessions",
            "exec_session_id",
            "UPDATE sandbox_pty_sessions SET cols = cols + 1",
            "validate_sandbox_pty_process_v2",
            None,
        ),
        (
            "sandbox_checkpoint_artifacts",
            "archive_sha256",
            "UPDATE sandbox_checkpoint_artifacts SET delete_attempts = 1",
            "enforce_sandbox_checkpoint_artifact_immutability",
            None,
        ),
        (
            "sandbox_checkpoint_artifacts",
            "state",
            "UPDATE sandbox_checkpoint_artifacts SET {} = {}",
            "validate_sandbox_checkpoint_artifact_refs",
            None,
        ),
        (
            "sandbox_leases",
            "previous_checkpoint_artifact_id",
            "UPDATE sandbox_checkpoint_artifacts SET state = state",
            "validate_sandbox_checkpoint_artifact_refs",
            None,
        ),
        (
            "workspace_instruction_policy_revisions",
            "scope",
            &third,
            "workspace_instruction_policy_validate_revision_link",
            None,
        ),
        (
            "workspace_instruction_policy_revisions",
            "content_hash",
            head,
            "workspace_instruction_policy_validate_head",
            None,
        ),
        (
            "workspace_instruction_policy_heads",
            "content_hash",
            head,
            "workspace_instruction_policy_validate_head",
            None,
        ),
        (
            "workspace_instruction_policy_activation_events",
            "new_content_hash",
            &activate,
            "workspace_instruction_policy_validate_event",
            None,
        ),
        (
            "workspaces",
            "id",
            bait,
            "workspace_instruction_policy_reject_mutation",
            Some(("55000", "instruction_policy.immutable")),
        ),
        (
            "managed_accounts",
            "id",
            bait,
            "workspace_instruction_policy_reject_mutation",
            Some(("55000", "instruction_policy.immutable")),
        ),
    ] {
        let context = || format!("{table}.{column}: {write}");
        let rename =
            |from: &str, to: &str| format!("ALTER TABLE {table} RENAME COLUMN {from} TO {to}");
        owner.batch_execute(&rename(column, "renamed"))?;
        let renamed = match write.contains("{}") {
            true => write.replace("{}", "renamed"),
            // What names the column names it by its new name.
            false => write.replace(&format!(" {column},"), " renamed,"),
        };
        let Some(refusal) = committed(&mut scene.app, &renamed)? else {
            bail!("committed: {}", context());
        };
        refusal.has_state("42703").with_context(context)?;
        refusal
            .names(&[table, column, guard])
            .with_context(context)?;
        let seen = states(&mut owner, &format!("table {table}"))?;
        ensure!(seen == ["incompatible"], "{}: {seen:?}", context());
        refused(&mut owner, "SELECT opengeni_guards.attach('opengeni')", &[])?
            .has_state("42703")?;
        owner.batch_execute(&rename("renamed", column))?;
        // The first answer in the same session is the right one.
        let whole = write.replace("{}", column);
        let undone = format!("{whole}; SET CONSTRAINTS ALL IMMEDIATE");
        let mut attempt = scene.app.transaction()?;
        match (attempt.batch_execute(&undone), answer) {
            (Ok(()), None) => {}
            (Err(error), Some((sqlstate, rule))) => Refusal::of(&error)?
                .is_by(sqlstate, rule)
                .with_context(context)?,
            (answer, _) => bail!("{}: {answer:?}", context()),
        }
        attempt.rollback()?;
    }
    ensure!(is_ready(&mut owner)?);
    speaks_again(db)
}

pub fn contract_column_renamed(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    fleet::pair(db, SCHEMA)?;
    let mut app = db.session(APP)?;
    let all = |client: &mut Client| -> Result<Vec<Result<Vec<String>, Refusal>>> {
        let mut answers = Vec::new();
        for function in READERS.iter().chain(WRITERS) {
            let mut attempt = client.transaction()?;
            let sql = format!(
                "SELECT answer::text FROM {} AS answer ORDER BY 1",
                function.contract()
            );
            answers.push(match attempt.query(&sql, &[]) {
                Ok(rows) => Ok(rows
                    .iter()
                    .map(|row| row.get::<_, Option<String>>(0).unwrap_or_default())
                    .collect()),
                Err(error) => Err(Refusal::of(&error)?),
            });
            attempt.rollback()?;
        }
        Ok(answers)
    };
    let before = all(&mut app)?;
    ensure!(before.iter().all(Result::is_ok), "{before:#?}");
    for (table, column, least) in [
        ("sandbox_leases", "liveness", 4),
        ("sandbox_leases", "provider_deadline_at", 2),
        ("sandbox_lease_holders", "last_heartbeat_at", 1),
        ("sandbox_retained_processes", "reconcile_after", 1),
        ("sandbox_checkpoint_artifacts", "delete_after", 1),
        ("sandbox_checkpoint_artifacts", "state", 3),
    ] {
        owner.batch_execute(&format!(
            "ALTER TABLE {table} RENAME COLUMN {column} TO renamed"
        ))?;
        let between = all(&mut app)?;
        let mut failed = 0;
        for (between, before) in between.iter().zip(&before) {
            match between {
                Ok(_) => ensure!(between == before, "{column}: {between:?}"),
                Err(refusal) => {
                    refusal.has_state("42703").and(refusal.names(&[column]))?;
                    failed += 1;
                }
            }
        }
        ensure!(failed >= least, "{table}.{column}: {failed} failed");
        owner.batch_execute(&format!(
            "ALTER TABLE {table} RENAME COLUMN renamed TO {column}"
        ))?;
        let after = all(&mut app)?;
        ensure!(after == before, "{table}.{column}: {after:#?}");
    }
    ensure!(is_ready(&mut owner)?);
    Ok(())
}

/// With a table gone from its name: what status() and ready() say, and that the switches fail, or work, clearly.
fn missing(owner: &mut impl GenericClient, table: &str) -> Result<()> {
    let qualified = format!("opengeni.{table}");
    let seen: Vec<String> = lines(
        owner,
        "SELECT state FROM opengeni_guards.status('opengeni') WHERE object = 'table ' || $1",
        &[&table],
    )?;
    ensure!(seen == ["missing"], "{table}: {seen:?}");
    let guards: i64 = value(
        owner,
        "SELECT count(*) FROM opengeni_guards.status('opengeni')
          WHERE object LIKE 'trigger % on ' || $1 AND state <> 'missing'",
        &[&table],
    )?;
    ensure!(guards == 0, "{table}: {guards} guards are not missing");
    ensure!(is_ready(owner)? != GUARDED.contains(&table), "{table}");
    for call in ["attach('opengeni')", "attach('opengeni', mode => 'shadow')"] {
        let refusal = refused(owner, &format!("SELECT opengeni_guards.{call}"), &[])?;
        refusal.has_state("42P01")?;
        refusal.names(&[&qualified, "provision"])?;
    }
    // Going back does without the table.
    let mut attempt = owner.transaction()?;
    let restored: i64 = value(
        &mut attempt,
        "SELECT count(*) FROM opengeni_guards.detach('opengeni')
          WHERE action = 'restored' AND object LIKE 'function %'",
        &[],
    )
    .with_context(|| format!("detach without {table}"))?;
    ensure!(restored == 14, "{table}: {restored} restored");
    attempt.rollback()?;
    Ok(())
}

pub fn tables_renamed(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let mut scene = Scene::set(db)?;
    let process = scene.running.process;
    let touch = format!(
        "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = '{process}'"
    );
    let pty = "UPDATE sandbox_pty_sessions SET cols = cols + 1";
    let head =
        "UPDATE workspace_instruction_policy_heads SET activation_version = activation_version + 1";
    let capture = "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid()";
    let artifact = "UPDATE sandbox_checkpoint_artifacts SET state = state";
    // A write elsewhere that needs the table, and the guard that misses it.
    for (table, write, guard, answer) in [
        (
            "sandbox_retained_processes",
            capture,
            "supervised_command_capture_guard",
            Some(("55000", "lease_capture.blocked")),
        ),
        (
            "sandbox_retained_processes",
            pty,
            "validate_sandbox_pty_process_v2",
            None,
        ),
        (
            "sandbox_workspace_mutation_admissions",
            &touch,
            "validate_sandbox_retained_process_v2",
            None,
        ),
        (
            "sandbox_lease_holders",
            &touch,
            "validate_sandbox_retained_process_v2",
            None,
        ),
        (
            "sandbox_leases",
            artifact,
            "validate_sandbox_checkpoint_artifact_refs",
            None,
        ),
        (
            "workspace_instruction_policy_revisions",
            head,
            "workspace_instruction_policy_validate_head",
            None,
        ),
    ] {
        owner.batch_execute(&format!("ALTER TABLE {table} RENAME TO elsewhere"))?;
        let Some(refusal) = committed(&mut scene.app, write)? else {
            bail!("committed without {table}: {write}");
        };
        refusal.has_state("42P01")?;
        refusal.names(&[table, guard])?;
        owner.batch_execute(&format!("ALTER TABLE elsewhere RENAME TO {table}"))?;
        let mut attempt = scene.app.transaction()?;
        let done = attempt.batch_execute(&format!("{write}; SET CONSTRAINTS ALL IMMEDIATE"));
        match (done, answer) {
            (Ok(()), None) => {}
            (Err(error), Some((sqlstate, rule))) => Refusal::of(&error)?.is_by(sqlstate, rule)?,
            (done, _) => bail!("{table}: {write}: {done:?}"),
        }
        attempt.rollback()?;
    }
    for table in GUARDED.iter().chain(&PARENTS) {
        owner.batch_execute(&format!("ALTER TABLE {table} RENAME TO elsewhere"))?;
        missing(&mut owner, table)?;
        // Its guards went with it, and still guard it.
        if *table == "sandbox_retained_processes" {
            let delete = format!("DELETE FROM elsewhere WHERE id = '{process}'");
            answers(
                &mut scene.app,
                &delete,
                Some(("55000", "supervised_command.delete_unsettled")),
            )?;
        }
        owner.batch_execute(&format!("ALTER TABLE elsewhere RENAME TO {table}"))?;
        ensure!(is_ready(&mut owner)?, "{table}");
        ensure!(states(&mut owner, "table")?.is_empty(), "{table}");
    }
    speaks_again(db)?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    Ok(())
}

pub fn tables_dropped(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let scene = Scene::set(db)?;
    for table in GUARDED.iter().chain(&PARENTS).chain(&[
        "sessions",
        "session_turns",
        "session_turn_attempts",
    ]) {
        let mut attempt = owner.transaction()?;
        attempt.batch_execute(&format!("DROP TABLE {table} CASCADE"))?;
        missing(&mut attempt, table)?;
        attempt.rollback()?;
    }
    // For good. Sessions that knew the table go on.
    let mut app = scene.app;
    for dropped in [
        &["sandbox_pty_sessions"][..],
        &["sandbox_retained_processes"],
        &["sandbox_leases"],
        &["workspace_instruction_policy_revisions"],
        &["sandbox_checkpoint_artifacts", "sandbox_lease_holders"],
        &["workspaces"],
    ] {
        // Rows that would refer to nobody.
        db.admin()?.batch_execute(
            "SET session_replication_role = replica; DELETE FROM sandbox_retained_processes; DELETE FROM sandbox_pty_sessions;
             DELETE FROM sandbox_workspace_mutation_admissions; DELETE FROM sandbox_lease_holders; DELETE FROM sandbox_leases;
             DELETE FROM workspace_instruction_policy_activation_events; DELETE FROM workspace_instruction_policy_heads;
             DELETE FROM workspace_instruction_policy_revisions; DELETE FROM sessions; DELETE FROM workspaces",
        )?;
        owner.batch_execute(&format!("DROP TABLE {} CASCADE", dropped.join(", ")))?;
        if let [table] = dropped {
            missing(&mut owner, table)?;
        }
        owner.batch_execute("SELECT opengeni_guards.provision('opengeni')")?;
        grant_usage(&mut owner, APP, SCHEMA)?;
        let done = switch(&mut owner, "attach('opengeni')")?;
        ensure!(
            !done.iter().any(|line| line.starts_with("left ")),
            "{dropped:?}: {done:#?}"
        );
        ensure!(is_ready(&mut owner)?, "{dropped:?}");
        ensure!(states(&mut owner, "table")?.is_empty(), "{dropped:?}");
        let tenant = db.tenant()?;
        let command = Command::new(1);
        set(&mut app, "opengeni.account_id", &tenant.account.to_string())?;
        set(
            &mut app,
            "opengeni.workspace_id",
            &tenant.workspace.to_string(),
        )?;
        commit(&mut app, &[protocol::launch(&tenant, &command)])?;
        answers(&mut app, &pty(&command, "open"), None)?;
        answers(
            &mut app,
            &format!(
                "DELETE FROM sandbox_retained_processes WHERE id = '{}'",
                command.process
            ),
            Some(("55000", "supervised_command.delete_unsettled")),
        )?;
        speaks_again(db).with_context(|| format!("{dropped:?}"))?;
    }
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    Ok(())
}

pub fn schema_renamed(db: &Db) -> Result<()> {
    let before = definitions(&mut db.admin()?)?;
    let mut owner = attached(db)?;
    fleet::pair(db, SCHEMA)?;
    let Scene {
        tenant,
        running,
        mut app,
        ..
    } = Scene::set(db)?;
    let delete = format!(
        "DELETE FROM sandbox_retained_processes WHERE id = '{}'",
        running.process
    );
    for (number, from, to) in [
        (7, SCHEMA, "moved"),
        (8, "moved", SCHEMA),
        (9, SCHEMA, "moved"),
    ] {
        owner.batch_execute(&format!("ALTER SCHEMA {from} RENAME TO {to}"))?;
        set(&mut app, "search_path", to)?;
        let refusal = refused(&mut app, &delete, &[])?;
        refusal.speaks("supervised_command.delete_unsettled")?;
        ensure!(refusal.schema.as_deref() == Some(to), "{refusal:?}");
        commit(
            &mut app,
            &[protocol::launch(&tenant, &Command::new(number))],
        )?;
        let odd = amiss(&mut owner, to)?;
        ensure!(odd.is_empty(), "{odd:#?}");
        let fleet = fleet::answers(&mut owner, READERS, |f| f.native(to))?;
        ensure!(fleet.iter().all(|rows| !rows.is_empty()), "{fleet:?}");
        for client in [&mut app, &mut db.session(APP)?] {
            ensure!(fleet::answers(client, READERS, |f| f.contract())? == fleet);
            let mut transaction = client.transaction()?;
            for function in WRITERS {
                fleet::answer(&mut transaction, &function.contract())
                    .with_context(|| function.name)?;
            }
            transaction.rollback()?;
        }
        let again = lines(
            &mut owner,
            "SELECT DISTINCT action FROM opengeni_guards.attach($1)",
            &[&to],
        )?;
        ensure!(again == ["present"], "{again:?}");
        refused(
            &mut owner,
            &format!("SELECT opengeni_guards.attach('{from}')"),
            &[],
        )?
        .has_state("3F000")?;
    }
    // What stood there named the schema by its old name, which another schema may have by now.
    owner.batch_execute(
        "CREATE SCHEMA opengeni; CREATE TABLE opengeni.sandbox_leases (LIKE moved.sandbox_leases)",
    )?;
    let done = switch(&mut owner, "detach('moved')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    let states = lines(
        &mut owner,
        "SELECT DISTINCT state FROM opengeni_guards.status('moved')
          WHERE object ~ '^(trigger|function opengeni_private[.]|function moved[.])' AND object !~ 'current_|workspace_rls'
            AND state <> 'missing'",
        &[],
    )?;
    ensure!(states == ["plpgsql"], "{states:?}");
    let native: i64 = value(
        &mut owner,
        "SELECT count(*) FROM pg_proc p, pg_depend d WHERE d.objid = p.oid AND d.classid = 'pg_proc'::regclass
            AND d.refobjid = 'opengeni'::regnamespace AND d.deptype = 'n' AND p.pronamespace <> d.refobjid",
        &[],
    )?;
    ensure!(
        native == 0,
        "something serves the schema that took the name"
    );
    for function in READERS {
        fleet::answer(&mut db.session(APP)?, &function.contract())
            .with_context(|| function.name)?;
    }
    // There, and back under the first name: what stood there at first.
    switch(&mut owner, "attach('moved')")?;
    owner.batch_execute("DROP SCHEMA opengeni CASCADE; ALTER SCHEMA moved RENAME TO opengeni")?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    let mut after = definitions(&mut db.admin()?)?;
    after.retain(|line| !line.contains("opengeni_guards"));
    same(&before, &after)
}

pub fn way_home_after_cascade(db: &Db) -> Result<()> {
    for harm in [
        "SELECT 1",
        // By hand, and with the extension.
        "DROP FUNCTION opengeni_private.sandbox_rotation_backlog(), opengeni_private.reap_sandbox_leases(bigint, bigint, bigint)",
        "DROP EXTENSION opengeni_guards CASCADE; SET opengeni_guards.bind_on_create = off; CREATE EXTENSION opengeni_guards",
    ] {
        let before = definitions(&mut db.admin()?)?;
        let mut owner = attached(db)?;
        db.admin()?.batch_execute(harm)?;
        switch(&mut owner, "attach('opengeni')")?;
        let done = switch(&mut owner, "detach('opengeni')")?;
        ensure!(
            !done.iter().any(|line| line.contains("dropped function")),
            "{harm}: {done:#?}"
        );
        db.admin()?
            .batch_execute("DROP EXTENSION opengeni_guards")?;
        same(&before, &definitions(&mut db.admin()?)?).with_context(|| harm)?;
    }
    Ok(())
}
