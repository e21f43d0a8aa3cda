//! Short-lived servers: started for one command, gone with it however it ends.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow, bail, ensure};
use opengeni_guards_harness::server::{SUPERUSER, Server};

use crate::account::Account;
use crate::setup::Setup;
use crate::tree::Tree;

/// Only a part of the socket's name: no server listens on the network.
const PORT: u16 = 5432;

/// The longest path of a unix socket, and what a server appends to the directory's.
const SOCKET_PATH: usize = 107;
const SOCKET_NAME: usize = "/.s.PGSQL.65535".len();

/// In a run's directory: its owner holds a lock on it.
const LOCK: &str = "lock";
/// In a run's directory: belongs to the servers' account; data, sockets and log.
const SERVER: &str = "server";
/// In a run's directory: the server is to outlive its owner.
const KEPT: &str = "kept";
/// In a run's directory: the programs that can stop its server.
const BINDIR: &str = "bindir";

/// The run directories of this process, for the interrupt handler.
static OPEN: Mutex<Vec<(PathBuf, Account)>> = Mutex::new(Vec::new());
/// Another program has the terminal; its interrupts are not ours.
static TERMINAL_LENT: AtomicBool = AtomicBool::new(false);

/// A directory for the servers of one run. Stops them and removes itself when dropped.
pub struct RunDir {
    /// In the work directory; a link if the real directory must have a short path.
    entry: PathBuf,
    path: PathBuf,
    account: Account,
    kept: bool,
    _lock: File,
}

impl RunDir {
    /// Makes a run directory for servers whose programs are in `bindir`.
    pub fn create(setup: &Setup, purpose: &str, bindir: &Path) -> Result<RunDir> {
        let runs = setup.workspace.dir("run")?;
        let entry = runs.join(format!("{purpose}-{}", process::id()));
        if entry.as_os_str().len() + "/".len() + SERVER.len() + SOCKET_NAME <= SOCKET_PATH {
            fs::create_dir(&entry).with_context(|| format!("cannot make {}", entry.display()))?;
        } else {
            let short = tempfile::Builder::new()
                .prefix("og-")
                .permissions(fs::Permissions::from_mode(0o755))
                .tempdir_in("/tmp")?;
            symlink(short.path(), &entry)?;
            let _ = short.keep();
        }
        let path = entry.canonicalize()?;
        let lock = File::create(path.join(LOCK))?;
        lock.lock()?;
        fs::write(path.join(BINDIR), bindir.display().to_string())?;
        let run = RunDir {
            entry,
            path,
            account: setup.account.clone(),
            kept: false,
            _lock: lock,
        };
        open_runs().push((run.entry.clone(), run.account.clone()));
        run.account.make_private_dir(&run.server())?;
        Ok(run)
    }

    /// The directory that belongs to the servers' account.
    pub fn server(&self) -> PathBuf {
        self.path.join(SERVER)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // Locked for as long as it takes: an interrupt meanwhile waits for us.
        let mut runs = open_runs();
        if !self.kept {
            clear(&self.entry, &self.account);
        }
        runs.retain(|(entry, _)| *entry != self.entry);
    }
}

/// A server of ours. Stopped and removed when dropped, unless it was kept.
pub struct Cluster {
    pub server: Server,
    run: RunDir,
    log: PathBuf,
    kept_log: PathBuf,
}

impl Cluster {
    /// Makes and starts a server for `purpose` from `tree`.
    pub fn start(setup: &Setup, tree: &Tree, purpose: &str) -> Result<Cluster> {
        let cluster = Cluster::create(setup, tree, purpose, &[])?;
        cluster.launch()?;
        Ok(cluster)
    }

    /// Makes a cluster without starting its server.
    fn create(setup: &Setup, tree: &Tree, purpose: &str, options: &[&str]) -> Result<Cluster> {
        let name = format!("{purpose}-pg{}", tree.major);
        let run = RunDir::create(setup, &name, &tree.bindir)?;
        let log = run.server().join("log");
        let cluster = Cluster {
            server: Server {
                major: tree.major,
                socket_dir: run.server(),
                port: PORT,
                bindir: tree.bindir.clone(),
            },
            kept_log: setup
                .workspace
                .dir("logs")?
                .join(format!("server-{name}.log")),
            run,
            log,
        };
        initdb(&setup.account, &tree.bindir, &cluster.data(), options)?;
        configure(&cluster.data(), &cluster.server.socket_dir)?;
        Ok(cluster)
    }

    fn data(&self) -> PathBuf {
        self.run.server().join("data")
    }

    fn launch(&self) -> Result<()> {
        let mut start = self.run.account.command(self.server.bindir.join("pg_ctl"));
        start.args(["start", "--wait", "--silent", "-D"]);
        start.arg(self.data()).arg("-l").arg(&self.log);
        let output = start.output().context("cannot run pg_ctl")?;
        ensure!(
            output.status.success(),
            "the server did not start:\n{}{}",
            String::from_utf8_lossy(&output.stderr),
            fs::read_to_string(&self.log).unwrap_or_default()
        );
        Ok(())
    }

    /// Ends sessions and server in order, as pg_upgrade wants to find the data.
    fn shut_down(&self) -> Result<()> {
        self.tool("pg_ctl", |command| {
            command.args(["stop", "--wait", "--silent", "-m", "fast", "-D"]);
            command.arg(self.data());
        })
    }

    /// Puts the transaction ids, 64 bits of them, beyond what their lower half can tell.
    pub fn skip_to_epoch(&self, epoch: u32) -> Result<()> {
        self.shut_down()?;
        self.tool("pg_resetwal", |command| {
            command.arg(format!("--epoch={epoch}")).arg(self.data());
        })?;
        self.launch()
    }

    /// The same databases served by `tree`: pg_upgrade makes a new cluster of this one.
    pub fn upgrade(self, setup: &Setup, tree: &Tree, purpose: &str) -> Result<Cluster> {
        self.shut_down()?;
        // What initdb does by default since 18, and the cluster it takes the place of does not have.
        let checksums: &[&str] = match (self.server.major, tree.major) {
            (..18, 18..) => &["--no-data-checksums"],
            _ => &[],
        };
        let new = Cluster::create(setup, tree, purpose, checksums)?;
        for check in [&["--check"][..], &[]] {
            let checked = new.tool("pg_upgrade", |command| {
                command.args(["--username", SUPERUSER, "--no-sync"]);
                command.arg("--old-bindir").arg(&self.server.bindir);
                command.arg("--old-datadir").arg(self.data());
                command.arg("--new-datadir").arg(new.data());
                // Where it has its socket and writes a script.
                command.args(check).current_dir(new.run.server());
            });
            checked.map_err(|error| anyhow!("{error:#}\n{}", new.upgrade_logs()))?;
        }
        new.launch()?;
        Ok(new)
    }

    /// How the files end that pg_upgrade refers to when it fails; they go with the cluster.
    fn upgrade_logs(&self) -> String {
        let output = Command::new("find")
            .arg(self.data().join("pg_upgrade_output.d"))
            .args(["-type", "f", "-size", "+0"])
            .args(["-exec", "tail", "-v", "-n", "15", "{}", "+"])
            .output();
        output.map_or_else(
            |error| error.to_string(),
            |output| String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    }

    /// Runs one of the server's programs to its end; an error has what it said.
    fn tool(&self, name: &str, arguments: impl FnOnce(&mut Command)) -> Result<()> {
        let mut command = self.run.account.command(self.server.bindir.join(name));
        arguments(&mut command);
        let output = command
            .output()
            .with_context(|| format!("cannot run {name}"))?;
        ensure!(
            output.status.success(),
            "{name} failed:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Leaves the server running and returns the command that stops it.
    pub fn keep(mut self) -> Result<String> {
        fs::write(self.run.path.join(KEPT), "")?;
        self.run.kept = true;
        let data = self.data();
        let account = &self.run.account;
        let become_account = if account.switch {
            format!("runuser -u {} -- ", account.user.name)
        } else {
            String::new()
        };
        Ok(format!(
            "cd / && {become_account}{} stop -D {}",
            self.server.bindir.join("pg_ctl").display(),
            data.display()
        ))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The server goes with its directory; what it logged stays.
        if !self.run.kept {
            let _ = fs::copy(&self.log, &self.kept_log);
        }
    }
}

fn initdb(account: &Account, bindir: &Path, data: &Path, options: &[&str]) -> Result<()> {
    let mut errors = String::new();
    for locale in ["C.UTF-8", "C"] {
        let output = account
            .command(bindir.join("initdb"))
            .args(["--no-sync", "-A", "trust", "-U", SUPERUSER, "-E", "UTF8"])
            .arg(format!("--locale={locale}"))
            .args(options)
            .arg("-D")
            .arg(data)
            .output()
            .context("cannot run initdb")?;
        if output.status.success() {
            return Ok(());
        }
        errors += &String::from_utf8_lossy(&output.stderr);
    }
    bail!("initdb failed:\n{errors}");
}

/// A server without network and without care for crashes: its data does not outlive it.
fn configure(data: &Path, socket_dir: &Path) -> Result<()> {
    let settings = format!(
        "listen_addresses = ''\n\
         unix_socket_directories = '{}'\n\
         port = {PORT}\n\
         fsync = off\n\
         full_page_writes = off\n\
         max_prepared_transactions = 10\n\
         wal_level = logical\n\
         timezone = 'UTC'\n\
         log_timezone = 'UTC'\n\
         log_line_prefix = '%m [%p] %q%u@%d '\n",
        socket_dir.display().to_string().replace('\'', "''")
    );
    let file = data.join("postgresql.auto.conf");
    fs::write(&file, settings).with_context(|| format!("cannot write {}", file.display()))
}

/// Clears up after runs whose owner was killed, and after kept servers that somebody stopped.
pub fn sweep(setup: &Setup) -> Result<()> {
    for (entry, kept) in abandoned(setup)? {
        if !kept || running(&entry).is_empty() {
            clear(&entry, &setup.account);
        }
    }
    Ok(())
}

/// Stops the servers that an earlier `--keep` left running; returns how many.
pub fn stop_kept(setup: &Setup) -> Result<usize> {
    let mut stopped = 0;
    for (entry, kept) in abandoned(setup)? {
        if kept {
            clear(&entry, &setup.account);
            stopped += 1;
        }
    }
    Ok(stopped)
}

/// The run directories without an owner, and whether each was kept on purpose.
fn abandoned(setup: &Setup) -> Result<Vec<(PathBuf, bool)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(setup.workspace.dir("run")?)?.flatten() {
        let entry = entry.path();
        match File::open(entry.join(LOCK)) {
            Ok(lock) => match lock.try_lock() {
                Ok(()) => found.push((entry.clone(), entry.join(KEPT).exists())),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error.into()),
            },
            // Its directory under /tmp is gone; or it is being made at this moment.
            Err(_) if !entry.exists() => drop(fs::remove_file(&entry)),
            Err(_) => {}
        }
    }
    Ok(found)
}

/// Stops whatever runs in a run directory and removes the directory.
fn clear(entry: &Path, account: &Account) {
    for data in running(entry) {
        if let Err(error) = stop(entry, account, &data) {
            eprintln!("warning: {error:#}");
            return;
        }
    }
    let path = entry.canonicalize().unwrap_or_else(|_| entry.to_path_buf());
    let removed = fs::remove_dir_all(&path);
    if path != entry {
        let _ = fs::remove_file(entry);
    }
    if let Err(error) = removed
        && path.exists()
    {
        eprintln!("warning: cannot remove {}: {error}", path.display());
    }
}

/// The data directories in a run directory that a live server works in.
fn running(entry: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(entry.join(SERVER)) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|data| is_served(data))
        .collect()
}

/// Whether the process named by `postmaster.pid` really is this directory's server, and not
/// another that was given the same number since.
fn is_served(data: &Path) -> bool {
    let Ok(pid_file) = fs::read_to_string(data.join("postmaster.pid")) else {
        return false;
    };
    let pid = pid_file.lines().next().unwrap_or_default().trim();
    match (
        fs::read_link(format!("/proc/{pid}/cwd")),
        data.canonicalize(),
    ) {
        (Ok(cwd), Ok(data)) => cwd == data,
        _ => false,
    }
}

fn stop(entry: &Path, account: &Account, data: &Path) -> Result<()> {
    let bindir = PathBuf::from(fs::read_to_string(entry.join(BINDIR))?);
    let output = account
        .command(bindir.join("pg_ctl"))
        .args(["stop", "--wait", "--silent", "-m", "immediate", "-D"])
        .arg(data)
        // A signal to our whole process group must not end the clearing up as well.
        .process_group(0)
        .output()
        .context("cannot run pg_ctl")?;
    ensure!(
        output.status.success() || !is_served(data),
        "cannot stop the server in {}: {}",
        data.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Clears up on Ctrl-C, SIGTERM and SIGHUP.
pub fn clear_on_interrupt() -> Result<()> {
    ctrlc::set_handler(|| {
        if TERMINAL_LENT.load(Ordering::SeqCst) {
            return;
        }
        for (entry, account) in open_runs().iter() {
            clear(entry, account);
        }
        process::exit(130);
    })
    .context("cannot handle interrupts")
}

/// Runs an interactive program, to which interrupts from the terminal belong meanwhile.
pub fn lend_terminal(command: &mut Command) -> Result<()> {
    TERMINAL_LENT.store(true, Ordering::SeqCst);
    let status = command.status();
    TERMINAL_LENT.store(false, Ordering::SeqCst);
    status.with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    Ok(())
}

fn open_runs() -> MutexGuard<'static, Vec<(PathBuf, Account)>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}
