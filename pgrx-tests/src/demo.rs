//! The protocol played against a live server, step by step: what the guards let pass and what they refuse.
//!
//! Everything after the set-up runs as an application role under row-level security, in real transactions.
//! Each step states what it expects; one that goes otherwise is shown as WRONG and fails the demonstration.

pub mod protocol;
mod tail;

use std::env;
use std::io::{IsTerminal, stdout};

use anyhow::{Context, Result};
use postgres::error::DbError;
use postgres::{Client, Transaction};
use serde_json::json;
use uuid::Uuid;

use self::protocol::{Command, Cursor, Statement, Tenant, streams};
use crate::server::{SUPERUSER, Server};
use crate::statement;

pub const DATABASE: &str = "opengeni_demo";
const OWNER: &str = "opengeni_owner";
const APPLICATION: &str = "opengeni_app";
const SCHEMA: &str = "opengeni";

/// Longest SQL line shown; the rest is cut off.
const SQL_WIDTH: usize = 100;

/// Plays the demonstration; `false` if a step went otherwise than it should.
pub fn run(server: &Server) -> Result<bool> {
    let paint = Paint::for_stdout();
    let tenant = Tenant::new();

    println!(
        "{}",
        paint.bold("opengeni_guards: a sandbox control plane at work")
    );
    prepare(server, &tenant, &paint)?;

    let mut application = server.connect(APPLICATION, DATABASE)?;
    application.batch_execute(&format!("SET search_path = {SCHEMA}"))?;
    let mut play = Play {
        client: application,
        tenant,
        paint,
        steps: 0,
        committed: 0,
        refused: 0,
        wrong: 0,
    };

    play.command_that_ends_well()?;
    play.command_lost_with_its_provider()?;
    play.launch_the_provider_refused()?;
    play.command_that_is_cancelled()?;
    play.checkpoint_under_way()?;
    Ok(play.summary())
}

/// Plays a command whose output one session captures and another follows; `false` if it was not the same.
pub fn run_tail(server: &Server) -> Result<bool> {
    let paint = Paint::for_stdout();
    let tenant = Tenant::new();
    println!(
        "{}",
        paint.bold("opengeni_guards: a command's output, followed while it is captured")
    );
    prepare(server, &tenant, &paint)?;
    tail::run(server, &tenant, &paint)
}

/// Roles, database, extension, data model and one tenant's rows, each by whom it belongs to.
fn prepare(server: &Server, tenant: &Tenant, paint: &Paint) -> Result<()> {
    let mut admin = server.connect(SUPERUSER, "postgres")?;
    admin.batch_execute(&format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"))?;
    for role in [OWNER, APPLICATION] {
        let known = admin.query_opt("SELECT FROM pg_roles WHERE rolname = $1", &[&role])?;
        let verb = if known.is_some() { "ALTER" } else { "CREATE" };
        admin.batch_execute(&format!(
            "{verb} ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEROLE NOCREATEDB"
        ))?;
    }
    admin.batch_execute(&format!("CREATE DATABASE {DATABASE} OWNER {OWNER}"))?;

    let mut admin = server.connect(SUPERUSER, DATABASE)?;
    admin
        .batch_execute("CREATE EXTENSION opengeni_guards")
        .context("CREATE EXTENSION opengeni_guards")?;
    admin.batch_execute(&format!("CREATE SCHEMA {SCHEMA} AUTHORIZATION {OWNER}"))?;

    // The owner is no superuser: what it provisions, it owns.
    let mut owner = server.connect(OWNER, DATABASE)?;
    let report = owner.query(
        "SELECT object FROM opengeni_guards.provision($1)",
        &[&SCHEMA],
    )?;
    owner.execute(
        "SELECT opengeni_guards.grant_usage($1::text::name, $2)",
        &[&APPLICATION, &SCHEMA],
    )?;

    owner.batch_execute(&format!("SET search_path = {SCHEMA}"))?;
    let mut transaction = owner.transaction()?;
    protocol::tenant_settings(tenant).run(&mut transaction)?;
    protocol::protocol_marker().run(&mut transaction)?;
    for statement in protocol::seed(tenant) {
        statement.run(&mut transaction)?;
    }
    transaction.commit()?;

    println!(
        "{}",
        paint.dim(&format!(
            "PostgreSQL {}, database {DATABASE}: {} objects provisioned by {OWNER} in schema {SCHEMA}, \
             used by {APPLICATION} under row-level security",
            server.major,
            report.len(),
        ))
    );
    Ok(())
}

/// What a step should come to.
#[derive(Clone, Copy)]
enum Expect {
    Accepted,
    Refused {
        sqlstate: &'static str,
        rule: &'static str,
    },
}

/// What it came to.
enum Outcome {
    Committed,
    Refused(Box<DbError>),
    /// Nothing was refused, but a statement touched no row: not what an accepted step means.
    Idle(&'static str),
}

struct Play {
    client: Client,
    tenant: Tenant,
    paint: Paint,
    steps: usize,
    committed: usize,
    refused: usize,
    wrong: usize,
}

impl Play {
    fn command_that_ends_well(&mut self) -> Result<()> {
        let tenant = self.tenant.clone();
        let command = Command::new(1);
        let legacy = Command::new(2);
        let child = Uuid::new_v4();

        self.chapter("A command that ends well");
        self.unmarked(
            "An old worker that does not speak the protocol wants a mutation admitted",
            refused("55000", "protocol_v2.marker"),
            protocol::admit(&tenant, &command),
        )?;
        self.step(
            "A workspace mutation is admitted: next generation, direct holder",
            Expect::Accepted,
            protocol::admit(&tenant, &command),
        )?;
        self.step(
            "The command outlives its request: retained and supervised in one transaction",
            Expect::Accepted,
            concat([
                protocol::retain(&tenant, &command),
                protocol::attach(&command, command.provider_command(&tenant)),
            ]),
        )?;
        self.step(
            "A second command is retained by a launcher that knows no supervision",
            Expect::Accepted,
            concat([
                protocol::admit(&tenant, &legacy),
                protocol::retain(&tenant, &legacy),
                protocol::attach(&legacy, legacy.legacy_provider_command(&tenant)),
            ]),
        )?;
        self.step(
            "Supervision is claimed later for that committed row",
            refused("55000", "supervised_command.initial_retention"),
            protocol::attach(&legacy, legacy.provider_command(&tenant)),
        )?;
        self.step(
            "The unsupervised command ends as it always did",
            Expect::Accepted,
            protocol::settle(&tenant, &legacy, 0),
        )?;
        let mut stranger = command.provider_command(&tenant);
        stranger["supervision"]["nonce"] = json!("0".repeat(64));
        self.step(
            "Somebody puts another supervisor's nonce into the descriptor",
            refused("55000", "supervised_command.identity"),
            protocol::attach(&command, stranger),
        )?;

        self.step(
            "Stdin is reserved without an admission of its own",
            refused("55000", "supervised_command.stdin_child"),
            protocol::advance_input(&command, 12),
        )?;
        self.step(
            "A child admission is admitted and 12 bytes of stdin are reserved",
            Expect::Accepted,
            concat([
                protocol::admit_input(&tenant, &command, child),
                protocol::reserve_input(&tenant, &command, 12),
            ]),
        )?;
        self.step(
            "The stdin index goes back, so that bytes would be sent twice",
            refused("55000", "supervised_command.stdin_regress"),
            protocol::advance_input(&command, 4),
        )?;
        self.step(
            "The supervisor's receipt arrives while that input is still unsettled",
            refused("55000", "supervised_command.input_settles_first"),
            protocol::take_receipt(&tenant, &command, command.receipt(7)),
        )?;
        self.step(
            "The provider took the input: the child admission is settled",
            Expect::Accepted,
            protocol::settle_input(child),
        )?;

        self.step(
            "An old reader moves the output cursor outside the capture protocol",
            refused("55000", "supervised_command.capture_protocol"),
            vec![protocol::uncovered_capture(
                &command,
                streams(&Cursor::at(64), &Cursor::START),
                false,
            )],
        )?;
        self.step(
            "Output is captured up to byte 4096",
            Expect::Accepted,
            protocol::capture_page(
                &tenant,
                &command,
                [Cursor::START; 2],
                [Cursor::at(4096), Cursor::START],
            ),
        )?;
        self.step(
            "Output is captured up to byte 9000, stderr up to byte 120",
            Expect::Accepted,
            protocol::capture_page(
                &tenant,
                &command,
                [Cursor::at(4096), Cursor::START],
                [Cursor::at(9000), Cursor::at(120)],
            ),
        )?;
        self.step(
            "A reader would wind the output back in its own page",
            refused("22023", "command.capture_router_output.regress"),
            protocol::capture_page(
                &tenant,
                &command,
                [Cursor::at(9000), Cursor::at(120)],
                [Cursor::at(4096), Cursor::at(120)],
            ),
        )?;
        self.step(
            "An old reader winds it back by hand",
            refused("55000", "supervised_command.output_regress"),
            protocol::capture(
                &command,
                streams(&Cursor::at(4096), &Cursor::at(120)),
                false,
            ),
        )?;
        self.step(
            "The command is settled although nothing proves that it has ended",
            refused("55000", "supervised_command.settlement"),
            protocol::settle(&tenant, &command, 0),
        )?;
        let receipt = command.receipt(7);
        let mut foreign = receipt.clone();
        foreign["invocationId"] = json!(Uuid::new_v4().to_string());
        self.step(
            "A receipt of another invocation is recorded",
            refused("23514", "supervised_command.receipt"),
            protocol::take_receipt(&tenant, &command, foreign),
        )?;
        self.step(
            "The supervisor's receipt is recorded: the leader exited with 7",
            Expect::Accepted,
            protocol::take_receipt(&tenant, &command, receipt.clone()),
        )?;
        self.step(
            "It arrives once more, since its acknowledgement was lost",
            Expect::Accepted,
            protocol::take_receipt(&tenant, &command, receipt),
        )?;
        self.step(
            "Another receipt claims another end",
            refused("55000", "supervised_command.proof_immutable"),
            protocol::take_receipt(&tenant, &command, command.receipt(0)),
        )?;
        self.step(
            "The streams are declared captured before their end was seen",
            refused("55000", "supervised_command.capture_incomplete"),
            protocol::capture(&command, streams(&Cursor::at(9100), &Cursor::at(120)), true),
        )?;
        self.step(
            "The final capture: both streams at their end",
            Expect::Accepted,
            protocol::capture_page(
                &tenant,
                &command,
                [Cursor::at(9000), Cursor::at(120)],
                [Cursor::end(9100), Cursor::end(120)],
            ),
        )?;
        self.step(
            "The evidence is deleted before it is settled",
            refused("55000", "supervised_command.delete_unsettled"),
            vec![statement!(
                "DELETE FROM sandbox_retained_processes WHERE id = $1",
                command.process,
            )],
        )?;
        self.step(
            "The command is settled with another exit code than the receipt's",
            refused("55000", "supervised_command.settlement"),
            protocol::settle(&tenant, &command, 0),
        )?;
        self.step(
            "Settlement: process exited with 7, parent admission resolved, holder released",
            Expect::Accepted,
            protocol::settle(&tenant, &command, 7),
        )?;
        self.step(
            "Somebody rewrites how it ended",
            refused("55000", "supervised_command.terminal"),
            vec![statement!(
                "UPDATE sandbox_retained_processes SET exit_code = $2 WHERE id = $1",
                command.process,
                0,
            )],
        )?;
        self.state(&command, "exited", Some(7))
    }

    fn command_lost_with_its_provider(&mut self) -> Result<()> {
        let tenant = self.tenant.clone();
        let command = Command::new(3);

        self.chapter("A command lost with its provider");
        self.launch(&tenant, &command)?;
        let mut forged = tenant.loss_binding();
        forged["lostEpoch"] = json!(tenant.epoch + 1);
        self.step(
            "Somebody declares it lost and names an epoch in which it never ran",
            refused("55000", "supervised_command.typed_loss"),
            vec![
                protocol::loss_binding(&forged),
                protocol::mark_lost(&command, "provider_instance_lost"),
            ],
        )?;
        self.step(
            "A loss invents a receipt on the way",
            refused("55000", "supervised_command.loss_fabricated"),
            vec![
                protocol::loss_binding(&tenant.loss_binding()),
                statement!(
                    "UPDATE sandbox_retained_processes
                     SET supervision_receipt = $2, state = 'lost',
                         settlement_reason = 'provider_instance_lost', settled_at = now()
                     WHERE id = $1",
                    command.process,
                    command.receipt(0),
                ),
            ],
        )?;
        self.step(
            "The provider says the sandbox is gone: lost, rejected, released, the lease cold one epoch on",
            Expect::Accepted,
            protocol::lose_provider(&tenant, &command),
        )?;
        self.state(&command, "lost", None)
    }

    fn launch_the_provider_refused(&mut self) -> Result<()> {
        self.tenant = self.tenant.successor();
        let tenant = self.tenant.clone();
        let command = Command::new(4);

        self.chapter("A launch the provider refused");
        self.step(
            "The lease gets its next sandbox",
            Expect::Accepted,
            protocol::warm(&tenant),
        )?;
        self.launch(&tenant, &command)?;
        self.step(
            "The launch is called rejected without naming the invocation",
            refused("55000", "supervised_command.launch_rejection"),
            vec![protocol::mark_lost(&command, "provider_start_rejected")],
        )?;
        self.step(
            "The provider never started this invocation: lost, rejected, released",
            Expect::Accepted,
            protocol::reject_launch(&tenant, &command),
        )?;
        self.state(&command, "lost", None)
    }

    fn command_that_is_cancelled(&mut self) -> Result<()> {
        let tenant = self.tenant.clone();
        let command = Command::new(5);

        self.chapter("A cancelled command");
        self.launch(&tenant, &command)?;
        self.step(
            "A cancellation for no reason the protocol knows",
            refused("23514", "supervised_command.cancellation_intent"),
            protocol::cancel(&command, "bored"),
        )?;
        self.step(
            "Cancellation is requested: explicit_stop",
            Expect::Accepted,
            protocol::request_cancellation(&tenant, &command, "explicit_stop"),
        )?;
        self.step(
            "The cancellation is taken back",
            refused("55000", "supervised_command.cancellation_monotonic"),
            vec![statement!(
                "UPDATE sandbox_retained_processes
                 SET cancellation_requested_at = NULL, cancellation_reason = NULL WHERE id = $1",
                command.process,
            )],
        )?;
        self.step(
            "More stdin is sent to the cancelled command",
            refused("55000", "supervised_command.stdin_closed"),
            protocol::advance_input(&command, 1),
        )?;
        self.step(
            "The same through the operation",
            refused("55000", "command.reserve_input.closed"),
            protocol::reserve_input(&tenant, &command, 1),
        )?;
        self.step(
            "The supervisor's receipt is recorded: the leader was killed, 137",
            Expect::Accepted,
            protocol::take_receipt(&tenant, &command, command.receipt(137)),
        )?;
        self.step(
            "The final capture: both streams at their end",
            Expect::Accepted,
            protocol::capture_page(
                &tenant,
                &command,
                [Cursor::START; 2],
                [Cursor::end(310), Cursor::end(0)],
            ),
        )?;
        self.step(
            "Settlement: process exited with 137, parent admission resolved, holder released",
            Expect::Accepted,
            protocol::settle(&tenant, &command, 137),
        )?;
        self.state(&command, "exited", Some(137))
    }

    fn checkpoint_under_way(&mut self) -> Result<()> {
        let tenant = self.tenant.clone();
        let command = Command::new(6);

        self.chapter("A checkpoint under way");
        self.step(
            "The idle lease enters a checkpoint capture",
            Expect::Accepted,
            vec![statement!(
                "UPDATE sandbox_leases SET archive_capture_id = $2 WHERE id = $1",
                tenant.lease,
                Uuid::new_v4(),
            )],
        )?;
        self.step(
            "A supervised command is launched into the containment",
            refused("55000", "supervised_command.containment"),
            protocol::launch(&tenant, &command),
        )
    }

    /// Admission, retention and supervision at once: how each further chapter begins.
    fn launch(&mut self, tenant: &Tenant, command: &Command) -> Result<()> {
        self.step(
            "A supervised command is admitted, retained and attached",
            Expect::Accepted,
            protocol::launch(tenant, command),
        )
    }

    fn chapter(&self, title: &str) {
        println!("\n{}", self.paint.bold(title));
    }

    /// One transaction of the application: tenant settings, marker, then the statements.
    fn step(&mut self, title: &str, expect: Expect, statements: Vec<Statement>) -> Result<()> {
        self.play(title, expect, Some(protocol::protocol_marker()), statements)
    }

    /// A transaction without the protocol marker.
    fn unmarked(&mut self, title: &str, expect: Expect, statements: Vec<Statement>) -> Result<()> {
        self.play(title, expect, None, statements)
    }

    fn play(
        &mut self,
        title: &str,
        expect: Expect,
        marker: Option<Statement>,
        statements: Vec<Statement>,
    ) -> Result<()> {
        let settings = [Some(protocol::tenant_settings(&self.tenant)), marker];
        let mut transaction = self.client.transaction()?;
        for setting in settings.into_iter().flatten() {
            setting.run(&mut transaction)?;
        }
        let (sql, outcome) = attempt(transaction, statements)?;
        self.show(title, expect, &sql, &outcome);
        Ok(())
    }

    /// The process row as the application sees it now.
    fn state(&mut self, command: &Command, state: &str, exit_code: Option<i32>) -> Result<()> {
        let mut transaction = self.client.transaction()?;
        protocol::tenant_settings(&self.tenant).run(&mut transaction)?;
        let row = transaction.query_opt(
            "SELECT process.state, process.exit_code, process.settlement_reason, parent.provider_outcome
             FROM sandbox_retained_processes process
             JOIN sandbox_workspace_mutation_admissions parent ON parent.id = process.parent_admission_id
             WHERE process.id = $1",
            &[&command.process],
        )?;
        let Some(row) = row else {
            self.wrong += 1;
            println!("     {}", self.paint.red("WRONG  the evidence is gone"));
            return Ok(());
        };
        let (found, code): (String, Option<i32>) = (row.get(0), row.get(1));
        let (reason, outcome): (Option<String>, Option<String>) = (row.get(2), row.get(3));
        let line = [
            Some(format!("recorded: {found}")),
            code.map(|code| format!("exit code {code}")),
            reason,
            outcome.map(|outcome| format!("parent admission {outcome}")),
        ];
        let line = line.into_iter().flatten().collect::<Vec<_>>().join(", ");
        if found == state && code == exit_code {
            println!("     {}", self.paint.dim(&line));
        } else {
            self.wrong += 1;
            println!("     {}", self.paint.red(&format!("WRONG  {line}")));
        }
        Ok(())
    }

    fn show(&mut self, title: &str, expect: Expect, sql: &[String], outcome: &Outcome) {
        self.steps += 1;
        let wrong = fault(expect, outcome);
        let mark = match (&wrong, outcome) {
            (Some(_), _) => self.paint.red("✗ WRONG"),
            (None, Outcome::Committed) => self.paint.green("✓"),
            (None, _) => self.paint.yellow("✗"),
        };
        let note = match (&wrong, outcome) {
            (None, Outcome::Refused(_)) => self.paint.yellow("  refused, as it must be"),
            _ => String::new(),
        };
        println!("{:>3}. {mark} {title}{note}", self.steps);
        for line in sql {
            println!("       {}", self.paint.dim(line));
        }
        self.committed += usize::from(matches!(outcome, Outcome::Committed));
        if let Outcome::Refused(error) = outcome {
            self.refused += 1;
            println!(
                "       {} {}  {}",
                error.code().code(),
                self.paint
                    .bold(error.constraint().unwrap_or("(no rule id)")),
                error.message(),
            );
            for (label, text) in [("detail", error.detail()), ("hint", error.hint())] {
                if let Some(text) = text {
                    println!("       {} {text}", self.paint.dim(label));
                }
            }
        }
        if let Some(reason) = wrong {
            self.wrong += 1;
            println!("       {}", self.paint.red(&reason));
        }
    }

    fn summary(&self) -> bool {
        let line = format!(
            "{} steps: {} committed, {} refused",
            self.steps, self.committed, self.refused,
        );
        if self.wrong == 0 {
            println!("\n{} {line}, each as expected", self.paint.green("✓"));
        } else {
            println!(
                "\n{} {line}; {} not as expected",
                self.paint.red("✗"),
                self.wrong
            );
        }
        self.wrong == 0
    }
}

fn refused(sqlstate: &'static str, rule: &'static str) -> Expect {
    Expect::Refused { sqlstate, rule }
}

fn concat<const N: usize>(parts: [Vec<Statement>; N]) -> Vec<Statement> {
    parts.into_iter().flatten().collect()
}

/// Runs the statements and commits; returns what was sent, in short, and what came of it.
fn attempt(
    mut transaction: Transaction<'_>,
    statements: Vec<Statement>,
) -> Result<(Vec<String>, Outcome)> {
    let mut sent = Vec::new();
    for statement in statements {
        sent.push(short(statement.sql));
        match statement.run(&mut transaction) {
            Ok(0) => return Ok((sent, Outcome::Idle(statement.sql))),
            Ok(_) => {}
            Err(error) => return refusal(error).map(|outcome| (sent, outcome)),
        }
    }
    match transaction.commit() {
        Ok(()) => Ok((sent, Outcome::Committed)),
        Err(error) => {
            sent.push("COMMIT".to_string());
            refusal(error).map(|outcome| (sent, outcome))
        }
    }
}

/// An error of the server is an outcome; a broken connection ends the demonstration.
fn refusal(error: postgres::Error) -> Result<Outcome> {
    match error.as_db_error() {
        Some(refused) => Ok(Outcome::Refused(Box::new(refused.clone()))),
        None => Err(error.into()),
    }
}

/// What is wrong with this outcome, if anything.
fn fault(expect: Expect, outcome: &Outcome) -> Option<String> {
    match (expect, outcome) {
        (Expect::Accepted, Outcome::Committed) => None,
        (Expect::Refused { sqlstate, rule }, Outcome::Refused(error))
            if error.code().code() == sqlstate && error.constraint() == Some(rule) =>
        {
            None
        }
        (Expect::Accepted, Outcome::Refused(_)) => Some("should have been accepted".to_string()),
        (Expect::Refused { sqlstate, rule }, Outcome::Refused(_)) => {
            Some(format!("should have been refused with {sqlstate} {rule}"))
        }
        (Expect::Refused { sqlstate, rule }, Outcome::Committed) => Some(format!(
            "was accepted, should have been refused with {sqlstate} {rule}"
        )),
        (_, Outcome::Idle(sql)) => Some(format!("touched no row: {}", short(sql))),
    }
}

/// One line of SQL, whitespace folded, cut at the width of a terminal.
fn short(sql: &str) -> String {
    let line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SQL_WIDTH) {
        Some((end, _)) => format!("{} …", line[..end].trim_end()),
        None => line,
    }
}

/// Colours, where somebody can see them.
struct Paint {
    colour: bool,
}

impl Paint {
    fn for_stdout() -> Self {
        let wanted = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            colour: wanted && stdout().is_terminal(),
        }
    }

    fn wrap(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }

    fn bold(&self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn dim(&self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn green(&self, text: &str) -> String {
        self.wrap("32", text)
    }

    fn yellow(&self, text: &str) -> String {
        self.wrap("33", text)
    }

    fn red(&self, text: &str) -> String {
        self.wrap("31;1", text)
    }
}
