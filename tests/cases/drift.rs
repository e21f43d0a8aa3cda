//! What a DBA or somebody else did to a database beside attach and detach, and what these make of it.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;

use crate::attach::{create_extension, extension, switch, works};
use crate::fleet;
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    let on_originals: [(&str, Body); 25] = [
        (
            "a table that only has the name of the protocol's is nobody's schema",
            look_alike,
        ),
        (
            "a known function with a default more is another one",
            default_argument,
        ),
        (
            "a ledger of another owner is not done without",
            ledger_of_another,
        ),
        (
            "contract functions of another owner are left, and told",
            functions_of_another,
        ),
        ("a ledger of another shape is none", ledger_of_another_shape),
        (
            "what a grantee passed on is taken from the ledger, and told of elsewhere",
            passed_on,
        ),
        ("the comment of a constraint is kept", constraint_comment),
        (
            "provision does not mind row_security = off",
            provisioned_without_row_security,
        ),
        (
            "watching guards learn to fire always, and are told where disabled",
            watching_always,
        ),
        (
            "what stands under the log's name is left",
            under_the_logs_name,
        ),
        ("it does not matter how strings are read", string_literals),
        (
            "what a caller waits for is told, and no longer than asked",
            waits,
        ),
        ("CREATE EXTENSION waits no longer either", waits_on_create),
        ("two sessions detach at once", detached_twice),
        (
            "an old snapshot does not hide what was changed since",
            old_snapshot,
        ),
        (
            "the extension is dropped while somebody waits for a turn",
            dropped_meanwhile,
        ),
        ("event triggers do not run with more rights", event_triggers),
        (
            "an error that is raised again is the one that it was",
            raised_again,
        ),
        (
            "a stranger's copy of the tables decides nothing for others",
            strangers_copy,
        ),
        (
            "a pending check that waits is waited for no longer than asked",
            waiting_check,
        ),
        (
            "a constraint of a check's name on another table is in nobody's way",
            same_name,
        ),
        (
            "what somebody grants meanwhile is told in words of ours",
            granted_meanwhile,
        ),
        (
            "what cannot be put back is left, or told",
            not_to_be_put_back,
        ),
        (
            "a native guard with an argument is somebody else's",
            with_argument,
        ),
        (
            "two schemas that came with their originals, served in turn",
            two_originals,
        ),
    ];
    let provisioned: [(&str, Body); 6] = [
        (
            "a contract function with a setting more is told and dropped by force",
            altered_without_ledger,
        ),
        ("the database's owner by its other name", database_owner),
        ("row_security = off is the caller's own", row_security),
        (
            "a foreign key that is put back looks at every row",
            rows_without_their_lease,
        ),
        ("a superuser's tables are told", superuser),
        (
            "an error of the application's own keeps its fields in a sweep",
            own_error,
        ),
    ];
    let name = |name: &str| format!("drift: {name}");
    on_originals
        .into_iter()
        .map(|(n, body)| original_case(server, &name(n), body))
        .chain(
            provisioned
                .into_iter()
                .map(|(n, body)| case(server, &name(n), body)),
        )
        .chain([bare_case(
            server,
            &name("REASSIGN OWNED leaves a schema that works, and a policy to repair"),
            reassigned,
        )])
        .collect()
}

fn states(client: &mut Client, like: &str) -> Result<Vec<String>> {
    lines(
        client,
        "SELECT concat_ws(': ', object, state, detail) FROM opengeni_guards.status($1) WHERE object LIKE $2 ORDER BY 1",
        &[&SCHEMA, &like],
    )
}

fn look_alike(db: &Db) -> Result<()> {
    extension(db)?;
    let mut admin = db.admin()?;
    admin.batch_execute(&format!(
        "CREATE SCHEMA other AUTHORIZATION {STRANGER};
         CREATE TABLE other.sandbox_retained_processes (id uuid, state text, lease_id text);
         ALTER TABLE other.sandbox_retained_processes OWNER TO {STRANGER};
         GRANT USAGE ON SCHEMA other TO PUBLIC; GRANT SELECT ON other.sandbox_retained_processes TO PUBLIC;
         CREATE TRIGGER mine BEFORE INSERT ON other.sandbox_retained_processes FOR EACH ROW
           EXECUTE FUNCTION opengeni_guards.supervised_command_guard()"
    ))?;
    let mut owner = db.owner()?;
    let done = switch(&mut owner, "attach()")?;
    ensure!(
        !done
            .iter()
            .any(|line| line.starts_with("left ") || line.contains("other")),
        "{done:#?}"
    );
    let seen = lines(
        &mut owner,
        "SELECT DISTINCT data_schema FROM opengeni_guards.status()",
        &[],
    )?;
    ensure!(seen == [SCHEMA], "{seen:?}");
    // The role reads the other one, which is no reason to keep the contract's.
    owner.batch_execute(&format!(
        "SELECT opengeni_guards.grant_usage('{APP}', '{SCHEMA}');
         SELECT opengeni_guards.revoke_usage('{APP}', '{SCHEMA}')"
    ))?;
    let usage: bool = value(
        &mut owner,
        "SELECT EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) acl
           WHERE n.nspname = 'opengeni_private' AND acl.grantee = $1::text::regrole)",
        &[&APP],
    )?;
    ensure!(!usage);
    // What every schema shares goes back with the only one.
    let done = switch(&mut owner, "detach()")?;
    ensure!(
        done.iter()
            .any(|line| line.starts_with("restored ") && line.contains("warming_reset")),
        "{done:#?}"
    );
    // A column less does not make it somebody else's.
    owner.batch_execute(
        "ALTER TABLE sandbox_retained_processes DROP COLUMN settlement_reason CASCADE",
    )?;
    let seen = states(&mut owner, "table sandbox_retained_processes")?;
    ensure!(
        matches!(&seen[..], [line] if line.contains("incompatible")),
        "{seen:?}"
    );
    let done = switch(&mut owner, "attach()")?;
    ensure!(
        matches!(&done[..], [line] if line.starts_with("skipped ") && line.contains("settlement_reason")),
        "{done:#?}"
    );
    Ok(())
}

fn default_argument(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "DO $x$ BEGIN EXECUTE replace(
             pg_get_functiondef('opengeni_private.list_legacy_modal_checkpoint_slots(integer)'::regprocedure),
             'p_limit integer)', 'p_limit integer DEFAULT 100)'); END $x$",
    )?;
    let done = switch(&mut owner, "attach('opengeni')")?;
    let left: Vec<&String> = done
        .iter()
        .filter(|line| line.starts_with("left "))
        .collect();
    ensure!(
        matches!(&left[..], [line] if line.contains("list_legacy_modal_checkpoint_slots") && line.contains("unknown definition")),
        "{left:#?}"
    );
    ensure!(
        done.iter()
            .filter(|line| line.starts_with("replaced "))
            .count()
            == 13,
        "{done:#?}"
    );
    Ok(())
}

fn ledger_of_another(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni')")?;
    let mut admin = db.admin()?;
    admin.batch_execute(&format!(
        "ALTER TABLE opengeni_guards_replaced OWNER TO {STRANGER}"
    ))?;
    let before = snapshot(&mut admin)?;
    let refusal = refused(&mut owner, "SELECT opengeni_guards.detach('opengeni')", &[])?;
    refusal.has_state("55000")?;
    refusal.names(&["opengeni_guards_replaced", OWNER, "OWNER TO"])?;
    same(&before, &snapshot(&mut admin)?)?;
    admin.batch_execute(&format!(
        "ALTER TABLE opengeni_guards_replaced OWNER TO {OWNER}"
    ))?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        done.iter()
            .filter(|line| line.starts_with("restored function"))
            .count()
            == 14,
        "{done:#?}"
    );
    // Whoever does without it is not kept from that.
    switch(&mut owner, "attach('opengeni')")?;
    admin.batch_execute(&format!(
        "ALTER TABLE opengeni_guards_replaced OWNER TO {STRANGER}"
    ))?;
    let done = switch(&mut owner, "detach('opengeni', force => true)")?;
    ensure!(
        done.iter()
            .filter(|line| line.starts_with("dropped function"))
            .count()
            == 14,
        "{done:#?}"
    );
    admin.batch_execute("DROP EXTENSION opengeni_guards")?;
    Ok(())
}

fn functions_of_another(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni')")?;
    let reap = "FUNCTION opengeni_private.reap_sandbox_leases(bigint, bigint, bigint)";
    let mut admin = db.admin()?;
    admin.batch_execute(&format!("ALTER {reap} OWNER TO {STRANGER}"))?;
    for call in ["detach('opengeni')", "detach('opengeni', force => true)"] {
        let done = switch(&mut owner, call)?;
        let left: Vec<&String> = done
            .iter()
            .filter(|line| line.starts_with("left function"))
            .collect();
        ensure!(
            matches!(&left[..], [line] if line.contains("reap_sandbox_leases") && line.contains(&format!("belongs to {STRANGER}"))),
            "{call}: {done:#?}"
        );
    }
    // What stood there is still known.
    admin.batch_execute(&format!("ALTER {reap} OWNER TO {OWNER}"))?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        done.iter()
            .any(|line| line.starts_with("restored function")
                && line.contains("reap_sandbox_leases")),
        "{done:#?}"
    );
    admin.batch_execute("DROP EXTENSION opengeni_guards")?;
    Ok(())
}

fn ledger_of_another_shape(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni')")?;
    owner.batch_execute(
        "ALTER TABLE opengeni_guards_replaced ALTER executors TYPE text USING executors::text",
    )?;
    let refusal = refused(&mut owner, "SELECT opengeni_guards.detach('opengeni')", &[])?;
    refusal.has_state("55000")?;
    refusal.names(&["is no ledger"])?;
    owner.batch_execute(
        "ALTER TABLE opengeni_guards_replaced ALTER executors TYPE text[] USING executors::text[]",
    )?;
    switch(&mut owner, "detach('opengeni')")?;
    Ok(())
}

fn passed_on(db: &Db) -> Result<()> {
    extension(db)?;
    let (mut owner, notices) = fleet::listening(&db.server, OWNER, &db.name)?;
    let mut stranger = db.session(STRANGER)?;
    owner.batch_execute(&format!(
        "SELECT opengeni_guards.attach('opengeni'); GRANT USAGE ON SCHEMA opengeni TO {STRANGER}"
    ))?;
    let tables = [
        "opengeni.opengeni_guards_replaced",
        "opengeni.sandbox_leases",
    ];
    let may_read = |client: &mut Client, table: &str| -> Result<bool> {
        value(
            client,
            "SELECT has_table_privilege($1, $2, 'SELECT')",
            &[&APP, &table],
        )
    };
    for (call, reads) in [("grant_usage", true), ("revoke_usage", false)] {
        for table in tables {
            owner.batch_execute(&format!(
                "GRANT SELECT ON {table} TO {STRANGER} WITH GRANT OPTION"
            ))?;
            stranger.batch_execute(&format!("GRANT SELECT ON {table} TO {APP}"))?;
        }
        notices.take();
        owner.batch_execute(&format!(
            "SELECT opengeni_guards.{call}('{APP}', 'opengeni')"
        ))?;
        let told = notices.take();
        ensure!(
            told.len() == 1
                && told[0].severity() == "WARNING"
                && [APP, STRANGER, "table opengeni.sandbox_leases"]
                    .iter()
                    .all(|word| told[0].message().contains(word)),
            "{call}: {told:?}"
        );
        ensure!(!may_read(&mut owner, tables[0])?, "{call}");
        // The other's grant is the other's to take back.
        ensure!(may_read(&mut owner, tables[1])?, "{call}");
        stranger.batch_execute(&format!("REVOKE SELECT ON {} FROM {APP}", tables[1]))?;
        let member: bool = value(
            &mut owner,
            "SELECT EXISTS (SELECT FROM pg_class c, aclexplode(c.relacl) acl
               WHERE c.oid = $1::text::regclass AND acl.grantee = $2::text::regrole)",
            &[&tables[1], &APP],
        )?;
        ensure!(member == reads, "{call}");
    }
    Ok(())
}

fn constraint_comment(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "COMMENT ON CONSTRAINT sandbox_retained_processes_identity_v2 ON sandbox_retained_processes IS 'it''s theirs';
         COMMENT ON TRIGGER sandbox_retained_processes_identity_v2 ON sandbox_retained_processes IS 'ask them'",
    )?;
    for call in ["attach('opengeni')", "detach('opengeni')"] {
        switch(&mut owner, call)?;
        let kept = lines(
            &mut owner,
            "SELECT concat_ws(', ', obj_description(t.oid, 'pg_trigger'), obj_description(t.tgconstraint, 'pg_constraint'))
               FROM pg_trigger t WHERE t.tgname = 'sandbox_retained_processes_identity_v2'",
            &[],
        )?;
        ensure!(kept == ["ask them, it's theirs"], "{call}: {kept:?}");
    }
    Ok(())
}

fn watching_always(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni', mode => 'shadow')")?;
    owner.batch_execute(
        "ALTER TABLE sandbox_leases DISABLE TRIGGER supervised_command_capture_guard_shadow",
    )?;
    let seen = states(&mut owner, "trigger %_shadow on %")?;
    ensure!(
        matches!(&seen[..], [line] if line.starts_with("trigger supervised_command_capture_guard_shadow on sandbox_leases: disabled")),
        "{seen:?}"
    );
    let done = switch(
        &mut owner,
        "attach('opengeni', mode => 'shadow', fire => 'always')",
    )?;
    let always = done
        .iter()
        .filter(|line| line.starts_with("set to fire always trigger"));
    ensure!(always.count() == 26 + 9 - 1, "{done:#?}");
    ensure!(
        done.iter().any(|line| line.starts_with("present ")
            && line.contains("capture_guard_shadow")
            && line.contains("disabled")),
        "{done:#?}"
    );
    let fires = lines(
        &mut owner,
        "SELECT t.tgenabled::text || count(*) FROM pg_trigger t WHERE t.tgname ~ '_shadow(_log)?$' GROUP BY t.tgenabled ORDER BY 1",
        &[],
    )?;
    ensure!(fires == ["A34", "D1"], "{fires:?}");
    Ok(())
}

fn under_the_logs_name(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    let mut admin = db.admin()?;
    let foreign = format!(
        "CREATE TABLE opengeni_guards_shadow (rule text, object text, refusals bigint, seen_at timestamptz);
         ALTER TABLE opengeni_guards_shadow OWNER TO {STRANGER}"
    );
    for (made, note, dropped) in [
        (
            "CREATE VIEW opengeni_guards_shadow AS SELECT 1 AS refusals",
            "is not a table of",
            "DROP VIEW opengeni_guards_shadow",
        ),
        (
            foreign.as_str(),
            "is not a table of",
            "DROP TABLE opengeni_guards_shadow",
        ),
        (
            "SET ROLE og_cases_owner; CREATE TABLE opengeni_guards_shadow (refusals bigint); RESET ROLE",
            "is no log of watching guards",
            "DROP TABLE opengeni_guards_shadow",
        ),
    ] {
        admin.batch_execute(made)?;
        let before = snapshot(&mut admin)?;
        let done = switch(&mut owner, "attach('opengeni', mode => 'shadow')")?;
        ensure!(
            matches!(&done[..], [line] if line.starts_with("left ") && line.contains(note)),
            "{made}: {done:#?}"
        );
        let refusal = refused(
            &mut owner,
            "SELECT * FROM opengeni_guards.shadow_report('opengeni')",
            &[],
        )?;
        refusal.has_state("55000")?;
        refusal.names(&[note])?;
        same(&before, &snapshot(&mut admin)?)?;
        admin.batch_execute(dropped)?;
    }
    Ok(())
}

fn string_literals(db: &Db) -> Result<()> {
    extension(db)?;
    let before = definitions(&mut db.admin()?)?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "SET standard_conforming_strings = off; SET escape_string_warning = off; SET quote_all_identifiers = on;
         SET bytea_output = escape; SET DateStyle = 'SQL, DMY'",
    )?;
    let (tenant, command) = db.supervised()?;
    db.plant(
        "UPDATE sandbox_retained_processes SET provider_command = jsonb_set(provider_command, '{streams,stdout,byteOffset}', '\"\"')
          WHERE id = $1",
        &[&command.process],
    )?;
    for call in [
        "attach('opengeni', mode => 'shadow')",
        "attach('opengeni')",
        "attach('opengeni')",
    ] {
        let done = switch(&mut owner, call)?;
        ensure!(
            !done.iter().any(|line| line.starts_with("left ")),
            "{call}: {done:#?}"
        );
    }
    let seen = states(&mut owner, "%")?;
    let odd: Vec<&String> = seen
        .iter()
        .filter(|line| {
            [
                ": altered",
                ": missing",
                ": unknown",
                ": plpgsql",
                ": disabled",
            ]
            .iter()
            .any(|state| !line.starts_with("index ") && line.contains(state))
        })
        .collect();
    ensure!(odd.is_empty(), "{odd:#?}");
    ensure!(
        seen.iter()
            .any(|line| line.contains("poisoned stream cursor: 1 rows")),
        "{seen:#?}"
    );
    // The rest of its streams is as it should be.
    db.plant(
        "UPDATE sandbox_retained_processes SET provider_command = jsonb_set(provider_command, '{streams,stdout,byteOffset}', '\" +7 \"')
          WHERE id = $1",
        &[&command.process],
    )?;
    ensure!(
        states(&mut owner, "rows of %")?.is_empty(),
        "{:?}",
        states(&mut owner, "rows of %")?
    );
    drop(tenant);
    switch(&mut owner, "detach('opengeni')")?;
    db.admin()?
        .batch_execute("DROP TABLE opengeni_guards_shadow")?;
    same(&before, &definitions(&mut db.admin()?)?)
}

fn waits(db: &Db) -> Result<()> {
    extension(db)?;
    // A table that the plan reads.
    let mut holder = db.owner()?;
    let mut owner = db.owner()?;
    for call in [
        "attach('opengeni', lock_timeout => '200ms')",
        "attach('opengeni', mode => 'shadow', lock_timeout => '200ms')",
        "detach('opengeni')",
        "provision('opengeni')",
    ] {
        let mut held = holder.transaction()?;
        held.batch_execute("LOCK TABLE sandbox_retained_processes IN ACCESS EXCLUSIVE MODE")?;
        let started = std::time::Instant::now();
        let refusal = refused(&mut owner, &format!("SELECT opengeni_guards.{call}"), &[])?;
        refusal.has_state("55P03").context(call)?;
        refusal
            .names(&[
                "the tables of schema opengeni could not be locked",
                "pg_locks",
            ])
            .context(call)?;
        ensure!(
            started.elapsed() < Duration::from_secs(12),
            "{call}: {:?}",
            started.elapsed()
        );
        held.rollback()?;
    }
    // Whoever changes a schema meanwhile: nothing but the turn is waited for, and all waits together are bounded.
    let mut held = holder.transaction()?;
    held.batch_execute("SELECT opengeni_guards.grant_usage('og_cases_app', 'opengeni')")?;
    let started = std::time::Instant::now();
    let refusal = refused(
        &mut owner,
        "SELECT opengeni_guards.attach('opengeni', lock_timeout => '300ms')",
        &[],
    )?;
    refusal.has_state("55P03")?;
    refusal.names(&[
        "another call still changes a schema of this database after 300 ms",
        "locked the extension",
    ])?;
    ensure!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    held.rollback()?;
    let done = switch(&mut owner, "attach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    Ok(())
}

fn waits_on_create(db: &Db) -> Result<()> {
    let mut holder = db.owner()?;
    let mut held = holder.transaction()?;
    held.batch_execute("LOCK TABLE sandbox_retained_processes IN ACCESS EXCLUSIVE MODE")?;
    let warned = thread::scope(|scope| {
        let creating = scope.spawn(|| create_extension(db));
        creating.join().map_err(|_| anyhow!("panicked"))?
    })?;
    ensure!(
        warned.contains("are left as they are") && warned.contains("could not be locked"),
        "{warned}"
    );
    held.rollback()?;
    let mut owner = db.owner()?;
    switch(&mut owner, "attach('opengeni')")?;
    Ok(())
}

fn detached_twice(db: &Db) -> Result<()> {
    extension(db)?;
    let (mut first, mut second) = (db.owner()?, db.owner()?);
    switch(&mut first, "attach('opengeni')")?;
    let pid = backend_pid(&mut second)?;
    let mut leading = first.transaction()?;
    leading.batch_execute("SELECT opengeni_guards.grant_usage('og_cases_app', 'opengeni')")?;
    let late = thread::scope(|scope| -> Result<Vec<String>> {
        let waiting = scope.spawn(|| switch(&mut second, "detach('opengeni')"));
        wait_for_lock(&mut db.admin()?, pid)?;
        leading.batch_execute("SELECT opengeni_guards.detach('opengeni')")?;
        leading.commit()?;
        waiting.join().map_err(|_| anyhow!("panicked"))?
    })?;
    ensure!(
        !late.is_empty() && late.iter().all(|line| line.starts_with("present ")),
        "{late:#?}"
    );
    works(db, false)
}

fn old_snapshot(db: &Db) -> Result<()> {
    extension(db)?;
    let (mut old, mut other) = (db.owner()?, db.owner()?);
    let native = |client: &mut Client| -> Result<bool> {
        value(client, "SELECT opengeni_guards.ready('opengeni')", &[])
    };
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        // With a transaction id and without: the server's SPI takes other snapshots then.
        for begins in ["SELECT", "SELECT FROM pg_current_xact_id()"] {
            let begin =
                format!("BEGIN ISOLATION LEVEL {isolation}; {begins}; SELECT FROM pg_class");
            old.batch_execute(&begin)?;
            let attached = switch(&mut other, "attach('opengeni')")?;
            ensure!(
                native(&mut old)?,
                "{begin}: status is as old as the snapshot"
            );
            let again = switch(&mut old, "attach('opengeni')")?;
            ensure!(
                attached.iter().any(|line| line.starts_with("rebound "))
                    && !again.iter().any(|line| line.starts_with("rebound ")),
                "{begin}: {again:#?}"
            );
            let detached = switch(&mut old, "detach('opengeni')")?;
            ensure!(
                detached.iter().any(|line| line.starts_with("restored ")),
                "{begin}: {detached:#?}"
            );
            old.batch_execute("COMMIT")?;
            ensure!(!native(&mut other)?, "{begin}");
        }
    }
    works(db, false)
}

fn dropped_meanwhile(db: &Db) -> Result<()> {
    extension(db)?;
    let (mut dropping, mut late) = (db.admin()?, db.owner()?);
    let pid = backend_pid(&mut late)?;
    let mut leading = dropping.transaction()?;
    leading.batch_execute("DROP EXTENSION opengeni_guards")?;
    thread::scope(|scope| -> Result<()> {
        let waiting = scope.spawn(|| {
            refused(&mut late, "SELECT opengeni_guards.attach('opengeni')", &[])?.has_state("42704")
        });
        wait_for_lock(&mut db.admin()?, pid)?;
        leading.commit()?;
        waiting.join().map_err(|_| anyhow!("panicked"))?
    })?;
    works(db, false)
}

fn event_triggers(db: &Db) -> Result<()> {
    // A superuser's event trigger fires for what is done in the owner's name: as the owner, restricted.
    db.admin()?.batch_execute(
        "CREATE TABLE opengeni.seen (ran_as text, tag text);
         GRANT INSERT ON opengeni.seen TO PUBLIC;
         CREATE FUNCTION opengeni.notice() RETURNS event_trigger LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO opengeni.seen VALUES (current_user, tg_tag); END $$;
         CREATE EVENT TRIGGER watch ON ddl_command_end EXECUTE FUNCTION opengeni.notice();
         SET opengeni_guards.bind_on_create = off; CREATE EXTENSION opengeni_guards;
         TRUNCATE opengeni.seen",
    )?;
    let mut admin = db.admin()?;
    for call in ["attach('opengeni')", "detach('opengeni')"] {
        switch(&mut admin, call)?;
        let seen = lines(
            &mut admin,
            "SELECT DISTINCT ran_as FROM opengeni.seen ORDER BY 1",
            &[],
        )?;
        ensure!(seen == [OWNER], "{call}: {seen:?}");
    }
    // One that refuses leaves nothing half done, and what it says stays what it said.
    admin.batch_execute(
        "CREATE OR REPLACE FUNCTION opengeni.notice() RETURNS event_trigger LANGUAGE plpgsql AS
           $$ BEGIN IF tg_tag = 'CREATE TRIGGER' THEN
             RAISE 'frozen' USING ERRCODE = 'OG007', DETAIL = 'a week long', HINT = 'wait', TABLE = 't', CONSTRAINT = 'c', SCHEMA = 's';
           END IF; END $$",
    )?;
    let before = snapshot(&mut admin)?;
    let refusal = refused(&mut admin, "SELECT opengeni_guards.attach('opengeni')", &[])?;
    let text = |text: &str| Some(text.to_owned());
    ensure!(
        refusal
            == Refusal {
                sqlstate: "OG007".to_owned(),
                rule: text("c"),
                message: "frozen".to_owned(),
                detail: text("a week long"),
                hint: text("wait"),
                table: text("t"),
                schema: text("s"),
            },
        "{refusal:?}"
    );
    same(&before, &snapshot(&mut admin)?)
}

/// Has a superuser's event trigger say this at each CREATE TRIGGER.
fn frozen(admin: &mut Client, body: &str) -> Result<()> {
    admin.batch_execute(&format!(
        "DROP FUNCTION IF EXISTS opengeni.frozen() CASCADE;
         CREATE FUNCTION opengeni.frozen() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;
         CREATE EVENT TRIGGER frozen ON ddl_command_end WHEN tag IN ('CREATE TRIGGER') EXECUTE FUNCTION opengeni.frozen()"
    ))?;
    Ok(())
}

fn raised_again(db: &Db) -> Result<()> {
    extension(db)?;
    let mut admin = db.admin()?;
    for inner in [
        "RAISE 'inner' USING ERRCODE = 'OG002'",
        // It says the same, but for what else it says.
        "RAISE 'outer' USING ERRCODE = 'OG001', DETAIL = 'other', CONSTRAINT = 'other'",
        "RAISE WARNING 'outer' USING ERRCODE = 'OG001', DETAIL = 'd', HINT = 'h', CONSTRAINT = 'other'",
        "PERFORM 1 / 0",
    ] {
        frozen(
            &mut admin,
            &format!(
                "RAISE 'outer' USING ERRCODE = 'OG001', DETAIL = 'd', HINT = 'h', TABLE = 't', CONSTRAINT = 'c';
                 EXCEPTION WHEN OTHERS THEN
                   BEGIN {inner}; EXCEPTION WHEN OTHERS THEN NULL; END;
                   RAISE;"
            ),
        )?;
        let refusal = refused(&mut admin, "SELECT opengeni_guards.attach('opengeni')", &[])?;
        ensure!(
            refusal.sqlstate == "OG001"
                && refusal.message == "outer"
                && refusal.detail.as_deref() == Some("d")
                && refusal.table.as_deref() == Some("t")
                && refusal.rule.as_deref() == Some("c"),
            "{inner}: {refusal:?}"
        );
    }
    // A state of a warning's class is an error's all the same.
    frozen(
        &mut admin,
        "RAISE 'odd' USING ERRCODE = '01ABC', CONSTRAINT = 'c';",
    )?;
    refused(&mut admin, "SELECT opengeni_guards.attach('opengeni')", &[])?.is_by("01ABC", "c")
}

fn strangers_copy(db: &Db) -> Result<()> {
    extension(db)?;
    let mut admin = db.admin()?;
    admin.batch_execute(&format!(
        "CREATE SCHEMA copy AUTHORIZATION {STRANGER};
         CREATE TABLE copy.sandbox_retained_processes (LIKE opengeni.sandbox_retained_processes);
         ALTER TABLE copy.sandbox_retained_processes OWNER TO {STRANGER};
         REVOKE ALL ON copy.sandbox_retained_processes FROM {STRANGER};
         REVOKE USAGE ON SCHEMA opengeni_private FROM PUBLIC;
         GRANT CREATE ON SCHEMA opengeni_private TO PUBLIC"
    ))?;
    // Whoever cannot read it says so, and goes on.
    let seen = lines(
        &mut admin,
        "SELECT data_schema || ': ' || object FROM opengeni_guards.status() WHERE state = 'unreadable'",
        &[],
    )?;
    ensure!(
        seen == ["copy: rows of sandbox_retained_processes"],
        "{seen:?}"
    );
    admin.batch_execute(
        "GRANT USAGE ON SCHEMA copy TO PUBLIC; GRANT SELECT ON copy.sandbox_retained_processes TO PUBLIC",
    )?;
    let mut owner = db.owner()?;
    let done = switch(&mut owner, "attach('opengeni')")?;
    ensure!(
        !done.iter().any(|line| line.starts_with("left ")),
        "{done:#?}"
    );
    owner.batch_execute(&format!(
        "SELECT opengeni_guards.grant_usage('{APP}', '{SCHEMA}')"
    ))?;
    let acl = |client: &mut Client| {
        lines(
            client,
            "SELECT acl.privilege_type || ' ' || coalesce(r.rolname, 'PUBLIC') FROM pg_namespace n
               CROSS JOIN aclexplode(n.nspacl) acl LEFT JOIN pg_roles r ON r.oid = acl.grantee
              WHERE n.nspname = 'opengeni_private' AND (acl.grantee = 0 OR r.rolname = $1)",
            &[&APP],
        )
    };
    let granted = acl(&mut owner)?;
    ensure!(granted == [format!("USAGE {APP}")], "{granted:?}");
    owner.batch_execute(&format!(
        "SELECT opengeni_guards.revoke_usage('{APP}', '{SCHEMA}')"
    ))?;
    let granted = acl(&mut owner)?;
    ensure!(granted.is_empty(), "{granted:?}");
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        done.iter()
            .any(|line| line.starts_with("restored ") && line.contains("warming_reset")),
        "{done:#?}"
    );
    // Neither does a lock of the stranger's hold anybody up: that of advisory numbers is everybody's.
    let mut stranger = db.session(STRANGER)?;
    stranger.batch_execute("SELECT pg_advisory_lock(x'6f676472'::bigint)")?;
    // A type stands under a table's name as well as a table does.
    owner.batch_execute("CREATE TYPE opengeni_guards_replaced AS ENUM ('a')")?;
    let done = switch(&mut owner, "attach('opengeni', lock_timeout => '1s')")?;
    ensure!(
        done.iter()
            .filter(|line| line.starts_with("left function"))
            .count()
            == 14
            && done
                .iter()
                .filter(|line| line.starts_with("rebound "))
                .count()
                == 21,
        "{done:#?}"
    );
    Ok(())
}

fn waiting_check(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    extension(db)?;
    let mut admin = db.admin()?;
    admin.batch_execute(
        "CREATE TABLE public.held AS SELECT 1 AS id;
         CREATE OR REPLACE FUNCTION opengeni_private.validate_sandbox_checkpoint_refs() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM 1 FROM public.held FOR SHARE; RETURN NULL; END $$",
    )?;
    let mut holder = db.admin()?;
    let mut held = holder.transaction()?;
    held.batch_execute("UPDATE public.held SET id = 2")?;
    for call in [
        "attach('opengeni', lock_timeout => '500ms')",
        "provision('opengeni')",
    ] {
        let mut transaction = admin.transaction()?;
        transaction.batch_execute("SET LOCAL opengeni.sandbox_recovery_protocol_v2 = '1'")?;
        accepted(
            &mut transaction,
            "UPDATE sandbox_leases SET backend = backend WHERE id = $1",
            &[&tenant.lease],
        )?;
        let started = std::time::Instant::now();
        let refusal = refused(
            &mut transaction,
            &format!("SELECT opengeni_guards.{call}"),
            &[],
        )?;
        refusal.has_state("55P03").context(call)?;
        refusal.names(&["Nothing has been changed", "pg_locks"])?;
        ensure!(
            started.elapsed() < Duration::from_secs(7),
            "{call}: {:?}",
            started.elapsed()
        );
        transaction.rollback()?;
    }
    held.rollback()?;
    switch(&mut admin, "attach('opengeni')")?;
    Ok(())
}

fn same_name(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "CREATE TABLE other (x int CONSTRAINT sandbox_checkpoint_refs_guard CHECK (x > 0),
           CONSTRAINT sandbox_retained_processes_identity_v2 UNIQUE (x) DEFERRABLE)",
    )?;
    for call in [
        "attach('opengeni')",
        "detach('opengeni')",
        "provision('opengeni')",
    ] {
        switch(&mut owner, call).context(call)?;
    }
    works(db, true)
}

fn granted_meanwhile(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    let mut holder = db.owner()?;
    for (holds, call) in [
        (
            "GRANT EXECUTE ON FUNCTION opengeni_private.sandbox_rotation_backlog() TO og_cases_stranger",
            "attach('opengeni', lock_timeout => '20s')",
        ),
        (
            "GRANT SELECT ON opengeni.sandbox_leases TO og_cases_stranger",
            "grant_usage('og_cases_app', 'opengeni')",
        ),
    ] {
        let before = snapshot(&mut db.admin()?)?;
        for commits in [true, false] {
            let mut held = holder.transaction()?;
            held.batch_execute(holds)?;
            let sql = format!("SELECT opengeni_guards.{call}");
            let refusal = thread::scope(|scope| -> Result<Refusal> {
                let mut caller = db.owner()?;
                if !commits {
                    caller.batch_execute("SET lock_timeout = '300ms'")?;
                }
                let pid = backend_pid(&mut caller)?;
                let sql = match commits {
                    true => sql.clone(),
                    false => sql.replace("20s", "300ms"),
                };
                let calling = scope.spawn(move || refused(&mut caller, &sql, &[]));
                if commits {
                    wait_for_lock(&mut db.admin()?, pid)?;
                    held.commit()?;
                    calling.join().map_err(|_| anyhow!("panicked"))?
                } else {
                    let refusal = calling.join().map_err(|_| anyhow!("panicked"))?;
                    held.rollback()?;
                    refusal
                }
            })
            .with_context(|| format!("{call}: {commits}"))?;
            refusal
                .has_state(if commits { "55006" } else { "55P03" })
                .with_context(|| format!("{call}: {commits}"))?;
            refusal.names(&["Nothing has been changed", "gain"])?;
            if commits {
                owner.batch_execute(&holds.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))?;
            }
        }
        same(&before, &snapshot(&mut db.admin()?)?)?;
    }
    Ok(())
}

fn not_to_be_put_back(db: &Db) -> Result<()> {
    extension(db)?;
    let mut admin = db.admin()?;
    let mut owner = db.owner()?;
    // Only a superuser could.
    let backlog = "FUNCTION opengeni_private.sandbox_rotation_backlog()";
    admin.batch_execute(&format!("ALTER {backlog} LEAKPROOF"))?;
    let done = switch(&mut owner, "attach('opengeni')")?;
    ensure!(
        done.iter()
            .any(|line| line.starts_with(&format!("left function {}", &backlog[9..]))),
        "{done:#?}"
    );
    switch(&mut owner, "detach('opengeni')")?;
    admin.batch_execute(&format!("ALTER {backlog} NOT LEAKPROOF"))?;
    // A role that has another name by then.
    admin.batch_execute(&format!(
        "DROP ROLE IF EXISTS og_cases_renamed, og_cases_was; CREATE ROLE og_cases_was;
         GRANT EXECUTE ON {backlog} TO og_cases_was"
    ))?;
    switch(&mut owner, "attach('opengeni')")?;
    admin.batch_execute("ALTER ROLE og_cases_was RENAME TO og_cases_renamed")?;
    let done = switch(&mut owner, "detach('opengeni')")?;
    ensure!(
        done.iter()
            .any(|line| line.contains("sandbox_rotation_backlog")
                && line.contains("there is no role og_cases_was")),
        "{done:#?}"
    );
    admin.batch_execute("DROP OWNED BY og_cases_renamed; DROP ROLE og_cases_renamed")?;
    // A policy of the contract's name that asks something else is not ours to drop.
    owner.batch_execute(
        "DROP POLICY modal_inventory_owner_read ON sandbox_leases;
         DROP FUNCTION opengeni.modal_inventory_read_capability_active();
         CREATE POLICY modal_inventory_owner_read ON sandbox_leases FOR SELECT USING (backend = 'mine')",
    )?;
    let policy = "SELECT pg_get_expr(p.polqual, p.polrelid) FROM pg_policy p WHERE p.polname = 'modal_inventory_owner_read'";
    let before = lines(&mut owner, policy, &[])?;
    switch(&mut owner, "attach('opengeni')")?;
    switch(&mut owner, "detach('opengeni')")?;
    let after = lines(&mut owner, policy, &[])?;
    ensure!(before == after && before.len() == 1, "{before:?} {after:?}");
    Ok(())
}

fn with_argument(db: &Db) -> Result<()> {
    extension(db)?;
    let mut owner = db.owner()?;
    for argument in ["shadow", "x"] {
        switch(&mut owner, "attach('opengeni')")?;
        owner.batch_execute(&format!(
            "CREATE OR REPLACE TRIGGER supervised_command_guard BEFORE INSERT OR DELETE OR UPDATE ON sandbox_retained_processes
               FOR EACH ROW EXECUTE FUNCTION opengeni_guards.supervised_command_guard('{argument}')"
        ))?;
        for call in ["attach('opengeni')", "detach('opengeni')"] {
            let done = switch(&mut owner, call)?;
            let said: Vec<&String> = done
                .iter()
                .filter(|line| line.contains("trigger supervised_command_guard "))
                .collect();
            ensure!(
                matches!(&said[..], [line] if line.starts_with("left ") && line.contains("altered")),
                "{call}: {said:?}"
            );
        }
        owner
            .batch_execute("DROP TRIGGER supervised_command_guard ON sandbox_retained_processes")?;
    }
    Ok(())
}

fn own_error(db: &Db) -> Result<()> {
    fleet::tenants(db, SCHEMA, 2)?;
    // Nobody holds them: the next sweep counts that.
    fleet::plant(db, SCHEMA, "UPDATE sandbox_leases SET refcount = 3")?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "CREATE FUNCTION frozen() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE 'frozen' USING ERRCODE = 'OG007', CONSTRAINT = 'c', TABLE = TG_TABLE_NAME; END $$;
         CREATE TRIGGER frozen BEFORE UPDATE ON sandbox_leases FOR EACH ROW EXECUTE FUNCTION frozen()",
    )?;
    let before = lines(
        &mut db.admin()?,
        "SELECT l::text FROM sandbox_leases l",
        &[],
    )?;
    let sweep = "SELECT opengeni_private.reap_sandbox_leases(1, 1, 1)";
    let refusal = refused(&mut owner, sweep, &[])?;
    ensure!(
        refusal.sqlstate == "OG007"
            && refusal.rule.as_deref() == Some("c")
            && refusal.table.as_deref() == Some("sandbox_leases"),
        "{refusal:?}"
    );
    // A handler of the caller's sees the same, and the session goes on.
    owner.batch_execute(&format!(
        "DO $x$ BEGIN PERFORM * FROM ({sweep}) x; RAISE 'accepted'; EXCEPTION WHEN SQLSTATE 'OG007' THEN NULL; END $x$"
    ))?;
    same(
        &before,
        &lines(
            &mut db.admin()?,
            "SELECT l::text FROM sandbox_leases l",
            &[],
        )?,
    )?;
    owner.batch_execute("DROP TRIGGER frozen ON sandbox_leases")?;
    owner.batch_execute(sweep)?;
    let counts = lines(
        &mut db.admin()?,
        "SELECT DISTINCT refcount::text FROM sandbox_leases",
        &[],
    )?;
    ensure!(counts == ["0"], "{counts:?}");
    Ok(())
}

/// Builds a second data schema whose triggers call the same originals.
fn second_of_the_originals(db: &Db) -> Result<()> {
    db.admin()?.batch_execute(&format!(
        "CREATE SCHEMA second AUTHORIZATION {OWNER};
         GRANT USAGE ON SCHEMA second TO {APP}"
    ))?;
    let mut owner = db.owner()?;
    provision(&mut owner, "second")?;
    grant_usage(&mut owner, APP, "second")?;
    // Its own policy functions, and every guard bound to the originals.
    owner.batch_execute(
        "DO $x$ DECLARE f record; BEGIN
           FOR f IN SELECT pg_get_functiondef(p.oid) AS d FROM pg_proc p
                     WHERE p.pronamespace = 'opengeni'::regnamespace AND p.proname LIKE 'workspace_instruction_policy_%' LOOP
             EXECUTE replace(f.d, 'FUNCTION opengeni.', 'FUNCTION second.');
           END LOOP;
         END $x$",
    )?;
    let done = switch(&mut owner, "detach('second', force => true)")?;
    let restored = done
        .iter()
        .filter(|line| line.starts_with("restored trigger"));
    ensure!(restored.count() == 21, "{done:#?}");
    Ok(())
}

fn two_originals(db: &Db) -> Result<()> {
    extension(db)?;
    second_of_the_originals(db)?;
    let mut owner = db.owner()?;
    let tenant = db.tenant()?;
    let mut admin = db.admin()?;
    admin.batch_execute("SET search_path = second")?;
    commit(&mut admin, &[protocol::seed(&tenant)])?;
    let mut app = db.app(&tenant)?;
    let mut number = 0;
    for call in ["attach()", "detach()", "attach()"] {
        let done = switch(&mut owner, call)?;
        for schema in [SCHEMA, "second"] {
            let native: bool = value(&mut owner, "SELECT opengeni_guards.ready($1)", &[&schema])?;
            ensure!(
                native == call.starts_with("attach"),
                "{call}: {schema}: {done:#?}"
            );
        }
        for _ in 0..3 {
            number += 1;
            // Detached, both ask the same originals, which know one schema.
            let served = if call.starts_with("attach") { 2 } else { 1 };
            for schema in [SCHEMA, "second"].into_iter().take(served) {
                app.batch_execute(&format!("SET search_path = {schema}"))?;
                let command = Command::new(number);
                commit(&mut app, &[protocol::launch(&tenant, &command)])
                    .with_context(|| format!("{call}: {schema}"))?;
                let refusal = refused(
                    &mut app,
                    "DELETE FROM sandbox_retained_processes WHERE id = $1",
                    &[&command.process],
                )?;
                refusal.has_state("55000")?;
                if call.starts_with("attach") {
                    refusal.speaks("supervised_command.delete_unsettled")?;
                    ensure!(refusal.schema.as_deref() == Some(schema), "{refusal:?}");
                }
            }
        }
    }
    for schema in [SCHEMA, "second"] {
        let mut odd = amiss(&mut admin, schema)?;
        // One function serves whoever calls it, and cannot say which of two schemas it shall be bound to.
        odd.retain(|line| {
            !line.contains("search_path names") && !line.contains("serves schema opengeni")
        });
        ensure!(odd.is_empty(), "{schema}: {odd:?}");
    }
    Ok(())
}

fn altered_without_ledger(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute(
        "ALTER FUNCTION opengeni_private.sandbox_rotation_backlog() SET work_mem = '64MB'",
    )?;
    let refusal = refused(&mut owner, "SELECT opengeni_guards.detach('opengeni')", &[])?;
    refusal.has_state("55000")?;
    refusal.names(&["sandbox_rotation_backlog", "force"])?;
    let done = switch(&mut owner, "detach('opengeni', force => true)")?;
    ensure!(
        done.iter().any(|line| line.starts_with("dropped function")
            && line.contains("sandbox_rotation_backlog")),
        "{done:#?}"
    );
    db.admin()?
        .batch_execute("DROP EXTENSION opengeni_guards")?;
    Ok(())
}

fn database_owner(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute("CREATE SCHEMA second")?;
    for (schema, name) in [
        ("public", "pg_database_owner"),
        ("second", "pg_database_owner"),
    ] {
        let done = switch(&mut owner, &format!("provision('{schema}', '{name}')"))?;
        ensure!(
            done.iter()
                .any(|line| line.starts_with("created ") && line.contains("sandbox_leases")),
            "{done:#?}"
        );
        let owners = lines(
            &mut owner,
            "SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = $1",
            &[&schema],
        )?;
        ensure!(owners == [OWNER], "{schema}: {owners:?}");
    }
    Ok(())
}

fn row_security(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    owner.batch_execute("SET row_security = off; CREATE SCHEMA second")?;
    for call in [
        "provision('second')",
        "provision('opengeni')",
        "attach('opengeni')",
        "status('opengeni') WHERE false",
        "shadow_report('opengeni') WHERE false",
        "rules() WHERE false",
    ] {
        owner
            .batch_execute(&format!("SELECT * FROM opengeni_guards.{call}"))
            .with_context(|| call.to_owned())?;
    }
    let off: String = value(&mut owner, "SELECT current_setting('row_security')", &[])?;
    ensure!(off == "off", "{off}");
    Ok(())
}

fn provisioned_without_row_security(db: &Db) -> Result<()> {
    extension(db)?;
    db.supervised()?;
    for mut client in [db.admin()?, db.owner()?] {
        client.batch_execute("SET row_security = off; BEGIN")?;
        let done = switch(&mut client, "provision('opengeni')")?;
        ensure!(
            done.iter()
                .any(|line| line.starts_with("created foreign key sandbox_command_output")),
            "{done:#?}"
        );
        client.batch_execute("ROLLBACK")?;
    }
    Ok(())
}

/// Row-level security is forced on the owner, who sees no row without a tenant's settings.
fn rows_without_their_lease(db: &Db) -> Result<()> {
    let (tenant, _) = db.supervised()?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "ALTER TABLE sandbox_lease_holders DROP CONSTRAINT sandbox_lease_holders_lease_id_fkey",
    )?;
    db.plant(
        "UPDATE sandbox_lease_holders SET lease_id = gen_random_uuid() WHERE lease_id = $1",
        &[&tenant.lease],
    )?;
    let before = snapshot(&mut db.admin()?)?;
    let provision = "SELECT opengeni_guards.provision('opengeni')";
    let refusal = refused(&mut owner, provision, &[])?;
    refusal.has_state("23503")?;
    ensure!(
        refusal.table.as_deref() == Some("sandbox_lease_holders"),
        "{refusal:?}"
    );
    same(&before, &snapshot(&mut db.admin()?)?)?;
    db.plant(
        "UPDATE sandbox_lease_holders SET lease_id = $1",
        &[&tenant.lease],
    )?;
    owner.batch_execute(provision)?;
    Ok(())
}

fn superuser(db: &Db) -> Result<()> {
    let mut owner = db.owner()?;
    let told = |client: &mut Client| states(client, "owner of schema %");
    ensure!(told(&mut owner)?.is_empty(), "{:?}", told(&mut owner)?);
    let mut admin = db.admin()?;
    admin.batch_execute(
        "DO $x$ DECLARE t regclass; BEGIN
           FOR t IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'opengeni'::regnamespace AND c.relkind = 'r' LOOP
             EXECUTE format('ALTER TABLE %s OWNER TO %I', t, session_user);
           END LOOP; END $x$",
    )?;
    let seen = told(&mut admin)?;
    ensure!(
        matches!(&seen[..], [line] if line.contains("superuser") && line.contains(SUPERUSER)),
        "{seen:?}"
    );
    Ok(())
}

fn reassigned(db: &Db) -> Result<()> {
    const LEAVING: &str = "og_cases_leaving";
    let mut admin = db.admin()?;
    admin.batch_execute(&format!(
        "DROP ROLE IF EXISTS {LEAVING}; CREATE ROLE {LEAVING} LOGIN;
         CREATE EXTENSION opengeni_guards; CREATE SCHEMA {SCHEMA} AUTHORIZATION {LEAVING};
         CREATE SCHEMA opengeni_private AUTHORIZATION {LEAVING}"
    ))?;
    provision(&mut db.session(LEAVING)?, SCHEMA)?;
    admin.batch_execute(&format!("REASSIGN OWNED BY {LEAVING} TO {STRANGER}"))?;
    // The former owner may do nothing any more, the new one everything.
    refused(
        &mut db.session(LEAVING)?,
        "SELECT opengeni_guards.attach('opengeni')",
        &[],
    )?
    .has_state("42501")?;
    let mut owner = db.session(STRANGER)?;
    let altered = lines(
        &mut owner,
        "SELECT object FROM opengeni_guards.status('opengeni') WHERE state NOT IN ('native', 'present')",
        &[],
    )?;
    ensure!(
        matches!(&altered[..], [policy] if policy.starts_with("policy modal_inventory_owner_read")),
        "{altered:#?}"
    );
    let ready: bool = value(&mut owner, "SELECT opengeni_guards.ready('opengeni')", &[])?;
    ensure!(ready);
    grant_usage(&mut owner, APP, SCHEMA)?;
    let (tenant, command) = db.supervised()?;
    refused(
        &mut db.app(&tenant)?,
        "DELETE FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )?
    .speaks("supervised_command.delete_unsettled")?;
    admin.batch_execute(&format!("DROP OWNED BY {LEAVING}; DROP ROLE {LEAVING}"))?;
    Ok(())
}
