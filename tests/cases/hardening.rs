//! What an adversary once got past: memory, encodings, names, grants, indexes, other tenants.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process;
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;
use uuid::Uuid;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        bare_case(
            server,
            "hardening: a database that is not UTF8 refuses the extension",
            other_encodings,
        ),
        bare_case(
            server,
            "hardening: a database that is not UTF8 refuses the extension though its library is loaded",
            other_encodings_after_load,
        ),
        bare_case(
            server,
            "hardening: a stranger's function is found out whatever the caller's search_path",
            trust_under_a_search_path,
        ),
        case(
            server,
            "hardening: a provisioned schema is present whatever the caller's search_path",
            present_under_a_search_path,
        ),
        case(
            server,
            "hardening: quoting all identifiers makes no guard look altered",
            quoted_identifiers,
        ),
        case(
            server,
            "hardening: whoever has the owner's rights is no application role",
            no_application_role,
        ),
        case(
            server,
            "hardening: a member of the owner that inherits nothing is no application role",
            no_application_role_without_inheritance,
        ),
        bare_case(
            server,
            "hardening: what two schemas share stays granted while one of them needs it",
            shared_grants,
        ),
        bare_case(
            server,
            "hardening: an owner that may not use the contract schema is told what to grant",
            unusable_contract_schema,
        ),
        case(
            server,
            "hardening: status() and provision() tell of child tables",
            child_tables_are_told,
        ),
        bare_case(
            server,
            "hardening: the owner that provision was given grants usage, as does a superuser",
            another_owner_grants,
        ),
        case(
            server,
            "hardening: what an application role passed on is taken back with its grant option",
            passed_on,
        ),
        bare_case(
            server,
            "hardening: default privileges for everybody leave nobody but owner and role",
            public_by_default_privileges,
        ),
        case(
            server,
            "hardening: four sessions grant and revoke usage at once",
            concurrent_grants,
        ),
        bare_case(
            server,
            "hardening: four sessions provision one empty schema at once",
            concurrent_provisions,
        ),
        case(
            server,
            "hardening: an index is not present because something else has its name",
            index_name_is_taken,
        ),
        case(
            server,
            "hardening: status() misses what was dropped, disabled or broken",
            status_misses,
        ),
        case(
            server,
            "hardening: a temp table named like the processes adds no line to status()",
            temp_table_in_status,
        ),
        case(
            server,
            "hardening: an index too young for old snapshots serves once they are gone",
            young_index,
        ),
        case(
            server,
            "hardening: a sibling with a child table is refused until the child is gone",
            inherited_sibling,
        ),
        case(
            server,
            "hardening: a column of a type of the application's own is compared as the type says",
            types_of_the_applications,
        ),
        case(
            server,
            "hardening: a nondeterministic collation on a column that a guard reads is refused",
            nondeterministic_collation,
        ),
        case(
            server,
            "hardening: another tenant's lease is neither told of nor locked",
            lease_of_another_tenant,
        ),
        case(
            server,
            "hardening: schemas that are not an application's are refused",
            reserved_schemas,
        ),
        // Last: a server that fails it is gone for the others.
        case(
            server,
            "hardening: sixty million digits in a backend short of memory end a statement, not the server",
            digits_without_memory,
        ),
    ]
}

/// A role of this cluster with these attributes; it stays, as the other roles do.
fn role(admin: &mut Client, name: &str, attributes: &str) -> Result<()> {
    let known = admin.query_opt("SELECT FROM pg_roles WHERE rolname = $1", &[&name])?;
    let verb = if known.is_some() { "ALTER" } else { "CREATE" };
    admin.batch_execute(&format!(
        "{verb} ROLE {name} LOGIN NOSUPERUSER {attributes}"
    ))?;
    Ok(())
}

// Memory ---------------------------------------------------------------------------------------------

const MIB: u64 = 1 << 20;

/// The address space of a process.
fn address_space(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let size = status
        .lines()
        .find_map(|line| line.strip_prefix("VmSize:"))
        .and_then(|size| size.trim().strip_suffix(" kB"))
        .context("no VmSize")?;
    Ok(size.trim().parse::<u64>()? << 10)
}

/// Gives a process no more address space than this on top of what it has, as the user that it runs as: root in
/// a container may lack the right to.
fn limit(pid: i32, margin: u64) -> Result<()> {
    let bytes = address_space(pid)? + margin;
    let owner = fs::metadata(format!("/proc/{pid}"))?;
    let output = process::Command::new("prlimit")
        .args(["--pid", &pid.to_string(), &format!("--as={bytes}")])
        .uid(owner.uid())
        .gid(owner.gid())
        .output()?;
    ensure!(
        output.status.success(),
        "prlimit: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn digits_without_memory(db: &Db) -> Result<()> {
    let version = process::Command::new("prlimit").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no prlimit (util-linux) to limit a backend's memory with");
        return Ok(());
    }
    let mut admin = db.admin()?;
    // The errors are as long as the digits: they need not fill the log.
    admin.batch_execute(&format!(
        "ALTER DATABASE {} SET log_min_messages = 'panic';
         CREATE TABLE long (process uuid, command jsonb);
         GRANT SELECT ON long TO {APP}",
        db.name
    ))?;
    let started = "SELECT pg_postmaster_start_time()::text";
    let before: String = value(&mut admin, started, &[])?;
    let mut witness = db.owner()?;
    let witness_pid = backend_pid(&mut witness)?;

    // A cursor that has to move on is cast, one that appears is looked at.
    for (has_floor, answer) in [(true, "22003"), (false, "23514")] {
        let (tenant, command) = db.supervised()?;
        if !has_floor {
            db.plant(
                "UPDATE sandbox_retained_processes SET provider_command = provider_command - 'streams'
                 WHERE id = $1",
                &[&command.process],
            )?;
        }
        accepted(
            &mut admin,
            "INSERT INTO long SELECT id, jsonb_set($2, '{streams,stdout,byteOffset}',
               to_jsonb(repeat('7', 60000000)))
             FROM sandbox_retained_processes WHERE id = $1",
            &[&command.process, &command.provider_command(&tenant)],
        )?;
        let mut margins: Vec<Option<u64>> = [60, 90, 130, 180, 230, 280, 340, 400]
            .map(|mib| Some(mib * MIB))
            .into();
        margins.push(None);
        let mut ran_short = false;
        for margin in margins {
            let mut app = db.app(&tenant)?;
            set(&mut app, CAPTURE, &command.process.to_string())?;
            let pid = backend_pid(&mut app)?;
            if let Some(margin) = margin {
                limit(pid, margin)?;
            }
            let mut attempt = app.transaction()?;
            let outcome = attempt.execute(
                "UPDATE sandbox_retained_processes SET provider_command = long.command
                 FROM long WHERE id = $1 AND process = id",
                &[&command.process],
            );
            // The message may hold all the digits.
            let Err(error) = outcome else {
                bail!("{margin:?}: digits are no offset");
            };
            let state = error.code().map(|code| code.code().to_owned());
            let state = state.with_context(|| format!("{margin:?}: no error but {error}"))?;
            match margin {
                None => ensure!(state == answer, "with memory enough: {state}"),
                Some(_) => ensure!(state != "XX000", "{margin:?}: an internal error"),
            }
            ran_short |= state == "53200";
            attempt.rollback()?;
            ensure!(
                backend_pid(&mut app)? == pid,
                "{margin:?}: the session is another"
            );
            ensure!(
                backend_pid(&mut witness)? == witness_pid,
                "{margin:?}: the other session was killed"
            );
        }
        ensure!(ran_short, "no limit was felt");
    }
    let after: String = value(&mut witness, started, &[])?;
    ensure!(before == after, "the server was started anew");
    Ok(())
}

// Encodings ------------------------------------------------------------------------------------------

/// The extension is refused in a database of this encoding, every time.
fn is_refused_in(db: &Db, encoding: &str, prelude: &str) -> Result<()> {
    let other = Db {
        server: db.server.clone(),
        name: format!("{}_{}", db.name, encoding.to_lowercase()),
    };
    db.admin()?.batch_execute(&format!(
        "CREATE DATABASE {} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
        other.name
    ))?;
    let mut admin = other.admin()?;
    admin.batch_execute(prelude)?;
    for _ in 0..2 {
        let refusal = refused(&mut admin, "CREATE EXTENSION opengeni_guards", &[])
            .with_context(|| encoding.to_string())?;
        refusal.has_state("0A000")?;
        refusal.names(&["UTF8", encoding])?;
    }
    let left: i64 = value(
        &mut admin,
        "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'opengeni%'",
        &[],
    )?;
    ensure!(left == 0, "{encoding}: something is left behind");
    Ok(())
}

fn other_encodings(db: &Db) -> Result<()> {
    is_refused_in(db, "LATIN1", "")?;
    is_refused_in(db, "SQL_ASCII", "")
}

fn other_encodings_after_load(db: &Db) -> Result<()> {
    is_refused_in(db, "LATIN1", "LOAD 'opengeni_guards'")?;
    is_refused_in(db, "SQL_ASCII", "LOAD 'opengeni_guards'")
}

// Names ----------------------------------------------------------------------------------------------

/// Whatever is named without a schema is somebody's own here.
const EVIL: &str = "CREATE SCHEMA evil;
     CREATE DOMAIN evil.uuid AS pg_catalog.uuid;
     CREATE DOMAIN evil.text AS pg_catalog.text;
     CREATE FUNCTION evil.format_type(oid, integer) RETURNS pg_catalog.text LANGUAGE sql
       AS $$ SELECT 'evil'::pg_catalog.text $$;
     SET search_path = evil, pg_catalog";

fn trust_under_a_search_path(db: &Db) -> Result<()> {
    // The schema may be trusted, a function in it is not.
    db.admin()?.batch_execute(&format!(
        "CREATE EXTENSION opengeni_guards;
         CREATE SCHEMA opengeni_private AUTHORIZATION {OWNER};
         GRANT ALL ON SCHEMA opengeni_private TO {STRANGER};
         SET SESSION AUTHORIZATION {STRANGER};
         CREATE FUNCTION opengeni_private.workspace_rls_visible(account_id uuid, workspace_id uuid)
           RETURNS boolean LANGUAGE sql STABLE AS 'SELECT true'"
    ))?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!("CREATE SCHEMA {SCHEMA}; {EVIL}"))?;
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    for path in ["evil, pg_catalog", "evil", "pg_catalog, evil", ""] {
        set(&mut owner, "search_path", path)?;
        let refusal = refused(
            &mut owner,
            "SELECT opengeni_guards.provision($1)",
            &[&SCHEMA],
        )
        .with_context(|| format!("search_path = {path}"))?;
        refusal.has_state("42501")?;
        refusal.names(&["workspace_rls_visible", STRANGER])?;
        same(&before, &snapshot(&mut admin)?)?;
    }
    Ok(())
}

/// Everything is as provision left it, to whoever asks.
fn all_is_well(client: &mut Client) -> Result<()> {
    let report = client.query(
        "SELECT object, action, note FROM opengeni_guards.provision($1)",
        &[&SCHEMA],
    )?;
    ensure!(report.len() > 200, "{} objects", report.len());
    for row in report {
        let line: (&str, &str, Option<&str>) = (row.get(0), row.get(1), row.get(2));
        ensure!(line.1 == "present" && line.2.is_none(), "{line:?}");
    }
    let report = client.query(
        "SELECT object, state FROM opengeni_guards.status($1)",
        &[&SCHEMA],
    )?;
    ensure!(report.len() > 10, "{} lines", report.len());
    for row in report {
        let line: (&str, &str) = (row.get(0), row.get(1));
        let helper = [
            "current_account_id",
            "current_workspace_id",
            "workspace_rls_visible",
        ]
        .iter()
        .any(|name| line.0.contains(name));
        let wanted = if helper { "present" } else { "native" };
        ensure!(line.1 == wanted, "{line:?}");
    }
    Ok(())
}

fn present_under_a_search_path(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute(&format!("{EVIL}; GRANT USAGE ON SCHEMA evil TO PUBLIC"))?;
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    for client in [&mut owner, &mut db.admin()?] {
        for path in ["evil, pg_catalog", "evil", "opengeni, pg_catalog", ""] {
            set(client, "search_path", path)?;
            all_is_well(client).with_context(|| format!("search_path = {path}"))?;
            same(&before, &snapshot(&mut admin)?)?;
        }
    }
    Ok(())
}

fn quoted_identifiers(db: &Db) -> Result<()> {
    for role in [OWNER, SUPERUSER] {
        let mut client = db.session(role)?;
        set(&mut client, "quote_all_identifiers", "on")?;
        all_is_well(&mut client)?;
        // The setting is the caller's own again.
        let setting: String = value(
            &mut client,
            "SELECT current_setting('quote_all_identifiers')",
            &[],
        )?;
        ensure!(setting == "on", "the caller's setting is {setting}");
    }
    Ok(())
}

// Grants ---------------------------------------------------------------------------------------------

/// Nobody grants usage to this role.
fn never_granted(db: &Db, name: &str) -> Result<()> {
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    for caller in [OWNER, SUPERUSER] {
        let sql = format!("SELECT opengeni_guards.grant_usage('{name}', '{SCHEMA}')");
        let refusal = refused(&mut db.session(caller)?, &sql, &[])?;
        refusal.has_state("22023")?;
        refusal.names(&[name])?;
        same(&before, &snapshot(&mut admin)?)?;
    }
    Ok(())
}

fn no_application_role(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    role(&mut admin, "og_cases_member", "INHERIT")?;
    role(&mut admin, "og_cases_far_member", "INHERIT")?;
    admin.batch_execute(&format!(
        "GRANT {OWNER} TO og_cases_member; GRANT og_cases_member TO og_cases_far_member"
    ))?;
    for name in [
        OWNER,
        "og_cases_member",
        "og_cases_far_member",
        SUPERUSER,
        "pg_database_owner",
    ] {
        never_granted(db, name).with_context(|| name.to_string())?;
    }
    Ok(())
}

fn no_application_role_without_inheritance(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    role(&mut admin, "og_cases_heir", "NOINHERIT")?;
    admin.batch_execute(&format!("GRANT {OWNER} TO og_cases_heir"))?;
    // One SET ROLE away from every right of the owner's.
    never_granted(db, "og_cases_heir")
}

/// Who may do what on the schema's tables and sequences, if neither its owner nor the application.
const OTHERS: &str = "SELECT DISTINCT relname || ' ' || CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
     FROM pg_class, aclexplode(relacl)
     WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'S')
       AND grantee <> relowner AND grantee <> $2::text::regrole";

fn another_owner_grants(db: &Db) -> Result<()> {
    const KEEPER: &str = "og_cases_keeper";
    let mut admin = db.admin()?;
    role(&mut admin, KEEPER, "NOCREATEDB")?;
    admin.batch_execute(&format!(
        "CREATE EXTENSION opengeni_guards;
         CREATE SCHEMA {SCHEMA} AUTHORIZATION {OWNER};
         GRANT CREATE, USAGE ON SCHEMA {SCHEMA} TO {KEEPER};
         GRANT USAGE ON SCHEMA {SCHEMA} TO {APP};
         CREATE SCHEMA opengeni_private AUTHORIZATION {KEEPER}"
    ))?;
    admin.execute(
        "SELECT opengeni_guards.provision($1, owner => $2::text::name)",
        &[&SCHEMA, &KEEPER],
    )?;
    let owners = lines(
        &mut admin,
        "SELECT DISTINCT relowner::regrole::text FROM pg_class
         WHERE relnamespace = $1::text::regnamespace AND relkind = 'r'",
        &[&SCHEMA],
    )?;
    ensure!(owners == [KEEPER], "tables of {owners:?}");

    let tenant = db.tenant()?;
    for caller in [KEEPER, SUPERUSER] {
        let mut client = db.session(caller)?;
        grant_usage(&mut client, APP, SCHEMA)
            .map_err(|error| anyhow!("{caller}: {}", describe(&error)))?;
        let command = Command::new(1);
        let mut app = db.app(&tenant)?;
        let mut launching = app.transaction()?;
        run(&mut launching, &protocol::launch(&tenant, &command))?;
        launching.rollback()?;
        let bad = lines(
            &mut client,
            "SELECT object || ': ' || state || ' ' || coalesce(detail, '')
             FROM opengeni_guards.status($1) WHERE state NOT IN ('native', 'present')",
            &[&SCHEMA],
        )?;
        ensure!(bad.is_empty(), "{caller}: {bad:?}");
        client.execute(
            "SELECT opengeni_guards.revoke_usage($1::text::name, $2)",
            &[&APP, &SCHEMA],
        )?;
        refused(&mut app, "SELECT FROM sandbox_leases", &[])?.has_state("42501")?;
    }
    // The schema alone does not make one the tables' owner.
    refused(
        &mut db.owner()?,
        &format!("SELECT opengeni_guards.grant_usage('{APP}', '{SCHEMA}')"),
        &[],
    )?
    .has_state("42501")
}

fn passed_on(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    let pass_on = || -> Result<()> {
        db.owner()?.batch_execute(&format!(
            "GRANT SELECT ON sandbox_leases TO {APP} WITH GRANT OPTION;
             GRANT USAGE ON SCHEMA {SCHEMA} TO {APP} WITH GRANT OPTION"
        ))?;
        db.session(APP)?.batch_execute(&format!(
            "GRANT SELECT ON sandbox_leases TO {STRANGER};
             GRANT USAGE ON SCHEMA {SCHEMA} TO {STRANGER}"
        ))?;
        db.session(STRANGER)?
            .batch_execute("SELECT FROM sandbox_leases")?;
        Ok(())
    };
    for caller in [OWNER, SUPERUSER] {
        pass_on()?;
        grant_usage(&mut db.session(caller)?, APP, SCHEMA)
            .map_err(|error| anyhow!("{caller}: {}", describe(&error)))?;
        same(&before, &snapshot(&mut admin)?)?;
    }
    pass_on()?;
    db.owner()?
        .execute(
            "SELECT opengeni_guards.revoke_usage($1::text::name, $2)",
            &[&APP, &SCHEMA],
        )
        .map_err(|error| anyhow!("revoke: {}", describe(&error)))?;
    for role in [APP, STRANGER] {
        refused(
            &mut db.session(role)?,
            &format!("SELECT FROM {SCHEMA}.sandbox_leases"),
            &[],
        )?
        .has_state("42501")?;
    }
    Ok(())
}

fn public_by_default_privileges(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO PUBLIC;
         CREATE SCHEMA {SCHEMA}"
    ))?;
    provision(&mut owner, SCHEMA)?;
    let others = lines(&mut admin, OTHERS, &[&SCHEMA, &APP])?;
    ensure!(!others.is_empty(), "the default privileges do nothing");
    grant_usage(&mut owner, APP, SCHEMA)?;
    let others = lines(&mut admin, OTHERS, &[&SCHEMA, &APP])?;
    ensure!(others.is_empty(), "{others:?}");
    // And the role has what it needs in its own name.
    let tenant = db.tenant()?;
    commit(
        &mut db.app(&tenant)?,
        &[protocol::launch(&tenant, &Command::new(1))],
    )
}

/// One session makes the call and commits when three others wait for it; all four succeed.
fn four_at_once(db: &Db, call: &str) -> Result<()> {
    let mut admin = db.admin()?;
    let mut first = db.owner()?;
    let mut others = [db.owner()?, db.owner()?, db.owner()?];
    let mut pids = Vec::new();
    for client in &mut others {
        pids.push(backend_pid(client)?);
    }
    let mut leading = first.transaction()?;
    leading.batch_execute(call)?;
    thread::scope(|scope| {
        let late = others.map(|mut client| scope.spawn(move || client.batch_execute(call)));
        let waited = pids
            .iter()
            .try_for_each(|pid| wait_for_lock(&mut admin, *pid));
        leading.commit()?;
        for caller in late {
            caller
                .join()
                .map_err(|_| anyhow!("a caller died"))?
                .map_err(|error| anyhow!("{call}: {}", describe(&error)))?;
        }
        waited
    })
}

fn concurrent_grants(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let granted = snapshot(&mut admin)?;
    four_at_once(
        db,
        &format!("SELECT opengeni_guards.revoke_usage('{APP}', '{SCHEMA}')"),
    )?;
    ensure!(granted != snapshot(&mut admin)?, "nothing was revoked");
    four_at_once(
        db,
        &format!("SELECT opengeni_guards.grant_usage('{APP}', '{SCHEMA}')"),
    )?;
    same(&granted, &snapshot(&mut admin)?)
}

fn concurrent_provisions(db: &Db) -> Result<()> {
    db.admin()?
        .batch_execute("CREATE EXTENSION opengeni_guards")?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!("CREATE SCHEMA {SCHEMA}"))?;
    four_at_once(db, &format!("SELECT opengeni_guards.provision('{SCHEMA}')"))?;
    all_is_well(&mut owner)
}

// status() -------------------------------------------------------------------------------------------

/// The lines of status() that report anything but a guard or function in place.
fn complaints(client: &mut Client) -> Result<Vec<String>> {
    lines(
        client,
        "SELECT object || ': ' || state FROM opengeni_guards.status($1)
         WHERE state NOT IN ('native', 'present') AND object <> 'mode' ORDER BY 1",
        &[&SCHEMA],
    )
}

fn index_name_is_taken(db: &Db) -> Result<()> {
    const INDEX: &str = "sandbox_workspace_mutation_admissions_actor_idx";
    let missing = [format!(
        "index {INDEX} on sandbox_workspace_mutation_admissions: missing"
    )];
    let mut admin = db.admin()?;
    let whole = definitions(&mut admin)?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!("DROP INDEX {INDEX}"))?;
    for (take, give_back) in [
        (
            format!("CREATE TABLE {INDEX} (id uuid)"),
            format!("DROP TABLE {INDEX}"),
        ),
        (
            format!("CREATE INDEX {INDEX} ON sandbox_leases (id)"),
            format!("DROP INDEX {INDEX}"),
        ),
    ] {
        owner.batch_execute(&take)?;
        let found = complaints(&mut owner)?;
        ensure!(found == missing, "after {take}: {found:?}");
        let before = snapshot(&mut admin)?;
        let refusal = refused(
            &mut owner,
            "SELECT opengeni_guards.provision($1)",
            &[&SCHEMA],
        )?;
        refusal.has_state("42P07")?;
        refusal.names(&[INDEX])?;
        same(&before, &snapshot(&mut admin)?)?;
        owner.batch_execute(&give_back)?;
    }
    // In another schema the name is in nobody's way.
    owner.batch_execute(&format!(
        "CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.{INDEX} (id uuid)"
    ))?;
    let found = complaints(&mut owner)?;
    ensure!(found == missing, "a table elsewhere: {found:?}");
    provision(&mut owner, SCHEMA)?;
    owner.batch_execute("DROP SCHEMA elsewhere CASCADE")?;
    same(&whole, &definitions(&mut admin)?)
}

fn status_misses(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    for (sql, line) in [
        (
            "ALTER TABLE sandbox_leases DISABLE ROW LEVEL SECURITY",
            "row-level security of sandbox_leases: missing",
        ),
        (
            "ALTER TABLE sandbox_leases NO FORCE ROW LEVEL SECURITY",
            "row-level security of sandbox_leases: missing",
        ),
        (
            "DROP POLICY workspace_isolation ON sandbox_lease_holders",
            "policy workspace_isolation on sandbox_lease_holders: missing",
        ),
        (
            "ALTER TABLE sandbox_leases DROP CONSTRAINT sandbox_leases_liveness_check",
            "constraint sandbox_leases_liveness_check on sandbox_leases: missing",
        ),
        (
            "UPDATE pg_index SET indisvalid = false
             WHERE indexrelid = 'sandbox_workspace_mutation_admissions_actor_idx'::regclass",
            "index sandbox_workspace_mutation_admissions_actor_idx on sandbox_workspace_mutation_admissions: missing",
        ),
    ] {
        let found = complaints(&mut admin)?;
        ensure!(found.is_empty(), "before {sql}: {found:?}");
        let mut breaking = admin.transaction()?;
        breaking.batch_execute(sql)?;
        let found = lines(
            &mut breaking,
            "SELECT object || ': ' || state FROM opengeni_guards.status($1)
             WHERE state NOT IN ('native', 'present') AND object <> 'mode'",
            &[&SCHEMA],
        )?;
        ensure!(found == [line], "after {sql}: {found:?}");
        breaking.rollback()?;
    }
    Ok(())
}

fn temp_table_in_status(db: &Db) -> Result<()> {
    let all =
        "SELECT concat_ws(' ', data_schema, object, state, detail) FROM opengeni_guards.status()";
    let mut admin = db.admin()?;
    let before = lines(&mut admin, all, &[])?;
    ensure!(!before.is_empty(), "status() says nothing");
    let mut app = db.session(APP)?;
    for client in [&mut app, &mut admin] {
        client.batch_execute(
            "CREATE TEMP TABLE sandbox_retained_processes (LIKE opengeni.sandbox_retained_processes)",
        )?;
        same(&before, &lines(client, all, &[])?)?;
    }
    same(&before, &lines(&mut db.owner()?, all, &[])?)
}

// What a guard asks its siblings -----------------------------------------------------------------------

/// Stdin of a command with an unsettled child is admitted, its receipt is not; nothing of it stays.
fn child_counts(client: &mut Client, command: &Command) -> Result<()> {
    let mut attempt = client.transaction()?;
    run(&mut attempt, &protocol::advance_input(command, 5))?;
    attempt.rollback()?;
    step_refused(
        client,
        &protocol::record_receipt(command, command.receipt(0)),
    )?
    .speaks("supervised_command.input_settles_first")
}

/// The reverse, of a command without one.
fn no_child_counts(client: &mut Client, command: &Command) -> Result<()> {
    let mut attempt = client.transaction()?;
    run(
        &mut attempt,
        &protocol::record_receipt(command, command.receipt(0)),
    )?;
    attempt.rollback()?;
    step_refused(client, &protocol::advance_input(command, 5))?
        .speaks("supervised_command.stdin_child")
}

/// A command with an unsettled child.
fn with_child(db: &Db) -> Result<(Tenant, Command, Uuid)> {
    let (tenant, command) = db.supervised()?;
    let child = Uuid::new_v4();
    commit(
        &mut db.admin()?,
        &[protocol::admit_input(&tenant, &command, child)],
    )?;
    Ok((tenant, command, child))
}

fn young_index(db: &Db) -> Result<()> {
    const INDEX: &str = "sandbox_workspace_mutation_admissions_actor_idx";
    let (tenant, command, child) = with_child(db)?;
    let (childless_tenant, childless) = db.supervised()?;
    let mut owner = db.owner()?;
    let mut app = db.app(&tenant)?;
    let mut other = db.app(&childless_tenant)?;
    let mut observer = db.admin()?;
    // The answers are right; how often the index was asked for them.
    let mut right = || -> Result<i64> {
        child_counts(&mut app, &command)?;
        no_child_counts(&mut other, &childless)?;
        for client in [&mut app, &mut other] {
            client.query("SELECT pg_stat_force_next_flush()", &[])?;
        }
        let scans: Option<i64> = value(
            &mut observer,
            "SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes WHERE indexrelname = $1",
            &[&INDEX],
        )?;
        Ok(scans.unwrap_or(0))
    };
    let create: String = value(
        &mut owner,
        "SELECT pg_get_indexdef($1::text::regclass)",
        &[&INDEX],
    )?;
    owner.batch_execute(&format!("DROP INDEX {INDEX}"))?;
    right().context("without the index")?;

    let mut old = db.admin()?;
    let mut old_snapshot = begin(&mut old, "REPEATABLE READ")?;
    old_snapshot.query(
        "SELECT pg_current_xact_id()::text, count(*) FROM sandbox_workspace_mutation_admissions",
        &[],
    )?;
    // No index has this column: the row's new version stays in the old one's chain.
    for _ in 0..3 {
        db.plant(
            "UPDATE sandbox_workspace_mutation_admissions
             SET admitted_at = admitted_at + interval '1 second' WHERE id = $1",
            &[&child],
        )?;
    }
    owner.batch_execute(&create)?;
    let young: bool = value(
        &mut owner,
        "SELECT indcheckxmin FROM pg_index WHERE indexrelid = $1::text::regclass",
        &[&INDEX],
    )?;
    ensure!(young, "the index was not built over a broken chain");
    let scans = right().context("while the old snapshot is open")?;
    ensure!(scans == 0, "the index was asked although it is too young");
    old_snapshot.rollback()?;
    let scans = right().context("once the old snapshot is gone")?;
    ensure!(scans > 0, "the index is not asked though it came of age");
    // A session that never knew the table without the index, and the chain's next version.
    child_counts(&mut db.app(&tenant)?, &command)?;
    commit(&mut db.admin()?, &[protocol::settle_input(child)])?;
    no_child_counts(&mut app, &command)?;
    no_child_counts(&mut db.app(&tenant)?, &command)
}

fn inherited_sibling(db: &Db) -> Result<()> {
    let (tenant, command, _) = with_child(db)?;
    let mut owner = db.owner()?;
    let mut app = db.app(&tenant)?;
    let stopped = |client: &mut Client| -> Result<()> {
        for step in [
            protocol::advance_input(&command, 5),
            protocol::record_receipt(&command, command.receipt(0)),
        ] {
            let refusal = step_refused(client, &step)?;
            refusal.has_state("42809")?;
            refusal.names(&[
                "opengeni.sandbox_workspace_mutation_admissions",
                "supervised_command_guard",
            ])?;
        }
        Ok(())
    };
    child_counts(&mut app, &command)?;
    // Twice: the catalogue never forgets that a table once had a child.
    for round in ["first", "second"] {
        owner.batch_execute(
            "CREATE TABLE heir () INHERITS (sandbox_workspace_mutation_admissions)",
        )?;
        stopped(&mut app).with_context(|| format!("{round} child, old session"))?;
        stopped(&mut db.app(&tenant)?).with_context(|| format!("{round} child, new session"))?;
        owner.batch_execute("DROP TABLE heir")?;
        child_counts(&mut app, &command).with_context(|| format!("without the {round} child"))?;
    }
    Ok(())
}

fn nondeterministic_collation(db: &Db) -> Result<()> {
    let (tenant, command, _) = with_child(db)?;
    let mut owner = db.owner()?;
    let made = owner.batch_execute(
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE COLLATION strict (provider = icu, locale = 'und', deterministic = true)",
    );
    if let Err(error) = made {
        // Only a server that was built without ICU has nothing to show here.
        Refusal::of(&error)?.has_state("0A000")?;
        eprintln!("skipped: this server has no ICU");
        return Ok(());
    }
    let mut app = db.app(&tenant)?;
    child_counts(&mut app, &command)?;
    for (table, column) in [
        ("sandbox_workspace_mutation_admissions", "provider_backend"),
        ("sandbox_retained_processes", "provider_instance_id"),
    ] {
        for cure in ["strict", "\"C\"", "\"default\""] {
            let mut collate = |collation: &str| {
                owner.batch_execute(&format!(
                    "ALTER TABLE {table} ALTER COLUMN {column} TYPE text COLLATE {collation}"
                ))
            };
            collate("loose")?;
            for client in [&mut app, &mut db.app(&tenant)?] {
                let refusal = step_refused(client, &protocol::advance_input(&command, 5))
                    .with_context(|| format!("{table}.{column}"))?;
                refusal.has_state("0A000")?;
                refusal.names(&[table, column, "supervised_command_guard"])?;
            }
            collate(cure)?;
            child_counts(&mut app, &command).with_context(|| format!("COLLATE {cure}"))?;
        }
    }
    // A column of the application's own counts as its collation says, as in any comparison of rows.
    owner.batch_execute(
        "ALTER TABLE sandbox_lease_holders ADD COLUMN label text COLLATE loose DEFAULT 'a'",
    )?;
    let label =
        "UPDATE sandbox_lease_holders SET label = $2 WHERE kind = 'process' AND lease_id = $1";
    accepted(&mut app, label, &[&tenant.lease, &"A"])?;
    refused(&mut app, label, &[&tenant.lease, &"b"])?.is_by("55000", "process_holder.retained")
}

fn types_of_the_applications(db: &Db) -> Result<()> {
    let (tenant, command, child) = with_child(db)?;
    db.admin()?.batch_execute(
        "CREATE TYPE mood AS ENUM ('a', 'b');
         CREATE FUNCTION mood_equal(mood, mood) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT NULL::boolean';
         CREATE FUNCTION mood_order(mood, mood) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 0';
         CREATE OPERATOR === (LEFTARG = mood, RIGHTARG = mood, FUNCTION = mood_equal);
         CREATE OPERATOR CLASS mood_ops DEFAULT FOR TYPE mood USING btree AS OPERATOR 3 ===, FUNCTION 1 mood_order(mood, mood);
         ALTER TABLE sandbox_lease_holders ADD COLUMN mood mood DEFAULT 'a';
         CREATE TYPE price AS ENUM ('1', '2');
         CREATE FUNCTION price_json(price) RETURNS json LANGUAGE plpgsql AS
           $$ BEGIN RAISE 'no price' USING ERRCODE = 'OG007', CONSTRAINT = 'c', TABLE = 't'; END $$;
         CREATE CAST (price AS json) WITH FUNCTION price_json(price);
         ALTER TABLE sandbox_workspace_mutation_admissions ADD COLUMN price price DEFAULT '1'",
    )?;
    let mut app = db.app(&tenant)?;
    // What is not known to be equal differs.
    refused(
        &mut app,
        "UPDATE sandbox_lease_holders SET mood = 'b' WHERE kind = 'process' AND lease_id = $1",
        &[&tenant.lease],
    )?
    .is_by("55000", "process_holder.retained")?;
    accepted(
        &mut app,
        "UPDATE sandbox_lease_holders SET mood = 'a' WHERE kind = 'process' AND lease_id = $1",
        &[&tenant.lease],
    )?;
    // An error of the type's own keeps its fields.
    let refusal = refused(
        &mut app,
        "UPDATE sandbox_workspace_mutation_admissions SET price = '2' WHERE id = $1",
        &[&child],
    )?;
    refusal.is_by("OG007", "c")?;
    ensure!(refusal.table.as_deref() == Some("t"), "{refusal:?}");
    child_counts(&mut app, &command)
}

fn lease_of_another_tenant(db: &Db) -> Result<()> {
    let victim = db.tenant()?;
    let (tenant, command) = db.supervised()?;
    accepted(
        &mut db.admin()?,
        "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1",
        &[&victim.lease],
    )?;
    let insert = "INSERT INTO sandbox_retained_processes
           (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id, parent_admission_id,
            holder_id, owner_actor_kind, owner_actor_id, lease_epoch, provider_backend,
            provider_instance_id, route_kind, route_epoch, provider_session_id, provider_command)
         SELECT $2, account_id, workspace_id, session_id, $3, sandbox_group_id, gen_random_uuid(),
            'process:' || $2::uuid::text, owner_actor_kind, owner_actor_id, lease_epoch, provider_backend,
            provider_instance_id, route_kind, route_epoch, 2, $4
         FROM sandbox_retained_processes WHERE id = $1";
    let supervised = Command::new(2).provider_command(&tenant);
    let theirs = Uuid::new_v4();
    let params: Params<'_> = &[&command.process, &theirs, &victim.lease, &supervised];
    let mut app = db.app(&tenant)?;
    set(&mut app, "lock_timeout", "2s")?;
    refused(&mut app, insert, params)?.has_state("23503")?;
    // No lease at all gets the same answer.
    let nobodys: Params<'_> = &[&command.process, &theirs, &theirs, &supervised];
    let of_nobody = refused(&mut app, insert, nobodys)?;
    of_nobody.has_state("23503")?;

    // Deferred, the foreign key leaves time to look at the locks; and somebody's lock is not waited for.
    db.owner()?.batch_execute(
        "ALTER TABLE sandbox_retained_processes
           ALTER CONSTRAINT sandbox_retained_processes_parent_admission_scope_fk DEFERRABLE INITIALLY DEFERRED",
    )?;
    let lock = "SELECT FROM sandbox_leases WHERE id = $1 FOR UPDATE NOWAIT";
    let mut third = db.admin()?;
    let mut holding = third.transaction()?;
    holding.query_one(lock, &[&victim.lease])?;
    let mut inserting = app.transaction()?;
    accepted(&mut inserting, insert, params)?;
    holding.rollback()?;
    let mut looking = third.transaction()?;
    looking
        .query_one(lock, &[&victim.lease])
        .map_err(|error| anyhow!("the victim's lease is locked: {}", describe(&error)))?;
    looking.rollback()?;
    match inserting.commit() {
        Ok(()) => bail!("committed a command on another tenant's lease"),
        Err(error) => {
            let refusal = Refusal::of(&error)?;
            ensure!(
                refusal.rule.as_deref() != Some("supervised_command.containment"),
                "{refusal:?}"
            );
            Ok(())
        }
    }
}

fn shared_grants(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute(&format!(
        "CREATE EXTENSION opengeni_guards;
         CREATE SCHEMA one AUTHORIZATION {OWNER}; CREATE SCHEMA two AUTHORIZATION {OWNER};
         CREATE SCHEMA opengeni_private AUTHORIZATION {OWNER}"
    ))?;
    let mut owner = db.owner()?;
    for schema in ["one", "two"] {
        owner.execute("SELECT opengeni_guards.provision($1)", &[&schema])?;
        grant_usage(&mut owner, APP, schema)?;
    }
    let usable = |admin: &mut Client| -> Result<bool> {
        let sql = "SELECT has_schema_privilege($1::text, 'opengeni_private', 'USAGE')
          AND has_function_privilege($1::text, 'opengeni_private.workspace_rls_visible(uuid, uuid)', 'EXECUTE')";
        Ok(admin.query_one(sql, &[&APP])?.get(0))
    };
    let revoke = "SELECT opengeni_guards.revoke_usage($1::text::name, $2)";
    owner.execute(revoke, &[&APP, &"two"])?;
    ensure!(usable(&mut admin)?, "schema one lost what it shares");
    owner.execute(revoke, &[&APP, &"one"])?;
    let left: bool = admin
        .query_one(
            "SELECT has_schema_privilege($1::text, 'opengeni_private', 'USAGE')",
            &[&APP],
        )?
        .get(0);
    ensure!(!left, "the last revoke left USAGE behind");
    Ok(())
}

fn unusable_contract_schema(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute(&format!(
        "CREATE EXTENSION opengeni_guards;
         CREATE SCHEMA {SCHEMA} AUTHORIZATION {OWNER};
         CREATE SCHEMA opengeni_private"
    ))?;
    let before = snapshot(&mut admin)?;
    let sql = format!("SELECT opengeni_guards.provision('{SCHEMA}')");
    let refusal = refused(&mut db.owner()?, &sql, &[])?;
    refusal.has_state("42501")?;
    let hint = refusal.hint.clone().unwrap_or_default();
    ensure!(
        hint.contains("GRANT USAGE ON SCHEMA opengeni_private"),
        "{refusal:?}"
    );
    same(&before, &snapshot(&mut admin)?)
}

fn child_tables_are_told(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute(&format!(
        "CREATE TABLE {SCHEMA}.heir () INHERITS ({SCHEMA}.sandbox_retained_processes)"
    ))?;
    let found = lines(
        &mut owner,
        "SELECT object || ': ' || detail FROM opengeni_guards.status($1) WHERE state = 'incompatible'",
        &[&SCHEMA],
    )?;
    ensure!(
        found.len() == 1 && found[0].contains("sandbox_retained_processes: has child tables"),
        "{found:?}"
    );
    let sql = format!("SELECT opengeni_guards.provision('{SCHEMA}')");
    refused(&mut owner, &sql, &[])?.has_state("42809")?;
    owner.batch_execute(&format!("DROP TABLE {SCHEMA}.heir"))?;
    owner.batch_execute(&sql)?;
    Ok(())
}

fn reserved_schemas(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let before = snapshot(&mut admin)?;
    for schema in [
        "information_schema",
        "opengeni_guards",
        "opengeni_private",
        "pg_catalog",
        "pg_toast",
    ] {
        for role in [SUPERUSER, OWNER] {
            let sql = format!("SELECT opengeni_guards.provision('{schema}')");
            let refusal = refused(&mut db.session(role)?, &sql, &[])?;
            refusal.has_state("22023")?;
            refusal.names(&[schema])?;
            same(&before, &snapshot(&mut admin)?)?;
        }
    }
    Ok(())
}
