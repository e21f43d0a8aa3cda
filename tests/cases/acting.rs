//! Acting for an owner: what lies in the owner's schema never runs with the rights of the superuser who calls.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::server::Server;
use postgres::Client;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "acting: look-alike functions, operators and relations in the owner's schema stay unused",
            look_alikes,
        ),
        case(
            server,
            "acting: an owner's index expression, default and check never run as the superuser who provisions",
            expressions_of_the_owner,
        ),
        case(
            server,
            "acting: what a superuser provisions belongs to the schema's owner",
            belongs_to_the_owner,
        ),
        case(
            server,
            "acting: the caller is itself again afterwards, also after an error",
            identity_returns,
        ),
    ]
}

/// Sequences, since they count across rollbacks. `trap.spring()` counts who runs it and tries to become more.
fn lay_trap(db: &Db) -> Result<()> {
    db.owner()?
        .batch_execute(
            "CREATE SCHEMA trap;
             GRANT USAGE ON SCHEMA trap TO PUBLIC;
             CREATE SEQUENCE trap.as_superuser;
             CREATE SEQUENCE trap.as_somebody;
             GRANT ALL ON ALL SEQUENCES IN SCHEMA trap TO PUBLIC;
             CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql
               SET search_path = pg_catalog AS $trap$
             BEGIN
               IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
                 PERFORM nextval('trap.as_superuser');
                 RETURN true;
               END IF;
               PERFORM nextval('trap.as_somebody');
               BEGIN
                 PERFORM set_config('role', 'none', false);
                 IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
                   PERFORM nextval('trap.as_superuser');
                 END IF;
               EXCEPTION WHEN OTHERS THEN NULL;
               END;
               RETURN true;
             END $trap$",
        )
        .context("lay the trap")
}

fn calls(client: &mut Client, sequence: &str) -> Result<i64> {
    value(
        client,
        "SELECT coalesce(pg_sequence_last_value($1::text::regclass), 0)",
        &[&format!("trap.{sequence}")],
    )
}

fn never_as_superuser(client: &mut Client) -> Result<()> {
    let count = calls(client, "as_superuser")?;
    ensure!(
        count == 0,
        "the owner's code ran {count} times as superuser"
    );
    Ok(())
}

/// Everything a DBA calls on a schema, with parts missing so that there is work to do.
fn administer(db: &Db, admin: &mut Client) -> Result<()> {
    db.owner()?.batch_execute(
        "DROP TRIGGER supervised_command_guard ON opengeni.sandbox_retained_processes;
         DROP INDEX opengeni.sandbox_workspace_mutation_admissions_actor_idx;
         DROP POLICY workspace_isolation ON opengeni.sandbox_lease_holders;
         ALTER TABLE opengeni.sandbox_leases DROP CONSTRAINT sandbox_leases_liveness_check;
         ALTER TABLE opengeni.sandbox_lease_holders DROP CONSTRAINT sandbox_lease_holders_kind_check",
    )?;
    provision(admin, SCHEMA).context("provision")?;
    grant_usage(admin, APP, SCHEMA).context("grant_usage")?;
    admin
        .query(
            "SELECT opengeni_guards.status($1), opengeni_guards.status(NULL)",
            &[&SCHEMA],
        )
        .context("status")?;
    Ok(())
}

fn look_alikes(db: &Db) -> Result<()> {
    lay_trap(db)?;
    let mut owner = db.owner()?;
    for (signature, result) in [
        ("format(text, text)", "text"),
        ("format(text, name)", "text"),
        ("quote_ident(text)", "text"),
        ("quote_literal(text)", "text"),
        ("set_config(text, text, boolean)", "text"),
        ("current_setting(text)", "text"),
        ("current_setting(text, boolean)", "text"),
        ("to_regclass(text)", "regclass"),
        ("octet_length(text)", "integer"),
        ("jsonb_typeof(jsonb)", "text"),
        ("count(text)", "bigint"),
        ("pg_get_triggerdef(oid)", "text"),
        ("pg_get_expr(pg_node_tree, oid)", "text"),
        ("workspace_rls_visible(uuid, uuid)", "boolean"),
    ] {
        owner
            .batch_execute(&format!(
                "CREATE FUNCTION opengeni.{signature} RETURNS {result} LANGUAGE plpgsql AS
                   $$ BEGIN PERFORM trap.spring(); RETURN NULL; END $$"
            ))
            .context(signature)?;
    }
    for kind in [
        "text", "name", "oid", "boolean", "\"char\"", "uuid", "integer",
    ] {
        owner.batch_execute(&format!(
            "CREATE FUNCTION opengeni.equal({kind}, {kind}) RETURNS boolean LANGUAGE plpgsql AS
               $$ BEGIN PERFORM trap.spring(); RETURN true; END $$;
             CREATE OPERATOR opengeni.= (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = opengeni.equal);
             CREATE OPERATOR opengeni.<> (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = opengeni.equal)"
        ))?;
    }
    for catalogue in [
        "pg_class",
        "pg_namespace",
        "pg_attribute",
        "pg_proc",
        "pg_trigger",
        "pg_type",
        "pg_policy",
        "pg_constraint",
        "pg_index",
        "pg_roles",
        "pg_authid",
        "pg_database",
    ] {
        owner.batch_execute(&format!(
            "CREATE VIEW opengeni.{catalogue} AS
               SELECT real.*, trap.spring() AS sprung FROM pg_catalog.pg_class real"
        ))?;
    }

    let mut admin = db.admin()?;
    admin.batch_execute("SET search_path = opengeni, pg_catalog")?;
    administer(db, &mut admin)?;
    never_as_superuser(&mut admin)?;

    // The trap itself works: called by name, it runs as whoever calls it.
    admin.batch_execute("SELECT opengeni.format('a'::text, 'b'::text)")?;
    ensure!(calls(&mut admin, "as_superuser")? == 1, "a dead trap");
    Ok(())
}

fn expressions_of_the_owner(db: &Db) -> Result<()> {
    let (tenant, _) = db.legacy()?;
    lay_trap(db)?;
    db.owner()?.batch_execute(&format!(
        "CREATE FUNCTION trap.indexed(uuid) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS
           $$ BEGIN PERFORM trap.spring(); RETURN $1; END $$;
         CREATE FUNCTION trap.checked(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
           $$ BEGIN PERFORM trap.spring(); RETURN true; END $$;
         CREATE FUNCTION trap.visible(uuid, uuid) RETURNS boolean LANGUAGE plpgsql STABLE AS
           $$ BEGIN PERFORM trap.spring(); RETURN true; END $$;
         CREATE INDEX planted_index ON opengeni.sandbox_leases (trap.indexed(id));
         ALTER TABLE opengeni.sandbox_leases ADD CONSTRAINT planted_check CHECK (trap.checked(liveness));
         ALTER TABLE opengeni.sandbox_lease_holders ALTER COLUMN subject_id SET DEFAULT trap.indexed(gen_random_uuid());
         CREATE POLICY planted_policy ON opengeni.sandbox_leases
           USING (trap.visible(account_id, workspace_id));
         CREATE POLICY planted_policy ON opengeni.sandbox_retained_processes
           USING (trap.visible(account_id, workspace_id));
         ALTER ROLE {OWNER} IN DATABASE {} SET search_path = trap, pg_catalog",
        db.name
    ))?;
    let mut admin = db.admin()?;
    administer(db, &mut admin)?;
    never_as_superuser(&mut admin)?;

    // The trap itself works: a superuser's own write of the row springs it.
    admin.execute(
        "UPDATE opengeni.sandbox_leases SET liveness = 'warm' WHERE id = $1",
        &[&tenant.lease],
    )?;
    ensure!(calls(&mut admin, "as_superuser")? > 0, "a dead trap");
    Ok(())
}

fn belongs_to_the_owner(db: &Db) -> Result<()> {
    db.owner()?.batch_execute("CREATE SCHEMA another")?;
    let mut admin = db.admin()?;
    provision(&mut admin, "another")?;
    let owned = "SELECT oid::regclass::text FROM pg_class
         WHERE relnamespace = 'another'::regnamespace AND (relowner = $1::text::regrole) = $2
         UNION ALL
         SELECT oid::regprocedure::text FROM pg_proc
         WHERE pronamespace IN (SELECT oid FROM pg_namespace WHERE nspname IN ('another', 'opengeni_private'))
           AND (proowner = $1::text::regrole) = $2";
    let foreign = lines(&mut admin, owned, &[&OWNER, &false])?;
    ensure!(foreign.is_empty(), "not the owner's: {foreign:?}");
    ensure!(
        lines(&mut admin, owned, &[&OWNER, &true])?.len() > 10,
        "nothing was made"
    );
    Ok(())
}

fn identity_returns(db: &Db) -> Result<()> {
    db.owner()?.batch_execute(
        "CREATE SCHEMA viewed; CREATE VIEW viewed.sandbox_leases AS SELECT * FROM sandbox_leases",
    )?;
    let mut admin = db.admin()?;
    let who = "SELECT current_user || '/' || session_user || '/' || current_setting('search_path')";
    let before: String = value(&mut admin, who, &[])?;
    provision(&mut admin, SCHEMA)?;
    ensure!(value::<String>(&mut admin, who, &[])? == before);

    let mut transaction = admin.transaction()?;
    refused(
        &mut transaction,
        "SELECT opengeni_guards.provision('viewed')",
        &[],
    )?;
    ensure!(value::<String>(&mut transaction, who, &[])? == before);
    // A restricted operation left behind would refuse this.
    transaction.batch_execute(
        "SET LOCAL ROLE NONE; CREATE TEMP TABLE still_free (id int) ON COMMIT DROP",
    )?;
    transaction.commit()?;
    Ok(())
}
