//! 28: what the owner laid out, when a superuser calls.

use anyhow::{Context, Result, anyhow, bail, ensure};
use postgres::Client;

use super::{GUARDED, attached, states};
use crate::attach::extension;
use crate::support::*;

/// `trap.spring()` counts, across rollbacks, who runs it and whether it can become more. Whatever the owner can
/// hang on its tables calls it.
fn lay_mines(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute(
        "CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO PUBLIC;
         CREATE SEQUENCE trap.as_superuser; CREATE SEQUENCE trap.as_owner; CREATE SEQUENCE trap.escaped;
         GRANT ALL ON ALL SEQUENCES IN SCHEMA trap TO PUBLIC;
         CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $trap$
         DECLARE
           attempt text;
         BEGIN
           IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
             PERFORM nextval('trap.as_superuser');
             RETURN true;
           END IF;
           PERFORM nextval('trap.as_owner');
           FOREACH attempt IN ARRAY ARRAY['SET ROLE postgres', 'SET LOCAL ROLE postgres', 'SET ROLE NONE', 'RESET ROLE',
             'RESET SESSION AUTHORIZATION', 'SET SESSION AUTHORIZATION postgres', 'CREATE ROLE og_cases_escaped SUPERUSER',
             'CREATE TEMP TABLE og_cases_escaped (id int)', 'ALTER SYSTEM SET log_statement = none'] LOOP
             BEGIN
               EXECUTE attempt;
               IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user)
                 OR attempt ~ '^(CREATE ROLE|ALTER)' THEN
                 PERFORM nextval('trap.escaped');
               END IF;
             EXCEPTION WHEN OTHERS THEN NULL;
             END;
           END LOOP;
           RETURN true;
         END $trap$;
         CREATE FUNCTION trap.fired() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM trap.spring(); RETURN coalesce(NEW, OLD); END $$;
         CREATE FUNCTION trap.text(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM trap.spring(); RETURN $1; END $$;
         CREATE FUNCTION trap.sure(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN trap.spring(); END $$;
         CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.spring(); RETURN now(); END $$;
         CREATE DOMAIN trap.trapped AS text CHECK (trap.sure(value));
         CREATE VIEW trap.seen AS SELECT trap.text('x') AS rule, trap.text('y') AS object, 1::bigint AS refusals, trap.now() AS seen_at",
    )?;
    for table in GUARDED {
        owner.batch_execute(&format!(
            "CREATE TRIGGER a_mine BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION trap.fired();
             CREATE TRIGGER statement_mine AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table} FOR EACH STATEMENT
               EXECUTE FUNCTION trap.fired();
             CREATE CONSTRAINT TRIGGER late_mine AFTER INSERT OR UPDATE OR DELETE ON {table} DEFERRABLE INITIALLY DEFERRED
               FOR EACH ROW EXECUTE FUNCTION trap.fired();
             CREATE INDEX {table}_mine ON {table} (trap.text(id::text));
             CREATE INDEX {table}_mine_where ON {table} (id) WHERE trap.sure('constant');
             ALTER TABLE {table} ADD CONSTRAINT mine CHECK (trap.sure('constant') AND trap.sure(id::text)),
               ALTER COLUMN id SET DEFAULT trap.text(gen_random_uuid()::text)::uuid;
             CREATE POLICY mine ON {table} USING (trap.sure('constant') AND trap.sure(id::text));
             CREATE STATISTICS {table}_mine_statistics ON (trap.text(id::text)), (trap.text(account_id::text)) FROM {table}"
        ))?;
    }
    // What a caller's path, a role's settings or a function's could lead to.
    for (signature, result) in [
        ("format(text, text)", "text"),
        ("quote_ident(text)", "text"),
        ("set_config(text, text, boolean)", "text"),
        ("encode(bytea, text)", "text"),
        ("concat_ws(text, text, text)", "text"),
        ("pg_get_triggerdef(oid)", "text"),
        ("pg_get_functiondef(oid)", "text"),
        ("has_schema_privilege(text, text)", "boolean"),
        ("count(bigint)", "bigint"),
    ] {
        owner.batch_execute(&format!(
            "CREATE FUNCTION opengeni.{signature} RETURNS {result} LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.spring(); RETURN NULL; END $$"
        ))?;
    }
    for kind in ["text", "name", "oid", "jsonb", "uuid"] {
        owner.batch_execute(&format!(
            "CREATE FUNCTION opengeni.equal({kind}, {kind}) RETURNS boolean LANGUAGE plpgsql AS
               $$ BEGIN PERFORM trap.spring(); RETURN true; END $$;
             CREATE OPERATOR opengeni.= (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = opengeni.equal);
             CREATE OPERATOR opengeni.<> (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = opengeni.equal)"
        ))?;
    }
    owner.batch_execute(&format!(
        "ALTER FUNCTION opengeni_private.workspace_rls_visible(uuid, uuid) SET search_path = opengeni, trap;
         ALTER ROLE {OWNER} IN DATABASE {} SET search_path = opengeni, trap, pg_catalog;
         ALTER ROLE {OWNER} IN DATABASE {} SET check_function_bodies = off",
        db.name, db.name
    ))?;
    Ok(())
}

fn sprung(client: &mut Client, sequence: &str) -> Result<i64> {
    value(
        client,
        "SELECT coalesce(pg_sequence_last_value($1::text::regclass), 0)",
        &[&format!("trap.{sequence}")],
    )
}

pub fn mines(db: &Db) -> Result<()> {
    let (tenant, _) = db.supervised()?;
    lay_mines(db)?;
    let mut owner = db.owner()?;
    let mut admin = db.admin()?;
    let reset = |client: &mut Client| {
        client.batch_execute(
        "SELECT setval('trap.as_superuser', 1, false), setval('trap.as_owner', 1, false), setval('trap.escaped', 1, false)",
    )
    };
    reset(&mut admin)?;
    // On the ledgers, once they are there.
    let ledger = "ALTER TABLE opengeni_guards_replaced ALTER COLUMN replaced_at SET DEFAULT trap.now(),
          ADD CONSTRAINT mine CHECK (trap.sure('constant') AND trap.sure(object)),
          ADD COLUMN made text GENERATED ALWAYS AS (trap.text(object)) STORED, ADD COLUMN note trap.trapped DEFAULT 'note';
        CREATE INDEX mine ON opengeni_guards_replaced (trap.text(object));
        CREATE INDEX mine_where ON opengeni_guards_replaced (object) WHERE trap.sure('constant');
        CREATE STATISTICS mine_of_ledger ON (trap.text(object)), (trap.text(owner)) FROM opengeni_guards_replaced";
    // With something to write into it.
    let written = format!("{ledger}; DROP FUNCTION opengeni_private.sandbox_rotation_backlog()");
    let log = "ALTER TABLE opengeni_guards_shadow ALTER COLUMN seen_at SET DEFAULT trap.now(),
          ADD CONSTRAINT mine CHECK (trap.sure(rule));
        CREATE INDEX mine_of_log ON opengeni_guards_shadow (trap.text(rule));
        CREATE INDEX mine_of_log_where ON opengeni_guards_shadow (rule) WHERE trap.sure('constant')";
    let view = "DROP TABLE opengeni_guards_shadow; ALTER VIEW trap.seen SET SCHEMA opengeni; ALTER VIEW seen RENAME TO opengeni_guards_shadow";
    for (before, call) in [
        ("", "CREATE EXTENSION opengeni_guards"),
        ("", "SELECT * FROM opengeni_guards.status()"),
        ("", "SELECT * FROM opengeni_guards.status('opengeni')"),
        ("", "SELECT opengeni_guards.ready('opengeni')"),
        ("", "SELECT * FROM opengeni_guards.detach('opengeni')"),
        (
            "",
            "SELECT * FROM opengeni_guards.attach('opengeni', mode => 'shadow')",
        ),
        (
            log,
            "SELECT * FROM opengeni_guards.shadow_report('opengeni')",
        ),
        (
            view,
            "SELECT * FROM opengeni_guards.shadow_report('opengeni')",
        ),
        ("", "SELECT * FROM opengeni_guards.attach('opengeni')"),
        ("", "SELECT * FROM opengeni_guards.status('opengeni')"),
        (
            "",
            "SELECT opengeni_guards.grant_usage('og_cases_app', 'opengeni')",
        ),
        (ledger, "SELECT * FROM opengeni_guards.detach('opengeni')"),
        ("", "SELECT * FROM opengeni_guards.attach('opengeni')"),
        (
            &written,
            "SELECT * FROM opengeni_guards.attach('opengeni', fire => 'always')",
        ),
        ("", "SELECT * FROM opengeni_guards.detach('opengeni')"),
        (
            "DROP INDEX sandbox_leases_group_idx; DROP POLICY workspace_isolation ON sandbox_lease_holders",
            "SELECT * FROM opengeni_guards.provision('opengeni')",
        ),
        (
            "",
            "SELECT opengeni_guards.revoke_usage('og_cases_app', 'opengeni')",
        ),
        ("", "SELECT * FROM opengeni_guards.attach()"),
    ] {
        owner
            .batch_execute(before)
            .with_context(|| before.to_owned())?;
        for path in ["opengeni", "opengeni, trap, pg_catalog"] {
            let mut caller = db.admin()?;
            caller.batch_execute(&format!("SET search_path = {path}"))?;
            let mut transaction = caller.transaction()?;
            if call.starts_with("CREATE EXTENSION") && path != "opengeni" {
                continue;
            }
            let done = transaction.batch_execute(call);
            if before == view {
                let error = done.err().context("a view was read as the log")?;
                Refusal::of(&error)?.has_state("55000")?;
                transaction.rollback()?;
            } else {
                done.map_err(|error| anyhow!("{}: {call}", describe(&error)))?;
                transaction
                    .commit()
                    .with_context(|| format!("COMMIT after {call}"))?;
            }
            // The caller is itself again, and free.
            caller.batch_execute(
                "CREATE TEMP TABLE free (id int); SET ROLE og_cases_app; RESET ROLE",
            )?;
            for sequence in ["as_superuser", "escaped"] {
                let count = sprung(&mut admin, sequence)?;
                ensure!(
                    count == 0,
                    "{call}, search_path = {path}: {sequence} {count} times"
                );
            }
        }
    }
    // A deferred constraint would evaluate the owner's expression at COMMIT: the ledger is not written then.
    owner.batch_execute(
        "ALTER TABLE opengeni_guards_replaced ADD CONSTRAINT late EXCLUDE USING btree
           (trap.text(object) WITH OPERATOR(pg_catalog.=)) DEFERRABLE INITIALLY DEFERRED",
    )?;
    for call in ["attach", "detach"] {
        let mut caller = db.admin()?;
        // So that attach has something to write.
        owner
            .batch_execute("DROP FUNCTION IF EXISTS opengeni_private.sandbox_rotation_backlog()")?;
        let done = caller.execute(&format!("SELECT opengeni_guards.{call}('opengeni')"), &[]);
        match (call, done) {
            ("attach", Ok(_)) => ensure!(
                states(
                    &mut caller,
                    "function opengeni_private.sandbox_rotation_backlog"
                )? == ["missing"]
            ),
            ("detach", Err(error)) => Refusal::of(&error)?.has_state("55000")?,
            (call, done) => bail!("{call}: {done:?}"),
        }
        for sequence in ["as_superuser", "escaped"] {
            let count = sprung(&mut admin, sequence)?;
            ensure!(count == 0, "{call}, late: {sequence} {count} times");
        }
    }
    // What the ledger holds is the owner's text: it is run as the owner.
    owner.batch_execute(
        "ALTER TABLE opengeni_guards_replaced DROP CONSTRAINT late;
         UPDATE opengeni_guards_replaced SET definition = definition || '; SELECT trap.spring()'",
    )?;
    let owners = sprung(&mut admin, "as_owner")?;
    db.admin()?
        .execute("SELECT opengeni_guards.detach('opengeni')", &[])?;
    ensure!(sprung(&mut admin, "as_owner")? > owners, "was not run");
    for sequence in ["as_superuser", "escaped"] {
        let count = sprung(&mut admin, sequence)?;
        ensure!(count == 0, "from the ledger: {sequence} {count} times");
    }
    ensure!(
        sprung(&mut admin, "as_owner")? > 0,
        "nothing of the owner's ran at all"
    );
    let made = admin.query_opt(
        "SELECT FROM pg_roles WHERE rolname = 'og_cases_escaped'",
        &[],
    )?;
    ensure!(made.is_none(), "a role was made");
    // The mines are live: a superuser's own write of the row steps on them.
    admin.execute(
        "UPDATE sandbox_leases SET os = 'linux' WHERE id = $1",
        &[&tenant.lease],
    )?;
    ensure!(sprung(&mut admin, "as_superuser")? > 3, "dead mines");
    Ok(())
}

pub fn edited_ledger(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    owner.batch_execute(
        "UPDATE opengeni_guards_replaced SET executors = ARRAY[NULL]::text[] WHERE object LIKE '%backlog%'",
    )?;
    let mut attempt = owner.transaction()?;
    if let Err(error) = attempt.execute("SELECT opengeni_guards.detach('opengeni')", &[]) {
        let refusal = Refusal::of(&error)?;
        ensure!(!refusal.sqlstate.starts_with("XX"), "{refusal:?}");
    }
    Ok(())
}

pub fn fences_as_superuser(db: &Db) -> Result<()> {
    extension(db)?;
    db.owner()?.batch_execute(
        "CREATE SEQUENCE as_superuser; GRANT ALL ON SEQUENCE as_superuser TO PUBLIC;
         CREATE FUNCTION opengeni.concat(name, text, text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
           IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN PERFORM nextval('opengeni.as_superuser'); END IF;
           RETURN $1 || $2 || $3 || $4; END $$",
    )?;
    let mut admin = db.admin()?;
    // Refused, since the application's two functions are not there; it has looked for them by then.
    refused(
        &mut admin,
        "SELECT opengeni_guards.install_membership_fences('opengeni')",
        &[],
    )?
    .has_state("55000")?;
    ensure!(
        value::<bool>(&mut admin, "SELECT NOT is_called FROM as_superuser", &[])?,
        "the owner's code ran as a superuser"
    );
    Ok(())
}

/// What the owner's code sets while the extension acts as the owner: more than the path, for who calls later.
const LEAK: &str = "SELECT set_config('search_path', 'evil, pg_catalog', false), set_config('opengeni.account_id', 'leaked', false)";

pub fn settings_end(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    // Whoever looks for a constraint on the path that was left behind makes the owner a superuser.
    owner.batch_execute(&format!(
        "CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC;
         CREATE FUNCTION evil.spring() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
           IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN ALTER ROLE {OWNER} SUPERUSER; END IF;
           RETURN true; END $$;
         CREATE VIEW evil.pg_constraint AS SELECT * FROM pg_catalog.pg_constraint WHERE evil.spring();
         CREATE VIEW evil.pg_class AS SELECT * FROM pg_catalog.pg_class WHERE evil.spring();
         GRANT SELECT ON ALL TABLES IN SCHEMA evil TO PUBLIC;
         CREATE FUNCTION evil.stamp() RETURNS timestamptz LANGUAGE sql AS $$ {LEAK}; SELECT pg_catalog.now() $$;
         CREATE TABLE opengeni_guards_replaced (object text PRIMARY KEY, data_schema text NOT NULL, definition text,
           owner text NOT NULL, executors text[] NOT NULL, may_grant text[] NOT NULL,
           replaced_at timestamptz NOT NULL DEFAULT evil.stamp())"
    ))?;
    let mut admin = db.admin()?;
    set(&mut admin, "opengeni.account_id", "mine")?;
    let settings =
        "SELECT current_setting('search_path') || ' ' || current_setting('opengeni.account_id')";
    let before: String = value(&mut admin, settings, &[])?;
    let mut untouched = |call: &str| -> Result<()> {
        // It may fail of what the owner laid out, but leaves nothing behind.
        if let Err(error) = admin.batch_execute(call) {
            Refusal::of(&error).with_context(|| call.to_owned())?;
        }
        let after: String = value(&mut admin, settings, &[])?;
        ensure!(after == before, "after {call}: {after}");
        let escaped: bool = value(
            &mut admin,
            "SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = $1",
            &[&OWNER],
        )?;
        ensure!(!escaped, "the owner is a superuser after {call}");
        Ok(())
    };
    untouched("SELECT opengeni_guards.attach('opengeni')")?;
    let stamped: i64 = value(
        &mut owner,
        "SELECT count(*) FROM opengeni_guards_replaced WHERE definition IS NOT NULL",
        &[],
    )?;
    ensure!(stamped >= 14, "{stamped} were kept: nothing was sprung");
    owner.execute(
        "UPDATE opengeni_guards_replaced SET definition = $1 WHERE object LIKE '%backlog%'",
        &[&LEAK],
    )?;
    untouched("SELECT opengeni_guards.detach('opengeni')")?;
    untouched("SELECT opengeni_guards.attach('opengeni', mode => 'shadow')")?;
    owner.batch_execute(
        "ALTER TABLE opengeni_guards_shadow ALTER seen_at SET DEFAULT evil.stamp()",
    )?;
    untouched("TRUNCATE sandbox_lease_holders")?;
    untouched("SELECT * FROM opengeni_guards.shadow_report('opengeni')")?;
    untouched("SELECT * FROM opengeni_guards.status('opengeni')")?;

    // The application's session, whose statement has the log written.
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    set(&mut app, CAPTURE, &command.process.to_string())?;
    accepted(
        &mut app,
        "UPDATE sandbox_retained_processes SET provider_command = provider_command - 'streams' WHERE id = $1",
        &[&command.process],
    )?;
    let logged: i64 = value(
        &mut owner,
        "SELECT count(*) FROM opengeni_guards_shadow",
        &[],
    )?;
    ensure!(logged > 0, "the log was not written");
    let account: String = value(
        &mut app,
        "SELECT current_setting('opengeni.account_id')",
        &[],
    )?;
    ensure!(account == tenant.account.to_string(), "{account}");
    Ok(())
}

/// A schema's owner may give it any name, and owns none of its tables.
pub fn names_that_are_statements(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    owner.batch_execute("CREATE TABLE mine ()")?;
    let mut admin = db.admin()?;
    for name in [
        "$function$;GRANT ALL ON mine TO PUBLIC;SELECT $function$",
        "$function$",
        "it's; GRANT ALL ON mine TO PUBLIC; --",
        "a\"b",
        "{owner}",
        "{data_schema}",
        "a()b",
        " EXECUTE FUNCTION ",
        "New one",
    ] {
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        admin.batch_execute(&format!("ALTER SCHEMA opengeni RENAME TO {quoted}"))?;
        for call in [
            "detach($1)",
            "attach($1, mode => 'shadow')",
            "attach($1)",
            "provision($1)",
            "attach($1)",
        ] {
            let done = admin
                .query(
                    &format!(
                        "SELECT object, note FROM opengeni_guards.{call} WHERE action = 'left'"
                    ),
                    &[&name],
                )
                .map_err(|error| anyhow!("{call} of {name}: {}", describe(&error)))?;
            // Originals that name the schema in a way that is not followed are left to themselves.
            for row in done {
                let object: String = row.get(0);
                ensure!(object.starts_with("function "), "{call} of {name}: {row:?}");
            }
        }
        ensure!(
            value::<bool>(&mut admin, "SELECT opengeni_guards.ready($1)", &[&name])?,
            "{name}"
        );
        let granted: bool = value(
            &mut admin,
            "SELECT bool_or(relacl IS NOT NULL) FROM pg_class WHERE relname = 'mine'",
            &[],
        )?;
        ensure!(!granted, "{name} was run");
        admin.batch_execute(&format!("ALTER SCHEMA {quoted} RENAME TO opengeni"))?;
        // As the next name finds it.
        admin.batch_execute("SELECT opengeni_guards.attach('opengeni')")?;
    }
    Ok(())
}

pub fn status_pinned(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    db.supervised()?;
    owner.batch_execute(
        "CREATE FUNCTION opengeni.q(jsonb, jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
         CREATE OPERATOR opengeni.? (LEFTARG = jsonb, RIGHTARG = jsonb, FUNCTION = opengeni.q)",
    )?;
    let rows: i64 = value(
        &mut db.admin()?,
        "SELECT count(*) FROM opengeni_guards.status('opengeni')",
        &[],
    )?;
    ensure!(rows > 30, "{rows}");
    Ok(())
}
