//! The databases that hold a fleet, and what is seen of a transaction that calls queue functions.
//!
//! Everything happens in one transaction, so that every time in it can be told exactly, as its distance from now().

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::{Client, Config, NoTls, SimpleQueryMessage};

use crate::database::{APP, Refusal, build_original, first_value, fixture, rebind, refusal};

/// Owns the tables of two of the databases; neither a superuser nor exempt from row-level security.
const OWNER: &str = "diff_owner";
/// So many rows undone are swept up.
const LITTERED: usize = 2_000;

/// What stands under the contract's names before the extension's own take their places.
const FREE: &str = "DO $$
DECLARE f regprocedure;
BEGIN
  DROP POLICY modal_inventory_owner_read ON public.sandbox_leases;
  DROP FUNCTION public.modal_inventory_read_capability_active();
  FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'opengeni_private'::regnamespace
    AND p.proname IN ('reap_sandbox_leases', 'warming_reset_resume_state_v2', 'claim_terminal_retained_processes',
      'count_active_retained_processes_by_owner_state', 'count_expired_draining_sandbox_leases',
      'claim_sandbox_checkpoint_artifacts', 'settle_sandbox_checkpoint_artifact',
      'prune_deleted_sandbox_checkpoint_artifacts', 'list_legacy_modal_checkpoint_slots',
      'request_due_sandbox_rotations', 'sandbox_checkpoint_artifact_inventory', 'sandbox_rotation_backlog',
      'list_live_modal_sandbox_leases')
  LOOP
    EXECUTE 'DROP FUNCTION ' || f;
  END LOOP;
END $$";

/// How many of the names are the extension's functions.
const TAKEN: &str = "SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'opengeni_private'::regnamespace
  AND EXISTS (SELECT FROM pg_depend d JOIN pg_proc n ON n.oid = d.refobjid
    WHERE d.objid = p.oid AND n.pronamespace = 'opengeni_guards'::regnamespace AND n.proname = p.proname)";

pub struct Fleets {
    server: Server,
    pub native: Side,
    pub original: Side,
    /// The same two, of an owner whom row-level security binds.
    pub bound_native: Side,
    pub bound_original: Side,
}

impl Fleets {
    pub fn build(server: &Server, oracle: &Path) -> Result<Self> {
        // What the two builds would both create.
        let mut postgres = server.connect(SUPERUSER, "postgres")?;
        postgres.batch_execute(&format!(
            "DO $$ BEGIN
               IF to_regrole('{APP}') IS NULL THEN
                 CREATE ROLE {APP} LOGIN NOSUPERUSER NOBYPASSRLS;
               END IF;
             END $$"
        ))?;
        let ([native, original], [bound_native, bound_original]) =
            thread::scope(|scope| -> Result<_> {
                let bound = scope.spawn(|| {
                    let names = ["queues_bound_native", "queues_bound_original"];
                    pair(server, oracle, names, Some(OWNER))
                });
                let plain = pair(server, oracle, ["queues_native", "queues_original"], None);
                match bound.join() {
                    Ok(bound) => Ok((plain?, bound?)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            })?;
        Ok(Self {
            server: server.clone(),
            native,
            original,
            bound_native,
            bound_original,
        })
    }

    /// Throws away what undone transactions left in the tables, before the originals' sweeps drown in it.
    pub fn tidy(&mut self) -> Result<()> {
        for side in [
            &mut self.native,
            &mut self.original,
            &mut self.bound_native,
            &mut self.bound_original,
        ] {
            if std::mem::take(&mut side.planted) > LITTERED {
                side.client.batch_execute("CALL fleet.clear()")?;
            }
        }
        Ok(())
    }

    /// Another session in the database of one of the sides.
    pub fn another(&self, role: &str, side: &Side) -> Result<Client> {
        self.server.connect(role, side.name)
    }

    /// The same on the native and the original side at once.
    pub fn both<T: Send>(&mut self, work: impl Fn(&mut Side) -> T + Sync) -> (T, T) {
        at_once(&mut self.native, &mut self.original, work)
    }
}

/// Builds the originals' database, and from it the one in which the extension takes their places.
fn pair(
    server: &Server,
    oracle: &Path,
    [native, original]: [&'static str; 2],
    owner: Option<&str>,
) -> Result<[Side; 2]> {
    build_original(server, oracle, original, owner)?;
    let mut client = server.connect(SUPERUSER, original)?;
    client.batch_execute(&fixture()?)?;
    client.batch_execute(include_str!("fleet.sql"))?;
    drop(client);
    let mut postgres = server.connect(SUPERUSER, "postgres")?;
    postgres.batch_execute(&format!("DROP DATABASE IF EXISTS {native}"))?;
    postgres.batch_execute(&format!(
        "CREATE DATABASE {native} TEMPLATE {original} OWNER {}",
        owner.unwrap_or(SUPERUSER)
    ))?;
    let mut client = server.connect(SUPERUSER, native)?;
    client.batch_execute(
        "SET opengeni_guards.bind_on_create = off; CREATE EXTENSION opengeni_guards",
    )?;
    rebind(&mut client)?;
    client.batch_execute(FREE)?;
    client.batch_execute(&format!(
        "SELECT opengeni_guards.provision('public');
         SELECT opengeni_guards.grant_usage('{APP}', 'public')"
    ))?;
    ensure!(
        first_value(&mut client, TAKEN)? == "13",
        "{native} calls originals"
    );
    Ok([Side::open(server, native)?, Side::open(server, original)?])
}

pub fn at_once<T: Send>(
    native: &mut Side,
    original: &mut Side,
    work: impl Fn(&mut Side) -> T + Sync,
) -> (T, T) {
    thread::scope(|scope| {
        let other = scope.spawn(|| work(original));
        let ours = work(native);
        match other.join() {
            Ok(theirs) => (ours, theirs),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// What a call says.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Rows(Vec<String>),
    Refused(Refusal),
}

impl Answer {
    /// Whether it says that there was something.
    pub fn is_something(&self) -> bool {
        match self {
            Answer::Rows(rows) => rows
                .iter()
                .any(|row| row.split(" | ").any(|value| !matches!(value, "0" | "f"))),
            Answer::Refused(_) => false,
        }
    }
}

/// Every row of every table as JSON, by table and id.
pub type Rows = BTreeMap<String, String>;

/// A transaction that plants rows and calls functions as the application.
#[derive(Clone, Copy, Default)]
pub struct Play<'a> {
    /// Run by a superuser with no trigger firing.
    pub plant: &'a str,
    /// Run by the application before the calls.
    pub prelude: &'a str,
    pub calls: &'a [String],
    /// Done to the rows behind everybody's back before the calls, and after them.
    pub remedy: Option<(&'a str, &'a str)>,
}

pub struct Seen {
    pub before: Rows,
    pub answers: Vec<Answer>,
    /// The protocol marker after each call.
    pub markers: Vec<String>,
    /// What the checks at COMMIT say.
    pub deferred: Option<Refusal>,
    pub after: Rows,
    pub warnings: Vec<String>,
}

pub struct Side {
    pub name: &'static str,
    pub client: Client,
    warnings: Arc<Mutex<Vec<String>>>,
    planted: usize,
}

impl Side {
    fn open(server: &Server, name: &'static str) -> Result<Self> {
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&warnings);
        let client = Config::new()
            .host_path(&server.socket_dir)
            .port(server.port)
            .user(SUPERUSER)
            .dbname(name)
            .notice_callback(move |notice| {
                if notice.severity() == "WARNING" {
                    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                    heard.push(notice.message().to_string());
                }
            })
            .connect(NoTls)
            .with_context(|| format!("cannot connect to database {name}"))?;
        Ok(Self {
            name,
            client,
            warnings,
            planted: 0,
        })
    }

    /// What is seen of a transaction that is undone.
    pub fn play(&mut self, play: Play<'_>) -> Result<Seen> {
        let seen = self.begin(play);
        self.end("ROLLBACK")?;
        seen
    }

    /// What is seen of a transaction so far.
    pub fn begin(&mut self, play: Play<'_>) -> Result<Seen> {
        self.attempt(play).with_context(|| self.name)
    }

    pub fn end(&mut self, end: &str) -> Result<()> {
        self.client
            .batch_execute(end)
            .with_context(|| format!("{end} in {}", self.name))
    }

    fn attempt(&mut self, play: Play<'_>) -> Result<Seen> {
        let unguarded = |sql: &str| {
            format!(
                "SET LOCAL session_replication_role = replica; {sql};
                 SET LOCAL session_replication_role = origin"
            )
        };
        self.client
            .batch_execute(&format!("BEGIN; {}", unguarded(play.plant)))
            .context("planting")?;
        let before = self.snapshot()?;
        self.planted += before.len();
        if let Some((remedy, _)) = play.remedy {
            self.client.batch_execute(&unguarded(remedy))?;
        }
        self.heard();
        self.client.batch_execute(&format!(
            "SET LOCAL SESSION AUTHORIZATION {APP}; {}",
            play.prelude
        ))?;
        let (mut answers, mut markers) = (Vec::new(), Vec::new());
        for call in play.calls {
            answers.push(self.call(call)?);
            markers.push(first_value(
                &mut self.client,
                "SELECT coalesce(current_setting('opengeni.sandbox_recovery_protocol_v2', true), '')",
            )?);
        }
        let deferred = match self.call("SET CONSTRAINTS ALL IMMEDIATE")? {
            Answer::Rows(_) => None,
            Answer::Refused(refusal) => Some(refusal),
        };
        self.client
            .batch_execute("SET LOCAL SESSION AUTHORIZATION DEFAULT")?;
        if let Some((_, undo)) = play.remedy {
            self.client.batch_execute(&unguarded(undo))?;
        }
        Ok(Seen {
            before,
            answers,
            markers,
            deferred,
            after: self.snapshot()?,
            warnings: self.heard(),
        })
    }

    /// A call that leaves the transaction usable.
    fn call(&mut self, sql: &str) -> Result<Answer> {
        self.client.batch_execute("SAVEPOINT call")?;
        match self.client.simple_query(sql) {
            Ok(messages) => Ok(Answer::Rows(rows(&messages))),
            Err(error) => {
                self.client.batch_execute("ROLLBACK TO call")?;
                Ok(Answer::Refused(refusal(&error)))
            }
        }
    }

    fn snapshot(&mut self) -> Result<Rows> {
        let mut rows = Rows::new();
        for message in self
            .client
            .simple_query("SELECT * FROM fleet.snapshot()")
            .context("looking")?
        {
            let SimpleQueryMessage::Row(row) = message else {
                continue;
            };
            let column = |n| row.get(n).unwrap_or_default();
            rows.insert(
                format!("{} {}", column(0), column(1)),
                column(2).to_string(),
            );
        }
        Ok(rows)
    }

    /// The warnings since it was asked last.
    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A line per row, its columns side by side.
pub fn rows(messages: &[SimpleQueryMessage]) -> Vec<String> {
    messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(
                (0..row.len())
                    .map(|n| row.get(n).unwrap_or("∅"))
                    .collect::<Vec<_>>()
                    .join(" | "),
            ),
            _ => None,
        })
        .collect()
}
