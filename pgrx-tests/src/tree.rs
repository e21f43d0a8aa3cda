//! Private server trees: copies of a PostgreSQL installation that we may install into.
//!
//! Every PostgreSQL program finds its libraries and extensions relative to its own path, so a copy
//! that keeps the layout is an installation of its own and the system's stays as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

/// A complete PostgreSQL installation of ours.
#[derive(Clone, Debug)]
pub struct Tree {
    pub major: u32,
    pub bindir: PathBuf,
}

/// The two installations per major. `cargo pgrx test` installs a test build of the extension; it
/// has a tree to itself, so that it never gets between a release build and its users.
#[derive(Clone, Debug)]
pub struct Trees {
    pub release: Tree,
    pub test: Tree,
}

impl Trees {
    /// The trees of `major`, if they were made before.
    pub fn existing(workspace: &Workspace, major: u32) -> Option<Trees> {
        let origin = fs::read_to_string(origin_file(workspace, major)).ok()?;
        let bin = origin.lines().next()?;
        let home = home(workspace, major);
        Some(Trees {
            release: Tree {
                major,
                bindir: home.join("release").join(bin),
            },
            test: Tree {
                major,
                bindir: home.join("test").join(bin),
            },
        })
    }

    /// Whether the trees of `major` came out of a wheel.
    pub fn fetched(workspace: &Workspace, major: u32) -> bool {
        fs::read_to_string(origin_file(workspace, major)).is_ok_and(|origin| {
            origin
                .lines()
                .nth(1)
                .is_some_and(|from| from.starts_with("wheel"))
        })
    }

    /// Copies of Debian's installation of `major`, renewed when Debian's changed.
    pub fn of_system(workspace: &Workspace, major: u32) -> Result<Trees> {
        let system = PathBuf::from(format!("/usr/lib/postgresql/{major}"));
        let version = pg_config(&system.join("bin/pg_config"), "--version")?;
        let bin = format!("lib/postgresql/{major}/bin");
        let origin = format!("{bin}\nsystem {version}\n");
        if fs::read_to_string(origin_file(workspace, major)).is_ok_and(|was| was == origin)
            && let Some(trees) = Trees::existing(workspace, major)
        {
            return Ok(trees);
        }
        make(workspace, major, &origin, |root| {
            for part in ["lib", "share"] {
                let from = PathBuf::from(format!("/usr/{part}/postgresql/{major}"));
                let to = root.join(part).join("postgresql");
                fs::create_dir_all(&to)?;
                copy(&from, &to.join(major.to_string()))?;
            }
            fs::create_dir_all(root.join("include"))?;
            std::os::unix::fs::symlink("/usr/include/postgresql", root.join("include/postgresql"))?;
            Ok(())
        })
    }

    /// The installation in a directory unpacked from a wheel, which is used up.
    pub fn of_wheel(
        workspace: &Workspace,
        major: u32,
        wheel: &str,
        unpacked: &Path,
        bin: &Path,
    ) -> Result<Trees> {
        let origin = format!("{}\nwheel {wheel}\n", bin.display());
        make(workspace, major, &origin, |root| copy(unpacked, root))
    }
}

impl Tree {
    pub fn pg_config_path(&self) -> PathBuf {
        self.bindir.join("pg_config")
    }

    /// One of the test drivers that PostgreSQL installs for extensions.
    pub fn driver(&self, relative: &str) -> Result<PathBuf> {
        let makefile = PathBuf::from(pg_config(&self.pg_config_path(), "--pgxs")?);
        let driver = makefile
            .parent()
            .and_then(Path::parent)
            .with_context(|| format!("unexpected place for pgxs: {}", makefile.display()))?
            .join("test")
            .join(relative);
        ensure!(
            driver.is_file(),
            "this PostgreSQL {} comes without {}",
            self.major,
            driver.display()
        );
        Ok(driver)
    }

    /// Fails unless everything this tree says about itself lies inside `root`.
    fn check(&self, root: &Path) -> Result<()> {
        let program = self.pg_config_path();
        for what in ["--pkglibdir", "--sharedir", "--includedir-server", "--pgxs"] {
            let place = PathBuf::from(pg_config(&program, what)?);
            ensure!(
                place.starts_with(root) && place.exists(),
                "the copied PostgreSQL {} does not stand on its own: pg_config {what} is {}",
                self.major,
                place.display()
            );
        }
        Ok(())
    }
}

/// Asks a `pg_config` program one question.
pub fn pg_config(program: &Path, what: &str) -> Result<String> {
    let output = Command::new(program)
        .arg(what)
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} {what} failed: {}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}

fn home(workspace: &Workspace, major: u32) -> PathBuf {
    workspace.work.join(format!("trees/pg{major}"))
}

/// Says what the trees of a major were copied from: the line with their `bin` directory, then the origin.
fn origin_file(workspace: &Workspace, major: u32) -> PathBuf {
    home(workspace, major).join("origin")
}

fn make(
    workspace: &Workspace,
    major: u32,
    origin: &str,
    fill: impl Fn(&Path) -> Result<()>,
) -> Result<Trees> {
    let home = home(workspace, major);
    if home.exists() {
        fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
    }
    for name in ["release", "test"] {
        let root = home.join(name);
        fs::create_dir_all(&root)?;
        fill(&root).with_context(|| format!("cannot make a copy of PostgreSQL {major}"))?;
    }
    // The last step: a half-made pair of trees has no origin and is made again.
    fs::write(origin_file(workspace, major), origin)?;
    let trees = Trees::existing(workspace, major)
        .with_context(|| format!("the trees of PostgreSQL {major} are gone"))?;
    let checked = [("release", &trees.release), ("test", &trees.test)]
        .iter()
        .try_for_each(|(name, tree)| tree.check(&home.join(name)));
    if checked.is_err() {
        let _ = fs::remove_file(origin_file(workspace, major));
    }
    checked.map(|()| trees)
}

/// Copies a directory as it is; relative links that lead out of it become what they pointed to.
fn copy(from: &Path, to: &Path) -> Result<()> {
    cp("-a", &from.join("."), to)?;
    mend_links(from, to)
}

fn mend_links(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let source = from.join(entry.file_name());
        if kind.is_dir() {
            mend_links(&source, &entry.path())?;
        } else if kind.is_symlink() && !entry.path().exists() && source.exists() {
            fs::remove_file(entry.path())?;
            cp("-aL", &source, &entry.path())?;
        }
    }
    Ok(())
}

fn cp(how: &str, from: &Path, to: &Path) -> Result<()> {
    let output = Command::new("cp")
        .arg(how)
        .arg(from)
        .arg(to)
        .output()
        .context("cannot run cp")?;
    ensure!(
        output.status.success(),
        "cannot copy {}: {}",
        from.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_a_copied_directory_are_followed() -> Result<()> {
        let place = tempfile::tempdir()?;
        let from = place.path().join("a/from");
        fs::create_dir_all(&from)?;
        fs::write(place.path().join("a/outside"), "outside")?;
        fs::write(from.join("inside"), "inside")?;
        std::os::unix::fs::symlink("../outside", from.join("out"))?;
        std::os::unix::fs::symlink("inside", from.join("in"))?;

        let to = place.path().join("to");
        copy(&from, &to)?;
        assert_eq!(fs::read_to_string(to.join("out"))?, "outside");
        assert!(fs::symlink_metadata(to.join("in"))?.is_symlink());
        assert_eq!(fs::read_to_string(to.join("in"))?, "inside");
        Ok(())
    }
}
