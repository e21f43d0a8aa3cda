//! `provision`: refuses as a whole, repeats without effect, serves any number of schemas.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;
use uuid::Uuid;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "provision: a schema that does not exist is 3F000 and changes nothing",
            no_such_schema,
        ),
        case(
            server,
            "provision: somebody who does not own the schema is refused with 42501 and changes nothing",
            not_the_owner,
        ),
        case(
            server,
            "provision: a table with a column of another type is 42804, named, and changes nothing",
            wrong_column_type,
        ),
        case(
            server,
            "provision: a view under a table's name is 42809 and changes nothing",
            view_in_the_way,
        ),
        case(
            server,
            "provision: a NULL schema is refused and changes nothing",
            null_schema,
        ),
        case(
            server,
            "provision: a second run reports everything present and changes nothing",
            second_run,
        ),
        case(
            server,
            "provision: what was dropped since comes back, the rest stays",
            repairs,
        ),
        case(
            server,
            "provision: one session works in two data schemas alternately",
            two_schemas,
        ),
        case(
            server,
            "provision: a schema whose name needs quoting works like any other",
            quoted_schema,
        ),
        case(
            server,
            "provision: the caller's search_path decides nothing",
            search_path_of_the_caller,
        ),
        bare_case(
            server,
            "provision: public is the default and belongs to the database's owner",
            public_by_default,
        ),
        bare_case(
            server,
            "provision: two callers at once leave one whole data model",
            two_callers,
        ),
        case(
            server,
            "provision: an owner besides the tables' own is refused with 42501",
            second_owner,
        ),
        case(
            server,
            "provision: tables in use are locked all or none",
            in_use,
        ),
        bare_case(
            server,
            "provision: a database of another encoding works or refuses the extension",
            other_encodings,
        ),
        bare_case(
            server,
            "provision: somebody else's opengeni_private is not relied on",
            private_schema_of_a_stranger,
        ),
    ]
}

const PROVISION: &str = "SELECT opengeni_guards.provision($1)";

/// The call is refused and the catalogue is as it was.
fn changes_nothing(db: &Db, role: &str, sql: &str, states: &[&str]) -> Result<Refusal> {
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    let refusal = refused(&mut db.session(role)?, sql, &[])?;
    ensure!(
        states.contains(&refusal.sqlstate.as_str()),
        "expected one of {states:?}, got {refusal:?}"
    );
    same(&before, &snapshot(&mut admin)?)?;
    Ok(refusal)
}

fn no_such_schema(db: &Db) -> Result<()> {
    for role in [SUPERUSER, OWNER] {
        let call = "SELECT opengeni_guards.provision('no such schema')";
        changes_nothing(db, role, call, &["3F000"])?.names(&["no such schema"])?;
    }
    Ok(())
}

fn not_the_owner(db: &Db) -> Result<()> {
    db.owner()?.batch_execute(&format!(
        "CREATE SCHEMA fresh; GRANT ALL ON SCHEMA fresh TO {APP}"
    ))?;
    for role in [APP, STRANGER] {
        for schema in [SCHEMA, "fresh"] {
            for call in [
                format!("SELECT opengeni_guards.provision('{schema}')"),
                format!("SELECT opengeni_guards.provision('{schema}', '{OWNER}')"),
            ] {
                changes_nothing(db, role, &call, &["42501"])?;
            }
            // Naming oneself the owner does not make one.
            let call = format!("SELECT opengeni_guards.provision('{SCHEMA}', '{role}')");
            changes_nothing(db, role, &call, &["42501"])?;
        }
    }
    Ok(())
}

fn wrong_column_type(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    // Castable types are wrong types too: the guards read columns by type.
    for (schema, table, column, kind) in [
        (
            "first",
            "sandbox_lease_holders",
            "last_heartbeat_at",
            "timestamp",
        ),
        ("second", "sandbox_leases", "lease_epoch", "bigint"),
        (
            "third",
            "sandbox_retained_processes",
            "cancellation_reason",
            "varchar",
        ),
    ] {
        owner.batch_execute(&format!("CREATE SCHEMA {schema}"))?;
        provision(&mut owner, schema)?;
        owner.batch_execute(&format!(
            "ALTER TABLE {schema}.{table} ALTER COLUMN {column} TYPE {kind}"
        ))?;
        for role in [SUPERUSER, OWNER] {
            let call = format!("SELECT opengeni_guards.provision('{schema}')");
            changes_nothing(db, role, &call, &["42804"])?.names(&[table, column])?;
        }
    }

    // A foreign table of that name in a schema where everything else is missing.
    owner.batch_execute(
        "CREATE SCHEMA alien; CREATE TABLE alien.sandbox_pty_sessions (id text PRIMARY KEY)",
    )?;
    changes_nothing(
        db,
        OWNER,
        "SELECT opengeni_guards.provision('alien')",
        &["42804"],
    )?
    .names(&["sandbox_pty_sessions", "id"])
}

fn view_in_the_way(db: &Db) -> Result<()> {
    db.owner()?.batch_execute(
        "CREATE SCHEMA viewed;
         CREATE VIEW viewed.sandbox_leases AS SELECT * FROM sandbox_leases",
    )?;
    changes_nothing(
        db,
        OWNER,
        "SELECT opengeni_guards.provision('viewed')",
        &["42809"],
    )?
    .names(&["sandbox_leases"])
}

fn null_schema(db: &Db) -> Result<()> {
    for role in [SUPERUSER, OWNER] {
        changes_nothing(
            db,
            role,
            "SELECT opengeni_guards.provision(NULL)",
            &["22004", "22023"],
        )?;
    }
    Ok(())
}

fn second_run(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    for role in [OWNER, SUPERUSER] {
        let report = db.session(role)?.query(
            "SELECT object, action FROM opengeni_guards.provision($1)",
            &[&SCHEMA],
        )?;
        ensure!(!report.is_empty(), "nothing reported to {role}");
        for row in report {
            let (object, action): (String, String) = (row.get(0), row.get(1));
            ensure!(
                ["present", "unchanged"].contains(&action.as_str()),
                "second run: {object} {action}"
            );
        }
        same(&before, &snapshot(&mut admin)?)?;
    }
    Ok(())
}

fn repairs(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let before = definitions(&mut admin)?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "DROP TRIGGER supervised_command_guard ON sandbox_retained_processes;
         DROP TRIGGER sandbox_recovery_protocol_v2_lease_guard ON sandbox_leases;
         DROP INDEX sandbox_workspace_mutation_admissions_actor_idx;
         DROP POLICY workspace_isolation ON sandbox_lease_holders;
         ALTER TABLE sandbox_leases DROP CONSTRAINT sandbox_leases_liveness_check",
    )?;
    provision(&mut owner, SCHEMA)?;
    same(&before, &definitions(&mut admin)?)
}

/// The same command in both schemas; only the first knows of a child admission.
fn alternate(db: &Db, first: &str, second: &str) -> Result<()> {
    let tenant = Tenant::new();
    let command = Command::new(1);
    let mut admin = db.admin()?;
    for schema in [first, second] {
        set(&mut admin, "search_path", schema)?;
        commit(
            &mut admin,
            &[protocol::seed(&tenant), protocol::launch(&tenant, &command)],
        )?;
    }
    set(&mut admin, "search_path", first)?;
    commit(
        &mut admin,
        &[protocol::admit_input(&tenant, &command, Uuid::new_v4())],
    )?;

    let mut app = db.app(&tenant)?;
    for index in 1..=3 {
        let step = protocol::advance_input(&command, index);
        set(&mut app, "search_path", first)?;
        commit(&mut app, &[protocol::advance_input(&command, index)])?;
        set(&mut app, "search_path", second)?;
        step_refused(&mut app, &step)?.speaks("supervised_command.stdin_child")?;
        // What the first schema has to settle is nothing to the second.
        set(&mut app, "search_path", first)?;
        let receipt = protocol::record_receipt(&command, command.receipt(0));
        step_refused(&mut app, &receipt)?.speaks("supervised_command.input_settles_first")?;
        set(&mut app, "search_path", second)?;
        let mut trial = app.transaction()?;
        run(&mut trial, &receipt)?;
        trial.rollback()?;
    }
    Ok(())
}

fn second_schema(owner: &mut Client, schema: &str) -> Result<()> {
    let quoted: String = value(owner, "SELECT quote_ident($1)", &[&schema])?;
    owner.batch_execute(&format!("CREATE SCHEMA {quoted}"))?;
    provision(owner, schema)?;
    grant_usage(owner, APP, schema)?;
    Ok(())
}

fn two_schemas(db: &Db) -> Result<()> {
    second_schema(&mut db.owner()?, "elsewhere")?;
    alternate(db, SCHEMA, "elsewhere")
}

fn quoted_schema(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    let awkward = "Data \"2\" of o'Neill, ü $1 %I";
    second_schema(&mut owner, awkward)?;
    let quoted: String = value(&mut owner, "SELECT quote_ident($1)", &[&awkward])?;
    alternate(db, &quoted, SCHEMA)?;

    // The contract's functions serve the schema that was first.
    let report = owner.query(
        "SELECT action FROM opengeni_guards.provision($1) WHERE note IS DISTINCT FROM 'serves schema opengeni'",
        &[&awkward],
    )?;
    ensure!(
        report
            .iter()
            .all(|row| ["present", "unchanged"].contains(&row.get::<_, &str>(0))),
        "a second run changes something"
    );
    let states = lines(
        &mut owner,
        "SELECT DISTINCT state FROM opengeni_guards.status($1)
         WHERE object ~ 'supervised_command_guard|sandbox_recovery_protocol_v2'",
        &[&awkward],
    )?;
    ensure!(states == ["native"], "{states:?}");
    Ok(())
}

fn search_path_of_the_caller(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute(
        "CREATE SCHEMA trap; CREATE SCHEMA target;
         CREATE TEMP TABLE sandbox_leases (id int);
         CREATE TEMP TABLE pg_class (relname name);
         CREATE TEMP TABLE pg_trigger (tgname name);
         SET search_path = trap, pg_catalog",
    )?;
    owner.execute(PROVISION, &[&"target"])?;
    let made = |client: &mut Client, schema: &str| -> Result<i64> {
        value(
            client,
            "SELECT count(*) FROM pg_catalog.pg_class WHERE relnamespace = $1::text::regnamespace",
            &[&schema],
        )
    };
    ensure!(made(&mut owner, "trap")? == 0, "made in the search_path");
    ensure!(
        made(&mut owner, "target")? == made(&mut owner, SCHEMA)?,
        "the target is not complete"
    );
    // The setting is the caller's own again.
    ensure!(
        value::<String>(&mut owner, "SELECT current_setting('search_path')", &[])?
            == "trap, pg_catalog",
        "search_path was left changed"
    );
    Ok(())
}

fn public_by_default(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
    // From 15 on public belongs to pg_database_owner, which stands for the database's owner.
    admin.batch_execute("ALTER SCHEMA public OWNER TO pg_database_owner")?;
    for call in [
        "SELECT opengeni_guards.provision()",
        "SELECT opengeni_guards.provision('public')",
    ] {
        admin.query(call, &[])?;
        let owners = lines(
            &mut admin,
            "SELECT DISTINCT relowner::regrole::text FROM pg_class
             WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'",
            &[],
        )?;
        ensure!(owners == [OWNER], "tables of {owners:?}");
    }
    let mut owner = db.owner()?;
    provision(&mut owner, "public")?;
    grant_usage(&mut owner, APP, "public")?;

    let tenant = Tenant::new();
    let command = Command::new(1);
    set(&mut admin, "search_path", "public")?;
    commit(&mut admin, &[protocol::seed(&tenant)])?;
    let mut app = db.app(&tenant)?;
    set(&mut app, "search_path", "public")?;
    commit(&mut app, &[protocol::launch(&tenant, &command)])?;
    step_refused(&mut app, &protocol::advance_input(&command, 1))?
        .speaks("supervised_command.stdin_child")
}

fn two_callers(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
    let mut first = db.owner()?;
    first.batch_execute(&format!("CREATE SCHEMA {SCHEMA}"))?;
    let mut second = db.owner()?;
    let pid = backend_pid(&mut second)?;

    let mut creating = first.transaction()?;
    creating.execute(PROVISION, &[&SCHEMA])?;
    let outcome = thread::scope(|scope| {
        let late = scope.spawn(move || second.execute(PROVISION, &[&SCHEMA]).map(drop));
        let waited = wait_for_lock(&mut admin, pid);
        creating.commit()?;
        let outcome = late.join().map_err(|_| anyhow!("the second caller died"))?;
        waited.map(|()| outcome)
    })?;
    // It may have met the first one's objects half-way: then it says so and has changed nothing.
    if let Err(error) = outcome {
        let refusal = Refusal::of(&error)?;
        ensure!(
            [
                "23505", "42P06", "42P07", "42710", "42723", "40001", "55P03"
            ]
            .contains(&refusal.sqlstate.as_str()),
            "{refusal:?}"
        );
    }
    let again = first.query(
        "SELECT action FROM opengeni_guards.provision($1)",
        &[&SCHEMA],
    )?;
    ensure!(
        again.iter().all(|row| row.get::<_, &str>(0) == "present"),
        "not whole after two callers"
    );
    Ok(())
}

fn second_owner(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute("DROP TABLE sandbox_command_output")?;
    let before = snapshot(&mut admin)?;
    let call = format!("SELECT opengeni_guards.provision('{SCHEMA}', '{SUPERUSER}')");
    let refusal = refused(&mut admin, &call, &[])?;
    refusal.has_state("42501")?;
    refusal.names(&[OWNER, SUPERUSER])?;
    same(&before, &snapshot(&mut admin)?)?;
    let call = format!("SELECT opengeni_guards.provision('{SCHEMA}', '{OWNER}')");
    admin.batch_execute(&call)?;
    Ok(())
}

/// An older release's schema: an index and a guard are missing, of different tables.
fn in_use(db: &Db) -> Result<()> {
    let (tenant, command) = db.legacy()?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "DROP INDEX sandbox_leases_reap_idx; DROP POLICY modal_inventory_owner_read ON sandbox_leases;
         DROP TRIGGER supervised_command_guard ON sandbox_retained_processes;
         DROP TRIGGER sandbox_retained_processes_identity_v2 ON sandbox_retained_processes",
    )?;
    let before = snapshot(&mut db.admin()?)?;
    let mut app = db.app(&tenant)?;
    let process = "UPDATE sandbox_retained_processes SET reconcile_attempts = 1 WHERE id = $1";
    let lease = "UPDATE sandbox_leases SET updated_at = now() WHERE id = $1";

    let mut held = app.transaction()?;
    accepted(&mut held, process, &[&command.process])?;
    let refusal = refused(&mut owner, PROVISION, &[&SCHEMA])?;
    refusal.has_state("55P03")?;
    same(&before, &snapshot(&mut db.admin()?)?)?;

    // The transaction goes on to the other table while provision waits for the first.
    let waited = thread::scope(|scope| -> Result<Duration> {
        let provisioning = scope.spawn(|| owner.execute(PROVISION, &[&SCHEMA]));
        thread::sleep(Duration::from_millis(1500));
        let start = Instant::now();
        accepted(&mut held, lease, &[&tenant.lease])?;
        let waited = start.elapsed();
        held.commit()?;
        let done = provisioning
            .join()
            .map_err(|_| anyhow::anyhow!("provision panicked"))?;
        done.context("provision once the tables were free")?;
        Ok(waited)
    })?;
    ensure!(
        waited < Duration::from_millis(600),
        "the application waited {waited:?}"
    );
    let ready: bool = value(
        &mut db.owner()?,
        "SELECT opengeni_guards.ready($1)",
        &[&SCHEMA],
    )?;
    ensure!(ready);
    Ok(())
}

fn other_encodings(db: &Db) -> Result<()> {
    for encoding in ["LATIN1", "SQL_ASCII", "EUC_JP"] {
        let name = format!("{}_{}", db.name, encoding.to_lowercase());
        let mut outside = db.admin()?;
        outside.batch_execute(&format!(
            "CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0 OWNER {OWNER}"
        ))?;
        let other = Db {
            server: db.server.clone(),
            name,
        };
        let mut admin = other.admin()?;
        if let Err(error) = admin.batch_execute("CREATE EXTENSION opengeni_guards") {
            // A clear refusal names the reason.
            let refusal = Refusal::of(&error)?;
            refusal
                .names(&["UTF8"])
                .with_context(|| encoding.to_string())?;
            continue;
        }
        second_schema(&mut other.owner()?, SCHEMA)?;
        let (tenant, command) = other.supervised()?;
        let mut app = other.app(&tenant)?;
        // Characters outside ASCII, in the database's own encoding.
        let mut changed = command.provider_command(&tenant);
        changed["taskId"] = if encoding == "LATIN1" {
            "tâche"
        } else {
            "task"
        }
        .into();
        step_refused(&mut app, &protocol::attach(&command, changed))?
            .speaks("supervised_command.identity")?;
        commit(&mut app, &[protocol::cancel(&command, "explicit_stop")])?;
        step_refused(&mut app, &protocol::advance_input(&command, 1))?
            .speaks("supervised_command.stdin_closed")?;
    }
    Ok(())
}

fn private_schema_of_a_stranger(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
    // Whoever may create schemas could stand there first, with a function that lets every tenant see all.
    admin.batch_execute(&format!(
        "CREATE SCHEMA opengeni_private AUTHORIZATION {STRANGER};
         GRANT USAGE ON SCHEMA opengeni_private TO PUBLIC;
         SET SESSION AUTHORIZATION {STRANGER};
         CREATE FUNCTION opengeni_private.workspace_rls_visible(account_id uuid, workspace_id uuid)
           RETURNS boolean LANGUAGE sql STABLE AS 'SELECT true';
         CREATE FUNCTION opengeni_private.current_account_id() RETURNS uuid LANGUAGE sql STABLE
           AS 'SELECT NULL::uuid';
         CREATE FUNCTION opengeni_private.current_workspace_id() RETURNS uuid LANGUAGE sql STABLE
           AS 'SELECT NULL::uuid';
         RESET SESSION AUTHORIZATION"
    ))?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!("CREATE SCHEMA {SCHEMA}"))?;
    match owner.query(
        "SELECT object, action, note FROM opengeni_guards.provision($1)",
        &[&SCHEMA],
    ) {
        Err(error) => {
            let refusal = Refusal::of(&error)?;
            refusal.has_state("42501")?;
            refusal.names(&["opengeni_private"])
        }
        Ok(rows) => {
            let reported = rows.iter().any(|row| {
                row.get::<_, &str>("object").contains("opengeni_private")
                    && (row.get::<_, &str>("action") != "present"
                        || row.get::<_, Option<&str>>("note").is_some())
            });
            ensure!(
                reported,
                "a stranger's function decides who sees what, and nobody says so"
            );
            Ok(())
        }
    }
}
