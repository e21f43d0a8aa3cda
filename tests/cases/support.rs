//! What every case needs: a fresh database, sessions of the roles involved, rows in a known state, and refusals
//! taken apart.

use std::env;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use libtest_mimic::{Failed, Trial};
use opengeni_guards_harness::demo::protocol::{self, Command, Statement, Tenant};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::types::ToSql;
use postgres::{Client, GenericClient, Transaction};

/// Owns the data schema; neither superuser nor exempt from row-level security.
pub const OWNER: &str = "og_cases_owner";
/// Uses the data schema.
pub const APP: &str = "og_cases_app";
/// Has nothing to do with the data schema.
pub const STRANGER: &str = "og_cases_stranger";
/// The data schema of the template.
pub const SCHEMA: &str = "opengeni";

const TEMPLATE: &str = "og_cases_template";
/// The template of the PL/pgSQL originals.
const ORIGINAL: &str = "og_cases_original";

pub type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Makes roles and template once, before any case runs.
pub fn prepare(server: &Server) -> Result<()> {
    let mut admin = server.connect(SUPERUSER, "postgres")?;
    for role in [OWNER, APP, STRANGER] {
        let known = admin.query_opt("SELECT FROM pg_roles WHERE rolname = $1", &[&role])?;
        let verb = if known.is_some() { "ALTER" } else { "CREATE" };
        admin.batch_execute(&format!(
            "{verb} ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEROLE NOCREATEDB"
        ))?;
    }
    admin.batch_execute(&format!("DROP DATABASE IF EXISTS {TEMPLATE} WITH (FORCE)"))?;
    admin.batch_execute(&format!("CREATE DATABASE {TEMPLATE} OWNER {OWNER}"))?;
    drop(admin);

    let mut admin = server.connect(SUPERUSER, TEMPLATE)?;
    admin.batch_execute(&format!(
        "CREATE EXTENSION opengeni_guards; CREATE SCHEMA {SCHEMA} AUTHORIZATION {OWNER}"
    ))?;
    let mut owner = server.connect(OWNER, TEMPLATE)?;
    provision(&mut owner, SCHEMA).context("provision the template")?;
    grant_usage(&mut owner, APP, SCHEMA)?;
    Ok(())
}

/// Drops the templates, after the last case.
pub fn clear(server: &Server) -> Result<()> {
    let mut admin = server.connect(SUPERUSER, "postgres")?;
    for template in [TEMPLATE, ORIGINAL] {
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {template} WITH (FORCE)"))?;
    }
    Ok(())
}

/// Where the PL/pgSQL originals can be built from, if they are at hand.
fn oracle() -> Option<PathBuf> {
    let directory = match env::var_os("OPENGENI_GUARDS_ORACLE") {
        Some(directory) => directory.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle"),
    };
    directory.join("build.sh").is_file().then_some(directory)
}

/// Builds the template of the originals: schema [`SCHEMA`] of [`OWNER`], used by [`APP`], without the
/// extension.
fn build_original(server: &Server) -> Result<()> {
    let oracle = oracle().context("the originals are not at hand")?;
    let mut directories = vec![server.bindir.clone()];
    directories.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let output = process::Command::new("bash")
        .arg(oracle.join("build.sh"))
        .envs(server.environment())
        .env("PATH", env::join_paths(directories)?)
        .env("ORACLE_DB", ORIGINAL)
        .env("ORACLE_OWNER", OWNER)
        .env("ORACLE_SCHEMA", SCHEMA)
        .output()
        .context("cannot run build.sh")?;
    ensure!(
        output.status.success(),
        "cannot build the originals:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    server
        .connect(SUPERUSER, ORIGINAL)?
        .batch_execute(&format!(
        "GRANT opengeni_app TO {APP}; GRANT USAGE ON SCHEMA {SCHEMA}, opengeni_private TO {APP};
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_private TO {APP};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA} TO {APP}"
    ))?;
    Ok(())
}

pub fn provision(client: &mut Client, schema: &str) -> Result<(), postgres::Error> {
    client
        .execute("SELECT opengeni_guards.provision($1)", &[&schema])
        .map(drop)
}

pub fn grant_usage(client: &mut Client, role: &str, schema: &str) -> Result<(), postgres::Error> {
    client
        .execute(
            "SELECT opengeni_guards.grant_usage($1::text::name, $2)",
            &[&role, &schema],
        )
        .map(drop)
}

/// The database of one case, dropped with it.
pub struct Db {
    pub server: Server,
    pub name: String,
}

impl Db {
    /// A copy of the template: extension, provisioned schema, grants.
    pub fn provisioned(server: &Server) -> Result<Self> {
        Self::create(server, TEMPLATE)
    }

    /// Nothing but the server's own objects, owned by [`OWNER`].
    pub fn empty(server: &Server) -> Result<Self> {
        Self::create(server, "template0")
    }

    /// A copy of the PL/pgSQL originals, without the extension.
    pub fn original(server: &Server) -> Result<Self> {
        static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
        BUILT
            .get_or_init(|| build_original(server).map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("{error}"))?;
        Self::create(server, ORIGINAL)
    }

    fn create(server: &Server, template: &str) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "og_case_{}_{}",
            process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        server
            .connect(SUPERUSER, "postgres")?
            .batch_execute(&format!(
                "CREATE DATABASE {name} TEMPLATE {template} OWNER {OWNER}"
            ))?;
        Ok(Self {
            server: server.clone(),
            name,
        })
    }

    /// A session of `role` that works in the data schema.
    pub fn session(&self, role: &str) -> Result<Client> {
        let mut client = self.server.connect(role, &self.name)?;
        client.batch_execute(&format!("SET search_path = {SCHEMA}"))?;
        Ok(client)
    }

    pub fn admin(&self) -> Result<Client> {
        self.session(SUPERUSER)
    }

    pub fn owner(&self) -> Result<Client> {
        self.session(OWNER)
    }

    /// An application session that has declared its tenant and the protocol for every transaction to come.
    pub fn app(&self, tenant: &Tenant) -> Result<Client> {
        let mut client = self.session(APP)?;
        set(
            &mut client,
            "opengeni.account_id",
            &tenant.account.to_string(),
        )?;
        set(
            &mut client,
            "opengeni.workspace_id",
            &tenant.workspace.to_string(),
        )?;
        set(&mut client, MARKER, "1")?;
        Ok(client)
    }

    /// A tenant with a warm lease, committed.
    pub fn tenant(&self) -> Result<Tenant> {
        let tenant = Tenant::new();
        commit(&mut self.admin()?, &[protocol::seed(&tenant)])?;
        Ok(tenant)
    }

    /// A tenant whose first command is retained without supervision, committed.
    pub fn legacy(&self) -> Result<(Tenant, Command)> {
        let tenant = self.tenant()?;
        let command = Command::new(1);
        commit(
            &mut self.admin()?,
            &[
                protocol::admit(&tenant, &command),
                protocol::retain(&tenant, &command),
                protocol::attach(&command, command.legacy_provider_command(&tenant)),
            ],
        )?;
        Ok((tenant, command))
    }

    /// A tenant whose first command is retained under supervision, committed.
    pub fn supervised(&self) -> Result<(Tenant, Command)> {
        let tenant = self.tenant()?;
        let command = Command::new(1);
        commit(&mut self.admin()?, &[protocol::launch(&tenant, &command)])?;
        Ok((tenant, command))
    }

    /// Writes the process row past the guard, as no client can: how poisoned rows come to be.
    pub fn plant(&self, sql: &str, params: Params<'_>) -> Result<()> {
        let mut admin = self.admin()?;
        let mut transaction = admin.transaction()?;
        transaction.batch_execute("SET LOCAL session_replication_role = replica")?;
        let rows = transaction.execute(sql, params)?;
        ensure!(rows == 1, "{rows} rows planted");
        transaction.commit()?;
        Ok(())
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        if env::var_os("OPENGENI_GUARDS_KEEP_DATABASES").is_some() {
            eprintln!("kept: {}", self.name);
            return;
        }
        let dropped = self
            .server
            .connect(SUPERUSER, "postgres")
            .and_then(|mut admin| {
                Ok(admin.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name))?)
            });
        if let Err(error) = dropped {
            eprintln!("{} is left behind: {error:#}", self.name);
        }
    }
}

/// What a case does with its database.
pub type Body = fn(&Db) -> Result<()>;

/// A case in a copy of the template.
pub fn case(server: &Server, name: &str, body: fn(&Db) -> Result<()>) -> Trial {
    trial(server, name, body, Db::provisioned)
}

/// A case that starts from an empty database.
pub fn bare_case(server: &Server, name: &str, body: fn(&Db) -> Result<()>) -> Trial {
    trial(server, name, body, Db::empty)
}

/// A case on the PL/pgSQL originals; ignored where these are not at hand.
pub fn original_case(server: &Server, name: &str, body: fn(&Db) -> Result<()>) -> Trial {
    trial(server, name, body, Db::original).with_ignored_flag(oracle().is_none())
}

fn trial(
    server: &Server,
    name: &str,
    body: fn(&Db) -> Result<()>,
    make: fn(&Server) -> Result<Db>,
) -> Trial {
    let server = server.clone();
    Trial::test(name, move || {
        make(&server)
            .and_then(|db| body(&db))
            .map_err(|error| Failed::from(format!("{error:?}")))
    })
}

pub const MARKER: &str = "opengeni.sandbox_recovery_protocol_v2";
pub const CAPTURE: &str = "opengeni.supervised_output_capture_process_id";
pub const LOSS: &str = "opengeni.supervised_provider_loss_binding";
pub const REJECTION: &str = "opengeni.supervised_launch_rejection_binding";

/// Sets a setting for the session.
pub fn set(client: &mut impl GenericClient, name: &str, value: &str) -> Result<()> {
    client.execute("SELECT set_config($1, $2, false)", &[&name, &value])?;
    Ok(())
}

/// Runs statements, each of which has to touch at least one row.
pub fn run(client: &mut impl GenericClient, statements: &[Statement]) -> Result<()> {
    for statement in statements {
        let rows = statement
            .run(client)
            .with_context(|| statement.sql.to_string())?;
        ensure!(rows > 0, "touched no row: {}", statement.sql);
    }
    Ok(())
}

/// Runs the steps in one transaction.
pub fn commit(client: &mut Client, steps: &[Vec<Statement>]) -> Result<()> {
    let mut transaction = client.transaction()?;
    for step in steps {
        run(&mut transaction, step)?;
    }
    transaction.commit().context("COMMIT")
}

/// Runs one statement that has to touch exactly one row.
pub fn accepted(client: &mut impl GenericClient, sql: &str, params: Params<'_>) -> Result<()> {
    let rows = client
        .execute(sql, params)
        .map_err(|error| anyhow!("{}: {sql}", describe(&error)))?;
    ensure!(rows == 1, "touched {rows} rows: {sql}");
    Ok(())
}

/// Runs one statement that has to be refused, in a (sub)transaction of its own.
pub fn refused(client: &mut impl GenericClient, sql: &str, params: Params<'_>) -> Result<Refusal> {
    let mut attempt = client.transaction()?;
    match attempt.execute(sql, params) {
        Ok(rows) => bail!("accepted ({rows} rows), should have been refused: {sql}"),
        Err(error) => {
            attempt.rollback()?;
            Refusal::of(&error)
        }
    }
}

/// Runs a protocol step that has to be refused at one of its statements or at COMMIT.
pub fn step_refused(client: &mut impl GenericClient, step: &[Statement]) -> Result<Refusal> {
    let mut attempt = client.transaction()?;
    for statement in step {
        if let Err(error) = statement.run(&mut attempt) {
            attempt.rollback()?;
            return Refusal::of(&error);
        }
    }
    match attempt.commit() {
        Ok(()) => bail!("accepted, should have been refused"),
        Err(error) => Refusal::of(&error),
    }
}

pub fn describe(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!(
            "{} [{}] {} (detail: {}, hint: {})",
            db.code().code(),
            db.constraint().unwrap_or("-"),
            db.message(),
            db.detail().unwrap_or("-"),
            db.hint().unwrap_or("-"),
        ),
        None => error.to_string(),
    }
}

/// What the server said when it refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub sqlstate: String,
    pub rule: Option<String>,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    pub table: Option<String>,
    pub schema: Option<String>,
}

impl Refusal {
    pub fn of(error: &postgres::Error) -> Result<Self> {
        let Some(db) = error.as_db_error() else {
            bail!("the connection failed instead of a refusal: {error}");
        };
        let owned = |text: Option<&str>| text.map(str::to_string);
        Ok(Self {
            sqlstate: db.code().code().to_string(),
            rule: owned(db.constraint()),
            message: db.message().to_string(),
            detail: owned(db.detail()),
            hint: owned(db.hint()),
            table: owned(db.table()),
            schema: owned(db.schema()),
        })
    }

    /// It is the refusal of this rule, whichever guard's.
    pub fn is_by(&self, sqlstate: &str, rule: &str) -> Result<()> {
        ensure!(
            self.sqlstate == sqlstate && self.rule.as_deref() == Some(rule),
            "expected {sqlstate} {rule}, got {self:?}"
        );
        Ok(())
    }

    /// It is the refusal of this rule, with every field a refusal carries.
    pub fn speaks(&self, rule: &str) -> Result<()> {
        let Some(known) = RULES.iter().find(|known| known.id == rule) else {
            bail!("no such rule: {rule}");
        };
        ensure!(
            self.rule.as_deref() == Some(rule) && self.sqlstate == known.sqlstate,
            "expected {} {rule}, got {self:?}",
            known.sqlstate,
        );
        ensure!(
            known.message.is_none_or(|message| message == self.message),
            "another message than the contract's: {self:?}"
        );
        for (field, text) in [("DETAIL", &self.detail), ("HINT", &self.hint)] {
            ensure!(
                text.as_deref().is_some_and(|text| !text.trim().is_empty()),
                "no {field}: {self:?}"
            );
        }
        ensure!(
            self.table.is_some() && self.schema.is_some(),
            "no TABLE or SCHEMA: {self:?}"
        );
        Ok(())
    }

    /// An error of the server, or of the extension's own housekeeping, by its SQLSTATE.
    pub fn has_state(&self, sqlstate: &str) -> Result<()> {
        ensure!(
            self.sqlstate == sqlstate,
            "expected {sqlstate}, got {self:?}"
        );
        Ok(())
    }

    /// Message, detail and hint together name each of these.
    pub fn names(&self, words: &[&str]) -> Result<()> {
        let text = [
            Some(&self.message),
            self.detail.as_ref(),
            self.hint.as_ref(),
        ]
        .into_iter()
        .flatten()
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
        for word in words {
            ensure!(text.contains(word), "does not name {word}: {self:?}");
        }
        Ok(())
    }
}

pub struct Rule {
    pub id: &'static str,
    pub sqlstate: &'static str,
    /// `None` where the message depends on the statement.
    pub message: Option<&'static str>,
}

const fn rule(id: &'static str, sqlstate: &'static str, message: &'static str) -> Rule {
    Rule {
        id,
        sqlstate,
        message: Some(message),
    }
}

/// The published contract of the guards these cases meet.
pub const RULES: &[Rule] = &[
    rule(
        "supervised_command.delete_unsettled",
        "55000",
        "Unsettled supervised command evidence cannot be deleted",
    ),
    rule(
        "supervised_command.retention_xid",
        "55000",
        "Retention transaction identity is immutable",
    ),
    rule(
        "supervised_command.identity",
        "55000",
        "Supervised command identity is immutable",
    ),
    rule(
        "supervised_command.initial_retention",
        "55000",
        "Supervision requires initial retention",
    ),
    rule(
        "supervised_command.cancellation_monotonic",
        "55000",
        "Cancellation intent is monotonic",
    ),
    rule(
        "supervised_command.proof_immutable",
        "55000",
        "Supervision proof is immutable",
    ),
    rule(
        "supervised_command.stdin_closed",
        "55000",
        "Supervised stdin admission is closed",
    ),
    rule(
        "supervised_command.stdin_child",
        "55000",
        "Supervised stdin requires an unsettled child admission",
    ),
    rule(
        "supervised_command.stdin_regress",
        "55000",
        "Supervised stdin sequence cannot regress",
    ),
    rule(
        "supervised_command.adoption",
        "55000",
        "Cancelled command cannot be adopted",
    ),
    rule(
        "supervised_command.terminal",
        "55000",
        "Supervised terminal state is immutable",
    ),
    rule(
        "supervised_command.capture_protocol",
        "55000",
        "Supervised output requires atomic capture protocol",
    ),
    rule(
        "supervised_command.output_regress",
        "55000",
        "Supervised output proof cannot regress",
    ),
    rule(
        "supervised_command.cancellation_intent",
        "23514",
        "Invalid cancellation intent",
    ),
    rule(
        "supervised_command.legacy_proof",
        "23514",
        "Legacy command cannot acquire supervision proof",
    ),
    rule(
        "supervised_command.containment",
        "55000",
        "Supervised launch cannot join checkpoint containment",
    ),
    rule(
        "supervised_command.descriptor",
        "23514",
        "Invalid supervision descriptor",
    ),
    rule(
        "supervised_command.receipt",
        "23514",
        "Invalid invocation-bound supervision receipt",
    ),
    rule(
        "supervised_command.capture_incomplete",
        "55000",
        "Supervised output capture is incomplete",
    ),
    rule(
        "supervised_command.loss_fabricated",
        "55000",
        "Supervised loss cannot fabricate execution or output proof",
    ),
    rule(
        "supervised_command.launch_rejection",
        "55000",
        "Supervised launch rejection requires an exact pristine invocation",
    ),
    rule(
        "supervised_command.typed_loss",
        "55000",
        "Supervised loss requires the exact typed provider-loss transition",
    ),
    rule(
        "supervised_command.input_settles_first",
        "55000",
        "Admitted command input must settle before quiescence",
    ),
    rule(
        "supervised_command.settlement",
        "55000",
        "Supervised settlement requires quiescence, provider terminal and captured output",
    ),
    rule(
        "supervised_command.stream_cursor",
        "23514",
        "Invalid supervision stream cursor",
    ),
    Rule {
        id: "protocol_v2.marker",
        sqlstate: "55000",
        message: None,
    },
];

/// Waits until the backend is waiting for a lock; fails if it never does.
pub fn wait_for_lock(observer: &mut Client, pid: i32) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        let waiting = observer.query_one(
            "SELECT coalesce(bool_or(wait_event_type = 'Lock'), false) FROM pg_stat_activity WHERE pid = $1",
            &[&pid],
        )?;
        if waiting.get(0) {
            return Ok(());
        }
        sleep(Duration::from_millis(10));
    }
    bail!("backend {pid} never waited for a lock")
}

pub fn backend_pid(client: &mut impl GenericClient) -> Result<i32> {
    Ok(client.query_one("SELECT pg_backend_pid()", &[])?.get(0))
}

/// One value of one row.
pub fn value<T>(client: &mut impl GenericClient, sql: &str, params: Params<'_>) -> Result<T>
where
    T: for<'a> postgres::types::FromSql<'a>,
{
    let row = client
        .query_one(sql, params)
        .map_err(|error| anyhow!("{}: {sql}", describe(&error)))?;
    Ok(row.try_get(0)?)
}

/// One text column of any number of rows.
pub fn lines(
    client: &mut impl GenericClient,
    sql: &str,
    params: Params<'_>,
) -> Result<Vec<String>> {
    let rows = client
        .query(sql, params)
        .map_err(|error| anyhow!("{}: {sql}", describe(&error)))?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// A transaction of the application at an isolation level.
pub fn begin<'a>(client: &'a mut Client, isolation: &str) -> Result<Transaction<'a>> {
    let mut transaction = client.transaction()?;
    transaction.batch_execute(&format!("SET TRANSACTION ISOLATION LEVEL {isolation}"))?;
    Ok(transaction)
}

/// What status() finds wrong with a schema, besides objects that only `provision` would create.
pub fn amiss(client: &mut impl GenericClient, schema: &str) -> Result<Vec<String>> {
    lines(
        client,
        "SELECT concat_ws(' ', object, state, detail) FROM opengeni_guards.status($1)
          WHERE state NOT IN ('native', 'present') AND object !~ '^(index|constraint|foreign key|policy) '",
        &[&schema],
    )
}

/// Both sides are the same; otherwise the lines that only one of them has.
pub fn same(before: &[String], after: &[String]) -> Result<()> {
    let only = |these: &[String], those: &[String]| {
        let mut lines = these.to_vec();
        lines.retain(|line| !those.contains(line));
        lines
    };
    let (gone, new) = (only(before, after), only(after, before));
    ensure!(
        gone.is_empty() && new.is_empty(),
        "gone: {gone:#?}\nnew: {new:#?}"
    );
    Ok(())
}

/// Everything that set-up could have created or changed, one line per object, without identities.
pub fn definitions(client: &mut Client) -> Result<Vec<String>> {
    catalogue(client, "''")
}

/// The same with OIDs: an object that was dropped and made again differs.
pub fn snapshot(client: &mut Client) -> Result<Vec<String>> {
    catalogue(client, "object.oid::text || ' '")
}

fn catalogue(client: &mut Client, identity: &str) -> Result<Vec<String>> {
    // Under an empty path every name is printed qualified.
    let path: String = value(client, "SELECT current_setting('search_path')", &[])?;
    client.batch_execute("SET search_path = ''")?;
    let sql = format!(
        "WITH space AS (
           SELECT oid FROM pg_namespace
           WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
         )
         SELECT {identity} || line FROM (
           SELECT oid, concat_ws(' ', 'schema', nspname, nspowner::regrole,
             ARRAY(SELECT unnest(coalesce(nspacl, acldefault('n', nspowner)))::text ORDER BY 1))
           FROM pg_namespace WHERE oid IN (TABLE space)
           UNION ALL
           SELECT oid, concat_ws(' ', 'class', oid::regclass, relkind, relowner::regrole,
             ARRAY(SELECT unnest(coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::\"char\", relowner)))::text ORDER BY 1),
             relrowsecurity, relforcerowsecurity,
             CASE WHEN relkind = 'i' THEN pg_get_indexdef(oid) END)
           FROM pg_class WHERE relnamespace IN (TABLE space)
           UNION ALL
           SELECT attrelid, concat_ws(' ', 'column', attrelid::regclass, attname,
             format_type(atttypid, atttypmod), attnotnull, attisdropped, attacl,
             (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef
              WHERE adrelid = attrelid AND adnum = attnum))
           FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
           WHERE relnamespace IN (TABLE space) AND attnum > 0
           UNION ALL
           SELECT oid, concat_ws(' ', 'function', oid::regprocedure, proowner::regrole,
             ARRAY(SELECT unnest(coalesce(proacl, acldefault('f', proowner)))::text ORDER BY 1),
             prosecdef, proconfig, provolatile, proparallel, prosrc)
           FROM pg_proc WHERE pronamespace IN (TABLE space)
           UNION ALL
           SELECT pg_trigger.oid, concat_ws(' ', 'trigger', pg_get_triggerdef(pg_trigger.oid), tgenabled)
           FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
           WHERE relnamespace IN (TABLE space) AND NOT tgisinternal
           UNION ALL
           SELECT pg_policy.oid, concat_ws(' ', 'policy', polrelid::regclass, polname, polcmd,
             polpermissive, polroles, pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))
           FROM pg_policy JOIN pg_class ON pg_class.oid = polrelid
           WHERE relnamespace IN (TABLE space)
           UNION ALL
           SELECT oid, concat_ws(' ', 'constraint', conrelid::regclass, conname,
             pg_get_constraintdef(oid), convalidated)
           FROM pg_constraint WHERE connamespace IN (TABLE space) AND contype <> 't'
         ) AS object (oid, line)
         ORDER BY 1"
    );
    let found = lines(client, &sql, &[])?;
    set(client, "search_path", &path)?;
    ensure!(!found.is_empty(), "an empty catalogue");
    Ok(found)
}
