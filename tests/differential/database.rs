//! The two databases: one with the PL/pgSQL originals in force, one with the native guards on the same tables.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::error::SqlState;
use postgres::{Client, SimpleQueryMessage};

pub const APP: &str = "opengeni_app";
const ORIGINAL: &str = "diff_oracle";
const NATIVE: &str = "diff_native";

/// Every table whose rows are compared, the column that says whose they are, and what is not compared: times
/// that default to now(). The retention id counts by its presence only.
const TABLES: &[(&str, &str, &str)] = &[
    ("managed_accounts", "id", "created_at,updated_at"),
    ("workspaces", "id", "created_at,updated_at"),
    ("sessions", "workspace_id", "created_at,updated_at"),
    ("session_turns", "workspace_id", "created_at,updated_at"),
    (
        "session_turn_attempts",
        "workspace_id",
        "started_at,updated_at",
    ),
    ("sandbox_leases", "workspace_id", "created_at,updated_at"),
    (
        "sandbox_lease_holders",
        "workspace_id",
        "created_at,last_heartbeat_at",
    ),
    (
        "sandbox_workspace_mutation_admissions",
        "workspace_id",
        "admitted_at",
    ),
    (
        "sandbox_retained_processes",
        "workspace_id",
        "started_at,reconcile_after,supervision_retention_xid",
    ),
    (
        "sandbox_pty_sessions",
        "workspace_id",
        "created_at,last_input_at",
    ),
    (
        "sandbox_checkpoint_artifacts",
        "workspace_id",
        "created_at,updated_at",
    ),
    (
        "workspace_instruction_policy_revisions",
        "workspace_id",
        "created_at",
    ),
    (
        "workspace_instruction_policy_heads",
        "workspace_id",
        "activated_at",
    ),
    (
        "workspace_instruction_policy_activation_events",
        "workspace_id",
        "created_at",
    ),
];

/// What the server answered to one statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Done(u64),
    Refused(Box<Refusal>),
    /// Not sent: an earlier statement had aborted the transaction.
    Skipped,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub state: String,
    pub message: String,
    pub constraint: Option<String>,
    /// Whether DETAIL, HINT, SCHEMA and TABLE are there too.
    pub explained: bool,
}

impl Refusal {
    /// The rule of a native guard; the server's own constraints have no dot in their names.
    pub fn rule(&self) -> Option<&str> {
        self.constraint.as_deref().filter(|name| name.contains('.'))
    }

    /// As an original guard refuses: RAISE EXCEPTION names nothing.
    pub fn is_raised(&self) -> bool {
        self.constraint.is_none() && matches!(self.state.as_str(), "55000" | "23514")
    }
}

impl Outcome {
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Outcome::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    pub fn rule(&self) -> Option<&str> {
        self.refusal()?.rule()
    }

    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done(_))
    }

    /// Same answer: row count, or SQLSTATE and message; and a refusal of a guard explains itself (D18).
    pub fn agrees(&self, original: &Outcome) -> bool {
        match (self, original) {
            (Outcome::Refused(native), Outcome::Refused(original)) => {
                native.state == original.state
                    && native.message == original.message
                    && if original.is_raised() {
                        native.rule().is_some() && native.explained
                    } else {
                        native.constraint == original.constraint
                    }
            }
            (native, original) => native == original,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done(rows) => write!(f, "ok, {rows} rows"),
            Outcome::Skipped => write!(f, "skipped"),
            Outcome::Refused(r) => {
                write!(f, "{} {}", r.state, r.message)?;
                match &r.constraint {
                    Some(name) => write!(f, " [{name}]"),
                    None => Ok(()),
                }
            }
        }
    }
}

pub struct Database {
    pub name: &'static str,
    server: Server,
    pub app: Client,
    pub admin: Client,
}

impl Database {
    fn open(server: &Server, name: &'static str) -> Result<Self> {
        Ok(Self {
            name,
            server: server.clone(),
            app: server.connect(APP, name)?,
            admin: server.connect(SUPERUSER, name)?,
        })
    }

    /// A session in which no setting was ever set.
    pub fn reconnect(&mut self) -> Result<()> {
        self.app = self.server.connect(APP, self.name)?;
        Ok(())
    }

    /// Runs one statement or a batch; a batch counts the rows of its last statement.
    pub fn run(&mut self, sql: &str) -> Outcome {
        answer(self.app.simple_query(sql))
    }

    pub fn run_as_admin(&mut self, sql: &str) -> Outcome {
        answer(self.admin.simple_query(sql))
    }

    /// Runs the statements of one transaction as the application does: after an error, only ROLLBACK [TO].
    pub fn run_all<'a>(&mut self, statements: impl IntoIterator<Item = &'a str>) -> Vec<Outcome> {
        let mut failed = false;
        statements
            .into_iter()
            .map(|sql| {
                if failed && !sql.starts_with("ROLLBACK") {
                    return Outcome::Skipped;
                }
                let outcome = self.run(sql);
                failed = !outcome.is_done();
                outcome
            })
            .collect()
    }

    /// Whether every row that the transaction wrote since `floor` satisfies the reference's own condition: what
    /// D1 promises of a step that only the original refuses.
    pub fn is_consistent(&mut self, in_transaction: bool, workspace: &str, floor: &str) -> bool {
        let sql = include_str!("consistent.sql")
            .replace(":workspace", &format!("'{workspace}'"))
            .replace(":floor", floor);
        let client = if in_transaction {
            &mut self.app
        } else {
            &mut self.admin
        };
        first_value(client, &sql).is_ok_and(|value| value == "0")
    }

    /// The rows of every table, one line each, of a workspace.
    fn rows(&mut self, account: &str, workspace: &str) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for (table, key, without) in TABLES {
            let owner = owner(table, account, workspace);
            let sql = format!(
                "SELECT '{table} ' || (to_jsonb(t) - '{{{without}}}'::text[])::text
                 FROM public.{table} t WHERE {key} = '{owner}' ORDER BY 1"
            );
            for message in self.admin.simple_query(&sql)? {
                if let SimpleQueryMessage::Row(row) = message {
                    lines.push(row.get(0).unwrap_or_default().to_string());
                }
            }
        }
        Ok(lines)
    }

    fn digest(&mut self, account: &str, workspace: &str) -> Result<String> {
        let parts: Vec<String> = TABLES
            .iter()
            .map(|(table, key, without)| {
                let owner = owner(table, account, workspace);
                format!(
                    "SELECT '{table}' AS n, md5(string_agg(x, E'\\n' ORDER BY x)) AS d FROM (
                       SELECT (to_jsonb(t) - '{{{without}}}'::text[])::text AS x
                       FROM public.{table} t WHERE {key} = '{owner}') AS {table}"
                )
            })
            .collect();
        let sql = format!(
            "SELECT string_agg(n || coalesce(d, '-'), ' ' ORDER BY n) FROM ({}) AS parts",
            parts.join(" UNION ALL ")
        );
        first_value(&mut self.admin, &sql)
    }
}

fn owner<'a>(table: &str, account: &'a str, workspace: &'a str) -> &'a str {
    match table {
        "managed_accounts" => account,
        _ => workspace,
    }
}

pub fn first_value(client: &mut Client, sql: &str) -> Result<String> {
    let messages = client.simple_query(sql)?;
    let value = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_string),
        _ => None,
    });
    value.context("no value")
}

fn answer(result: Result<Vec<SimpleQueryMessage>, postgres::Error>) -> Outcome {
    match result {
        Ok(messages) => Outcome::Done(
            messages
                .iter()
                .rev()
                .find_map(|message| match message {
                    SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
                    _ => None,
                })
                .unwrap_or(0),
        ),
        Err(error) => Outcome::Refused(Box::new(refusal(&error))),
    }
}

/// What the server refused with.
pub fn refusal(error: &postgres::Error) -> Refusal {
    match error.as_db_error() {
        Some(db) => Refusal {
            state: db.code().code().to_string(),
            message: db.message().to_string(),
            constraint: db.constraint().map(str::to_string),
            explained: db.detail().is_some()
                && db.hint().is_some()
                && db.schema().is_some()
                && db.table().is_some(),
        },
        None => Refusal {
            state: SqlState::CONNECTION_FAILURE.code().to_string(),
            message: error.to_string(),
            constraint: None,
            explained: false,
        },
    }
}

pub struct Pair {
    pub native: Database,
    pub original: Database,
}

impl Pair {
    /// Builds both databases anew.
    pub fn build(server: &Server, oracle: &Path) -> Result<Self> {
        for name in [ORIGINAL, NATIVE] {
            build_original(server, oracle, name, None)?;
        }
        let mut native = server.connect(SUPERUSER, NATIVE)?;
        native.batch_execute(
            "SET opengeni_guards.bind_on_create = off; CREATE EXTENSION opengeni_guards",
        )?;
        rebind(&mut native)?;
        let mut pair = Self {
            native: Database::open(server, NATIVE)?,
            original: Database::open(server, ORIGINAL)?,
        };
        let fixture = fixture()?;
        for database in [&mut pair.native, &mut pair.original] {
            database.admin.batch_execute(&fixture)?;
            database.admin.batch_execute(include_str!("more.sql"))?;
        }
        Ok(pair)
    }

    /// The same on both at once; the native answer comes first.
    pub fn both<T: Send>(&mut self, work: impl Fn(&mut Database) -> T + Sync) -> (T, T) {
        let Pair { native, original } = self;
        thread::scope(|scope| {
            let other = scope.spawn(|| work(original));
            let ours = work(native);
            match other.join() {
                Ok(theirs) => (ours, theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Set-up that has to work on both.
    pub fn admin_both(&mut self, sql: &str) -> Result<()> {
        let (native, original) = self.both(|database| database.run_as_admin(sql));
        match (&native, &original) {
            (Outcome::Done(_), Outcome::Done(_)) => Ok(()),
            _ => bail!("native: {native}; original: {original}; in: {sql}"),
        }
    }

    /// Both sides hold the same rows; otherwise the rows that only one holds.
    pub fn same_rows(&mut self, account: &str, workspace: &str) -> Result<()> {
        let (ours, theirs) = self.both(|database| database.digest(account, workspace));
        if ours? == theirs? {
            return Ok(());
        }
        let (ours, theirs) = self.both(|database| database.rows(account, workspace));
        let (ours, theirs) = (ours?, theirs?);
        let only = |these: &[String], those: &[String], side: &str| -> String {
            these
                .iter()
                .filter(|line| !those.contains(line))
                .take(3)
                .map(|line| format!("\n    only {side}: {line}"))
                .collect()
        };
        bail!(
            "different rows{}{}",
            only(&ours, &theirs, "native"),
            only(&theirs, &ours, "original")
        )
    }

    /// Gives the original the native's rows of a workspace, past all guards.
    pub fn level(&mut self, account: &str, workspace: &str) -> Result<()> {
        let mut copies = Vec::new();
        for (table, key, _) in TABLES {
            let owner = owner(table, account, workspace);
            let mut data = Vec::new();
            self.native
                .admin
                .copy_out(&format!(
                    "COPY (SELECT * FROM public.{table} WHERE {key} = '{owner}') TO STDOUT"
                ))?
                .read_to_end(&mut data)?;
            copies.push((table, data));
        }
        let mut transaction = self.original.admin.transaction()?;
        transaction.batch_execute("SET LOCAL session_replication_role = replica")?;
        for (table, key, _) in TABLES {
            let owner = owner(table, account, workspace);
            transaction.batch_execute(&format!(
                "DELETE FROM public.{table} WHERE {key} = '{owner}'"
            ))?;
        }
        for (table, data) in copies {
            let mut writer = transaction.copy_in(&format!("COPY public.{table} FROM STDIN"))?;
            writer.write_all(&data)?;
            writer.finish()?;
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Builds a database with the originals in force. Their objects are a superuser's unless an owner is named.
pub fn build_original(
    server: &Server,
    oracle: &Path,
    name: &str,
    owner: Option<&str>,
) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = vec![server.bindir.clone()];
    directories.extend(std::env::split_paths(&path));
    let output = Command::new("bash")
        .arg(oracle.join("build.sh"))
        .envs(server.environment())
        .env("PATH", std::env::join_paths(directories)?)
        .env("ORACLE_DB", name)
        .env("ORACLE_OWNER", owner.unwrap_or_default())
        .output()
        .context("cannot run build.sh")?;
    ensure!(
        output.status.success(),
        "cannot build the oracle {name}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The rows and probes that the suites share, as one batch.
pub fn fixture() -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    Ok(fs::read_to_string(root.join("tests/fixtures/fixture.sql"))?
        .lines()
        .filter(|line| !line.starts_with('\\'))
        .map(|line| format!("{line}\n"))
        .collect())
}

/// Removes a workspace's rows past all guards.
pub fn clear(account: &str, workspace: &str) -> String {
    TABLES
        .iter()
        .map(|(table, key, _)| {
            let owner = owner(table, account, workspace);
            format!("DELETE FROM public.{table} WHERE {key} = '{owner}';\n")
        })
        .collect()
}

/// Puts the native function of the same name behind every guard trigger, and adds the triggers that only the
/// extension has.
pub fn rebind(native: &mut Client) -> Result<()> {
    native.batch_execute("SET search_path = ''")?;
    let triggers = native.query(
        "SELECT t.tgname::text, t.tgrelid::regclass::text, pg_get_triggerdef(t.oid), p.proname::text
         FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
         WHERE NOT t.tgisinternal ORDER BY t.oid",
        &[],
    )?;
    for trigger in &triggers {
        let [name, table, definition, function]: [String; 4] =
            [0, 1, 2, 3].map(|i| trigger.get::<_, String>(i));
        let (head, _) = definition
            .split_once(" EXECUTE FUNCTION ")
            .context("a trigger without function")?;
        native.batch_execute(&format!(
            "DROP TRIGGER {name} ON {table};
             {head} EXECUTE FUNCTION opengeni_guards.{function}()"
        ))?;
    }
    ensure!(triggers.len() >= 20, "only {} triggers", triggers.len());
    native.batch_execute("SET search_path = public")?;
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql/model/triggers.sql");
    let ours = fs::read_to_string(model)?;
    for statement in ours.lines().filter(|line| {
        line.starts_with("CREATE")
            && (line.contains(" supervised_command_holder_insert_guard ")
                || line.contains(" supervised_command_truncate_guard "))
    }) {
        native.batch_execute(statement)?;
    }
    Ok(())
}
