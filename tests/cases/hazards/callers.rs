//! 22 to 24: who may call what, under which identity, and in which process.

use anyhow::{Context, Result, bail, ensure};
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::server::SUPERUSER;
use postgres::Client;
use uuid::Uuid;

use super::{attached, prove};
use crate::attach::switch;
use crate::fleet::{self, READERS, WRITERS};
use crate::support::*;

/// Which functions that run as their owner somebody else may execute.
fn open_definers(client: &mut Client, role: &str) -> Result<Vec<String>> {
    lines(
        client,
        "SELECT oid::regprocedure::text FROM pg_proc
          WHERE prosecdef AND has_function_privilege($1::text, oid, 'EXECUTE')
            AND pronamespace IN (SELECT oid FROM pg_namespace WHERE nspname LIKE 'opengeni%') ORDER BY 1",
        &[&role],
    )
}

pub fn opened_afterwards(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let mut admin = db.admin()?;
    // Nobody but whom the application names: contract functions, and two trigger functions of its own.
    let contract = open_definers(&mut admin, APP)?;
    let guards = contract.iter().filter(|name| name.contains(".validate_"));
    ensure!(guards.count() == 2 && contract.len() == 14, "{contract:?}");
    ensure!(open_definers(&mut admin, "public")?.is_empty());
    owner.batch_execute(&format!(
        "ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC, {STRANGER};
         ALTER DEFAULT PRIVILEGES IN SCHEMA opengeni_private GRANT EXECUTE ON FUNCTIONS TO PUBLIC, {STRANGER};
         ALTER DEFAULT PRIVILEGES IN SCHEMA opengeni GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC, {APP};
         ALTER DEFAULT PRIVILEGES IN SCHEMA opengeni GRANT ALL ON TABLES TO PUBLIC, {APP}"
    ))?;
    admin.batch_execute(
        "ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
         ALTER DEFAULT PRIVILEGES IN SCHEMA opengeni_private GRANT EXECUTE ON FUNCTIONS TO PUBLIC",
    )?;
    let closed = |admin: &mut Client, when: &str| -> Result<()> {
        for role in ["public", STRANGER] {
            let open = open_definers(admin, role)?;
            ensure!(open.is_empty(), "{when}: {role}: {open:?}");
        }
        let ledgers = lines(
            admin,
            "SELECT relname || ' ' || role FROM pg_class, unnest(ARRAY['public', $1::text, $2]) AS role
              WHERE relname IN ('opengeni_guards_replaced', 'opengeni_guards_shadow') AND relkind = 'r'
                AND (has_table_privilege(role, pg_class.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
                  OR has_any_column_privilege(role, pg_class.oid, 'SELECT, INSERT, UPDATE, REFERENCES'))",
            &[&APP, &STRANGER],
        )?;
        ensure!(ledgers.is_empty(), "{when}: {ledgers:?}");
        Ok(())
    };
    for role in [OWNER, SUPERUSER] {
        let mut caller = db.session(role)?;
        // Made anew, by name or by default, under those privileges.
        owner.batch_execute("DROP FUNCTION opengeni_private.sandbox_rotation_backlog()")?;
        switch(&mut caller, "attach('opengeni')")?;
        closed(&mut admin, &format!("attach by {role}"))?;
        owner.batch_execute(
            "DROP FUNCTION opengeni_private.reap_sandbox_leases(bigint, bigint, bigint)",
        )?;
        caller.batch_execute("SELECT opengeni_guards.provision('opengeni')")?;
        closed(&mut admin, &format!("provision by {role}"))?;
        grant_usage(&mut owner, APP, SCHEMA)?;
        // There and back, and on with watching: the ledgers are made anew.
        switch(&mut caller, "detach('opengeni', force => true)")?;
        switch(&mut caller, "attach('opengeni', mode => 'shadow')")?;
        let ledgers: bool = value(
            &mut admin,
            "SELECT to_regclass('opengeni.opengeni_guards_shadow') IS NOT NULL",
            &[],
        )?;
        ensure!(ledgers);
        switch(&mut caller, "attach('opengeni')")?;
        closed(&mut admin, &format!("once more by {role}"))?;
    }
    // What the application's own set-up grants at large gives the contract, and no way to change it.
    for grant in [
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_private TO",
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni TO",
    ] {
        owner.batch_execute(&format!("{grant} {APP}"))?;
    }
    admin.batch_execute(&format!(
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_guards TO {APP} WITH GRANT OPTION"
    ))?;
    closed(&mut admin, "blanket grants")?;
    let open = open_definers(&mut admin, APP)?;
    ensure!(open == contract, "{open:?}");
    let before = snapshot(&mut admin)?;
    let mut app = db.session(APP)?;
    for call in [
        "attach('opengeni')",
        "attach()",
        "attach('opengeni', mode => 'shadow')",
        "detach('opengeni')",
        "detach('opengeni', force => true)",
        "provision('opengeni')",
        "provision('opengeni', 'og_cases_app')",
        "grant_usage('og_cases_app', 'opengeni')",
        "grant_usage('public', 'opengeni')",
        "revoke_usage('og_cases_app', 'opengeni')",
        "shadow_report('opengeni')",
    ] {
        let sql = format!("SELECT opengeni_guards.{call}");
        refused(&mut app, &sql, &[])?
            .has_state("42501")
            .with_context(|| call)?;
    }
    for function in READERS.iter().chain(WRITERS) {
        let mut attempt = app.transaction()?;
        attempt.batch_execute(&format!("SELECT FROM {}", function.contract()))?;
        attempt.rollback()?;
    }
    same(&before, &snapshot(&mut admin)?)
}

/// Another application role.
const SECOND: &str = "og_cases_second_app";

/// A tenant with a command that has its receipt, and one that runs.
fn with_receipt(db: &Db) -> Result<(Tenant, Command, Command, String)> {
    let (tenant, ended) = db.supervised()?;
    let running = Command::new(2);
    let mut app = db.app(&tenant)?;
    prove(&mut app, &ended)?;
    commit(&mut app, &[protocol::launch(&tenant, &running)])?;
    commit(
        &mut app,
        &[protocol::admit_input(&tenant, &running, Uuid::new_v4())],
    )?;
    let receipt = value(
        &mut app,
        "SELECT supervision_receipt::text FROM sandbox_retained_processes WHERE id = $1",
        &[&ended.process],
    )?;
    Ok((tenant, ended, running, receipt))
}

pub fn identities(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let mut admin = db.admin()?;
    if admin
        .query_opt("SELECT FROM pg_roles WHERE rolname = $1", &[&SECOND])?
        .is_none()
    {
        admin.batch_execute(&format!("CREATE ROLE {SECOND} NOLOGIN"))?;
    }
    grant_usage(&mut owner, SECOND, SCHEMA)?;
    let tenants = [with_receipt(db)?, with_receipt(db)?];
    let fleet = fleet::answers(&mut owner, READERS, |f| f.native(SCHEMA))?;
    // Of what each sees by itself: leases, processes, and the natives' answers.
    let mut own = Vec::new();
    for (tenant, ..) in &tenants {
        own.push(fleet::answers(&mut db.app(tenant)?, READERS, |f| {
            f.native(SCHEMA)
        })?);
    }
    ensure!(own[0] != own[1] && own[0] != fleet);

    for mode in ["auto", "force_generic_plan", "force_custom_plan"] {
        let mut session = db.admin()?;
        set(&mut session, "plan_cache_mode", mode)?;
        set(&mut session, MARKER, "1")?;
        // Planned once and kept, under whatever identity comes first.
        let leases = session.prepare("SELECT array_agg(workspace_id) FROM sandbox_leases")?;
        let touch = session.prepare(
            "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = $1",
        )?;
        let release = session.prepare("DELETE FROM sandbox_lease_holders WHERE holder_id = $1")?;
        let load = session.prepare(
            "SELECT opengeni_guards.load_supervision_receipt($1, $2, $3, $4, 'opengeni')::text",
        )?;
        let reserve = session
            .prepare("SELECT opengeni_guards.reserve_input($1, $2, $3, $4, 5, 'opengeni')")?;
        for turn in 0..7 {
            for (role, mine) in [
                (APP, Some(0)),
                (SECOND, Some(1)),
                (OWNER, None),
                (APP, Some(1)),
                (OWNER, Some(0)),
                (SECOND, Some(0)),
                (APP, None),
            ] {
                let context = || format!("{mode}, turn {turn}: {role}, tenant {mine:?}");
                session.batch_execute(&format!("SET ROLE {role}"))?;
                let (account, workspace) = match mine {
                    Some(mine) => (
                        tenants[mine].0.account.to_string(),
                        tenants[mine].0.workspace.to_string(),
                    ),
                    None => (String::new(), String::new()),
                };
                set(&mut session, "opengeni.account_id", &account)?;
                set(&mut session, "opengeni.workspace_id", &workspace)?;
                let visible = mine.map(|mine| vec![tenants[mine].0.workspace]);
                let sees_its_own = |client: &mut postgres::Transaction<'_>| -> Result<()> {
                    let seen: Option<Vec<Uuid>> = client.query_one(&leases, &[])?.get(0);
                    ensure!(seen == visible, "{}: {seen:?}", context());
                    Ok(())
                };
                let mut transaction = session.transaction()?;
                sees_its_own(&mut transaction)?;
                let wrapped = fleet::answers(&mut transaction, READERS, |f| f.contract())?;
                ensure!(wrapped == fleet, "{}: {wrapped:?}", context());
                sees_its_own(&mut transaction)?;
                let direct = fleet::answers(&mut transaction, READERS, |f| f.native(SCHEMA))?;
                match (role, mine) {
                    (OWNER, _) => ensure!(direct == fleet, "{}: {direct:?}", context()),
                    (_, Some(mine)) => ensure!(direct == own[mine], "{}: {direct:?}", context()),
                    _ => ensure!(direct != own[0] && direct != own[1] && direct != fleet),
                }
                sees_its_own(&mut transaction)?;
                for (number, (tenant, ended, running, receipt)) in tenants.iter().enumerate() {
                    // The four ids say whose command it is; no other tenant's ids reach it.
                    let other = &tenants[1 - number].0;
                    let right = |process| -> [Uuid; 4] {
                        [tenant.account, tenant.workspace, tenant.session, process]
                    };
                    let call =
                        |client: &mut postgres::Transaction<'_>, statement, ids: [Uuid; 4]| {
                            client.query_one(statement, &[&ids[0], &ids[1], &ids[2], &ids[3]])
                        };
                    let loaded = call(&mut transaction, &load, right(ended.process))?;
                    ensure!(
                        loaded.get::<_, Option<&str>>(0) == Some(receipt),
                        "{}",
                        context()
                    );
                    let none = call(&mut transaction, &load, right(running.process))?;
                    ensure!(none.get::<_, Option<&str>>(0).is_none(), "{}", context());
                    for process in [ended.process, running.process] {
                        for statement in [&load, &reserve] {
                            let mut attempt = transaction.transaction()?;
                            let ids = [other.account, other.workspace, other.session, process];
                            match call(&mut attempt, statement, ids) {
                                Ok(_) => bail!("{}: another tenant's command", context()),
                                Err(error) => Refusal::of(&error)?.has_state("P0002")?,
                            }
                            attempt.rollback()?;
                            sees_its_own(&mut transaction)?;
                        }
                    }
                    let mut attempt = transaction.transaction()?;
                    let at: i64 = call(&mut attempt, &reserve, right(running.process))?.get(0);
                    ensure!(at == 0, "{}: {at}", context());
                    sees_its_own(&mut attempt)?;
                    attempt.rollback()?;
                    // Writes reach the own tenant's rows, and there the guard answers.
                    let expected = u64::from(mine == Some(number));
                    let touched = transaction.execute(&touch, &[&running.process])?;
                    ensure!(touched == expected, "{}: {touched} touched", context());
                    let mut attempt = transaction.transaction()?;
                    match (attempt.execute(&release, &[&running.holder()]), expected) {
                        (Ok(0), 0) => {}
                        (Err(error), 1) => {
                            Refusal::of(&error)?.is_by("55000", "process_holder.retained")?;
                        }
                        (outcome, _) => bail!("{}: {outcome:?}", context()),
                    }
                    attempt.rollback()?;
                    sees_its_own(&mut transaction)?;
                }
                transaction.commit()?;
            }
            session.batch_execute("RESET ROLE")?;
            let lifted = lines(
                &mut session,
                "SELECT relname::text FROM pg_class WHERE relnamespace = 'opengeni'::regnamespace AND relkind = 'r'
                   AND relname LIKE 'sandbox_%' AND relname <> 'sandbox_checkpoint_artifacts'
                   AND NOT (relrowsecurity AND relforcerowsecurity)",
                &[],
            )?;
            ensure!(lifted.is_empty(), "{lifted:?}");
        }
    }
    Ok(())
}

pub fn parallel(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    // Functions of their arguments alone.
    let safe = lines(
        &mut owner,
        "SELECT proname::text FROM pg_proc WHERE proparallel = 's' AND pronamespace = 'opengeni_guards'::regnamespace ORDER BY 1",
        &[],
    )?;
    ensure!(
        safe == [
            "has_retired_session_create_selection",
            "rules",
            "warming_reset_resume_state_v2",
            "without_retired_session_create_metadata",
        ],
        "{safe:?}"
    );
    let wrong = lines(
        &mut owner,
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
           JOIN pg_proc native ON d.refclassid = 'pg_proc'::regclass AND native.oid = d.refobjid
          WHERE p.pronamespace IN ('opengeni'::regnamespace, 'opengeni_private'::regnamespace)
            AND native.pronamespace = 'opengeni_guards'::regnamespace
            AND (p.proparallel = 's' AND native.proparallel <> 's' OR p.provolatile = 'i' AND native.provolatile <> 'i')",
        &[],
    )?;
    ensure!(wrong.is_empty(), "{wrong:?}");

    fleet::pair(db, SCHEMA)?;
    // The application's own helpers would keep every query of a table with a policy from going parallel.
    owner.batch_execute(
        "ALTER FUNCTION opengeni_private.current_account_id() PARALLEL SAFE;
         ALTER FUNCTION opengeni_private.current_workspace_id() PARALLEL SAFE;
         ALTER FUNCTION opengeni_private.workspace_rls_visible(uuid, uuid) PARALLEL SAFE",
    )?;
    let force = match db.server.major {
        ..=15 => "force_parallel_mode",
        _ => "debug_parallel_query",
    };
    let with_workers = format!(
        "SET {force} = on; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
         SET min_parallel_index_scan_size = 0; SET max_parallel_workers_per_gather = 4"
    );
    let mut seen = Vec::new();
    for settings in ["", &with_workers] {
        let mut all = Vec::new();
        for tenant in [0, 1, 2] {
            for role in [APP, OWNER] {
                let mut session = db.session(role)?;
                session.batch_execute(settings)?;
                fleet::enter(&mut session, tenant)?;
                all.push(fleet::answers(&mut session, READERS, |f| f.contract())?);
                all.push(fleet::answers(&mut session, READERS, |f| f.native(SCHEMA))?);
                let mut transaction = session.transaction()?;
                all.push(fleet::answers(&mut transaction, WRITERS, |f| f.contract())?);
                transaction.rollback()?;
                all.push(vec![lines(
                    &mut session,
                    "SELECT 'l' || id FROM sandbox_leases UNION ALL SELECT 'p' || id FROM sandbox_retained_processes ORDER BY 1",
                    &[],
                )?]);
                // Beside the inventory, in one statement: the policy asks in this backend, and it says no.
                all.push(vec![lines(
                    &mut session,
                    "SELECT (SELECT count(*) FROM opengeni_private.list_live_modal_sandbox_leases()) || ' ' || count(*)
                       FROM sandbox_leases",
                    &[],
                )?]);
                if tenant == 0 && role == OWNER {
                    fleet::closed(&mut session)?;
                }
            }
        }
        seen.push(all);
    }
    for (number, (alone, workers)) in seen[0].iter().zip(&seen[1]).enumerate() {
        ensure!(
            alone == workers,
            "answer {number}: {alone:?}, with workers {workers:?}"
        );
    }
    // There were workers, where the policy allows them, and none where the capability is asked for.
    let mut app = fleet::app(db, 1)?;
    app.batch_execute(&with_workers)?;
    for (table, workers) in [
        ("sandbox_retained_processes", true),
        ("sandbox_leases", false),
    ] {
        let plan = lines(&mut app, &format!("EXPLAIN SELECT * FROM {table}"), &[])?.join("\n");
        ensure!(plan.contains("Gather") == workers, "{table}:\n{plan}");
    }
    Ok(())
}
