//! One statement over a whole table, with every guard bound: its time, what the session's memory contexts grow by, and
//! that it can be cancelled.

use std::time::Instant;

use anyhow::{Result, ensure};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;
use postgres::error::SqlState;

use crate::bench::{self, DATABASE, Options, ROLE};

const STATEMENT: &str =
    "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1";

/// Measures and prints.
pub fn run(server: &Server, options: &Options) -> Result<()> {
    bench::build_database(server, None, options)?;
    let mut client = server.connect(SUPERUSER, DATABASE)?;
    client.batch_execute(
        "SET client_min_messages = warning; ALTER TABLE sandbox_retained_processes ENABLE TRIGGER USER",
    )?;
    let triggers: i64 = client
        .query_one(
            "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'sandbox_retained_processes'::regclass AND NOT tgisinternal
                AND tgenabled = 'O'",
            &[],
        )?
        .get(0);
    ensure!(triggers > 0, "no guard is bound");
    println!(
        "PostgreSQL {}, {STATEMENT}\n{triggers} native triggers are bound. All rows of one tenant, as an application role:\n",
        server.major
    );
    println!(
        "{:>9} {:>9} {:>9} {:>12} {:>12}",
        "rows", "s", "µs/row", "growth/kB", "events/kB"
    );
    let all = 3 * options.rows + options.others;
    for part in [10, 1] {
        measure(&mut client, all / part)?;
    }

    begin(&mut client)?;
    client.batch_execute("SET LOCAL statement_timeout = '300ms'")?;
    let cancelled = client.execute(STATEMENT, &[]);
    client.batch_execute("ROLLBACK")?;
    let state = cancelled
        .as_ref()
        .err()
        .and_then(|error| error.code().cloned());
    ensure!(
        state == Some(SqlState::QUERY_CANCELED),
        "not cancelled: {cancelled:?}"
    );
    begin(&mut client)?;
    let after = client.execute(
        &format!("{STATEMENT} WHERE id = bench.id('process', 1)"),
        &[],
    )?;
    client.batch_execute("ROLLBACK")?;
    ensure!(after == 1, "{after} rows after the cancel");
    println!("\nCancelled after 300 ms: 57014, and the session goes on.");
    Ok(())
}

fn begin(client: &mut Client) -> Result<()> {
    client.batch_execute(&format!(
        "BEGIN; SET LOCAL opengeni.sandbox_recovery_protocol_v2 = '1'; SET LOCAL ROLE {ROLE};
         SELECT set_config('opengeni.account_id', bench.id('account', 1)::text, true),
           set_config('opengeni.workspace_id', bench.id('workspace', 1)::text, true)"
    ))?;
    Ok(())
}

fn measure(client: &mut Client, rows: usize) -> Result<()> {
    begin(client)?;
    // Once for what a session keeps.
    client.execute(
        &format!("{STATEMENT} WHERE id = bench.id('process', 1)"),
        &[],
    )?;
    client.batch_execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")?;
    let (before, _) = memory(client)?;
    let started = Instant::now();
    let part =
        format!("{STATEMENT} WHERE id IN (SELECT process FROM bench.step ORDER BY n LIMIT {rows})");
    let written = client.execute(&part, &[])?;
    let (after, events) = memory(client)?;
    client.batch_execute("SET CONSTRAINTS ALL IMMEDIATE")?;
    let seconds = started.elapsed().as_secs_f64();
    client.batch_execute("ROLLBACK")?;
    println!(
        "{written:>9} {seconds:>9.1} {:>9.1} {:>12} {:>12}",
        seconds * 1e6 / written as f64,
        (after - before) / 1024,
        events / 1024
    );
    Ok(())
}

/// Bytes of all memory contexts, and of those in which the server keeps deferred checks.
fn memory(client: &mut Client) -> Result<(i64, i64)> {
    client.batch_execute("RESET ROLE")?;
    let row = client.query_one(
        "SELECT sum(total_bytes)::bigint, coalesce(sum(total_bytes) FILTER (WHERE name = 'AfterTriggerEvents'), 0)::bigint
           FROM pg_backend_memory_contexts",
        &[],
    )?;
    client.batch_execute(&format!("SET LOCAL ROLE {ROLE}"))?;
    Ok((row.get(0), row.get(1)))
}
