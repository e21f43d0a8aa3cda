//! What the supervised guard knows: the committed rows of its own schema, whoever asks and however.

use std::thread;

use anyhow::{Result, anyhow, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::server::Server;
use opengeni_guards_harness::statement;
use postgres::Client;
use uuid::Uuid;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "truth: the guard sees a child admission that a policy hides from the caller (D9)",
            hidden_child,
        ),
        case(
            server,
            "truth: the guard sees a lease that a policy hides from the caller (D9)",
            hidden_lease,
        ),
        case(
            server,
            "truth: a temp table named like the admissions changes nothing (D8)",
            temp_admissions,
        ),
        case(
            server,
            "truth: a temp table named like the leases changes nothing (D8)",
            temp_leases,
        ),
        case(
            server,
            "truth: a search_path without the data schema, or with a decoy before it, changes nothing",
            search_paths,
        ),
        case(
            server,
            "truth: a child of another scope is no child",
            foreign_children,
        ),
        case(
            server,
            "truth: a child admission committed after the snapshot is seen at every isolation level (D10)",
            committed_after_snapshot,
        ),
        case(
            server,
            "truth: a child settled by another session after the snapshot counts as settled (D10)",
            settled_after_snapshot,
        ),
        case(
            server,
            "truth: the transaction's own uncommitted child admission counts, a foreign one does not",
            uncommitted_children,
        ),
        case(
            server,
            "truth: one statement may insert the child and advance the index",
            child_in_the_same_statement,
        ),
        case(
            server,
            "truth: attachment waits for a containment under way and then refuses",
            containment_wins,
        ),
        case(
            server,
            "truth: attachment waits for a containment that is rolled back or lifted and then passes",
            containment_gives_way,
        ),
        case(
            server,
            "truth: a containment waits for an attachment under way",
            attachment_wins,
        ),
        case(
            server,
            "truth: a wait for the lease can be cut short, and the session goes on",
            waiting_is_cut_short,
        ),
    ]
}

/// The receipt is judged, and nothing of it stays.
fn receipt_passes(client: &mut Client, command: &Command) -> Result<()> {
    let mut transaction = client.transaction()?;
    run(
        &mut transaction,
        &protocol::record_receipt(command, command.receipt(0)),
    )?;
    Ok(transaction.rollback()?)
}

fn receipt_waits_for_child(client: &mut Client, command: &Command) -> Result<()> {
    let receipt = protocol::record_receipt(command, command.receipt(0));
    step_refused(client, &receipt)?.speaks("supervised_command.input_settles_first")
}

fn admit_child(db: &Db, tenant: &Tenant, command: &Command) -> Result<Uuid> {
    let child = Uuid::new_v4();
    commit(
        &mut db.admin()?,
        &[protocol::admit_input(tenant, command, child)],
    )?;
    Ok(child)
}

fn settle_child(db: &Db, child: Uuid) -> Result<()> {
    commit(&mut db.admin()?, &[protocol::settle_input(child)])
}

fn hidden_child(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    admit_child(db, &tenant, &command)?;
    db.owner()?.batch_execute(
        "CREATE POLICY hide ON sandbox_workspace_mutation_admissions AS RESTRICTIVE FOR SELECT
           USING (actor_kind <> 'process')",
    )?;
    let mut app = db.app(&tenant)?;
    let visible: i64 = value(
        &mut app,
        "SELECT count(*) FROM sandbox_workspace_mutation_admissions WHERE actor_kind = 'process'",
        &[],
    )?;
    ensure!(visible == 0, "the policy hides nothing");
    receipt_waits_for_child(&mut app, &command)?;
    commit(&mut app, &[protocol::advance_input(&command, 5)])
}

fn hidden_lease(db: &Db) -> Result<()> {
    let (tenant, command) = contained_lease(db)?;
    db.owner()?.batch_execute(
        "CREATE POLICY hide ON sandbox_leases AS RESTRICTIVE FOR SELECT USING (false)",
    )?;
    let mut app = db.app(&tenant)?;
    let mut transaction = app.transaction()?;
    run(&mut transaction, &protocol::retain(&tenant, &command))?;
    step_refused(
        &mut transaction,
        &protocol::attach(&command, command.provider_command(&tenant)),
    )?
    .speaks("supervised_command.containment")
}

/// A lease under checkpoint containment with one admitted, not yet retained command.
fn contained_lease(db: &Db) -> Result<(Tenant, Command)> {
    let tenant = db.tenant()?;
    let command = Command::new(1);
    commit(
        &mut db.admin()?,
        &[
            protocol::admit(&tenant, &command),
            vec![statement!(
                "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1",
                tenant.lease,
            )],
        ],
    )?;
    Ok((tenant, command))
}

fn temp_admissions(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    // A decoy child: taken from a real one that is rolled back.
    let mut transaction = app.transaction()?;
    run(
        &mut transaction,
        &protocol::admit_input(&tenant, &command, Uuid::new_v4()),
    )?;
    let decoy: String = value(
        &mut transaction,
        "SELECT to_jsonb(child)::text FROM sandbox_workspace_mutation_admissions child
         WHERE actor_kind = 'process'",
        &[],
    )?;
    transaction.rollback()?;
    app.batch_execute(
        "CREATE TEMP TABLE sandbox_workspace_mutation_admissions
           (LIKE opengeni.sandbox_workspace_mutation_admissions)",
    )?;
    accepted(
        &mut app,
        "INSERT INTO pg_temp.sandbox_workspace_mutation_admissions
         SELECT * FROM jsonb_populate_record(NULL::pg_temp.sandbox_workspace_mutation_admissions, $1::text::jsonb)",
        &[&decoy],
    )?;
    step_refused(&mut app, &protocol::advance_input(&command, 5))?
        .speaks("supervised_command.stdin_child")?;
    receipt_passes(&mut app, &command)?;

    // And the reverse: the real child counts though the decoy table is empty.
    admit_child(db, &tenant, &command)?;
    app.batch_execute("TRUNCATE pg_temp.sandbox_workspace_mutation_admissions")?;
    receipt_waits_for_child(&mut app, &command)?;
    commit(&mut app, &[protocol::advance_input(&command, 5)])
}

fn temp_leases(db: &Db) -> Result<()> {
    let (tenant, command) = contained_lease(db)?;
    let mut app = db.app(&tenant)?;
    let decoy = |app: &mut postgres::Transaction<'_>, capture: &str| -> Result<()> {
        app.batch_execute(
            "CREATE TEMP TABLE sandbox_leases (LIKE opengeni.sandbox_leases) ON COMMIT DROP",
        )?;
        accepted(
            app,
            "INSERT INTO pg_temp.sandbox_leases SELECT * FROM opengeni.sandbox_leases WHERE id = $1",
            &[&tenant.lease],
        )?;
        accepted(
            app,
            &format!("UPDATE pg_temp.sandbox_leases SET archive_capture_id = {capture}"),
            &[],
        )
    };
    let attach = protocol::attach(&command, command.provider_command(&tenant));

    let mut transaction = app.transaction()?;
    run(&mut transaction, &protocol::retain(&tenant, &command))?;
    decoy(&mut transaction, "NULL")?;
    step_refused(&mut transaction, &attach)?.speaks("supervised_command.containment")?;
    transaction.rollback()?;

    accepted(
        &mut db.admin()?,
        "UPDATE sandbox_leases SET archive_capture_id = NULL WHERE id = $1",
        &[&tenant.lease],
    )?;
    let mut transaction = app.transaction()?;
    run(&mut transaction, &protocol::retain(&tenant, &command))?;
    decoy(&mut transaction, "gen_random_uuid()")?;
    run(&mut transaction, &attach)?;
    Ok(transaction.commit()?)
}

fn search_paths(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    db.admin()?.batch_execute(&format!(
        "CREATE SCHEMA decoy;
         CREATE TABLE decoy.sandbox_workspace_mutation_admissions
           (LIKE opengeni.sandbox_workspace_mutation_admissions);
         GRANT USAGE ON SCHEMA decoy TO {APP};
         GRANT ALL ON ALL TABLES IN SCHEMA decoy TO {APP}"
    ))?;
    let advance = "UPDATE opengeni.sandbox_retained_processes SET provider_command_input_index = $2 WHERE id = $1";
    let receipt =
        "UPDATE opengeni.sandbox_retained_processes SET supervision_receipt = $2 WHERE id = $1";
    let paths = [
        "",
        "pg_catalog",
        "decoy",
        "decoy, opengeni, pg_catalog",
        "pg_temp",
        "no_such_schema",
    ];
    for path in paths {
        set(&mut app, "search_path", path)?;
        refused(&mut app, advance, &[&command.process, &5_i64])?
            .speaks("supervised_command.stdin_child")?;
    }
    admit_child(db, &tenant, &command)?;
    for (path, index) in paths.into_iter().zip(1_i64..) {
        set(&mut app, "search_path", path)?;
        accepted(&mut app, advance, &[&command.process, &index])?;
        refused(&mut app, receipt, &[&command.process, &command.receipt(0)])?
            .speaks("supervised_command.input_settles_first")?;
    }
    Ok(())
}

fn foreign_children(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let (other_tenant, other) = db.supervised()?;
    admit_child(db, &other_tenant, &other)?;
    let mut app = db.app(&tenant)?;
    step_refused(&mut app, &protocol::advance_input(&command, 5))?
        .speaks("supervised_command.stdin_child")?;
    receipt_passes(&mut app, &command)?;

    // Of this process, but of another epoch: no licence for stdin, yet unsettled input all the same.
    let child = admit_child(db, &tenant, &command)?;
    db.plant(
        "UPDATE sandbox_workspace_mutation_admissions SET lease_epoch = lease_epoch + 1 WHERE id = $1",
        &[&child],
    )?;
    step_refused(&mut app, &protocol::advance_input(&command, 5))?
        .speaks("supervised_command.stdin_child")?;
    receipt_waits_for_child(&mut app, &command)
}

fn committed_after_snapshot(db: &Db) -> Result<()> {
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let (tenant, command) = db.supervised()?;
        let mut app = db.app(&tenant)?;
        let mut transaction = begin(&mut app, isolation)?;
        let before: i64 = value(
            &mut transaction,
            "SELECT count(*) FROM sandbox_workspace_mutation_admissions WHERE actor_kind = 'process'",
            &[],
        )?;
        ensure!(before == 0, "a child before its time");
        admit_child(db, &tenant, &command)?;

        step_refused(
            &mut transaction,
            &protocol::record_receipt(&command, command.receipt(0)),
        )?
        .speaks("supervised_command.input_settles_first")?;
        run(&mut transaction, &protocol::advance_input(&command, 5))?;
        transaction.commit()?;
    }
    Ok(())
}

fn settled_after_snapshot(db: &Db) -> Result<()> {
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let (tenant, command) = db.supervised()?;
        let child = admit_child(db, &tenant, &command)?;
        let mut app = db.app(&tenant)?;
        let mut transaction = begin(&mut app, isolation)?;
        transaction.query("SELECT FROM sandbox_workspace_mutation_admissions", &[])?;
        settle_child(db, child)?;

        step_refused(&mut transaction, &protocol::advance_input(&command, 5))?
            .speaks("supervised_command.stdin_child")?;
        run(
            &mut transaction,
            &protocol::record_receipt(&command, command.receipt(0)),
        )?;
        transaction.commit()?;
    }
    Ok(())
}

fn uncommitted_children(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let mut transaction = app.transaction()?;
    run(
        &mut transaction,
        &protocol::admit_input(&tenant, &command, Uuid::new_v4()),
    )?;
    step_refused(
        &mut transaction,
        &protocol::record_receipt(&command, command.receipt(0)),
    )?
    .speaks("supervised_command.input_settles_first")?;
    run(&mut transaction, &protocol::advance_input(&command, 5))?;
    transaction.rollback()?;

    // Taken back to a savepoint, it never was.
    let mut transaction = app.transaction()?;
    let mut inner = transaction.transaction()?;
    run(
        &mut inner,
        &protocol::admit_input(&tenant, &command, Uuid::new_v4()),
    )?;
    inner.rollback()?;
    step_refused(&mut transaction, &protocol::advance_input(&command, 5))?
        .speaks("supervised_command.stdin_child")?;
    transaction.rollback()?;

    // A child row of a transaction that has not committed, and has not locked the process, is no truth yet.
    let mut other = db.admin()?;
    let mut pending = other.transaction()?;
    pending.batch_execute("SET LOCAL session_replication_role = replica")?;
    run(
        &mut pending,
        &protocol::admit_input(&tenant, &command, Uuid::new_v4()),
    )?;
    step_refused(&mut app, &protocol::advance_input(&command, 5))?
        .speaks("supervised_command.stdin_child")?;
    receipt_passes(&mut app, &command)
}

fn child_in_the_same_statement(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    // The child's INSERT runs inside the statement that fires the guard: own changes count once they are made.
    app.batch_execute(
        "CREATE FUNCTION pg_temp.admit(process uuid, child uuid) RETURNS bigint LANGUAGE plpgsql AS $$
         BEGIN
           UPDATE sandbox_leases SET workspace_generation = workspace_generation + 1
             WHERE id = (SELECT lease_id FROM sandbox_retained_processes WHERE id = process);
           INSERT INTO sandbox_workspace_mutation_admissions
             (id, account_id, workspace_id, lease_id, sandbox_group_id, session_id, actor_kind, actor_id,
              holder_kind, holder_id, lease_epoch, provider_backend, provider_instance_id, route_kind,
              route_epoch, workspace_generation, operation)
           SELECT child, p.account_id, p.workspace_id, p.lease_id, p.sandbox_group_id, p.session_id,
              'process', p.id, 'process', p.holder_id, p.lease_epoch, p.provider_backend,
              p.provider_instance_id, p.route_kind, p.route_epoch, l.workspace_generation, 'stdin'
           FROM sandbox_retained_processes p JOIN sandbox_leases l ON l.id = p.lease_id
           WHERE p.id = process;
           RETURN 7;
         END $$",
    )?;
    accepted(
        &mut app,
        "UPDATE sandbox_retained_processes SET provider_command_input_index = pg_temp.admit(id, $2) WHERE id = $1",
        &[&command.process, &Uuid::new_v4()],
    )?;

    // So does a settlement in a WITH query, which runs before the row it is joined to.
    accepted(
        &mut app,
        "WITH settled AS (
           UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'resolved', settled_at = now()
           WHERE actor_kind = 'process' AND actor_id = $1 RETURNING actor_id
         )
         UPDATE sandbox_retained_processes SET supervision_receipt = $2 FROM settled WHERE id = settled.actor_id",
        &[&command.process, &command.receipt(0)],
    )
}

/// Attaches `command` in another thread at `isolation`, after `meanwhile` has touched the lease and before
/// it ends; returns what came of it.
fn race(
    db: &Db,
    isolation: &'static str,
    meanwhile: &str,
    end: &str,
) -> Result<std::result::Result<(), Refusal>> {
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let mut admin = db.admin()?;
    commit(&mut admin, &[protocol::admit(&tenant, &command)])?;
    if meanwhile.contains("= NULL") {
        accepted(
            &mut admin,
            "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1",
            &[&tenant.lease],
        )?;
    }

    let mut app = db.app(&tenant)?;
    let pid = backend_pid(&mut app)?;
    let mut attaching = begin(&mut app, isolation)?;
    run(&mut attaching, &protocol::retain(&tenant, &command))?;

    admin.batch_execute("BEGIN")?;
    accepted(&mut admin, meanwhile, &[&tenant.lease])?;
    let attach = protocol::attach(&command, command.provider_command(&tenant));
    thread::scope(|scope| {
        let attached = scope.spawn(move || -> Result<std::result::Result<(), Refusal>> {
            for statement in attach {
                if let Err(error) = statement.run(&mut attaching) {
                    return Ok(Err(Refusal::of(&error)?));
                }
            }
            attaching.commit()?;
            Ok(Ok(()))
        });
        let waited = db
            .admin()
            .and_then(|mut observer| wait_for_lock(&mut observer, pid));
        admin.batch_execute(end)?;
        let outcome = attached
            .join()
            .map_err(|_| anyhow!("the attaching thread died"))?;
        waited?;
        outcome
    })
}

const CONTAIN: &str =
    "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1";
const DRAIN: &str = "UPDATE sandbox_leases SET unobservable_command_drain_ids = ARRAY[gen_random_uuid()] WHERE id = $1";
const LIFT: &str = "UPDATE sandbox_leases SET archive_capture_id = NULL WHERE id = $1";

fn containment_wins(db: &Db) -> Result<()> {
    for meanwhile in [CONTAIN, DRAIN] {
        for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
            match race(db, isolation, meanwhile, "COMMIT")? {
                Ok(()) => bail!("{isolation}: attached into containment: {meanwhile}"),
                Err(refusal) if isolation != "READ COMMITTED" && refusal.sqlstate == "40001" => {}
                Err(refusal) => refusal.speaks("supervised_command.containment")?,
            }
        }
    }
    Ok(())
}

fn containment_gives_way(db: &Db) -> Result<()> {
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        let outcome = race(db, isolation, CONTAIN, "ROLLBACK")?;
        ensure!(outcome.is_ok(), "{isolation}, rolled back: {outcome:?}");
    }
    let outcome = race(db, "READ COMMITTED", LIFT, "COMMIT")?;
    ensure!(outcome.is_ok(), "lifted: {outcome:?}");
    let outcome = race(db, "REPEATABLE READ", LIFT, "COMMIT")?;
    ensure!(
        outcome
            .as_ref()
            .err()
            .is_none_or(|refusal| refusal.sqlstate == "40001"),
        "lifted: {outcome:?}"
    );
    Ok(())
}

fn attachment_wins(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let mut app = db.app(&tenant)?;
    let mut attaching = app.transaction()?;
    run(&mut attaching, &protocol::launch(&tenant, &command))?;

    let mut admin = db.admin()?;
    let mut containing = admin.transaction()?;
    containing.batch_execute("SET LOCAL lock_timeout = '200ms'")?;
    refused(&mut containing, CONTAIN, &[&tenant.lease])?.has_state("55P03")?;
    containing.rollback()?;
    Ok(attaching.commit()?)
}

fn waiting_is_cut_short(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let mut admin = db.admin()?;
    commit(&mut admin, &[protocol::admit(&tenant, &command)])?;
    let mut containing = admin.transaction()?;
    accepted(&mut containing, CONTAIN, &[&tenant.lease])?;

    let mut app = db.app(&tenant)?;
    let attach = protocol::attach(&command, command.provider_command(&tenant));
    let mut attaching = app.transaction()?;
    run(&mut attaching, &protocol::retain(&tenant, &command))?;
    for (setting, sqlstate) in [("statement_timeout", "57014"), ("lock_timeout", "55P03")] {
        for _ in 0..20 {
            let mut inner = attaching.transaction()?;
            inner.batch_execute(&format!("SET LOCAL {setting} = '20ms'"))?;
            step_refused(&mut inner, &attach)?.has_state(sqlstate)?;
            inner.rollback()?;
        }
    }
    containing.rollback()?;
    run(&mut attaching, &attach)?;
    Ok(attaching.commit()?)
}
