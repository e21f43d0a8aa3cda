//! A running PostgreSQL server, reached over its unix socket.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use postgres::{Client, Config, NoTls};

/// The superuser of every cluster the harness starts.
pub const SUPERUSER: &str = "postgres";

/// Where a running server listens and which programs belong to it.
#[derive(Clone, Debug)]
pub struct Server {
    pub major: u32,
    pub socket_dir: PathBuf,
    pub port: u16,
    /// The server's own `bin` directory (psql, pg_dump, …).
    pub bindir: PathBuf,
}

impl Server {
    /// Opens a session as `role` in `database`.
    pub fn connect(&self, role: &str, database: &str) -> Result<Client> {
        Config::new()
            .host_path(&self.socket_dir)
            .port(self.port)
            .user(role)
            .dbname(database)
            .application_name("opengeni_guards_harness")
            .connect(NoTls)
            .with_context(|| format!("cannot connect to database {database} as {role}"))
    }

    /// A client program of this server's release, pointed at it.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.bindir.join(name));
        for (key, value) in self.environment() {
            command.env(key, value);
        }
        command
    }

    /// The libpq variables that lead to this server.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("PGHOST", self.socket_dir.display().to_string()),
            ("PGPORT", self.port.to_string()),
            ("PGUSER", SUPERUSER.to_string()),
        ]
    }

    /// Hands this server to a child process, which reads it with [`Server::from_env`].
    pub fn export(&self, command: &mut Command) {
        for (key, value) in self.environment() {
            command.env(key, value);
        }
        command
            .env("OPENGENI_GUARDS_BINDIR", &self.bindir)
            .env("OPENGENI_GUARDS_MAJOR", self.major.to_string());
    }

    /// The server that `cargo xtask` started for this process.
    pub fn from_env() -> Result<Server> {
        let read = |key: &str| {
            env::var(key).map_err(|_| anyhow!("{key} is not set: start this through `cargo xtask`"))
        };
        Ok(Server {
            major: read("OPENGENI_GUARDS_MAJOR")?.parse()?,
            socket_dir: read("PGHOST")?.into(),
            port: read("PGPORT")?.parse()?,
            bindir: read("OPENGENI_GUARDS_BINDIR")?.into(),
        })
    }
}
