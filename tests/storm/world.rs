//! The database of one storm, and what its sessions know in common: a few leases and the commands on them.

use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;
use uuid::Uuid;

use opengeni_guards_harness::random::Random;

const OWNER: &str = "og_storm_owner";
const APP: &str = "og_storm_app";
pub const SCHEMA: &str = "opengeni";
/// Few enough that sessions meet.
const LEASES: usize = 3;
/// Commands that a lease has at a time.
const COMMANDS: usize = 3;

/// A command that sessions may pick, from before it is retained until it has ended.
#[derive(Clone)]
pub struct Known {
    pub command: Command,
    pub children: Vec<Uuid>,
}

pub struct Lease {
    pub tenant: Tenant,
    commands: Mutex<Vec<Known>>,
}

impl Lease {
    fn commands(&self) -> MutexGuard<'_, Vec<Known>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a new command known, unless there are enough.
    pub fn announce(&self, command: Command) -> bool {
        let mut commands = self.commands();
        if commands.len() >= COMMANDS {
            return false;
        }
        commands.push(Known {
            command,
            children: Vec::new(),
        });
        true
    }

    pub fn forget(&self, process: Uuid) {
        self.commands()
            .retain(|known| known.command.process != process);
    }

    pub fn add_child(&self, process: Uuid, child: Uuid) {
        for known in &mut *self.commands() {
            if known.command.process == process {
                known.children.push(child);
            }
        }
    }

    pub fn any(&self, random: &mut Random) -> Option<Known> {
        let commands = self.commands();
        match commands.len() {
            0 => None,
            count => Some(commands[random.below(count)].clone()),
        }
    }

    pub fn all(&self) -> Vec<Known> {
        self.commands().clone()
    }
}

pub struct World {
    server: Server,
    pub database: String,
    pub leases: Vec<Lease>,
    provider_sessions: AtomicI32,
}

impl World {
    pub fn create(server: &Server) -> Result<Self> {
        let database = format!("og_storm_{}", process::id());
        let mut admin = server.connect(SUPERUSER, "postgres")?;
        for role in [OWNER, APP] {
            let known = admin.query_opt("SELECT FROM pg_roles WHERE rolname = $1", &[&role])?;
            let verb = if known.is_some() { "ALTER" } else { "CREATE" };
            admin.batch_execute(&format!(
                "{verb} ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEROLE NOCREATEDB"
            ))?;
        }
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"))?;
        admin.batch_execute(&format!("CREATE DATABASE {database} OWNER {OWNER}"))?;
        // A deadlock is to be found at once, a session that hangs some time.
        admin.batch_execute(&format!(
            "ALTER DATABASE {database} SET deadlock_timeout = '50ms';
             ALTER DATABASE {database} SET statement_timeout = '60s';
             ALTER DATABASE {database} SET search_path = {SCHEMA}"
        ))?;
        let mut admin = server.connect(SUPERUSER, &database)?;
        admin.batch_execute(&format!(
            "CREATE SCHEMA {SCHEMA} AUTHORIZATION {OWNER}; CREATE EXTENSION opengeni_guards"
        ))?;
        admin
            .batch_execute(&format!(
                "SELECT opengeni_guards.provision('{SCHEMA}', '{OWNER}');
                 SELECT opengeni_guards.grant_usage('{APP}', '{SCHEMA}')"
            ))
            .context("provision the storm's schema")?;

        let mut leases = Vec::new();
        for _ in 0..LEASES {
            let tenant = Tenant::new();
            let mut transaction = admin.transaction()?;
            for statement in protocol::seed(&tenant) {
                statement.run(&mut transaction)?;
            }
            transaction.commit()?;
            leases.push(Lease {
                tenant,
                commands: Mutex::default(),
            });
        }
        Ok(Self {
            server: server.clone(),
            database,
            leases,
            provider_sessions: AtomicI32::new(1),
        })
    }

    /// A session of the application.
    pub fn session(&self) -> Result<Client> {
        self.server.connect(APP, &self.database)
    }

    pub fn admin(&self) -> Result<Client> {
        self.server.connect(SUPERUSER, &self.database)
    }

    pub fn new_command(&self) -> Command {
        Command::new(self.provider_sessions.fetch_add(1, Ordering::Relaxed))
    }

    pub fn drop(self) -> Result<()> {
        self.server
            .connect(SUPERUSER, "postgres")?
            .batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.database))?;
        Ok(())
    }
}
