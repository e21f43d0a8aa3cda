//! 11: history goes with its workspace or account, whatever the order of the foreign keys.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use postgres::GenericClient;
use uuid::Uuid;

use super::{
    PARENTS, activation, answers, artifact, attached, head, is_ready, prove, pty, refer, revision,
};
use crate::dump;
use crate::support::*;

/// A tenant with all that a workspace leaves behind: commands that exited, were rejected, lost or never
/// supervised, input, a terminal, a viewer, checkpoints, policies.
fn history(db: &Db) -> Result<Tenant> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let [exited, rejected, legacy, lost] = [1, 2, 3, 4].map(Command::new);

    commit(&mut app, &[protocol::launch(&tenant, &exited)])?;
    answers(&mut app, &pty(&exited, "open"), None)?;
    let child = Uuid::new_v4();
    for step in [
        protocol::admit_input(&tenant, &exited, child),
        protocol::advance_input(&exited, 1),
        protocol::settle_input(child),
    ] {
        commit(&mut app, &[step])?;
    }
    prove(&mut app, &exited)?;
    let mut transaction = app.transaction()?;
    transaction
        .batch_execute("UPDATE sandbox_pty_sessions SET status = 'closed', closed_at = now()")?;
    run(&mut transaction, &protocol::settle(&tenant, &exited, 0))?;
    transaction.commit()?;

    commit(&mut app, &[protocol::launch(&tenant, &rejected)])?;
    commit(&mut app, &[protocol::reject_launch(&tenant, &rejected)])?;
    commit(
        &mut app,
        &[
            protocol::admit(&tenant, &legacy),
            protocol::retain(&tenant, &legacy),
            protocol::attach(&legacy, legacy.legacy_provider_command(&tenant)),
        ],
    )?;
    commit(&mut app, &[protocol::settle(&tenant, &legacy, 3)])?;
    commit(&mut app, &[protocol::launch(&tenant, &lost)])?;
    commit(&mut app, &[protocol::lose_provider(&tenant, &lost)])?;

    accepted(
        &mut app,
        "INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id)
         VALUES ($1, $2, $3, 'viewer', 'somebody')",
        &[&tenant.account, &tenant.workspace, &tenant.lease],
    )?;
    let [current, pending, first, second] = [(); 4].map(|()| Uuid::new_v4());
    let published = artifact(&tenant, current, "current") + &refer(&tenant, current);
    answers(&mut app, &published, None)?;
    answers(
        &mut app,
        &artifact(&tenant, pending, "delete_pending"),
        None,
    )?;
    let policies = [
        revision(&tenant, first, None),
        revision(&tenant, second, Some(first)),
        head(second),
        activation(first, second),
    ];
    answers(&mut app, &policies.concat(), None)?;
    Ok(tenant)
}

/// How many rows of an account each table has.
fn rows_of(client: &mut impl GenericClient, tenant: &Tenant) -> Result<BTreeMap<String, i64>> {
    let tables = lines(
        client,
        "SELECT relname::text FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
          WHERE relnamespace = 'opengeni'::regnamespace AND relkind = 'r' AND attname = 'account_id'",
        &[],
    )?;
    let mut rows = BTreeMap::new();
    for (table, column) in tables
        .iter()
        .map(|table| (table.as_str(), "account_id"))
        .chain([("managed_accounts", "id")])
    {
        let sql = format!("SELECT count(*) FROM opengeni.{table} WHERE {column} = $1");
        rows.insert(table.to_owned(), value(client, &sql, &[&tenant.account])?);
    }
    Ok(rows)
}

/// What has rows of the account left, once `what` is deleted. Artifacts refer to no workspace: the objects at
/// the provider are still there, and the queue deletes them.
fn expected_left(what: &str) -> Vec<&'static str> {
    match what {
        "workspaces" => vec!["managed_accounts", "sandbox_checkpoint_artifacts"],
        _ => vec!["sandbox_checkpoint_artifacts"],
    }
}

fn left(rows: &BTreeMap<String, i64>) -> Vec<&str> {
    rows.iter()
        .filter(|(_, count)| **count > 0)
        .map(|(table, _)| table.as_str())
        .collect()
}

fn deletion(what: &str, tenant: &Tenant) -> String {
    let id = match what {
        "workspaces" => tenant.workspace,
        _ => tenant.account,
    };
    format!("DELETE FROM opengeni.{what} WHERE id = '{id}'")
}

/// The application deletes workspaces and accounts; `bystander` keeps what it has.
fn goes(db: &Db, what: &str, tenant: &Tenant, bystander: &Tenant) -> Result<()> {
    let mut admin = db.admin()?;
    let (before, theirs) = (
        rows_of(&mut admin, tenant)?,
        rows_of(&mut admin, bystander)?,
    );
    // Turns are no part of what the guards know.
    let empty: Vec<&str> = before
        .iter()
        .filter(|(table, count)| **count == 0 && !table.starts_with("session_turn"))
        .map(|(table, _)| table.as_str())
        .collect();
    ensure!(
        empty.iter().all(|table| *table == "sandbox_command_output"),
        "nothing to go: {empty:?}"
    );
    let mut app = db.app(tenant)?;
    let delete = deletion(what, tenant);
    app.batch_execute(&format!("RESET {MARKER}"))?;
    refused(&mut app, &delete, &[])?.speaks("protocol_v2.marker")?;
    ensure!(rows_of(&mut admin, tenant)? == before);
    set(&mut app, MARKER, "1")?;
    answers(&mut app, &delete, None)?;
    let after = rows_of(&mut admin, tenant)?;
    ensure!(left(&after) == expected_left(what), "{what}: {after:?}");
    ensure!(
        after["sandbox_checkpoint_artifacts"] == before["sandbox_checkpoint_artifacts"],
        "{after:?}"
    );
    ensure!(rows_of(&mut admin, bystander)? == theirs);
    Ok(())
}

pub fn history_goes(db: &Db) -> Result<()> {
    attached(db)?;
    let bystander = history(db)?;
    for what in PARENTS {
        goes(db, what, &history(db)?, &bystander)?;
        // As long as a supervised command is not settled, everything stays.
        let (tenant, command) = db.supervised()?;
        let mut app = db.app(&tenant)?;
        let refusal = refused(&mut app, &deletion(what, &tenant), &[])?;
        refusal.has_state("55000")?;
        let rules = [
            "process_holder.retained",
            "parent_admission.retained",
            "supervised_command.delete_unsettled",
        ];
        ensure!(
            refusal
                .rule
                .as_deref()
                .is_some_and(|rule| rules.contains(&rule)),
            "{refusal:?}"
        );
        prove(&mut app, &command)?;
        commit(&mut app, &[protocol::settle(&tenant, &command, 0)])?;
        answers(&mut app, &deletion(what, &tenant), None)?;
        let after = rows_of(&mut db.admin()?, &tenant)?;
        ensure!(
            left(&after)
                .iter()
                .all(|table| *table == "managed_accounts"),
            "{after:?}"
        );
    }
    Ok(())
}

pub fn history_goes_after_restore(db: &Db) -> Result<()> {
    attached(db)?;
    let (tenant, bystander) = (history(db)?, history(db)?);
    let target = Db::empty(&db.server)?;
    dump::restore(&target, &dump::dump(db)?)?;
    ensure!(is_ready(&mut target.owner()?)?);
    goes(&target, "workspaces", &tenant, &bystander)?;
    // In pg_dump's order of the keys an account's own sessions hold it back, guards or not: see the next case.
    answers(
        &mut target.app(&tenant)?,
        &deletion("managed_accounts", &tenant),
        None,
    )?;
    goes(&target, "workspaces", &bystander, &tenant)
}

/// What a deletion comes to: what is left, or the error.
fn outcome(
    client: &mut impl GenericClient,
    sql: &str,
    tenant: &Tenant,
) -> Result<Result<BTreeMap<String, i64>, Refusal>> {
    let mut attempt = client.transaction()?;
    let done = attempt.batch_execute(&format!("{sql}; SET CONSTRAINTS ALL IMMEDIATE"));
    let outcome = match done {
        Ok(()) => Ok(rows_of(&mut attempt, tenant)?),
        Err(error) => Err(Refusal::of(&error)?),
    };
    attempt.rollback()?;
    Ok(outcome)
}

pub fn foreign_keys_in_any_order(db: &Db) -> Result<()> {
    let mut owner = attached(db)?;
    let tenant = history(db)?;
    let mut admin = db.admin()?;
    let of_schema =
        "FROM pg_constraint WHERE contype = 'f' AND connamespace = 'opengeni'::regnamespace";
    let tables = lines(
        &mut admin,
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'opengeni'::regnamespace AND relkind = 'r'",
        &[],
    )?;
    let (mut gone, mut stopped) = (0, 0);
    for order in [
        "oid",
        "oid DESC",
        // pg_dump's.
        "conrelid::regclass::text, conname",
        "conrelid::regclass::text DESC, conname DESC",
        "md5(conname || 1)",
        "md5(conname || 2)",
        "md5(conname || 3)",
        "md5(conname || 4)",
    ] {
        let keys = lines(
            &mut owner,
            &format!(
                "SELECT format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
                 {of_schema} ORDER BY {order}"
            ),
            &[],
        )?;
        ensure!(keys.len() > 20, "{} foreign keys", keys.len());
        let drop = lines(
            &mut owner,
            &format!(
                "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) {of_schema}"
            ),
            &[],
        )?;
        let mut transaction = owner.transaction()?;
        transaction.batch_execute(&drop.join(";"))?;
        transaction.batch_execute(&keys.join(";"))?;
        transaction.commit()?;
        for what in PARENTS {
            let delete = deletion(what, &tenant);
            let guarded = outcome(&mut db.app(&tenant)?, &delete, &tenant)?;
            // The server's own answer, with nobody asked.
            let mut transaction = admin.transaction()?;
            for table in &tables {
                transaction.batch_execute(&format!("ALTER TABLE {table} DISABLE TRIGGER USER"))?;
            }
            let alone = outcome(&mut transaction, &delete, &tenant)?;
            transaction.rollback()?;
            match (guarded, alone) {
                (Ok(_), Ok(rows)) => {
                    // The application sees its tenant only; the superuser all.
                    ensure!(
                        left(&rows) == expected_left(what),
                        "{order}: {what}: {rows:?}"
                    );
                    let mut again = db.admin()?;
                    match outcome(&mut again, &delete, &tenant)? {
                        Ok(seen) => ensure!(seen == rows, "{order}: {what}: {seen:?}"),
                        Err(refusal) => bail!("{order}: {what}: {refusal:?}"),
                    }
                    gone += 1;
                }
                // RESTRICT (23001 from 18 on) between tables that both go: the order of the keys decides, and only it.
                (Err(ours), Err(theirs)) => {
                    ensure!(
                        ["23001", "23503"].contains(&ours.sqlstate.as_str())
                            && (&ours.sqlstate, &ours.rule) == (&theirs.sqlstate, &theirs.rule),
                        "{order}: {what}: {ours:?}, {theirs:?}"
                    );
                    stopped += 1;
                }
                (ours, theirs) => bail!("{order}: {what}: {ours:?}, {theirs:?}"),
            }
        }
    }
    ensure!(
        gone >= 10,
        "{gone} gone, {stopped} stopped by a foreign key"
    );
    ensure!(is_ready(&mut owner)?);
    Ok(())
}
