//! The contract's functions as objects: whose they are, whom they serve, who may call them, and that no name of
//! the caller's leads them elsewhere.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;

use crate::fleet::{self, READERS, WRITERS};
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "contract: its names serve the first of two schemas, the natives serve both",
            two_schemas,
        ),
        case(
            server,
            "contract: usage of two schemas is granted and revoked one by one",
            two_grants,
        ),
        case(
            server,
            "contract: status() and provision() know a function that is missing, altered or another",
            states,
        ),
        bare_case(
            server,
            "contract: whatever is granted by default or to all, PUBLIC runs nothing as the owner",
            not_for_public,
        ),
        case(
            server,
            "contract: a renamed schema stays served, its name in other hands is not",
            renamed,
        ),
        case(
            server,
            "contract: temp tables, functions, operators and types of the caller's change nothing",
            caller_names,
        ),
    ]
}

/// The contract's functions that work on a schema.
const SERVING: i64 = 12;

fn contract_states(client: &mut Client, schema: &str) -> Result<Vec<String>> {
    lines(
        client,
        "SELECT DISTINCT concat_ws(': ', state, detail) FROM opengeni_guards.status($1)
         WHERE object LIKE 'function opengeni_private.%' AND state <> 'present' ORDER BY 1",
        &[&schema],
    )
}

fn two_schemas(db: &Db) -> Result<()> {
    fleet::pair(db, SCHEMA)?;
    let mut owner = db.owner()?;
    owner.batch_execute("CREATE SCHEMA second")?;
    let left = owner.query(
        "SELECT object, note FROM opengeni_guards.provision('second') WHERE action = 'left'",
        &[],
    )?;
    ensure!(left.len() as i64 == SERVING, "{} left", left.len());
    for row in &left {
        let (object, note): (&str, &str) = (row.get(0), row.get(1));
        ensure!(
            object.starts_with("function opengeni_private.") && note == "serves schema opengeni",
            "{object}: {note}"
        );
    }
    ensure!(contract_states(&mut owner, SCHEMA)? == ["native"]);
    let second = contract_states(&mut owner, "second")?;
    ensure!(
        second == ["altered: serves schema opengeni", "native"],
        "{second:?}"
    );

    let contract = |f: &fleet::Function| f.contract();
    let first = fleet::answers(&mut owner, READERS, contract)?;
    let empty = fleet::answers(&mut owner, READERS, |f| f.native("second"))?;
    ensure!(first != empty);
    fleet::tenants(db, "second", 3)?;
    fleet::processes(db, "second", 2)?;
    fleet::artifacts(db, "second", 2)?;
    // In alternation; what one writes the other does not see.
    for _ in 0..7 {
        let mut transaction = owner.transaction()?;
        ensure!(fleet::answers(&mut transaction, READERS, contract)? == first);
        let live = fleet::answer(
            &mut transaction,
            "opengeni_guards.list_live_modal_sandbox_leases('second')",
        )?;
        ensure!(live.len() == 3, "{live:?}");
        let open: bool = value(
            &mut transaction,
            "SELECT modal_inventory_read_capability_active() OR second.modal_inventory_read_capability_active()
               OR EXISTS (SELECT FROM second.sandbox_leases) OR EXISTS (SELECT FROM sandbox_leases)",
            &[],
        )?;
        ensure!(!open, "something is left open");
        for (call, rows) in [
            (
                "claim_terminal_retained_processes('second', gen_random_uuid(), 100, 0)",
                6,
            ),
            (
                "claim_sandbox_checkpoint_artifacts('second', gen_random_uuid(), 500, 1000)",
                6,
            ),
            ("reap_sandbox_leases('second', 0, 0, 0)", 0),
        ] {
            let found = fleet::answer(&mut transaction, &format!("opengeni_guards.{call}"))?;
            ensure!(found.len() == rows, "{call}: {found:?}");
        }
        for (call, rows) in [
            (
                "claim_terminal_retained_processes(gen_random_uuid(), 100, 0)",
                2,
            ),
            (
                "claim_sandbox_checkpoint_artifacts(gen_random_uuid(), 500, 1000)",
                2,
            ),
        ] {
            let found = fleet::answer(&mut transaction, &format!("opengeni_private.{call}"))?;
            ensure!(found.len() == rows, "{call}: {found:?}");
        }
        transaction.rollback()?;
    }
    // A capability is one table's: a policy of the second schema that asks while the first is read says no.
    db.admin()?.batch_execute(
        "CREATE POLICY apart ON sandbox_leases AS RESTRICTIVE FOR SELECT
           USING (NOT second.modal_inventory_read_capability_active())",
    )?;
    ensure!(fleet::answers(&mut owner, READERS, contract)? == first);
    Ok(())
}

/// Of the contract's functions, how many a role may execute.
fn executable(client: &mut Client, role: &str) -> Result<i64> {
    value(
        client,
        "SELECT count(*) FROM pg_proc WHERE pronamespace = 'opengeni_private'::regnamespace AND prosecdef
           AND has_function_privilege($1, oid, 'EXECUTE')",
        &[&role],
    )
}

fn two_grants(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute("CREATE SCHEMA second")?;
    provision(&mut owner, "second")?;
    let revoke = |client: &mut Client, schema: &str| {
        client.execute(
            "SELECT opengeni_guards.revoke_usage($1::text::name, $2)",
            &[&APP, &schema],
        )
    };
    let helpers = "SELECT bool_and(has_function_privilege($1, oid, 'EXECUTE')) FROM pg_proc
         WHERE pronamespace = 'opengeni_private'::regnamespace AND proname IN
           ('current_account_id', 'current_workspace_id', 'workspace_rls_visible')";
    grant_usage(&mut owner, APP, "second")?;
    ensure!(executable(&mut owner, APP)? == SERVING);
    fleet::answers(&mut db.session(APP)?, READERS, |f| f.native("second"))?;

    revoke(&mut owner, "second")?;
    ensure!(
        executable(&mut owner, APP)? == SERVING,
        "the first's are gone"
    );
    fleet::answers(&mut db.session(APP)?, READERS, |f| f.contract())?;
    for function in READERS.iter().chain(WRITERS) {
        let sql = format!("SELECT FROM {}", function.native("second"));
        refused(&mut db.session(APP)?, &sql, &[])?.has_state("42501")?;
    }

    grant_usage(&mut owner, APP, "second")?;
    revoke(&mut owner, SCHEMA)?;
    ensure!(executable(&mut owner, APP)? == 0, "the first's are left");
    ensure!(
        value::<bool>(&mut owner, helpers, &[&APP])?,
        "the second's policies fail"
    );
    fleet::answers(&mut db.session(APP)?, READERS, |f| f.native("second"))?;

    grant_usage(&mut owner, APP, SCHEMA)?;
    ensure!(executable(&mut owner, APP)? == SERVING);
    ensure!(executable(&mut owner, STRANGER)? == 0);
    fleet::answers(&mut db.session(APP)?, READERS, |f| f.contract())?;
    Ok(())
}

/// The state and detail of one function.
fn state_of(client: &mut Client, function: &str) -> Result<(String, Option<String>)> {
    let row = client.query_one(
        "SELECT state, detail FROM opengeni_guards.status($1) WHERE object LIKE 'function %.' || $2 || '(%'",
        &[&SCHEMA, &function],
    )?;
    Ok((row.get(0), row.get(1)))
}

fn states(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    let of_all = "SELECT DISTINCT state FROM opengeni_guards.status($1)
         WHERE object ~ '^function' AND object !~ 'current_|workspace_rls'";
    ensure!(lines(&mut admin, of_all, &[&SCHEMA])? == ["native"]);
    // One that answers rows, one that answers a value, and the two that run as their caller.
    for (signature, definer) in [
        (
            "opengeni_private.reap_sandbox_leases(bigint, bigint, bigint)",
            true,
        ),
        (
            "opengeni_private.settle_sandbox_checkpoint_artifact(uuid, uuid, boolean, text, bigint)",
            true,
        ),
        (
            "opengeni_private.warming_reset_resume_state_v2(text, text, jsonb, integer, integer, timestamptz)",
            false,
        ),
        ("opengeni.modal_inventory_read_capability_active()", false),
    ] {
        let name = signature.split(['.', '(']).nth(1).context("no name")?;
        let (other, as_created) = match definer {
            true => ("INVOKER", "SET search_path = pg_catalog, pg_temp"),
            false => ("DEFINER", "RESET search_path"),
        };
        let identity = match definer {
            true => "does not run as its owner",
            false => "runs as its owner",
        };
        let path = "does not pin its search_path as it was created";
        for (change, state, detail) in [
            (
                format!("ALTER FUNCTION {signature} OWNER TO {SUPERUSER}"),
                "altered",
                Some("does not belong to the tables' owner"),
            ),
            (
                format!("ALTER FUNCTION {signature} SECURITY {other}"),
                "altered",
                Some(identity),
            ),
            (
                format!("ALTER FUNCTION {signature} SET search_path = public"),
                "altered",
                Some(path),
            ),
            (
                format!("ALTER FUNCTION {signature} SET work_mem = '1MB'"),
                "altered",
                Some(path),
            ),
            (
                format!(
                    "ALTER FUNCTION {signature} SET search_path = public; ALTER FUNCTION {signature} {as_created}"
                ),
                "native",
                None,
            ),
            (
                format!("DROP FUNCTION {signature} CASCADE"),
                "missing",
                None,
            ),
        ] {
            admin.batch_execute(&format!(
                "BEGIN; SET LOCAL client_min_messages = warning; {change}"
            ))?;
            let found = state_of(&mut admin, name)?;
            ensure!(
                found == (state.to_owned(), detail.map(str::to_owned)),
                "after {change}: {found:?}"
            );
            admin.batch_execute("ROLLBACK")?;
        }
    }

    // What is missing comes back, with the policy that asks one of them; what differs is left.
    let mut transaction = admin.transaction()?;
    transaction.batch_execute(&format!(
        "SET LOCAL client_min_messages = warning;
         ALTER FUNCTION opengeni_private.sandbox_rotation_backlog() SET search_path = public;
         DROP FUNCTION opengeni_private.reap_sandbox_leases(bigint, bigint, bigint),
           opengeni_private.warming_reset_resume_state_v2, modal_inventory_read_capability_active CASCADE;
         SET LOCAL ROLE {OWNER}"
    ))?;
    let mut report = lines(
        &mut transaction,
        "SELECT concat_ws(' ', substring(object FROM '[a-z_0-9]+(?=[(]| on )'), action, note)
         FROM opengeni_guards.provision($1) WHERE action <> 'present'",
        &[&SCHEMA],
    )?;
    report.sort();
    ensure!(
        report
            == [
                "modal_inventory_owner_read created",
                "modal_inventory_read_capability_active created",
                "reap_sandbox_leases created",
                "sandbox_rotation_backlog left does not pin its search_path as it was created",
                "warming_reset_resume_state_v2 created",
            ],
        "{report:?}"
    );
    let mut states = lines(&mut transaction, of_all, &[&SCHEMA])?;
    states.sort();
    ensure!(states == ["altered", "native"], "{states:?}");
    transaction.rollback()?;

    // Somebody else's body under the name.
    let head = "CREATE OR REPLACE FUNCTION opengeni_private.request_due_sandbox_rotations(p_lead_ms bigint, p_limit integer)
         RETURNS integer";
    let pinned = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp";
    let name = "request_due_sandbox_rotations";
    for (body, state, detail) in [
        (
            format!("LANGUAGE plpgsql {pinned} AS 'BEGIN RETURN 0; END'"),
            "unknown definition",
            "does not call the native function",
        ),
        (
            format!("LANGUAGE sql {pinned} RETURN 0"),
            "unknown definition",
            "does not call the native function",
        ),
        // By name: it would follow a schema that takes the name.
        (
            format!("LANGUAGE sql {pinned} RETURN opengeni_guards.{name}('opengeni', p_lead_ms, p_limit)"),
            "altered",
            "does not keep its schema by OID",
        ),
        (
            format!(
                "LANGUAGE sql {pinned} RETURN opengeni_guards.{name}(CASE WHEN p_limit > 3 THEN 'opengeni'::regnamespace
                   ELSE 'public'::regnamespace END::text, p_lead_ms, p_limit)"
            ),
            "altered",
            "serves schema public",
        ),
    ] {
        let mut owner = db.owner()?;
        owner.batch_execute(&format!("{head} {body}"))?;
        let found = state_of(&mut owner, name)?;
        ensure!(
            found == (state.to_owned(), Some(detail.to_owned())),
            "{body}: {found:?}"
        );
        let left = lines(
            &mut owner,
            "SELECT note FROM opengeni_guards.provision($1) WHERE action <> 'present'",
            &[&SCHEMA],
        )?;
        let note = if state == "altered" { detail } else { state };
        ensure!(left == [note], "{body}: {left:?}");
    }
    // Dropped and provisioned, it is ours again, for whoever had it granted anew.
    let mut owner = db.owner()?;
    owner.batch_execute(&format!("DROP FUNCTION opengeni_private.{name}"))?;
    provision(&mut owner, SCHEMA)?;
    ensure!(state_of(&mut owner, name)?.0 == "native");
    let call = format!("SELECT opengeni_private.{name}(0, 1)");
    refused(&mut db.session(APP)?, &call, &[])?.has_state("42501")?;
    grant_usage(&mut owner, APP, SCHEMA)?;
    db.session(APP)?.execute(&call, &[])?;
    Ok(())
}

/// Who besides the owner may execute functions that run as it.
fn grantees(client: &mut Client) -> Result<Vec<String>> {
    lines(
        client,
        "SELECT DISTINCT coalesce(rolname::text, 'PUBLIC') FROM pg_proc p
           CROSS JOIN aclexplode(coalesce(proacl, acldefault('f', proowner)))
           LEFT JOIN pg_roles r ON r.oid = grantee
         WHERE prosecdef AND pronamespace IN (SELECT oid FROM pg_namespace WHERE nspname LIKE 'opengeni%')
           AND grantee <> proowner ORDER BY 1",
        &[],
    )
}

fn not_for_public(db: &Db) -> Result<()> {
    let mut admin = db.admin()?;
    admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
    let mut owner = db.owner()?;
    owner.batch_execute(&format!(
        "ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
         ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO {STRANGER}, {APP} WITH GRANT OPTION;
         CREATE SCHEMA opengeni_private; CREATE SCHEMA {SCHEMA};
         ALTER DEFAULT PRIVILEGES IN SCHEMA opengeni_private GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
         GRANT USAGE ON SCHEMA opengeni_private TO PUBLIC"
    ))?;
    provision(&mut owner, SCHEMA)?;
    let granted = grantees(&mut admin)?;
    ensure!(granted.is_empty(), "after provision: {granted:?}");
    let count: i64 = value(
        &mut admin,
        "SELECT count(*) FROM pg_proc WHERE prosecdef AND pronamespace = 'opengeni_private'::regnamespace",
        &[],
    )?;
    ensure!(count == SERVING, "{count} run as their owner");
    for role in [APP, STRANGER] {
        for function in READERS.iter().chain(WRITERS) {
            let sql = format!("SELECT FROM {}", function.contract());
            refused(&mut db.session(role)?, &sql, &[])?.has_state("42501")?;
        }
    }
    grant_usage(&mut owner, APP, SCHEMA)?;
    ensure!(grantees(&mut admin)? == [APP]);
    // What the application's own set-up does to all functions there.
    owner.batch_execute(&format!(
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_private TO {APP}"
    ))?;
    ensure!(grantees(&mut admin)? == [APP]);
    // One of them is dropped and comes back, still under those defaults.
    owner.batch_execute("DROP FUNCTION opengeni_private.list_live_modal_sandbox_leases()")?;
    provision(&mut owner, SCHEMA)?;
    ensure!(grantees(&mut admin)? == [APP]);
    for function in READERS.iter().chain(WRITERS) {
        let sql = format!("SELECT FROM {}", function.contract());
        refused(&mut db.session(STRANGER)?, &sql, &[])?.has_state("42501")?;
    }
    // Somebody opens the door; granting usage anew closes it.
    owner.batch_execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_private TO PUBLIC")?;
    ensure!(grantees(&mut admin)? == ["PUBLIC", APP]);
    grant_usage(&mut owner, APP, SCHEMA)?;
    ensure!(grantees(&mut admin)? == [APP]);
    // The policies' question is everybody's, and runs as whoever asks.
    let open: bool = value(
        &mut db.session(STRANGER)?,
        "SELECT has_function_privilege(p.oid, 'EXECUTE') AND NOT prosecdef FROM pg_proc p
         WHERE proname = 'modal_inventory_read_capability_active'
           AND pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)",
        &[&SCHEMA],
    )?;
    ensure!(open);
    Ok(())
}

fn renamed(db: &Db) -> Result<()> {
    fleet::pair(db, SCHEMA)?;
    let mut owner = db.owner()?;
    let mut app = db.session(APP)?;
    let contract = |f: &fleet::Function| f.contract();
    let before = fleet::answers(&mut app, READERS, contract)?;
    ensure!(fleet::answers(&mut owner, READERS, |f| f.native(SCHEMA))? == before);
    // Names that need quotes, a mark that a pattern would read, the first name again.
    for name in [
        "moved",
        "Data \"2\" of o'Neill, ü {schema} $1 %I",
        SCHEMA,
        "moved",
    ] {
        let quoted: String = value(&mut owner, "SELECT quote_ident($1)", &[&name])?;
        let current: String = value(
            &mut owner,
            "SELECT quote_ident(nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
             WHERE relname = 'sandbox_leases'",
            &[],
        )?;
        if current != quoted {
            owner.batch_execute(&format!("ALTER SCHEMA {current} RENAME TO {quoted}"))?;
        }
        for session in [&mut app, &mut db.session(APP)?] {
            ensure!(
                fleet::answers(session, READERS, contract)? == before,
                "after the schema became {name}"
            );
        }
        ensure!(contract_states(&mut owner, name)? == ["native"]);
        let mut transaction = app.transaction()?;
        for function in WRITERS {
            fleet::answer(&mut transaction, &function.contract())
                .with_context(|| format!("{name}: {}", function.name))?;
        }
        transaction.rollback()?;
    }
    // Somebody else has the name now, and the same session asks for it.
    owner.batch_execute(&format!("CREATE SCHEMA {SCHEMA}"))?;
    provision(&mut owner, SCHEMA)?;
    let empty = fleet::answers(&mut owner, READERS, |f| f.native(SCHEMA))?;
    ensure!(
        empty != before && empty.last().is_some_and(Vec::is_empty),
        "{empty:?}"
    );
    ensure!(fleet::answers(&mut app, READERS, contract)? == before);
    ensure!(contract_states(&mut owner, SCHEMA)? == ["altered: serves schema moved", "native"]);
    // The names change hands.
    owner.batch_execute(&format!(
        "ALTER SCHEMA {SCHEMA} RENAME TO away; ALTER SCHEMA moved RENAME TO {SCHEMA};
         ALTER SCHEMA away RENAME TO moved"
    ))?;
    ensure!(fleet::answers(&mut owner, READERS, |f| f.native(SCHEMA))? == before);
    ensure!(fleet::answers(&mut owner, READERS, |f| f.native("moved"))? == empty);
    ensure!(fleet::answers(&mut app, READERS, contract)? == before);
    // Gone and back, empty.
    owner.batch_execute(&format!(
        "SET client_min_messages = warning; DROP SCHEMA {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}"
    ))?;
    let gone = refused(
        &mut app,
        &format!("SELECT FROM {}", READERS[5].contract()),
        &[],
    )?;
    ensure!(
        ["42883", "3F000", "42P01"].contains(&gone.sqlstate.as_str()),
        "{gone:?}"
    );
    provision(&mut owner, SCHEMA)?;
    grant_usage(&mut owner, APP, SCHEMA)?;
    ensure!(fleet::answers(&mut owner, READERS, |f| f.native(SCHEMA))? == empty);
    ensure!(fleet::answers(&mut app, READERS, contract)? == empty);
    Ok(())
}

fn caller_names(db: &Db) -> Result<()> {
    fleet::pair(db, SCHEMA)?;
    let mut owner = db.owner()?;
    let calm = |client: &mut Client, native: bool| -> Result<Vec<Vec<String>>> {
        let mut transaction = client.transaction()?;
        let call = |f: &fleet::Function| match native {
            true => f.native(SCHEMA),
            false => f.contract(),
        };
        let mut found = fleet::answers(&mut transaction, READERS, call)?;
        found.extend(fleet::answers(&mut transaction, WRITERS, call)?);
        transaction.rollback()?;
        Ok(found)
    };
    let expected = calm(&mut owner, true)?;
    ensure!(calm(&mut db.session(APP)?, false)? == expected);

    let mut admin = db.admin()?;
    admin.batch_execute("CREATE SCHEMA evil; GRANT ALL ON SCHEMA evil TO PUBLIC")?;
    const NAMES: &str = "
        CREATE FUNCTION evil.trip(VARIADIC anyarray) RETURNS text LANGUAGE plpgsql AS $$
          BEGIN RAISE 'evil was called as %', current_user; END $$;
        CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT evil.trip(1)::timestamptz $$;
        CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT evil.trip(1)::timestamptz $$;
        CREATE FUNCTION evil.unnest(uuid[]) RETURNS SETOF uuid LANGUAGE sql AS $$ SELECT evil.trip(1)::uuid $$;
        CREATE FUNCTION evil.left(text, integer) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
        CREATE FUNCTION evil.sfunc(bigint, uuid) RETURNS bigint LANGUAGE sql AS $$ SELECT evil.trip(1)::bigint $$;
        CREATE FUNCTION evil.parse_ident(text, boolean DEFAULT true) RETURNS text[] LANGUAGE sql AS $$ SELECT ARRAY[evil.trip(1)] $$;
        CREATE AGGREGATE evil.count(uuid) (SFUNC = evil.sfunc, STYPE = bigint);
        CREATE AGGREGATE evil.array_agg(uuid) (SFUNC = evil.sfunc, STYPE = bigint);
        CREATE FUNCTION evil.same(uuid, uuid) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trip(1)::boolean $$;
        CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trip(1)::boolean $$;
        CREATE FUNCTION evil.same(name, text) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trip(1)::boolean $$;
        CREATE FUNCTION evil.before(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trip(1)::boolean $$;
        CREATE FUNCTION evil.get(jsonb, text) RETURNS text LANGUAGE sql AS $$ SELECT evil.trip(1) $$;
        CREATE FUNCTION evil.plus(timestamptz, interval) RETURNS timestamptz LANGUAGE sql AS $$ SELECT evil.trip(1)::timestamptz $$;
        CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = uuid, RIGHTARG = uuid);
        CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text);
        CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = name, RIGHTARG = text);
        CREATE OPERATOR evil.< (FUNCTION = evil.before, LEFTARG = timestamptz, RIGHTARG = timestamptz);
        CREATE OPERATOR evil.<= (FUNCTION = evil.before, LEFTARG = timestamptz, RIGHTARG = timestamptz);
        CREATE OPERATOR evil.->> (FUNCTION = evil.get, LEFTARG = jsonb, RIGHTARG = text);
        CREATE OPERATOR evil.- (FUNCTION = evil.plus, LEFTARG = timestamptz, RIGHTARG = interval);
        CREATE OPERATOR evil.+ (FUNCTION = evil.plus, LEFTARG = timestamptz, RIGHTARG = interval);
        CREATE DOMAIN evil.interval AS text; CREATE DOMAIN evil.integer AS pg_catalog.int4 CHECK (value > 1000000);";
    admin.batch_execute(NAMES)?;
    // Decoys of the tables and of the catalogues, in each session's own temp schema.
    let decoys: String = [
        "sandbox_leases",
        "sandbox_lease_holders",
        "sandbox_retained_processes",
        "sandbox_checkpoint_artifacts",
        "session_turns",
        "session_turn_attempts",
    ]
    .map(|table| format!("CREATE TEMP TABLE {table} (LIKE opengeni.{table});"))
    .concat()
        + "CREATE TEMP TABLE pg_namespace (oid oid, nspname name);
           CREATE TEMP TABLE pg_class (oid oid, relname name);
           CREATE FUNCTION pg_temp.modal_inventory_read_capability_active() RETURNS boolean LANGUAGE sql RETURN true;";
    for path in [
        "pg_temp, evil, pg_catalog",
        "evil, pg_temp, opengeni, pg_catalog",
        "evil",
    ] {
        for (role, native) in [(APP, false), (OWNER, true), (OWNER, false)] {
            let mut session = db.session(role)?;
            session.batch_execute(&decoys)?;
            set(&mut session, "search_path", path)?;
            let found = calm(&mut session, native)
                .with_context(|| format!("search_path = {path}, {role}"))?;
            ensure!(found == expected, "search_path = {path}, {role}: {found:?}");
            let left: String = value(&mut session, "SELECT current_setting('search_path')", &[])?;
            ensure!(left == path, "{left}");
        }
    }
    Ok(())
}
