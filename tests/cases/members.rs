//! What belongs to the extension, and what does not.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::server::Server;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "members: everything the extension owns lies in its own schema",
            members_lie_in_schema,
        ),
        case(
            server,
            "members: no application object belongs to the extension",
            application_is_free,
        ),
        case(
            server,
            "members: DROP EXTENSION without CASCADE is refused while a table is guarded",
            drop_is_refused,
        ),
        case(
            server,
            "members: PUBLIC may execute the trigger functions and use their schema",
            public_executes_guards,
        ),
        case(
            server,
            "members: no function acts as somebody else, is strict, or claims parallel safety for a guard",
            labels,
        ),
        case(
            server,
            "members: a guard bound where it does not belong is an error, not a crash",
            misplaced_guards,
        ),
        case(
            server,
            "members: a guard called by hand says that it is a trigger function",
            called_by_hand,
        ),
    ]
}

fn members_lie_in_schema(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    // An array type, row type or the like would have a schema too: whatever has one is looked at.
    let members = admin.query(
        "SELECT object.type, object.schema, object.identity
         FROM pg_depend,
              pg_identify_object(classid, objid, objsubid) AS object
         WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass
           AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'opengeni_guards')",
        &[],
    )?;
    let (mut functions, mut schemas) = (0, 0);
    for member in &members {
        let kind: String = member.get(0);
        let schema: Option<String> = member.get(1);
        let identity: String = member.get(2);
        match kind.as_str() {
            "schema" => {
                ensure!(identity == "opengeni_guards", "schema {identity}");
                schemas += 1;
            }
            _ => ensure!(
                schema.as_deref() == Some("opengeni_guards"),
                "{kind} {identity} lies in {schema:?}"
            ),
        }
        functions += usize::from(kind == "function");
    }
    ensure!(schemas == 1, "{schemas} member schemas");
    ensure!(functions > 0, "no member functions");

    let strays = lines(
        &mut admin,
        "SELECT oid::regprocedure::text FROM pg_proc
         WHERE probin = 'opengeni_guards' AND pronamespace <> 'opengeni_guards'::regnamespace",
        &[],
    )?;
    ensure!(strays.is_empty(), "native functions elsewhere: {strays:?}");
    Ok(())
}

fn application_is_free(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    // Dependencies of kind 'e' make a member, of kind 'x' let a member's DROP take an object along.
    let bound = lines(
        &mut admin,
        "SELECT pg_describe_object(classid, objid, objsubid)
         FROM pg_depend
         WHERE deptype IN ('e', 'x') AND refclassid = 'pg_extension'::regclass
           AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'opengeni_guards')
           AND (classid, objid) IN (
             SELECT 'pg_class'::regclass, oid FROM pg_class
               WHERE relnamespace = $1::text::regnamespace
             UNION ALL
             SELECT 'pg_trigger'::regclass, pg_trigger.oid FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
               WHERE relnamespace = $1::text::regnamespace
             UNION ALL
             SELECT 'pg_policy'::regclass, pg_policy.oid FROM pg_policy JOIN pg_class ON pg_class.oid = polrelid
               WHERE relnamespace = $1::text::regnamespace
             UNION ALL
             SELECT 'pg_proc'::regclass, pg_proc.oid FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace
               WHERE nspname IN ($1, 'opengeni_private')
             UNION ALL
             SELECT 'pg_namespace'::regclass, oid FROM pg_namespace WHERE nspname IN ($1, 'opengeni_private'))",
        &[&SCHEMA],
    )?;
    ensure!(bound.is_empty(), "members: {bound:?}");
    Ok(())
}

fn drop_is_refused(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut admin = db.admin()?;
    refused(&mut admin, "DROP EXTENSION opengeni_guards", &[])?.has_state("2BP01")?;
    refused(&mut admin, "DROP SCHEMA opengeni_guards", &[])?.has_state("2BP01")?;
    refused(
        &mut db.app(&tenant)?,
        "DELETE FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )?
    .speaks("supervised_command.delete_unsettled")
}

fn public_executes_guards(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let guards: i64 = value(
        &mut admin,
        "SELECT count(*) FROM pg_proc
         WHERE pronamespace = 'opengeni_guards'::regnamespace AND prorettype = 'trigger'::regtype",
        &[],
    )?;
    ensure!(guards >= 2, "{guards} trigger functions");
    let closed = lines(
        &mut admin,
        "SELECT oid::regprocedure::text FROM pg_proc
         WHERE pronamespace = 'opengeni_guards'::regnamespace AND prorettype = 'trigger'::regtype
           AND NOT has_function_privilege('public', oid, 'EXECUTE')",
        &[],
    )?;
    ensure!(closed.is_empty(), "closed to PUBLIC: {closed:?}");
    ensure!(
        value::<bool>(
            &mut admin,
            "SELECT has_schema_privilege('public', 'opengeni_guards', 'USAGE')
                AND NOT has_schema_privilege('public', 'opengeni_guards', 'CREATE')",
            &[],
        )?,
        "USAGE and nothing else on the schema is PUBLIC's"
    );
    Ok(())
}

fn labels(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let wrong = lines(
        &mut admin,
        "SELECT oid::regprocedure || concat_ws(',', '',
             CASE WHEN prosecdef THEN ' SECURITY DEFINER' END,
             CASE WHEN proisstrict AND pronargs > 0 THEN ' STRICT' END,
             CASE WHEN proparallel <> 'u' AND prorettype = 'trigger'::regtype THEN ' PARALLEL' END,
             CASE WHEN proconfig IS NOT NULL AND prorettype = 'trigger'::regtype THEN ' SET clause' END)
         FROM pg_proc
         WHERE pronamespace = 'opengeni_guards'::regnamespace
           AND (prosecdef OR proisstrict AND pronargs > 0
             OR prorettype = 'trigger'::regtype AND (proparallel <> 'u' OR proconfig IS NOT NULL))",
        &[],
    )?;
    ensure!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}

fn misplaced_guards(db: &Db) -> Result<()> {
    let (tenant, _) = db.legacy()?;
    let mut app = db.app(&tenant)?;
    let uptime = "SELECT pg_postmaster_start_time()::text";
    let before: String = value(&mut app, uptime, &[])?;
    app.batch_execute(
        "CREATE TEMP TABLE bare (id int);
         CREATE TEMP TABLE alike (LIKE opengeni.sandbox_retained_processes);
         CREATE TEMP TABLE retyped AS
           SELECT id::text AS id, provider_command::text AS provider_command, state::varchar AS state
           FROM opengeni.sandbox_retained_processes;
         CREATE TEMP VIEW seen AS SELECT * FROM bare;
         INSERT INTO bare VALUES (1);
         INSERT INTO alike SELECT * FROM opengeni.sandbox_retained_processes",
    )?;
    let supervise =
        "UPDATE alike SET supervision_receipt = '{}', provider_command = '{\"supervision\": {}}'";
    for (binding, write, states) in [
        // No columns of a process, or columns of other types.
        (
            "BEFORE UPDATE ON bare FOR EACH ROW",
            "UPDATE bare SET id = 2",
            &["42703"][..],
        ),
        (
            "BEFORE DELETE ON bare FOR EACH ROW",
            "DELETE FROM bare",
            &["42703"],
        ),
        (
            "BEFORE UPDATE ON retyped FOR EACH ROW",
            "UPDATE retyped SET id = id",
            &["42703", "42804"],
        ),
        // The right columns beside no siblings: a question has nobody to ask.
        (
            "BEFORE UPDATE ON alike FOR EACH ROW",
            supervise,
            &["42P01", "55000"],
        ),
        // Another timing or level.
        (
            "AFTER UPDATE ON bare FOR EACH ROW",
            "UPDATE bare SET id = 2",
            &["39P01"],
        ),
        (
            "BEFORE UPDATE ON bare FOR EACH STATEMENT",
            "UPDATE bare SET id = 2",
            &["39P01"],
        ),
        (
            "AFTER UPDATE ON alike FOR EACH STATEMENT",
            supervise,
            &["39P01"],
        ),
        (
            "BEFORE TRUNCATE ON alike FOR EACH STATEMENT",
            "TRUNCATE alike",
            &["39P01"],
        ),
        (
            "INSTEAD OF UPDATE ON seen FOR EACH ROW",
            "UPDATE seen SET id = 2",
            &["39P01"],
        ),
    ] {
        let mut trial = app.transaction()?;
        trial.batch_execute(&format!(
            "CREATE TRIGGER misplaced {binding} EXECUTE FUNCTION opengeni_guards.supervised_command_guard()"
        ))?;
        let refusal = refused(&mut trial, write, &[])?;
        ensure!(
            states.contains(&refusal.sqlstate.as_str()),
            "{binding}: {refusal:?}"
        );
        trial.rollback()?;
    }
    let after: String = value(&mut app, uptime, &[])?;
    ensure!(before == after, "the server restarted");
    Ok(())
}

fn called_by_hand(db: &Db) -> Result<()> {
    let mut app = db.session(APP)?;
    for guard in [
        "supervised_command_guard",
        "enforce_sandbox_recovery_protocol_v2",
    ] {
        let refusal = refused(&mut app, &format!("SELECT opengeni_guards.{guard}()"), &[])?;
        ensure!(
            ["0A000", "39P01"].contains(&refusal.sqlstate.as_str()),
            "{guard}: {refusal:?}"
        );
    }
    Ok(())
}
