//! 14: guards and contract functions that were removed, disabled or taken back.

use anyhow::{Context, Result, ensure};
use postgres::Client;

use super::{attached, is_ready, speaks_again, states};
use crate::attach::switch;
use crate::support::*;

/// What befalls a guard.
struct Harm {
    sql: &'static str,
    trigger: &'static str,
    state: &'static str,
    /// How attach speaks of it: the action, or the SQLSTATE that it fails with.
    attach: &'static str,
    /// What a DBA has to do besides.
    repair: &'static str,
}

const HARMS: &[Harm] = &[
    Harm {
        sql: "DROP TRIGGER supervised_command_guard ON sandbox_retained_processes",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "missing",
        attach: "created",
        repair: "",
    },
    Harm {
        sql: "ALTER TABLE sandbox_retained_processes DISABLE TRIGGER supervised_command_guard",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "disabled",
        attach: "left",
        repair: "ALTER TABLE sandbox_retained_processes ENABLE TRIGGER supervised_command_guard",
    },
    Harm {
        sql: "ALTER TABLE sandbox_retained_processes DISABLE TRIGGER USER",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "disabled",
        attach: "left",
        repair: "ALTER TABLE sandbox_retained_processes ENABLE TRIGGER USER",
    },
    Harm {
        sql: "ALTER TABLE sandbox_retained_processes ENABLE REPLICA TRIGGER supervised_command_guard",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "disabled",
        attach: "left",
        repair: "ALTER TABLE sandbox_retained_processes ENABLE TRIGGER supervised_command_guard",
    },
    Harm {
        sql: "CREATE OR REPLACE TRIGGER supervised_command_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_retained_processes
                FOR EACH ROW EXECUTE FUNCTION opengeni_private.supervised_command_guard()",
        trigger: "supervised_command_guard on sandbox_retained_processes",
        state: "plpgsql",
        attach: "rebound",
        repair: "",
    },
    Harm {
        sql: "DROP TRIGGER sandbox_retained_processes_identity_v2 ON sandbox_retained_processes;
              CREATE CONSTRAINT TRIGGER sandbox_retained_processes_identity_v2 AFTER INSERT OR UPDATE ON sandbox_retained_processes
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
                EXECUTE FUNCTION opengeni_private.validate_sandbox_retained_process_v2()",
        trigger: "sandbox_retained_processes_identity_v2 on sandbox_retained_processes",
        state: "plpgsql",
        attach: "rebound",
        repair: "",
    },
    // Triggers hang on the columns of their WHEN and of their UPDATE OF.
    Harm {
        sql: "ALTER TABLE sandbox_retained_processes DROP COLUMN settlement_reason CASCADE",
        trigger: "supervised_provider_loss_commit_guard on sandbox_retained_processes",
        state: "missing",
        attach: "42703",
        repair: "ALTER TABLE sandbox_retained_processes ADD COLUMN settlement_reason text",
    },
    Harm {
        sql: "ALTER TABLE sandbox_leases DROP COLUMN unobservable_command_drain_ids CASCADE",
        trigger: "supervised_command_capture_guard on sandbox_leases",
        state: "missing",
        attach: "42703",
        repair: "ALTER TABLE sandbox_leases ADD COLUMN unobservable_command_drain_ids uuid[]",
    },
    Harm {
        sql: "ALTER TABLE sandbox_leases DROP COLUMN current_checkpoint_artifact_id CASCADE",
        trigger: "sandbox_checkpoint_refs_guard on sandbox_leases",
        state: "missing",
        attach: "42703",
        repair: "ALTER TABLE sandbox_leases ADD COLUMN current_checkpoint_artifact_id uuid",
    },
];

pub fn guards_go(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let attach = "SELECT object, action FROM opengeni_guards.attach('opengeni')";
    for harm in HARMS {
        let context = || harm.sql.to_owned();
        let trigger = format!("trigger {}", harm.trigger);
        owner.batch_execute(harm.sql)?;
        ensure!(!is_ready(&mut owner)?, "{}", harm.sql);
        let seen = states(&mut owner, &trigger)?;
        ensure!(seen == [harm.state], "{}: {seen:?}", harm.sql);
        let mode = states(&mut owner, "mode")?;
        ensure!(mode == ["partly"], "{}: {mode:?}", harm.sql);
        let on = harm.trigger.replace(" on ", " on opengeni.");
        let action_of = |owner: &mut Client| -> Result<Option<String>> {
            Ok(owner
                .query(attach, &[])?
                .iter()
                .find(|row| row.get::<_, &str>(0) == format!("trigger {on}"))
                .map(|row| row.get(1)))
        };
        if harm.attach == "42703" {
            refused(&mut owner, attach, &[])?
                .has_state(harm.attach)
                .with_context(context)?;
            ensure!(
                states(&mut owner, "table")? == ["incompatible"],
                "{}",
                harm.sql
            );
            owner.batch_execute(harm.repair)?;
            let action = action_of(&mut owner)?;
            ensure!(
                action.as_deref() == Some("created"),
                "{}: {action:?}",
                harm.sql
            );
        } else {
            let action = action_of(&mut owner)?;
            ensure!(
                action.as_deref() == Some(harm.attach),
                "{}: {action:?}",
                harm.sql
            );
            ensure!(
                is_ready(&mut owner)? == harm.repair.is_empty(),
                "{}",
                harm.sql
            );
            owner.batch_execute(harm.repair)?;
        }
        ensure!(is_ready(&mut owner)?, "{}", harm.sql);
        let mode = states(&mut owner, "mode")?;
        ensure!(mode == ["native"], "{}: {mode:?}", harm.sql);
        // Each of these guards speaks again.
        speaks_again(db).with_context(context)?;
    }
    // What was dropped with a column is not in the way of going back.
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    Ok(())
}

pub fn contract_taken_back(db: &Db) -> Result<()> {
    let before = definitions(&mut db.admin()?)?;
    let functions = lines(
        &mut db.owner()?,
        "SELECT pg_get_functiondef(oid) FROM pg_proc
          WHERE pronamespace = 'opengeni_private'::regnamespace
            AND proname IN ('reap_sandbox_leases', 'sandbox_rotation_backlog', 'list_live_modal_sandbox_leases')",
        &[],
    )?;
    ensure!(functions.len() == 3, "{functions:#?}");
    let mut owner = attached(db)?;
    for function in &functions {
        owner.batch_execute(function)?;
    }
    let seen = states(&mut owner, "function opengeni_private.reap_sandbox_leases")?;
    ensure!(seen == ["plpgsql"], "{seen:?}");
    ensure!(is_ready(&mut owner)?, "no guard was touched");
    let done = switch(&mut owner, "attach('opengeni')")?;
    let replaced: Vec<&String> = done
        .iter()
        .filter(|line| !line.starts_with("present "))
        .collect();
    ensure!(
        replaced.len() == 3
            && replaced
                .iter()
                .all(|line| line.starts_with("replaced function ")),
        "{replaced:#?}"
    );
    let seen = states(&mut owner, "function opengeni_private.reap_sandbox_leases")?;
    ensure!(seen == ["native"], "{seen:?}");
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    // PUBLIC had lost them before the migration took them back.
    let closed = |lines: Vec<String>| -> Vec<String> {
        let lines = lines.into_iter();
        lines
            .filter(|line| !line.contains("opengeni_guards"))
            .map(|line| line.replace("{=X/og_cases_owner,", "{"))
            .collect()
    };
    same(&closed(before), &closed(definitions(&mut db.admin()?)?))
}

pub fn migration_taken_back(db: &Db) -> Result<()> {
    let originals = db.owner()?.query(
        "SELECT pg_get_triggerdef(t.oid), tgconstraint <> 0, format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass)
           FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
          WHERE relnamespace = 'opengeni'::regnamespace AND NOT tgisinternal",
        &[],
    )?;
    ensure!(originals.len() == 21, "{} triggers", originals.len());
    let mut owner = attached(db)?;
    let before = definitions(&mut db.admin()?)?;
    for round in 0..2 {
        for row in &originals {
            let (definition, constraint, drop): (&str, bool, &str) =
                (row.get(0), row.get(1), row.get(2));
            // The first migration replaces what can be replaced, the second drops and creates.
            owner.batch_execute(&match constraint || round == 1 {
                true => format!("{drop}; {definition}"),
                false => definition.replacen("CREATE", "CREATE OR REPLACE", 1),
            })?;
        }
        let seen = lines(
            &mut owner,
            "SELECT state || ' ' || count(*) FROM opengeni_guards.status('opengeni')
              WHERE object LIKE 'trigger %' GROUP BY state ORDER BY 1",
            &[],
        )?;
        ensure!(seen == ["native 5", "plpgsql 21"], "{seen:?}");
        ensure!(!is_ready(&mut owner)? && states(&mut owner, "mode")? == ["partly"]);
        let done = switch(&mut owner, "attach('opengeni')")?;
        let rebound = done.iter().filter(|line| line.starts_with("rebound "));
        ensure!(rebound.count() == 21, "{done:#?}");
        ensure!(is_ready(&mut owner)?);
        same(&before, &definitions(&mut db.admin()?)?)?;
    }
    speaks_again(db)
}
