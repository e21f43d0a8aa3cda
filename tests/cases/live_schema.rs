//! The schema changes under a session that is already at work; the session goes on right.

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, Tenant, streams};
use opengeni_guards_harness::server::Server;
use postgres::Client;
use uuid::Uuid;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "live schema: columns are added, dropped and added again",
            columns_come_and_go,
        ),
        case(
            server,
            "live schema: an older unrelated column is dropped, and old rows are read right",
            older_column_dropped,
        ),
        case(
            server,
            "live schema: a column the guard needs is renamed and renamed back",
            column_renamed,
        ),
        case(
            server,
            "live schema: a column a question needs is renamed and renamed back",
            sibling_column_renamed,
        ),
        case(
            server,
            "live schema: a column the guard needs is retyped and retyped back",
            column_retyped,
        ),
        case(
            server,
            "live schema: a column the guard needs is dropped and made again",
            column_dropped,
        ),
        case(
            server,
            "live schema: a table is dropped and provisioned again",
            table_recreated,
        ),
        case(
            server,
            "live schema: a sibling table is dropped and provisioned again",
            sibling_recreated,
        ),
        case(
            server,
            "live schema: a sibling table is replaced by a view",
            sibling_becomes_view,
        ),
        case(
            server,
            "live schema: the data schema is renamed and renamed back",
            schema_renamed,
        ),
        case(
            server,
            "live schema: the extension is dropped and made again",
            extension_recreated,
        ),
        case(
            server,
            "live schema: making the extension is rolled back, then done",
            extension_rolled_back,
        ),
        case(
            server,
            "live schema: without an index the answers stay right",
            index_dropped,
        ),
        case(
            server,
            "live schema: an invalid index is not asked",
            index_invalid,
        ),
        case(
            server,
            "live schema: an index over some rows, or over an expression, is not asked",
            index_unfit,
        ),
        case(
            server,
            "live schema: DDL and guarded writes alternate in one transaction",
            within_one_transaction,
        ),
    ]
}

/// A session at work on one supervised command.
struct Work {
    app: Client,
    tenant: Tenant,
    command: Command,
    offset: i64,
    child: Option<Uuid>,
}

impl Work {
    fn begin(db: &Db) -> Result<Self> {
        let (tenant, command) = db.supervised()?;
        let mut work = Self {
            app: db.app(&tenant)?,
            tenant,
            command,
            offset: 0,
            child: None,
        };
        work.goes_on()?;
        Ok(work)
    }

    /// A new command in the same session, where the old rows are gone.
    fn anew(&mut self, db: &Db) -> Result<()> {
        self.tenant = db.tenant()?;
        self.command = Command::new(1);
        (self.offset, self.child) = (0, None);
        let tenant = &self.tenant;
        set(
            &mut self.app,
            "opengeni.account_id",
            &tenant.account.to_string(),
        )?;
        set(
            &mut self.app,
            "opengeni.workspace_id",
            &tenant.workspace.to_string(),
        )?;
        commit(&mut self.app, &[protocol::launch(tenant, &self.command)])
    }

    /// Both row-local rules and questions answer as they should.
    fn goes_on(&mut self) -> Result<()> {
        let (app, command) = (&mut self.app, &self.command);
        accepted(
            app,
            "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = $1",
            &[&command.process],
        )?;
        let next = streams(&Cursor::at(self.offset + 1), &Cursor::START);
        step_refused(
            app,
            &[protocol::uncovered_capture(command, next.clone(), false)],
        )?
        .speaks("supervised_command.capture_protocol")?;
        commit(app, &[protocol::capture(command, next, false)])?;
        self.offset += 1;
        let back = streams(&Cursor::at(self.offset - 1), &Cursor::START);
        step_refused(app, &protocol::capture(command, back, false))?
            .speaks("supervised_command.output_regress")?;
        self.questions()
    }

    /// The child admission is asked for, found, and found settled.
    fn questions(&mut self) -> Result<()> {
        let (app, tenant, command) = (&mut self.app, &self.tenant, &self.command);
        let advance = protocol::advance_input(command, self.offset);
        let receipt = protocol::record_receipt(command, command.receipt(0));
        step_refused(app, &advance)?.speaks("supervised_command.stdin_child")?;
        let mut transaction = app.transaction()?;
        let child = Uuid::new_v4();
        run(
            &mut transaction,
            &protocol::admit_input(tenant, command, child),
        )?;
        step_refused(&mut transaction, &receipt)?
            .speaks("supervised_command.input_settles_first")?;
        run(&mut transaction, &advance)?;
        run(&mut transaction, &protocol::settle_input(child))?;
        run(&mut transaction, &receipt)?;
        transaction.rollback()?;
        Ok(())
    }

    /// A write is refused with a clear error that names table, column and guard.
    fn stumbles(&mut self, sql: &str, states: &[&str], names: &[&str]) -> Result<()> {
        let refusal = refused(&mut self.app, sql, &[&self.command.process])?;
        ensure!(
            states.contains(&refusal.sqlstate.as_str()),
            "expected one of {states:?}, got {refusal:?}"
        );
        refusal.names(names)
    }
}

const TOUCH: &str = "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = $1";

fn columns_come_and_go(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    for table in [
        "sandbox_retained_processes",
        "sandbox_workspace_mutation_admissions",
        "sandbox_leases",
    ] {
        for sql in [
            "ALTER TABLE {} ADD COLUMN note text DEFAULT 'quick default'",
            "ALTER TABLE {} ADD COLUMN stamp uuid DEFAULT gen_random_uuid()",
            "ALTER TABLE {} DROP COLUMN note",
            "ALTER TABLE {} ADD COLUMN note jsonb NOT NULL DEFAULT '{\"supervision\": 1}'",
            "ALTER TABLE {} DROP COLUMN stamp",
            "ALTER TABLE {} ADD COLUMN made text GENERATED ALWAYS AS (id::text || account_id::text) STORED",
        ] {
            owner.batch_execute(&sql.replacen("{}", table, 1))?;
            work.goes_on().with_context(|| format!("{table}: {sql}"))?;
        }
    }
    Ok(())
}

fn older_column_dropped(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    // Columns that stand before those the guard reads, and that no guard reads.
    for (table, column) in [
        ("sandbox_retained_processes", "last_reconcile_outcome"),
        ("sandbox_workspace_mutation_admissions", "admitted_at"),
        ("sandbox_leases", "data_plane_url"),
    ] {
        owner.batch_execute(&format!("ALTER TABLE {table} DROP COLUMN {column}"))?;
        work.goes_on()
            .with_context(|| format!("without {table}.{column}"))?;
    }
    // Rows written before and after the change.
    let newcomer = Command::new(2);
    let tenant = work.tenant.clone();
    commit(&mut work.app, &[protocol::launch(&tenant, &newcomer)])?;
    let first = std::mem::replace(&mut work.command, newcomer);
    work.offset = 0;
    work.goes_on()?;
    work.command = first;
    work.offset = value(
        &mut work.app,
        "SELECT (provider_command #>> '{streams,stdout,byteOffset}')::bigint
         FROM sandbox_retained_processes WHERE id = $1",
        &[&work.command.process],
    )?;
    work.goes_on()
}

fn column_renamed(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    for column in [
        "cancellation_reason",
        "supervision_receipt",
        "provider_session_id",
    ] {
        owner.batch_execute(&format!(
            "ALTER TABLE sandbox_retained_processes RENAME {column} TO renamed"
        ))?;
        for sql in [
            TOUCH,
            "DELETE FROM sandbox_retained_processes WHERE id = $1",
        ] {
            work.stumbles(
                sql,
                &["42703"],
                &[
                    "sandbox_retained_processes",
                    column,
                    "supervised_command_guard",
                ],
            )?;
        }
        owner.batch_execute(&format!(
            "ALTER TABLE sandbox_retained_processes RENAME renamed TO {column}"
        ))?;
        work.goes_on().with_context(|| column.to_string())?;
    }
    Ok(())
}

fn sibling_column_renamed(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    let receipt =
        "UPDATE sandbox_retained_processes SET supervision_receipt = (SELECT jsonb_build_object(
           'protocol', s ->> 'protocol', 'invocationId', s ->> 'invocationId',
           'receiptId', gen_random_uuid(), 'leaderExitCode', 0)
         FROM (SELECT provider_command -> 'supervision') AS source (s)) WHERE id = $1";
    for column in ["settled_at", "actor_id", "actor_kind"] {
        owner.batch_execute(&format!(
            "ALTER TABLE sandbox_workspace_mutation_admissions RENAME {column} TO renamed"
        ))?;
        // A write that asks nothing passes its own guard; the identity check asks at COMMIT.
        let mut transaction = work.app.transaction()?;
        transaction.execute(TOUCH, &[&work.command.process])?;
        transaction.rollback()?;
        let Err(error) = work.app.execute(TOUCH, &[&work.command.process]) else {
            bail!("committed without {column}");
        };
        let refusal = Refusal::of(&error)?;
        ensure!(refusal.sqlstate == "42703", "{refusal:?}");
        refusal.names(&[
            "sandbox_workspace_mutation_admissions",
            column,
            "validate_sandbox_retained_process_v2",
        ])?;
        work.stumbles(
            receipt,
            &["42703"],
            &[
                "sandbox_workspace_mutation_admissions",
                column,
                "supervised_command_guard",
            ],
        )?;
        owner.batch_execute(&format!(
            "ALTER TABLE sandbox_workspace_mutation_admissions RENAME renamed TO {column}"
        ))?;
        work.goes_on().with_context(|| column.to_string())?;
    }
    Ok(())
}

fn column_retyped(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    for (column, other, own) in [
        ("cancellation_reason", "varchar", "text"),
        ("provider_session_id", "bigint", "integer"),
        ("supervision_receipt", "json", "jsonb"),
    ] {
        let retype = |kind: &str| {
            format!(
                "ALTER TABLE sandbox_retained_processes ALTER COLUMN {column} TYPE {kind} USING {column}::{kind}"
            )
        };
        owner.batch_execute(&retype(other))?;
        work.stumbles(
            TOUCH,
            &["42703", "42804"],
            &["sandbox_retained_processes", column],
        )?;
        owner.batch_execute(&retype(own))?;
        work.goes_on().with_context(|| column.to_string())?;
    }
    Ok(())
}

fn column_dropped(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    owner
        .batch_execute("ALTER TABLE sandbox_retained_processes DROP COLUMN cancellation_reason")?;
    work.stumbles(
        TOUCH,
        &["42703"],
        &[
            "sandbox_retained_processes",
            "cancellation_reason",
            "supervised_command_guard",
        ],
    )?;
    owner.batch_execute(
        "ALTER TABLE sandbox_retained_processes ADD COLUMN cancellation_reason text",
    )?;
    work.goes_on()
}

fn table_recreated(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    for _ in 0..2 {
        owner.batch_execute("DROP TABLE sandbox_retained_processes CASCADE")?;
        let refusal = refused(&mut work.app, TOUCH, &[&work.command.process])?;
        refusal.has_state("42P01")?;
        provision(&mut owner, SCHEMA)?;
        grant_usage(&mut owner, APP, SCHEMA)?;
        work.anew(db)?;
        work.goes_on()?;
    }
    Ok(())
}

fn sibling_recreated(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute("DROP TABLE sandbox_workspace_mutation_admissions CASCADE")?;
    // The question cannot be answered: refused, not passed.
    let receipt = work.command.receipt(0);
    let refusal = refused(
        &mut work.app,
        "UPDATE sandbox_retained_processes SET supervision_receipt = $2 WHERE id = $1",
        &[&work.command.process, &receipt],
    )?;
    refusal.has_state("42P01")?;
    refusal.names(&["sandbox_workspace_mutation_admissions"])?;

    owner.batch_execute("DROP TABLE sandbox_retained_processes CASCADE")?;
    provision(&mut owner, SCHEMA)?;
    grant_usage(&mut owner, APP, SCHEMA)?;
    work.anew(db)?;
    work.goes_on()
}

fn sibling_becomes_view(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    owner.batch_execute(
        "ALTER TABLE sandbox_workspace_mutation_admissions RENAME TO real_admissions;
         CREATE VIEW sandbox_workspace_mutation_admissions AS SELECT * FROM real_admissions WHERE false",
    )?;
    let receipt = work.command.receipt(0);
    let refusal = refused(
        &mut work.app,
        "UPDATE sandbox_retained_processes SET supervision_receipt = $2 WHERE id = $1",
        &[&work.command.process, &receipt],
    )?;
    ensure!(
        ["42P01", "42809"].contains(&refusal.sqlstate.as_str()),
        "{refusal:?}"
    );
    refusal.names(&["sandbox_workspace_mutation_admissions"])?;
    owner.batch_execute(
        "DROP VIEW sandbox_workspace_mutation_admissions;
         ALTER TABLE real_admissions RENAME TO sandbox_workspace_mutation_admissions",
    )?;
    work.goes_on()
}

fn schema_renamed(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut owner = db.owner()?;
    for (before, after) in [(SCHEMA, "moved"), ("moved", SCHEMA)] {
        owner.batch_execute(&format!("ALTER SCHEMA {before} RENAME TO {after}"))?;
        set(&mut work.app, "search_path", after)?;
        work.goes_on().with_context(|| after.to_string())?;
        let refusal = refused(
            &mut work.app,
            "DELETE FROM sandbox_retained_processes WHERE id = $1",
            &[&work.command.process],
        )?;
        ensure!(refusal.schema.as_deref() == Some(after), "{refusal:?}");
    }
    Ok(())
}

fn extension_recreated(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let mut admin = db.admin()?;
    let mut owner = db.owner()?;
    for _ in 0..2 {
        admin.batch_execute("DROP EXTENSION opengeni_guards CASCADE")?;
        // Nothing guards the row now: that is what CASCADE means.
        let mut trial = work.app.transaction()?;
        accepted(
            &mut trial,
            "DELETE FROM sandbox_retained_processes WHERE id = $1",
            &[&work.command.process],
        )?;
        trial.rollback()?;
        admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
        provision(&mut owner, SCHEMA)?;
        work.goes_on()?;
    }
    Ok(())
}

fn extension_rolled_back(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut admin = db.admin()?;
    let delete = "DELETE FROM sandbox_retained_processes WHERE id = $1";
    admin.batch_execute("DROP EXTENSION opengeni_guards CASCADE")?;

    let mut transaction = admin.transaction()?;
    transaction.batch_execute("CREATE EXTENSION opengeni_guards")?;
    transaction.execute("SELECT opengeni_guards.provision($1)", &[&SCHEMA])?;
    refused(&mut transaction, delete, &[&command.process])?
        .speaks("supervised_command.delete_unsettled")?;
    run(
        &mut transaction,
        &protocol::admit_input(&tenant, &command, Uuid::new_v4()),
    )?;
    run(&mut transaction, &protocol::advance_input(&command, 1))?;
    transaction.rollback()?;

    let mut trial = admin.transaction()?;
    accepted(&mut trial, delete, &[&command.process])?;
    trial.rollback()?;

    admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
    provision(&mut admin, SCHEMA)?;
    refused(&mut admin, delete, &[&command.process])?
        .speaks("supervised_command.delete_unsettled")?;
    step_refused(&mut admin, &protocol::advance_input(&command, 1))?
        .speaks("supervised_command.stdin_child")
}

/// A launch into containment is refused; out of it, accepted.
fn containment_is_seen(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let capture = "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1";
    let mut admin = db.admin()?;
    accepted(&mut admin, capture, &[&tenant.lease])?;
    let mut app = db.app(&tenant)?;
    step_refused(&mut app, &protocol::launch(&tenant, &command))?
        .speaks("supervised_command.containment")?;
    accepted(
        &mut admin,
        "UPDATE sandbox_leases SET archive_capture_id = NULL WHERE id = $1",
        &[&tenant.lease],
    )?;
    commit(&mut app, &[protocol::launch(&tenant, &command)])
}

fn index_dropped(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    containment_is_seen(db)?;
    let mut owner = db.owner()?;
    for sql in [
        "DROP INDEX sandbox_workspace_mutation_admissions_actor_idx",
        "DROP INDEX sandbox_workspace_mutation_admissions_blocking_idx",
        "ALTER TABLE sandbox_retained_processes
           DROP CONSTRAINT sandbox_retained_processes_parent_admission_scope_fk;
         DROP INDEX sandbox_workspace_mutation_admissions_scoped_id_uq,
           sandbox_workspace_mutation_admissions_attempt_idx,
           sandbox_workspace_mutation_admissions_lease_generation_uq",
        "ALTER TABLE sandbox_workspace_mutation_admissions
           DROP CONSTRAINT sandbox_workspace_mutation_admissions_pkey",
        "ALTER TABLE sandbox_leases DROP CONSTRAINT sandbox_leases_pkey CASCADE",
    ] {
        owner.batch_execute(sql)?;
        work.goes_on().with_context(|| sql.to_string())?;
        containment_is_seen(db).with_context(|| sql.to_string())?;
    }
    owner.batch_execute(
        "CREATE INDEX back_again ON sandbox_workspace_mutation_admissions (actor_id)",
    )?;
    work.goes_on()
}

fn index_invalid(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    let second = Command::new(2);
    let tenant = work.tenant.clone();
    commit(&mut db.admin()?, &[protocol::launch(&tenant, &second)])?;
    let mut owner = db.owner()?;
    owner.batch_execute("DROP INDEX sandbox_workspace_mutation_admissions_actor_idx")?;
    // Two rows with equal keys: the build fails and leaves an index that misses rows.
    let built = owner.batch_execute(
        "CREATE UNIQUE INDEX CONCURRENTLY broken
           ON sandbox_workspace_mutation_admissions (account_id, workspace_id, actor_kind)",
    );
    ensure!(built.is_err(), "the index was built");
    let broken: i64 = value(
        &mut owner,
        "SELECT count(*) FROM pg_index WHERE indexrelid = 'broken'::regclass AND NOT indisvalid",
        &[],
    )?;
    ensure!(broken == 1, "no invalid index");
    work.goes_on()
}

fn index_unfit(db: &Db) -> Result<()> {
    let mut work = Work::begin(db)?;
    db.owner()?.batch_execute(
        "DROP INDEX sandbox_workspace_mutation_admissions_actor_idx;
         CREATE INDEX settled_only ON sandbox_workspace_mutation_admissions
           (account_id, workspace_id, actor_kind, actor_id) WHERE settled_at IS NOT NULL;
         CREATE INDEX by_expression ON sandbox_workspace_mutation_admissions
           (account_id, workspace_id, lower(actor_kind), actor_id);
         CREATE INDEX of_another_kind ON sandbox_workspace_mutation_admissions USING hash (actor_id)",
    )?;
    work.goes_on()?;
    db.owner()?.batch_execute(
        "CREATE INDEX descending ON sandbox_workspace_mutation_admissions
           (actor_id DESC NULLS FIRST, actor_kind COLLATE \"C\" DESC) INCLUDE (settled_at)",
    )?;
    work.goes_on()
}

fn within_one_transaction(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut admin = db.admin()?;
    let mut transaction = admin.transaction()?;
    let child = Uuid::new_v4();
    let receipt = protocol::record_receipt(&command, command.receipt(0));
    run(
        &mut transaction,
        &protocol::admit_input(&tenant, &command, child),
    )?;
    for ddl in [
        "ALTER TABLE sandbox_workspace_mutation_admissions ADD COLUMN note text DEFAULT 'x'",
        "ALTER TABLE sandbox_retained_processes ADD COLUMN note text DEFAULT 'x'",
        "DROP INDEX sandbox_workspace_mutation_admissions_actor_idx",
        "ALTER TABLE sandbox_workspace_mutation_admissions DROP COLUMN note",
        "CREATE INDEX now ON sandbox_workspace_mutation_admissions (actor_id, account_id)",
    ] {
        let mut inner = transaction.transaction()?;
        if let Err(error) = inner.batch_execute(ddl) {
            bail!("{ddl}: {}", describe(&error));
        }
        step_refused(&mut inner, &receipt)
            .and_then(|refusal| refusal.speaks("supervised_command.input_settles_first"))
            .with_context(|| ddl.to_string())?;
        inner.commit()?;
        // Undone at once, it leaves nothing of itself behind in the session.
        let mut undone = transaction.transaction()?;
        undone.batch_execute(
            "ALTER TABLE sandbox_workspace_mutation_admissions ADD COLUMN undone int",
        )?;
        step_refused(&mut undone, &receipt)?.speaks("supervised_command.input_settles_first")?;
        undone.rollback()?;
        step_refused(&mut transaction, &receipt)?
            .speaks("supervised_command.input_settles_first")?;
    }
    run(&mut transaction, &protocol::settle_input(child))?;
    run(&mut transaction, &receipt)?;
    Ok(transaction.commit()?)
}
