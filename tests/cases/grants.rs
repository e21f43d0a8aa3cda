//! `grant_usage` and `revoke_usage`: exactly what an application role needs, whatever stood there before.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::server::{SUPERUSER, Server};

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(server, "grants: granting twice changes nothing", twice),
        case(
            server,
            "grants: bad arguments are refused and change nothing",
            bad_arguments,
        ),
        case(
            server,
            "grants: only an owner of the schema may grant",
            only_the_owner,
        ),
        case(
            server,
            "grants: an application role gets DML and nothing that could lift a guard",
            no_more_than_dml,
        ),
        case(
            server,
            "grants: revoking takes the tables away again",
            revoked,
        ),
        bare_case(
            server,
            "grants: default privileges do not add to what an application role may do",
            hostile_defaults,
        ),
    ]
}

fn twice(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    for role in [OWNER, SUPERUSER] {
        grant_usage(&mut db.session(role)?, APP, SCHEMA)?;
        same(&before, &snapshot(&mut admin)?)?;
    }
    Ok(())
}

fn bad_arguments(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    for (call, states) in [
        ("grant_usage(NULL, 'opengeni')", &["22004", "22023"][..]),
        ("grant_usage('og_cases_app', NULL)", &["22004", "22023"]),
        ("grant_usage('no such role', 'opengeni')", &["42704"]),
        ("grant_usage('og_cases_app', 'no such schema')", &["3F000"]),
        ("revoke_usage(NULL, 'opengeni')", &["22004", "22023"]),
        ("revoke_usage('og_cases_app', 'no such schema')", &["3F000"]),
    ] {
        for role in [OWNER, SUPERUSER] {
            let sql = format!("SELECT opengeni_guards.{call}");
            let refusal = refused(&mut db.session(role)?, &sql, &[])?;
            ensure!(
                states.contains(&refusal.sqlstate.as_str()),
                "{call}: {refusal:?}"
            );
        }
    }
    same(&before, &snapshot(&mut admin)?)
}

fn only_the_owner(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    for role in [APP, STRANGER] {
        for function in ["grant_usage", "revoke_usage"] {
            for target in [APP, STRANGER] {
                let sql = format!("SELECT opengeni_guards.{function}('{target}', '{SCHEMA}')");
                refused(&mut db.session(role)?, &sql, &[])?.has_state("42501")?;
            }
        }
    }
    same(&before, &snapshot(&mut admin)?)
}

fn no_more_than_dml(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let more = lines(
        &mut admin,
        "SELECT relname || ' ' || privilege FROM pg_class,
           unnest(ARRAY['TRUNCATE', 'REFERENCES', 'TRIGGER']) AS privilege
         WHERE relnamespace = $1::text::regnamespace AND relkind = 'r'
           AND has_table_privilege($2::text, pg_class.oid, privilege)",
        &[&SCHEMA, &APP],
    )?;
    ensure!(more.is_empty(), "{more:?}");
    let less = lines(
        &mut admin,
        "SELECT relname || ' ' || privilege FROM pg_class,
           unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
         WHERE relnamespace = $1::text::regnamespace AND relkind = 'r' AND relname LIKE 'sandbox\\_%'
           AND NOT has_table_privilege($2::text, pg_class.oid, privilege)",
        &[&SCHEMA, &APP],
    )?;
    ensure!(less.is_empty(), "missing: {less:?}");
    for schema in [SCHEMA, "opengeni_private", "opengeni_guards"] {
        let creates: bool = value(
            &mut admin,
            "SELECT has_schema_privilege($1::text, $2, 'CREATE')",
            &[&APP, &schema],
        )?;
        ensure!(!creates, "CREATE on {schema}");
    }
    Ok(())
}

fn revoked(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    app.query("SELECT FROM opengeni.sandbox_leases", &[])?;
    db.owner()?.execute(
        "SELECT opengeni_guards.revoke_usage($1::text::name, $2)",
        &[&APP, &SCHEMA],
    )?;
    for sql in [
        "SELECT FROM opengeni.sandbox_leases",
        "DELETE FROM opengeni.sandbox_retained_processes",
    ] {
        refused(&mut app, sql, &[])?.has_state("42501")?;
    }
    grant_usage(&mut db.owner()?, APP, SCHEMA)?;
    app.query("SELECT FROM opengeni.sandbox_leases", &[])?;
    Ok(())
}

fn hostile_defaults(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {APP} WITH GRANT OPTION;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO {APP};
         CREATE SCHEMA {SCHEMA}"
    ))?;
    provision(&mut owner, SCHEMA)?;
    grant_usage(&mut owner, APP, SCHEMA)?;
    let more = lines(
        &mut admin,
        "SELECT relname || ' ' || privilege_type FROM pg_class, aclexplode(relacl)
         WHERE relnamespace = $1::text::regnamespace AND relkind = 'r' AND grantee = $2::text::regrole
           AND (is_grantable OR privilege_type NOT IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE'))
         UNION ALL
         SELECT nspname || ' ' || privilege_type FROM pg_namespace, aclexplode(nspacl)
         WHERE nspname IN ($1, 'opengeni_private') AND grantee = $2::text::regrole
           AND (is_grantable OR privilege_type <> 'USAGE')",
        &[&SCHEMA, &APP],
    )?;
    ensure!(more.is_empty(), "{more:?}");
    Ok(())
}
