//! The operating-system account that servers run as: PostgreSQL refuses to run as root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::unistd::{User, geteuid};

/// The usual account of a PostgreSQL server; Debian's packages create it.
const SERVICE: &str = "postgres";

/// Who runs our servers.
#[derive(Clone, Debug)]
pub struct Account {
    pub user: User,
    /// We are root and become this user for servers; otherwise it is ourselves.
    pub switch: bool,
}

impl Account {
    /// Ourselves or, for root, the `postgres` user, created if need be.
    pub fn for_servers() -> Result<Account> {
        let me = geteuid();
        if !me.is_root() {
            let user = User::from_uid(me)?.context("your user id has no entry in /etc/passwd")?;
            return Ok(Account {
                user,
                switch: false,
            });
        }
        if User::from_name(SERVICE)?.is_none() {
            let status = Command::new("useradd")
                .args(["--system", "--user-group", "--no-create-home"])
                .args([
                    "--home-dir",
                    "/nonexistent",
                    "--shell",
                    "/usr/sbin/nologin",
                    SERVICE,
                ])
                .status()
                .context("cannot run useradd")?;
            if !status.success() {
                bail!("useradd could not create the user {SERVICE}, which servers run as");
            }
        }
        let user = User::from_name(SERVICE)?
            .with_context(|| format!("the user {SERVICE} is missing although it was created"))?;
        Ok(Account { user, switch: true })
    }

    /// A server program, to run as this account with a clean environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = if self.switch {
            let mut command = Command::new("runuser");
            command.args(["-u", &self.user.name, "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            // Our own directory may be closed to the account, and pg_ctl must be able to read its own.
            .current_dir("/");
        command
    }

    /// Makes a directory that only this account (and root) may enter.
    pub fn make_private_dir(&self, path: &Path) -> Result<()> {
        fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
        self.take_over(path)
    }

    /// Gives a directory of ours to this account.
    pub fn take_over(&self, path: &Path) -> Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        if self.switch {
            chown(
                path,
                Some(self.user.uid.as_raw()),
                Some(self.user.gid.as_raw()),
            )
            .with_context(|| format!("cannot give {} to {}", path.display(), self.user.name))?;
        }
        Ok(())
    }
}
