//! Where things are: the workspace, the directory for everything `cargo xtask` makes, and cargo itself.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;

/// The root crate, i.e. the extension.
pub const EXTENSION: &str = "opengeni_guards";
/// The package this program belongs to.
pub const HARNESS: &str = "opengeni_guards_harness";

/// The directories of this checkout.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// The checkout itself.
    pub root: PathBuf,
    /// Where cargo builds for us.
    pub target: PathBuf,
    /// Server trees, tools, logs and run-time directories.
    pub work: PathBuf,
}

impl Workspace {
    /// Finds the workspace and makes its work directory.
    pub fn open() -> Result<Workspace> {
        // What we make must be readable by the account that servers run as, however strict the
        // caller's own umask is.
        umask(Mode::from_bits_truncate(0o022));

        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("the harness has no parent directory")?
            .canonicalize()
            .context(
                "this checkout was moved after `xtask` was built: run it with `cargo xtask`",
            )?;
        let own_target = target_directory(&root)?;

        // Servers never run as root, and another account cannot reach, say, a clone under /root.
        let hidden = geteuid().is_root() && !reachable_by_others(&own_target);
        let (work, target) = if hidden {
            let mut hasher = DefaultHasher::new();
            root.hash(&mut hasher);
            let work = PathBuf::from(format!("/var/tmp/{EXTENSION}-{:016x}", hasher.finish()));
            (work.clone(), work.join("target"))
        } else {
            (own_target.join("opengeni"), own_target)
        };
        fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
        ensure_ours(&work)?;
        Ok(Workspace { root, target, work })
    }

    /// A directory inside the work directory, made if need be.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.work.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// pgrx's home: which `pg_config` belongs to which major.
    pub fn pgrx_home(&self) -> PathBuf {
        self.work.join("pgrx")
    }

    /// cargo, with the environment every nested call shares, so that all of them reuse one build.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        self.prepare(&mut command);
        command
    }

    /// Sets the directory and environment of [`Workspace::cargo`] on another program.
    pub fn prepare(&self, command: &mut Command) {
        command.current_dir(&self.root);
        for (key, _) in env::vars_os() {
            // What `cargo run` says about this program is not true of the next one.
            let name = key.to_string_lossy();
            if name.starts_with("CARGO_PKG_")
                || name.starts_with("CARGO_MANIFEST_")
                || name.starts_with("PGRX_")
                || name.starts_with("PG")
            {
                command.env_remove(&key);
            }
        }
        command
            .env("CARGO_TARGET_DIR", &self.target)
            .env("PGRX_HOME", self.pgrx_home())
            // A server that inherits it puts Rust backtraces into the DETAIL of its errors.
            .env_remove("RUST_BACKTRACE");
    }
}

fn target_directory(root: &Path) -> Result<PathBuf> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(root)
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    match metadata["target_directory"].as_str() {
        Some(path) => Ok(PathBuf::from(path)),
        None => bail!("cargo metadata names no target directory"),
    }
}

/// Whether every existing directory on the way to `path` lets other accounts pass.
fn reachable_by_others(path: &Path) -> bool {
    path.ancestors()
        .all(|directory| match fs::metadata(directory) {
            Ok(metadata) => metadata.permissions().mode() & 0o001 != 0,
            // Not there yet: it will be made with our umask.
            Err(_) => true,
        })
}

/// Refuses a directory that somebody else put in our place (/var/tmp belongs to everyone).
fn ensure_ours(path: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    ensure!(
        metadata.is_dir() && metadata.uid() == geteuid().as_raw(),
        "{} belongs to another user: remove it, or set CARGO_TARGET_DIR to a directory of your own",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_parent_hides_everything_below() -> Result<()> {
        let parent = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()?;
        let below = parent.path().join("not/there/yet");
        assert!(reachable_by_others(&below));
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o700))?;
        assert!(!reachable_by_others(&below));
        Ok(())
    }
}
