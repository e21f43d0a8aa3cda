//! Cases as a client sees them: real roles, real sessions, each in a database of its own.

mod support;

use libtest_mimic::Arguments;
use opengeni_guards_harness::server::Server;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::from_args();
    let server = Server::from_env()?;
    let trials = [];
    if !arguments.list {
        support::prepare(&server)?;
    }
    libtest_mimic::run(&arguments, trials.into_iter().collect()).exit();
}
