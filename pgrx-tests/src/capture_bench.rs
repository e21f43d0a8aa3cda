//! What a captured page of output costs: `capture_router_output` against the statements of the reference, one by
//! one in a transaction, on the same pages in one session, a page of each in turn.

use std::time::Instant;

use anyhow::{Result, ensure};
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::random::Random;
use opengeni_guards_harness::reader::{Output, Page, Place};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::{Client, Statement};
use serde_json::Value;

const DATABASE: &str = "opengeni_capture_bench";
const OWNER: &str = "opengeni_owner";
const APP: &str = "opengeni_app";
const SCHEMA: &str = "opengeni";
const PAGES: usize = 1000;
/// Pages until caches and plans are warm.
const WARM_UP: usize = 100;
const SIZES: [usize; 3] = [256, 4096, 65_536];

/// What the application sends for a page, less what this data model has no tables for.
const STATEMENTS: [&str; 7] = [
    "SELECT set_config('opengeni.account_id', $1, true), set_config('opengeni.workspace_id', $2, true),
        set_config('opengeni.sandbox_recovery_protocol_v2', '1', true)",
    "SELECT * FROM sessions WHERE workspace_id = $1 AND id = $2 FOR NO KEY UPDATE",
    "SELECT * FROM sandbox_retained_processes
     WHERE account_id = $1 AND workspace_id = $2 AND session_id = $3 AND id = $4 FOR UPDATE LIMIT 1",
    "INSERT INTO sandbox_command_output
       (account_id, workspace_id, session_id, process_id, stream, stream_fidelity, byte_start, byte_end, chunk_id, chunk)
     VALUES ($1, $2, $3, $4, 'stdout', 'separate', $5, $6, $7, $8) ON CONFLICT DO NOTHING",
    "SELECT set_config('opengeni.supervised_output_capture_process_id', $1, true)",
    "UPDATE sandbox_retained_processes SET provider_command = $5
     WHERE account_id = $1 AND workspace_id = $2 AND session_id = $3 AND id = $4",
    "SELECT set_config('opengeni.supervised_output_capture_process_id', '', true)",
];

pub fn run(server: &Server) -> Result<()> {
    prepare(server)?;
    let mut client = server.connect(APP, DATABASE)?;
    client.batch_execute(&format!("SET search_path = {SCHEMA}"))?;
    let prepared: Vec<Statement> = STATEMENTS
        .iter()
        .map(|sql| client.prepare(sql))
        .collect::<Result<_, _>>()?;
    let native = client.prepare(Page::CAPTURE)?;
    println!(
        "{PAGES} pages each, in turn, one session of an application role under row-level security, PostgreSQL {};\n\
         BEGIN and COMMIT are round trips of the first way.",
        server.major
    );
    println!(
        "| bytes a page | way | round trips | median µs a page | 95th centile | server CPU µs a page |\n\
         |---|---|---|---|---|---|"
    );
    let backend: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    for (number, bytes) in SIZES.into_iter().enumerate() {
        let output = Output::random(&mut Random::new(1), bytes * (PAGES + WARM_UP), 0);
        let [mut one, mut other] = [Vec::new(), Vec::new()];
        let launched = launch(server, number as i32)?;
        let [mut stepwise, mut at_once] = launched
            .each_ref()
            .map(|(tenant, command)| command.provider_command(tenant));
        for page in 0..PAGES + WARM_UP {
            let [first, second] = &launched;
            let pages = [output.page(&stepwise, bytes), output.page(&at_once, bytes)];
            let [for_one, for_other] = pages;
            let (began, idle) = (Instant::now(), cpu(backend));
            stepwise = statements(&mut client, &prepared, first, for_one)?;
            let (halfway, between) = (Instant::now(), cpu(backend));
            at_once = operation(&mut client, &native, second, for_other)?;
            let (ended, done) = (Instant::now(), cpu(backend));
            if page >= WARM_UP {
                one.push((halfway.duration_since(began), between - idle));
                other.push((ended.duration_since(halfway), done - between));
            }
        }
        ensure!(
            stepwise["streams"] == at_once["streams"],
            "the two ways ended apart"
        );
        for (way, trips, times) in [
            ("statements", STATEMENTS.len() + 2, one),
            ("capture_router_output", 1, other),
        ] {
            let pages = times.len() as f64;
            let busy: f64 = times.iter().map(|(_, cpu)| cpu).sum();
            let taken = times.iter().map(|(taken, _)| taken.as_secs_f64() * 1e6);
            let [median, slow] = centiles(taken.collect());
            println!(
                "| {bytes} | {way} | {trips} | {median:.0} | {slow:.0} | {:.0} |",
                busy / pages
            );
        }
    }
    let different: i64 = server
        .connect(SUPERUSER, DATABASE)?
        .query_one(
            &format!(
                "SELECT count(*) FROM (SELECT FROM (
                   SELECT string_agg(chunk, '' ORDER BY sequence) AS text FROM {SCHEMA}.sandbox_command_output
                   GROUP BY process_id) stored GROUP BY text HAVING count(*) <> 2) odd"
            ),
            &[],
        )?
        .get(0);
    ensure!(different == 0, "the two ways stored different output");
    Ok(())
}

fn prepare(server: &Server) -> Result<()> {
    let mut admin = server.connect(SUPERUSER, "postgres")?;
    for role in [OWNER, APP] {
        admin.batch_execute(&format!("CREATE ROLE {role} LOGIN"))?;
    }
    admin.batch_execute(&format!("CREATE DATABASE {DATABASE} OWNER {OWNER}"))?;
    server
        .connect(SUPERUSER, DATABASE)?
        .batch_execute(&format!(
            "CREATE EXTENSION opengeni_guards; CREATE SCHEMA {SCHEMA} AUTHORIZATION {OWNER};
         SELECT opengeni_guards.provision('{SCHEMA}', '{OWNER}');
         SELECT opengeni_guards.grant_usage('{APP}', '{SCHEMA}')"
        ))?;
    Ok(())
}

/// Two commands alike, each of a tenant of its own.
fn launch(server: &Server, number: i32) -> Result<[(Tenant, Command); 2]> {
    let mut admin = server.connect(SUPERUSER, DATABASE)?;
    admin.batch_execute(&format!("SET search_path = {SCHEMA}"))?;
    let launched = [(), ()].map(|()| (Tenant::new(), Command::new(number + 1)));
    for (tenant, command) in &launched {
        let mut transaction = admin.transaction()?;
        for statement in protocol::seed(tenant)
            .into_iter()
            .chain(protocol::launch(tenant, command))
        {
            statement.run(&mut transaction)?;
        }
        transaction.commit()?;
    }
    Ok(launched)
}

fn statements(
    client: &mut Client,
    prepared: &[Statement],
    (tenant, command): &(Tenant, Command),
    page: Page,
) -> Result<Value> {
    let [settings, session, process, insert, open, update, close] = prepared else {
        anyhow::bail!("{} statements", prepared.len());
    };
    let offset = |document: &Value| {
        document["streams"]["stdout"]["byteOffset"]
            .as_i64()
            .unwrap_or(0)
    };
    let (from, to) = (offset(&page.expected), offset(&page.command));
    let mut transaction = client.transaction()?;
    transaction.query(
        settings,
        &[&tenant.account.to_string(), &tenant.workspace.to_string()],
    )?;
    transaction.query_one(session, &[&tenant.workspace, &tenant.session])?;
    let ids: [&(dyn postgres::types::ToSql + Sync); 4] = [
        &tenant.account,
        &tenant.workspace,
        &tenant.session,
        &command.process,
    ];
    let row = transaction.query_one(process, &ids)?;
    ensure!(
        row.get::<_, Value>("provider_command") == page.expected,
        "a stale page"
    );
    let chunk = format!(
        "modal-router:{}:stdout:{from}:{to}:0",
        page.command["execId"].as_str().unwrap_or_default()
    );
    transaction.execute(
        insert,
        &[
            ids[0],
            ids[1],
            ids[2],
            ids[3],
            &from,
            &to,
            &chunk,
            &page.stdout,
        ],
    )?;
    transaction.query(open, &[&command.process.to_string()])?;
    transaction.execute(update, &[ids[0], ids[1], ids[2], ids[3], &page.command])?;
    transaction.query(close, &[])?;
    transaction.commit()?;
    Ok(page.command)
}

fn operation(
    client: &mut Client,
    native: &Statement,
    (tenant, command): &(Tenant, Command),
    page: Page,
) -> Result<Value> {
    let place = Place {
        schema: SCHEMA,
        tenant,
        process: command.process,
    };
    let captured = page.capture_prepared(client, native, place)?;
    ensure!(captured.captured, "a stale page");
    Ok(captured.command)
}

/// What a backend has computed so far, in µs; always 0 where the system does not tell.
fn cpu(backend: i32) -> f64 {
    std::fs::read_to_string(format!("/proc/{backend}/schedstat"))
        .ok()
        .and_then(|text| text.split(' ').next()?.parse::<f64>().ok())
        .map_or(0.0, |nanoseconds| nanoseconds / 1000.0)
}

/// The median and the 95th centile.
fn centiles(mut times: Vec<f64>) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [50, 95].map(|centile| times[(times.len() - 1) * centile / 100])
}
