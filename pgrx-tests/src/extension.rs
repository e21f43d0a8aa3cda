//! Builds the extension and installs it in a private server tree.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::progress::run_step;
use crate::setup::Setup;
use crate::tree::{Tree, pg_config};
use crate::workspace::EXTENSION;

/// Installs a release build of the extension for `tree`'s major, once in a run: going from one major to another and
/// back would build it anew each time.
pub fn install(setup: &Setup, tree: &Tree) -> Result<()> {
    static INSTALLED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !installed.contains(&tree.major) {
        build(setup, tree)?;
        installed.insert(tree.major);
    }
    Ok(())
}

fn build(setup: &Setup, tree: &Tree) -> Result<()> {
    // Two installations at a time would mix their files.
    let path = setup.workspace.work.join("install.lock");
    let lock = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    lock.lock()?;

    // cargo-pgrx writes into the file that is there: a server that has it mapped would crash. It keeps the old one.
    let library = Path::new(&pg_config(&tree.pg_config_path(), "--pkglibdir")?)
        .join(format!("{EXTENSION}.so"));
    if library.exists() {
        let copy = library.with_extension("copy");
        fs::copy(&library, &copy)
            .and_then(|_| fs::rename(&copy, &library))
            .with_context(|| format!("cannot replace {}", library.display()))?;
    }

    let mut command = setup.cargo_pgrx();
    command
        .args(["install", "--release", "--no-default-features"])
        .args(["--features", &format!("pg{}", tree.major)])
        .arg("--pg-config")
        .arg(tree.pg_config_path());
    run_step(
        format!("Building the extension for PostgreSQL {}", tree.major),
        &mut command,
        &setup
            .workspace
            .dir("logs")?
            .join(format!("install-pg{}.log", tree.major)),
    )
}
