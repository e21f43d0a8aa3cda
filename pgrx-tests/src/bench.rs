//! Measurements against a live server.

use anyhow::{Result, bail};
use opengeni_guards_harness::server::Server;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {}

/// Measures and prints a table.
pub fn run(_server: &Server, _options: &Options) -> Result<()> {
    bail!("there are no measurements yet")
}
