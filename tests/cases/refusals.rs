//! How a refusal reaches a client: SQLSTATE, message and every field, through blocks and savepoints.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, Statement, Tenant, streams};
use opengeni_guards_harness::server::Server;
use opengeni_guards_harness::statement;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "refusals: every rule of the supervised guard speaks with its own id, message and fields",
            every_rule,
        ),
        case(
            server,
            "refusals: DETAIL and HINT name columns and paths, never values",
            no_values,
        ),
        case(
            server,
            "refusals: of several offences the first rule speaks",
            first_rule_speaks,
        ),
        case(
            server,
            "refusals: an EXCEPTION block sees every field and the transaction goes on",
            exception_block,
        ),
        case(
            server,
            "refusals: a savepoint takes them back and the session goes on",
            savepoint,
        ),
        case(
            server,
            "refusals: the server's own errors keep their own fields",
            server_errors,
        ),
        case(
            server,
            "refusals: a very large value under little memory works or is an ERROR",
            large_values,
        ),
        case(
            server,
            "refusals: a thousand of them in one transaction leave the session usable",
            many,
        ),
        case(
            server,
            "refusals: a statement over 200,000 supervised rows keeps memory flat",
            memory_stays_flat,
        ),
    ]
}

/// What has to be refused: a tenant's session runs `step` after `before` has been committed.
struct Offence {
    rule: &'static str,
    before: Vec<Statement>,
    step: Vec<Statement>,
}

fn set_columns(command: &Command, sql: &'static str) -> Vec<Statement> {
    vec![statement!(sql, command.process)]
}

fn edited(command: &Command, tenant: &Tenant, edit: impl Fn(&mut Value)) -> Vec<Statement> {
    let mut changed = command.provider_command(tenant);
    edit(&mut changed);
    protocol::attach(command, changed)
}

/// One offence per rule against a committed supervised command.
fn offences(tenant: &Tenant, command: &Command) -> Vec<Offence> {
    let offence = |rule, before, step| Offence { rule, before, step };
    let capture = |stdout: Cursor, captured| {
        protocol::capture(command, streams(&stdout, &Cursor::START), captured)
    };
    let ends = || protocol::capture(command, streams(&Cursor::end(1), &Cursor::end(0)), true);
    let cancelled = || protocol::cancel(command, "explicit_stop");
    let receipt = || protocol::record_receipt(command, command.receipt(0));
    let child = Uuid::new_v4();
    let input = || {
        let mut steps = protocol::admit_input(tenant, command, child);
        steps.extend(protocol::advance_input(command, 5));
        steps
    };
    let settled = || {
        let mut steps = receipt();
        steps.extend(ends());
        steps
    };
    vec![
        offence(
            "supervised_command.delete_unsettled",
            vec![],
            set_columns(
                command,
                "DELETE FROM sandbox_retained_processes WHERE id = $1",
            ),
        ),
        offence(
            "supervised_command.retention_xid",
            vec![],
            set_columns(
                command,
                "UPDATE sandbox_retained_processes SET supervision_retention_xid = NULL WHERE id = $1",
            ),
        ),
        offence(
            "supervised_command.identity",
            vec![],
            edited(command, tenant, |changed| {
                changed["taskId"] = json!("ta-other")
            }),
        ),
        offence(
            "supervised_command.cancellation_monotonic",
            cancelled(),
            protocol::cancel(command, "provider_deadline"),
        ),
        offence(
            "supervised_command.proof_immutable",
            receipt(),
            protocol::record_receipt(command, command.receipt(0)),
        ),
        offence(
            "supervised_command.stdin_closed",
            cancelled(),
            protocol::advance_input(command, 1),
        ),
        offence(
            "supervised_command.stdin_child",
            vec![],
            protocol::advance_input(command, 1),
        ),
        offence(
            "supervised_command.stdin_regress",
            input(),
            protocol::advance_input(command, 4),
        ),
        offence(
            "supervised_command.adoption",
            cancelled(),
            set_columns(
                command,
                "UPDATE sandbox_retained_processes SET owner_actor_id = gen_random_uuid() WHERE id = $1",
            ),
        ),
        offence(
            "supervised_command.capture_protocol",
            vec![],
            vec![protocol::uncovered_capture(
                command,
                streams(&Cursor::at(1), &Cursor::START),
                false,
            )],
        ),
        offence(
            "supervised_command.output_regress",
            capture(Cursor::at(9), false),
            capture(Cursor::at(8), false),
        ),
        offence(
            "supervised_command.cancellation_intent",
            vec![],
            protocol::cancel(command, "no such reason"),
        ),
        offence(
            "supervised_command.receipt",
            vec![],
            protocol::record_receipt(command, json!({ "protocol": "native-subreaper-v1" })),
        ),
        offence(
            "supervised_command.capture_incomplete",
            vec![],
            capture(Cursor::end(9), true),
        ),
        offence(
            "supervised_command.loss_fabricated",
            vec![],
            set_columns(
                command,
                "UPDATE sandbox_retained_processes
                 SET state = 'lost', settlement_reason = 'provider_instance_lost' WHERE id = $1",
            ),
        ),
        offence(
            "supervised_command.launch_rejection",
            vec![],
            vec![protocol::mark_lost(command, "provider_start_rejected")],
        ),
        offence(
            "supervised_command.typed_loss",
            vec![],
            vec![protocol::mark_lost(command, "provider_instance_lost")],
        ),
        offence("supervised_command.input_settles_first", input(), receipt()),
        offence(
            "supervised_command.settlement",
            settled(),
            protocol::settle(tenant, command, 1),
        ),
        offence(
            "supervised_command.stream_cursor",
            vec![],
            protocol::capture(
                command,
                json!({ "stdout": { "byteOffset": 0 }, "stderr": Cursor::START.json() }),
                false,
            ),
        ),
    ]
}

/// The offences against rows that are not a committed, active supervised command, refused one by one.
fn other_offences(db: &Db) -> Result<Vec<(&'static str, Refusal)>> {
    let mut found = Vec::new();

    let (tenant, legacy) = db.legacy()?;
    let mut app = db.app(&tenant)?;
    let attach = protocol::attach(&legacy, legacy.provider_command(&tenant));
    found.push((
        "supervised_command.initial_retention",
        step_refused(&mut app, &attach)?,
    ));
    let receipt = protocol::record_receipt(&legacy, legacy.receipt(0));
    found.push((
        "supervised_command.legacy_proof",
        step_refused(&mut app, &receipt)?,
    ));

    let tenant = db.tenant()?;
    let command = Command::new(1);
    let mut app = db.app(&tenant)?;
    let mut transaction = app.transaction()?;
    run(&mut transaction, &protocol::admit(&tenant, &command))?;
    run(&mut transaction, &protocol::retain(&tenant, &command))?;
    found.push((
        "supervised_command.descriptor",
        step_refused(
            &mut transaction,
            &edited(&command, &tenant, |changed| {
                changed["supervision"]["nonce"] = json!("short");
            }),
        )?,
    ));
    let capture = "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid() WHERE id = $1";
    accepted(&mut transaction, capture, &[&tenant.lease])?;
    let attach = protocol::attach(&command, command.provider_command(&tenant));
    found.push((
        "supervised_command.containment",
        step_refused(&mut transaction, &attach)?,
    ));
    transaction.rollback()?;

    let (tenant, settled) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let ends = streams(&Cursor::end(1), &Cursor::end(0));
    commit(
        &mut app,
        &[protocol::record_receipt(&settled, settled.receipt(0))],
    )?;
    commit(&mut app, &[protocol::capture(&settled, ends, true)])?;
    commit(&mut app, &[protocol::settle(&tenant, &settled, 0)])?;
    let again = set_columns(
        &settled,
        "UPDATE sandbox_retained_processes SET settled_at = now() + interval '1 s' WHERE id = $1",
    );
    found.push((
        "supervised_command.terminal",
        step_refused(&mut app, &again)?,
    ));
    Ok(found)
}

/// Every rule of the guard with the refusal it gave, and secrets that no text may show.
fn refuse_everything(db: &Db) -> Result<Vec<(&'static str, Refusal, Vec<String>)>> {
    let mut found = Vec::new();
    let count = offences(&Tenant::new(), &Command::new(1)).len();
    for index in 0..count {
        let (tenant, command) = db.supervised()?;
        let offence = offences(&tenant, &command).swap_remove(index);
        let mut app = db.app(&tenant)?;
        commit(&mut app, &[offence.before]).context(offence.rule)?;
        let refusal = step_refused(&mut app, &offence.step).context(offence.rule)?;
        let secrets = vec![
            command.nonce.clone(),
            command.invocation.to_string(),
            command.process.to_string(),
            tenant.instance.clone(),
            tenant.account.to_string(),
            "ta-other".to_string(),
            "no such reason".to_string(),
        ];
        found.push((offence.rule, refusal, secrets));
    }
    for (rule, refusal) in other_offences(db)? {
        found.push((rule, refusal, vec!["short".to_string()]));
    }
    Ok(found)
}

fn every_rule(db: &Db) -> Result<()> {
    let found = refuse_everything(db)?;
    for (rule, refusal, _) in &found {
        refusal.speaks(rule)?;
        ensure!(
            refusal.table.as_deref() == Some("sandbox_retained_processes")
                && refusal.schema.as_deref() == Some(SCHEMA),
            "{rule}: {refusal:?}"
        );
    }
    for rule in RULES
        .iter()
        .filter(|rule| rule.id.starts_with("supervised_command."))
    {
        ensure!(
            found.iter().any(|(id, ..)| *id == rule.id),
            "no offence against {}",
            rule.id
        );
    }
    Ok(())
}

fn no_values(db: &Db) -> Result<()> {
    for (rule, refusal, secrets) in refuse_everything(db)? {
        let text = format!(
            "{:?} {:?} {}",
            refusal.detail, refusal.hint, refusal.message
        );
        for secret in secrets {
            ensure!(!text.contains(&secret), "{rule} shows {secret}: {text}");
        }
        ensure!(
            !text.contains("src/") && !text.to_lowercase().contains("backtrace"),
            "{rule} shows its inside: {text}"
        );
    }
    Ok(())
}

fn first_rule_speaks(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    // Each statement offends against the rule named and against those after it.
    for (columns, rule) in [
        (
            "supervision_retention_xid = NULL, holder_id = 'other', provider_command_input_index = 1",
            "supervised_command.retention_xid",
        ),
        (
            "holder_id = 'other', provider_command_input_index = 1, cancellation_reason = 'bored'",
            "supervised_command.identity",
        ),
        (
            "provider_command_input_index = 1, supervision_output_captured = true, cancellation_reason = 'bored'",
            "supervised_command.stdin_child",
        ),
        (
            "supervision_output_captured = true, cancellation_reason = 'bored', supervision_receipt = '{}'",
            "supervised_command.capture_protocol",
        ),
        (
            "cancellation_reason = 'bored', supervision_receipt = '{}', state = 'lost'",
            "supervised_command.cancellation_intent",
        ),
        (
            "supervision_receipt = '{}', state = 'exited'",
            "supervised_command.receipt",
        ),
        (
            "state = 'lost', exit_code = 1, settlement_reason = 'provider_start_rejected'",
            "supervised_command.loss_fabricated",
        ),
    ] {
        let sql = format!("UPDATE sandbox_retained_processes SET {columns} WHERE id = $1");
        refused(&mut app, &sql, &[&command.process])?.speaks(rule)?;
    }
    Ok(())
}

fn exception_block(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    app.batch_execute(
        "CREATE FUNCTION pg_temp.try_to_delete(process uuid) RETURNS text[] LANGUAGE plpgsql AS $$
         DECLARE state text; message text; detail text; hint text; rule text; tab text; sch text;
         BEGIN
           DELETE FROM sandbox_retained_processes WHERE id = process;
           RETURN NULL;
         EXCEPTION WHEN object_not_in_prerequisite_state THEN
           GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
             detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, rule = CONSTRAINT_NAME,
             tab = TABLE_NAME, sch = SCHEMA_NAME;
           RETURN ARRAY[state, rule, message, detail, hint, tab, sch];
         END $$",
    )?;
    let direct = refused(
        &mut app,
        "DELETE FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )?;
    direct.speaks("supervised_command.delete_unsettled")?;

    let mut transaction = app.transaction()?;
    let fields: Option<Vec<String>> = value(
        &mut transaction,
        "SELECT pg_temp.try_to_delete($1)",
        &[&command.process],
    )?;
    let [sqlstate, rule, message, detail, hint, table, schema] =
        <[String; 7]>::try_from(fields.context("deleted")?)
            .map_err(|_| anyhow::anyhow!("seven fields"))?;
    let caught = Refusal {
        sqlstate,
        rule: Some(rule),
        message,
        detail: Some(detail),
        hint: Some(hint),
        table: Some(table),
        schema: Some(schema),
    };
    ensure!(caught == direct, "{caught:?}\nis not\n{direct:?}");
    run(
        &mut transaction,
        &protocol::cancel(&command, "explicit_stop"),
    )?;
    Ok(transaction.commit()?)
}

fn savepoint(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let child = Uuid::new_v4();
    let mut transaction = app.transaction()?;
    run(
        &mut transaction,
        &protocol::admit_input(&tenant, &command, child),
    )?;
    step_refused(
        &mut transaction,
        &protocol::record_receipt(&command, command.receipt(0)),
    )?
    .speaks("supervised_command.input_settles_first")?;
    run(&mut transaction, &protocol::advance_input(&command, 3))?;
    step_refused(&mut transaction, &protocol::advance_input(&command, 2))?
        .speaks("supervised_command.stdin_regress")?;
    run(&mut transaction, &protocol::settle_input(child))?;
    transaction.commit()?;
    let index: i64 = value(
        &mut app,
        "SELECT provider_command_input_index FROM sandbox_retained_processes WHERE id = $1",
        &[&command.process],
    )?;
    ensure!(index == 3, "the index is {index}");
    Ok(())
}

fn server_errors(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    for (columns, sqlstate, constraint) in [
        (
            "settlement_reason = ''",
            "23514",
            Some("sandbox_retained_processes_reason_check"),
        ),
        (
            "reconcile_attempts = -1",
            "23514",
            Some("sandbox_retained_processes_reconcile_attempts_check"),
        ),
        ("reconcile_attempts = NULL", "23502", None),
        ("reconcile_attempts = 1 / 0", "22012", None),
    ] {
        let sql = format!("UPDATE sandbox_retained_processes SET {columns} WHERE id = $1");
        let refusal = refused(&mut app, &sql, &[&command.process])?;
        refusal.has_state(sqlstate)?;
        ensure!(refusal.rule.as_deref() == constraint, "{refusal:?}");
    }

    // A duplicate under the guard's eyes is still the index's to refuse.
    let mut twin = Command::new(1);
    twin.process = command.process;
    let mut transaction = app.transaction()?;
    run(&mut transaction, &protocol::admit(&tenant, &twin))?;
    let refusal = step_refused(&mut transaction, &protocol::retain(&tenant, &twin))?;
    refusal.has_state("23505")?;
    ensure!(
        refusal.rule.as_deref() == Some("sandbox_retained_processes_pkey"),
        "{refusal:?}"
    );
    Ok(())
}

fn large_values(db: &Db) -> Result<()> {
    let started = Instant::now();
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let mut app = db.app(&tenant)?;
    app.batch_execute("SET work_mem = '64kB'")?;
    let mut admin = db.admin()?;
    let uptime = "SELECT pg_postmaster_start_time()::text";
    let before: String = value(&mut admin, uptime, &[])?;

    // Far beyond work_mem, and the identity check has to read it.
    let attach = "UPDATE sandbox_retained_processes
         SET provider_command = $2::jsonb || jsonb_build_object('large', repeat('x', $3)) WHERE id = $1";
    let size = 64_000_000;
    let mut transaction = app.transaction()?;
    run(&mut transaction, &protocol::admit(&tenant, &command))?;
    run(&mut transaction, &protocol::retain(&tenant, &command))?;
    let attached = transaction.execute(
        attach,
        &[&command.process, &command.provider_command(&tenant), &size],
    );
    match attached {
        Ok(rows) => {
            ensure!(rows == 1, "{rows} rows");
            transaction.commit()?;
            works_or_fails(
                &mut app,
                "UPDATE sandbox_retained_processes SET reconcile_attempts = 1 WHERE id = $1",
                &command,
            )?;
            let refusal = refused(
                &mut app,
                "UPDATE sandbox_retained_processes SET provider_command = provider_command - 'large' WHERE id = $1",
                &[&command.process],
            )?;
            ensure!(
                ["55000", "53200", "54000"].contains(&refusal.sqlstate.as_str()),
                "{refusal:?}"
            );
        }
        Err(error) => memory_error(&Refusal::of(&error)?)?,
    }

    let after: String = value(&mut admin, uptime, &[])?;
    ensure!(before == after, "the server restarted");
    ensure!(value::<i32>(&mut db.app(&tenant)?, "SELECT 1", &[])? == 1);
    ensure!(
        started.elapsed() < Duration::from_secs(30),
        "took {:?}",
        started.elapsed()
    );
    Ok(())
}

fn works_or_fails(app: &mut postgres::Client, sql: &str, command: &Command) -> Result<()> {
    match app.execute(sql, &[&command.process]) {
        Ok(rows) => {
            ensure!(rows == 1, "{rows} rows");
            Ok(())
        }
        Err(error) => memory_error(&Refusal::of(&error)?),
    }
}

fn memory_error(refusal: &Refusal) -> Result<()> {
    if !["53200", "54000"].contains(&refusal.sqlstate.as_str()) {
        bail!("neither done nor a memory error: {refusal:?}");
    }
    Ok(())
}

fn many(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    app.batch_execute(
        "CREATE FUNCTION pg_temp.insist(process uuid, times int) RETURNS int LANGUAGE plpgsql AS $$
         DECLARE refusals int := 0; rule text;
         BEGIN
           FOR i IN 1 .. times LOOP
             BEGIN
               UPDATE sandbox_retained_processes SET provider_command_input_index = i WHERE id = process;
             EXCEPTION WHEN object_not_in_prerequisite_state THEN
               GET STACKED DIAGNOSTICS rule = CONSTRAINT_NAME;
               IF rule = 'supervised_command.stdin_child' THEN refusals := refusals + 1; END IF;
             END;
           END LOOP;
           RETURN refusals;
         END $$",
    )?;
    let refusals: i32 = value(
        &mut app,
        "SELECT pg_temp.insist($1, 1000)",
        &[&command.process],
    )?;
    ensure!(refusals == 1000, "{refusals} refusals");
    commit(
        &mut app,
        &[
            protocol::admit_input(&tenant, &command, Uuid::new_v4()),
            protocol::advance_input(&command, 1),
        ],
    )?;
    commit(&mut app, &[protocol::launch(&tenant, &Command::new(2))])
}

fn memory_stays_flat(db: &Db) -> Result<()> {
    let rows = 200_000_i64;
    let (_, command) = db.supervised()?;
    let mut admin = db.admin()?;
    let mut copies = admin.transaction()?;
    copies.batch_execute(
        "SET LOCAL session_replication_role = replica;
         CREATE TEMP SEQUENCE copied START 2;
         CREATE TEMP TABLE copies (LIKE sandbox_retained_processes) ON COMMIT DROP",
    )?;
    copies.execute(
        "INSERT INTO copies SELECT process.* FROM sandbox_retained_processes process,
           generate_series(2, $2::bigint) WHERE id = $1",
        &[&command.process, &rows],
    )?;
    copies.batch_execute(
        "UPDATE copies SET id = gen_random_uuid(), parent_admission_id = gen_random_uuid(),
           holder_id = gen_random_uuid()::text, provider_session_id = nextval('copied');
         INSERT INTO sandbox_retained_processes SELECT * FROM copies",
    )?;
    copies.commit()?;

    let used = |transaction: &mut postgres::Transaction<'_>| -> Result<i64> {
        value(
            transaction,
            "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts",
            &[],
        )
    };
    // Equal as jsonb, so the guard has to read both documents to see that nothing moved.
    let capture = |transaction: &mut postgres::Transaction<'_>, limit: i64| -> Result<u64> {
        Ok(transaction.execute(
            "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1,
                 provider_command = jsonb_set(provider_command, '{streams,stdout,byteOffset}', '0.0')
             WHERE id IN (SELECT id FROM sandbox_retained_processes LIMIT $1)",
            &[&limit],
        )?)
    };
    // Once for the caches, then measured.
    let mut transaction = admin.transaction()?;
    capture(&mut transaction, 10)?;
    transaction.rollback()?;
    let mut transaction = admin.transaction()?;
    let before = used(&mut transaction)?;
    let touched = capture(&mut transaction, rows)?;
    let grown = used(&mut transaction)? - before;
    ensure!(touched == u64::try_from(rows)?, "{touched} rows");
    ensure!(grown < rows * 40, "{grown} bytes more after {rows} rows");
    Ok(())
}
