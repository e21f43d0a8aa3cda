//! What the extension says about itself: `rules()` and `status()`.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;

use crate::fleet;
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "introspection: rules() lists every rule with SQLSTATE, message and hint",
            rules,
        ),
        case(
            server,
            "introspection: status() says native, disabled, missing and altered",
            status,
        ),
        case(
            server,
            "introspection: status() covers every schema, or the one that is asked for",
            status_by_schema,
        ),
        case(
            server,
            "introspection: where no schema holds the tables, whoever names none is told so",
            no_schema,
        ),
    ]
}

fn rules(db: &Db) -> Result<()> {
    let rows = db.session(APP)?.query(
        "SELECT rule, sqlstate, message, hint, guard, table_name FROM opengeni_guards.rules()",
        &[],
    )?;
    for rule in RULES {
        let mut found = rows
            .iter()
            .filter(|row| row.get::<_, &str>("rule") == rule.id);
        let row = found
            .next()
            .with_context(|| format!("{} is not listed", rule.id))?;
        let column = |name: &str| -> Result<String> {
            row.try_get::<_, Option<String>>(name)?
                .with_context(|| format!("{}: no {name}", rule.id))
        };
        ensure!(
            column("sqlstate")? == rule.sqlstate,
            "{}: {}",
            rule.id,
            column("sqlstate")?
        );
        match rule.message {
            Some(message) => ensure!(
                column("message")? == message,
                "{}: {}",
                rule.id,
                column("message")?
            ),
            None => ensure!(
                column("message")?
                    .starts_with("sandbox recovery protocol v2 marker is required for "),
                "{}: {}",
                rule.id,
                column("message")?
            ),
        }
        ensure!(
            !column("hint")?.trim().is_empty(),
            "{}: an empty hint",
            rule.id
        );
        if rule.id.starts_with("supervised_command.") {
            ensure!(
                column("guard")? == "supervised_command_guard",
                "{}",
                column("guard")?
            );
            ensure!(
                column("table_name")? == "sandbox_retained_processes",
                "{}",
                column("table_name")?
            );
            ensure!(found.next().is_none(), "{} is listed twice", rule.id);
        }
    }
    Ok(())
}

/// The state of the one row whose object names this trigger.
fn state_of(client: &mut Client, trigger: &str) -> Result<String> {
    let rows = client.query(
        "SELECT object, state FROM opengeni_guards.status($1) WHERE object ~ ('\\y' || $2 || '\\y')",
        &[&SCHEMA, &trigger],
    )?;
    ensure!(rows.len() == 1, "{} rows name {trigger}", rows.len());
    Ok(rows[0].get("state"))
}

fn status(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    for (trigger, table) in [
        ("supervised_command_guard", "sandbox_retained_processes"),
        ("sandbox_recovery_protocol_v2_lease_guard", "sandbox_leases"),
        (
            "sandbox_recovery_protocol_v2_holder_guard",
            "sandbox_lease_holders",
        ),
        (
            "sandbox_recovery_protocol_v2_admission_guard",
            "sandbox_workspace_mutation_admissions",
        ),
        (
            "sandbox_recovery_protocol_v2_process_guard",
            "sandbox_retained_processes",
        ),
        (
            "sandbox_recovery_protocol_v2_pty_guard",
            "sandbox_pty_sessions",
        ),
        (
            "sandbox_recovery_protocol_v2_checkpoint_guard",
            "sandbox_checkpoint_artifacts",
        ),
    ] {
        let create: String = value(
            &mut owner,
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger
             WHERE tgname = $1 AND tgrelid = $2::text::regclass",
            &[&trigger, &table],
        )?;
        for (sql, expected) in [
            ("SELECT 1".to_string(), "native"),
            (
                format!("ALTER TABLE {table} DISABLE TRIGGER {trigger}"),
                "disabled",
            ),
            (
                format!("ALTER TABLE {table} ENABLE REPLICA TRIGGER {trigger}"),
                "disabled",
            ),
            (
                format!("ALTER TABLE {table} ENABLE TRIGGER {trigger}"),
                "native",
            ),
            (
                format!("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}"),
                "native",
            ),
            (format!("DROP TRIGGER {trigger} ON {table}"), "missing"),
            (create, "native"),
        ] {
            owner.batch_execute(&sql)?;
            let state = state_of(&mut owner, trigger)?;
            ensure!(state == expected, "after {sql}: {state}");
        }
        // Under our name, but not our function.
        owner.batch_execute(&format!(
            "CREATE OR REPLACE FUNCTION idle() RETURNS trigger LANGUAGE plpgsql AS
               'BEGIN RETURN coalesce(NEW, OLD); END';
             DROP TRIGGER {trigger} ON {table};
             CREATE TRIGGER {trigger} BEFORE INSERT OR UPDATE OR DELETE ON {table}
               FOR EACH ROW EXECUTE FUNCTION idle()"
        ))?;
        let state = state_of(&mut owner, trigger)?;
        ensure!(
            state == "altered",
            "{trigger} calls something else: {state}"
        );
    }
    Ok(())
}

fn status_by_schema(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute("CREATE SCHEMA second")?;
    provision(&mut owner, "second")?;
    let schemas = "SELECT DISTINCT data_schema FROM opengeni_guards.status($1)
         WHERE object ~ 'supervised_command_guard' ORDER BY 1";
    for role in [OWNER, SUPERUSER] {
        let mut session = db.session(role)?;
        let all = lines(&mut session, schemas, &[&None::<&str>])?;
        ensure!(all == [SCHEMA, "second"], "{role}: {all:?}");
        let one = lines(&mut session, schemas, &[&"second"])?;
        ensure!(one == ["second"], "{role}: {one:?}");
    }
    Ok(())
}

fn no_schema(db: &Db) -> Result<()> {
    db.admin()?
        .batch_execute("DROP SCHEMA opengeni CASCADE; DROP SCHEMA opengeni_private CASCADE")?;
    let (mut owner, notices) = fleet::listening(&db.server, OWNER, &db.name)?;
    for call in [
        "status()",
        "attach()",
        "attach(mode => 'shadow')",
        "detach()",
    ] {
        let sql = format!("SELECT FROM opengeni_guards.{call}");
        let lines = owner.query(&sql, &[]).with_context(|| sql.clone())?;
        ensure!(lines.is_empty(), "{call}: {} lines", lines.len());
        let told = notices.take();
        ensure!(
            told.len() == 1
                && told[0].severity() == "NOTICE"
                && told[0].message().starts_with("no schema of this database"),
            "{call}: {told:?}"
        );
    }
    Ok(())
}
