//! Cases as a client sees them: real roles, real sessions, each case in a database of its own.

mod acting;
mod attach;
mod commands;
mod contract;
mod drift;
mod dump;
mod evidence;
mod fleet;
mod grants;
mod hardening;
mod hazards;
mod interrupts;
mod introspection;
mod inventory;
mod live_attach;
mod live_schema;
mod marker;
mod members;
mod operations;
mod provisioning;
mod queues;
mod races;
mod refusals;
mod retention;
mod roles;
mod shadow;
mod support;
mod truth;
mod upgrade;
mod values;
mod waits;

use libtest_mimic::Arguments;
use opengeni_guards_harness::server::Server;

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::from_args();
    // Cases look at transaction ids and locks of the whole cluster: one at a time unless asked otherwise.
    arguments.test_threads.get_or_insert(1);
    let server = Server::from_env()?;
    if !arguments.list {
        support::prepare(&server)?;
    }
    let trials = [
        roles::trials,
        members::trials,
        provisioning::trials,
        grants::trials,
        acting::trials,
        marker::trials,
        truth::trials,
        retention::trials,
        values::trials,
        evidence::trials,
        live_schema::trials,
        refusals::trials,
        introspection::trials,
        dump::trials,
        queues::trials,
        inventory::trials,
        contract::trials,
        hardening::trials,
        hazards::trials,
        interrupts::trials,
        races::trials,
        waits::trials,
        commands::trials,
        attach::trials,
        drift::trials,
        shadow::trials,
        live_attach::trials,
        operations::trials,
        upgrade::trials,
    ];
    let trials = trials.iter().flat_map(|trials| trials(&server)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        support::clear(&server)?;
    }
    conclusion.exit()
}
