//! A command's output as its user sees it: one session captures page after page, another sleeps until it is told
//! that there is more, and prints it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;
use serde_json::Value;

use super::protocol::{self, Command, Tenant};
use super::{APPLICATION, DATABASE, Paint, SCHEMA};
use crate::reader::{Output, Place};
use crate::server::Server;

/// What the command prints, with characters of every length: pages cut through them.
const LINES: &[&str] = &[
    "cloning https://example.org/widgets.git",
    "compiling 1/3  parser",
    "compiling 2/3  größe, 漢字, 😀",
    "compiling 3/3  widgets",
    "running 3 tests",
    "test totals_in_€ ... ok",
    "test wide_characters_😀 ... ok",
    "test empty ... ok",
    "3 passed; 0 failed",
];
/// Bytes a page: few, so that characters are split.
const PAGE: usize = 23;
/// What a provider's page takes to arrive.
const PAUSE: Duration = Duration::from_millis(60);
/// How long a follower waits for the next page before something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(server: &Server, tenant: &Tenant, paint: &Paint) -> Result<bool> {
    let command = Command::new(1);
    let output = Output {
        stdout: LINES.join("\n") + "\n",
        stderr: "warning: unused variable `größe`\n".to_string(),
    };
    let mut launcher = session(server)?;
    let mut transaction = launcher.transaction()?;
    protocol::tenant_settings(tenant).run(&mut transaction)?;
    protocol::protocol_marker().run(&mut transaction)?;
    for statement in protocol::launch(tenant, &command) {
        statement.run(&mut transaction)?;
    }
    transaction.commit()?;
    println!(
        "\n{}\n{}\n",
        paint.dim("session 1 captures: SELECT * FROM opengeni_guards.capture_router_output(…), a page a time"),
        paint.dim("session 2 follows:  LISTEN opengeni_command_output; SELECT chunk FROM sandbox_command_output WHERE process_id = … AND sequence > …"),
    );

    let follower = session(server)?;
    thread::scope(|scope| {
        let followed = scope.spawn(|| follow(follower, tenant, &command));
        let pages = capture(&mut launcher, tenant, &command, &output)?;
        let (seen, woken) = followed
            .join()
            .map_err(|_| anyhow!("the follower panicked"))??;
        let right = seen == output;
        let line = format!(
            "{pages} pages of {PAGE} bytes captured, {} bytes followed in {woken} wake-ups, no polling",
            seen.stdout.len() + seen.stderr.len()
        );
        match right {
            true => println!("\n{} {line}: what was printed", paint.green("✓")),
            false => println!("\n{} {line}: NOT what was printed", paint.red("✗")),
        }
        Ok(right)
    })
}

fn session(server: &Server) -> Result<Client> {
    let mut client = server.connect(APPLICATION, DATABASE)?;
    client.batch_execute(&format!("SET search_path = {SCHEMA}"))?;
    Ok(client)
}

/// Reads the provider's pages to the end and has each captured.
fn capture(
    client: &mut Client,
    tenant: &Tenant,
    command: &Command,
    output: &Output,
) -> Result<usize> {
    let place = Place {
        schema: SCHEMA,
        tenant,
        process: command.process,
    };
    let mut now = command.provider_command(tenant);
    let mut pages = 0;
    while !Output::is_read(&now) {
        thread::sleep(PAUSE);
        now = output.page(&now, PAGE).capture(client, place)?.command;
        pages += 1;
    }
    Ok(pages)
}

/// Prints output as it is stored, until the command's cursors are at their end.
fn follow(mut client: Client, tenant: &Tenant, command: &Command) -> Result<(Output, usize)> {
    client.batch_execute("LISTEN opengeni_command_output")?;
    client.execute(
        "SELECT set_config('opengeni.account_id', $1, false), set_config('opengeni.workspace_id', $2, false)",
        &[&tenant.account.to_string(), &tenant.workspace.to_string()],
    )?;
    let began = Instant::now();
    let mut seen = Output::default();
    let (mut last, mut woken) = (0_i64, 0);
    loop {
        // The cursor first: what it covers is stored by then.
        let now: Value = client
            .query_one(
                "SELECT provider_command FROM sandbox_retained_processes WHERE id = $1",
                &[&command.process],
            )?
            .get(0);
        let rows = client.query(
            "SELECT sequence, stream, chunk FROM sandbox_command_output
             WHERE process_id = $1 AND sequence > $2 ORDER BY sequence",
            &[&command.process, &last],
        )?;
        for row in rows {
            let (stream, chunk): (&str, &str) = (row.get(1), row.get(2));
            last = row.get(0);
            println!(
                "{:7.3} s  {stream}  {chunk:?}",
                began.elapsed().as_secs_f64()
            );
            match stream {
                "stdout" => seen.stdout.push_str(chunk),
                _ => seen.stderr.push_str(chunk),
            }
        }
        if Output::is_read(&now) {
            return Ok((seen, woken));
        }
        let process = command.process.to_string();
        let mut notifications = client.notifications();
        let mut pending = notifications.timeout_iter(PATIENCE);
        // Other commands' pages wake nobody here.
        loop {
            let heard = pending.next()?.context("no page was announced in time")?;
            if heard.payload() == process {
                break;
            }
        }
        woken += 1;
    }
}
