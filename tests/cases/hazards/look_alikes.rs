//! 29: other things under the tables' names.

use anyhow::{Context, Result, ensure};

use super::{attached, is_ready};
use crate::attach::{create_extension, extension, switch, works};
use crate::support::*;

/// What can stand under a table's name: how it is made of the table `{t}` (in schema `{s}`), the SQLSTATE that it is
/// refused with, and how status() describes it.
const ALIKE: [(&str, &str, &str, &str); 8] = [
    ("a view", "ALTER TABLE {s}.{t} RENAME TO real; CREATE VIEW {s}.{t} AS SELECT * FROM {s}.real", "42809", "not an ordinary table"),
    ("a materialized view", "ALTER TABLE {s}.{t} RENAME TO real; CREATE MATERIALIZED VIEW {s}.{t} AS SELECT * FROM {s}.real", "42809",
        "not an ordinary table"),
    ("a partitioned table", "ALTER TABLE {s}.{t} RENAME TO real; CREATE TABLE {s}.{t} (LIKE {s}.real INCLUDING DEFAULTS) PARTITION BY HASH (account_id);
        CREATE TABLE {s}.part PARTITION OF {s}.{t} FOR VALUES WITH (MODULUS 1, REMAINDER 0)", "42809", "not an ordinary table"),
    ("a foreign table", "ALTER TABLE {s}.{t} RENAME TO real; CREATE FOREIGN TABLE {s}.{t} (id uuid NOT NULL, provider_command jsonb) SERVER nowhere",
        "42809", "not an ordinary table"),
    ("a table with a child", "CREATE TABLE {s}.heir () INHERITS ({s}.{t})", "42809", "has child tables, which no guard reads"),
    ("another text type", "ALTER TABLE {s}.{t} ALTER COLUMN provider_backend TYPE varchar(99)", "42804",
        "column provider_backend has type character varying(99) instead of text"),
    ("a domain", "CREATE DOMAIN {s}.trapped AS text CHECK (trap.sure(value)); ALTER TABLE {s}.{t} ALTER COLUMN provider_backend TYPE {s}.trapped",
        "42804", "column provider_backend has type {s}.trapped instead of text"),
    ("a type with a cast", "CREATE TYPE {s}.kind AS ENUM ('modal');
        CREATE FUNCTION {s}.to_text({s}.kind) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM trap.spring(); RETURN 'modal'; END $$;
        CREATE CAST ({s}.kind AS text) WITH FUNCTION {s}.to_text({s}.kind) AS IMPLICIT;
        ALTER TABLE {s}.{t} ALTER COLUMN provider_backend DROP DEFAULT;
        ALTER TABLE {s}.{t} ADD COLUMN other {s}.kind; ALTER TABLE {s}.{t} DROP COLUMN provider_backend CASCADE;
        ALTER TABLE {s}.{t} RENAME COLUMN other TO provider_backend", "42804", "column provider_backend has type {s}.kind instead of text"),
];

fn trap_only(db: &Db) -> Result<()> {
    db.admin()?.batch_execute(&format!(
        "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
         GRANT USAGE ON FOREIGN SERVER nowhere TO {OWNER}"
    ))?;
    db.owner()?.batch_execute(
        "CREATE SCHEMA trap; CREATE SEQUENCE trap.sprung;
         CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('trap.sprung'); RETURN true; END $$;
         CREATE FUNCTION trap.sure(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN trap.spring(); END $$",
    )?;
    Ok(())
}

fn named(sql: &str, schema: &str, table: &str) -> String {
    sql.replace("{s}", schema).replace("{t}", table)
}

/// The definitions that name a schema.
fn of_schema(db: &Db, schema: &str) -> Result<Vec<String>> {
    let mut lines = snapshot(&mut db.admin()?)?;
    lines.retain(|line| line.contains(&format!("{schema}.")));
    Ok(lines)
}

pub fn look_alikes_elsewhere(db: &Db) -> Result<()> {
    trap_only(db)?;
    let mut owner = db.owner()?;
    let tables = lines(
        &mut owner,
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'opengeni'::regnamespace AND relkind = 'r'",
        &[],
    )?;
    const TABLE: &str = "sandbox_retained_processes";
    for (number, (_, sql, ..)) in ALIKE.iter().enumerate() {
        let schema = format!("alike_{number}");
        owner.batch_execute(&format!("CREATE SCHEMA {schema}"))?;
        for table in &tables {
            owner.batch_execute(&format!(
                "CREATE TABLE {schema}.{table} (LIKE opengeni.{table} INCLUDING DEFAULTS)"
            ))?;
        }
        owner
            .batch_execute(&named(sql, &schema, TABLE))
            .with_context(|| named(sql, &schema, TABLE))?;
    }
    let all = |db: &Db| -> Result<Vec<Vec<String>>> {
        (0..ALIKE.len())
            .map(|n| of_schema(db, &format!("alike_{n}")))
            .collect()
    };
    let before = all(db)?;
    let told = create_extension(db)?;
    ensure!(
        told.contains("26 guards of schema opengeni are native"),
        "{told}"
    );
    let done = switch(&mut owner, "attach()")?;
    for (number, (what, sql, state, detail)) in ALIKE.iter().enumerate() {
        let schema = format!("alike_{number}");
        let detail = named(detail, &schema, TABLE);
        // A schema is found by its process table; where nothing of the kind stands under the name, it is none.
        let found = !sql.contains("RENAME TO real");
        let warned = told.contains(&format!("guards of schema {schema} are left as they are"));
        ensure!(warned == found, "{what}: {told}");
        let skipped = done
            .iter()
            .find(|line| line.starts_with(&format!("skipped schema {schema} ")));
        ensure!(
            skipped.is_some_and(|line| line.contains(&detail)) == found,
            "{what}: {done:#?}"
        );
        for call in ["attach", "provision"] {
            let refusal = refused(
                &mut owner,
                &format!("SELECT opengeni_guards.{call}('{schema}')"),
                &[],
            )
            .with_context(|| format!("{what}: {call}"))?;
            refusal.has_state(state).with_context(|| *what)?;
            refusal.names(&[TABLE])?;
        }
        let ready: bool = value(&mut owner, "SELECT opengeni_guards.ready($1)", &[&schema])?;
        ensure!(!ready, "{what}");
        let seen = lines(
            &mut owner,
            "SELECT concat_ws(' ', state, detail) FROM opengeni_guards.status($1) WHERE object = 'table ' || $2",
            &[&schema, &TABLE],
        )?;
        ensure!(
            seen == [format!("incompatible {detail}")],
            "{what}: {seen:?}"
        );
        // There is nothing to take back; that it was the first schema that a shared function is from may be said.
        let mut attempt = owner.transaction()?;
        let back = format!("SELECT action FROM opengeni_guards.detach('{schema}')");
        match attempt.query(&back, &[]) {
            Ok(rows) => ensure!(
                rows.iter().all(|row| row.get::<_, &str>(0) == "left"),
                "{what}"
            ),
            Err(error) => Refusal::of(&error)?.has_state("55000")?,
        }
        attempt.rollback()?;
    }
    for (before, after) in before.iter().zip(&all(db)?) {
        same(before, after)?;
    }
    ensure!(
        value::<bool>(&mut owner, "SELECT NOT is_called FROM trap.sprung", &[])?,
        "the owner's code ran"
    );
    ensure!(is_ready(&mut owner)?);
    works(db, true)
}

pub fn look_alikes_inside(db: &Db) -> Result<()> {
    trap_only(db)?;
    let mut owner = db.owner()?;
    // Before there is an extension, each by itself; undone before the next.
    for table in [
        "sandbox_retained_processes",
        "sandbox_workspace_mutation_admissions",
    ] {
        for (what, sql, state, detail) in ALIKE {
            let context = || format!("{what} as {table}");
            let (sql, detail) = (named(sql, SCHEMA, table), named(detail, SCHEMA, table));
            let mut admin = db.admin()?;
            let mut transaction = admin.transaction()?;
            transaction
                .batch_execute(&format!("SET LOCAL ROLE {OWNER}; {sql}; RESET ROLE"))
                .with_context(context)?;
            let guards = "SELECT array_agg(tgfoid::regproc::text ORDER BY 1) FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
               WHERE relnamespace = 'opengeni'::regnamespace AND NOT tgisinternal";
            let before: Vec<String> = value(&mut transaction, guards, &[])?;
            transaction
                .batch_execute("CREATE EXTENSION opengeni_guards")
                .with_context(context)?;
            ensure!(
                value::<Vec<String>>(&mut transaction, guards, &[])? == before,
                "{}",
                context()
            );
            let refusal = refused(
                &mut transaction,
                "SELECT opengeni_guards.attach('opengeni')",
                &[],
            )?;
            refusal.has_state(state).with_context(context)?;
            refusal.names(&[table])?;
            let seen = lines(
                &mut transaction,
                "SELECT concat_ws(' ', state, detail) FROM opengeni_guards.status('opengeni') WHERE object = 'table ' || $1",
                &[&table],
            )?;
            ensure!(
                seen == [format!("incompatible {detail}")],
                "{}: {seen:?}",
                context()
            );
            transaction.rollback()?;
        }
    }
    // After it was attached: status tells, attach leaves everything, and a guard that needs the table says so.
    extension(db)?;
    switch(&mut owner, "attach('opengeni')")?;
    let (tenant, command) = db.supervised()?;
    let child = "sandbox_workspace_mutation_admissions";
    let mut app = db.app(&tenant)?;
    let touch =
        "UPDATE sandbox_retained_processes SET provider_command_input_index = 9 WHERE id = $1";
    for (what, sql, state, detail) in ALIKE {
        let context = || format!("{what} as {child}");
        let mut transaction = owner.transaction()?;
        // The owner writes, who sees the row as the tenant does.
        for (name, text) in [
            ("opengeni.account_id", tenant.account.to_string()),
            ("opengeni.workspace_id", tenant.workspace.to_string()),
            (MARKER, "1".to_owned()),
        ] {
            set(&mut transaction, name, &text)?;
        }
        refused(&mut transaction, touch, &[&command.process])?
            .is_by("55000", "supervised_command.stdin_child")?;
        transaction
            .batch_execute(&named(sql, SCHEMA, child))
            .with_context(context)?;
        // Making it may have rewritten rows; looking at it must not.
        transaction.batch_execute("SELECT setval('trap.sprung', 1, false)")?;
        refused(
            &mut transaction,
            "SELECT opengeni_guards.attach('opengeni')",
            &[],
        )?
        .has_state(state)
        .with_context(context)?;
        let seen = lines(
            &mut transaction,
            "SELECT concat_ws(' ', state, detail) FROM opengeni_guards.status('opengeni') WHERE object = 'table ' || $1",
            &[&child],
        )?;
        ensure!(
            seen == [format!("incompatible {}", named(detail, SCHEMA, child))],
            "{}: {seen:?}",
            context()
        );
        let refusal = refused(&mut transaction, touch, &[&command.process])?;
        ensure!(
            ["42P01", "42809", "42804", "42703"].contains(&refusal.sqlstate.as_str()),
            "{}: {refusal:?}",
            context()
        );
        refusal
            .names(&[child, "supervised_command_guard"])
            .with_context(context)?;
        let quiet = "SELECT NOT is_called FROM trap.sprung";
        ensure!(
            value::<bool>(&mut transaction, quiet, &[])?,
            "{}: the owner's code ran",
            context()
        );
        transaction.rollback()?;
        refused(&mut app, touch, &[&command.process])?
            .is_by("55000", "supervised_command.stdin_child")?;
    }
    Ok(())
}

pub fn detach_of_a_bystander(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    owner.batch_execute(
        "CREATE SCHEMA other;
         CREATE TABLE other.sandbox_retained_processes (LIKE opengeni.sandbox_retained_processes)",
    )?;
    let before = snapshot(&mut db.admin()?)?;
    for call in ["detach('other')", "detach('other', force => true)"] {
        let done = switch(&mut owner, call)?;
        ensure!(
            done.iter().all(|line| line.starts_with("left ")),
            "{call}: {done:#?}"
        );
        same(&before, &snapshot(&mut db.admin()?)?).with_context(|| call)?;
    }
    Ok(())
}
