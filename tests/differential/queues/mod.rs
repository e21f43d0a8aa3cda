//! The fleet's queue functions: the same fleet, the same calls, once with each implementation.

mod blind;
mod cases;
mod compare;
mod documents;
mod locks;
mod random;
mod side;

use anyhow::{Result, bail, ensure};

pub use side::Fleets;
use side::{Answer, Play, Seen};

type Check = Box<dyn Fn(&mut Fleets) -> Result<()>>;

pub struct Test {
    pub name: String,
    pub run: Check,
}

pub fn all() -> Vec<Test> {
    [
        cases::all(),
        blind::all(),
        locks::all(),
        documents::all(),
        random::all(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn test(name: &str, run: impl Fn(&mut Fleets) -> Result<()> + 'static) -> Test {
    Test {
        name: format!("queues: {name}"),
        run: Box::new(run),
    }
}

/// What one call comes to.
#[derive(Clone, Copy, Debug)]
enum Want {
    /// So many rows.
    Rows(usize),
    /// One row, this.
    Row(&'static str),
    /// This SQLSTATE, and a message that contains this.
    Refused(&'static str, &'static str),
    /// The same, from what is checked at COMMIT.
    RefusedAtCommit(&'static str, &'static str),
}

impl Want {
    fn check(self, answer: &Answer) -> Result<()> {
        let fits = match (self, answer) {
            (Want::Rows(n), Answer::Rows(rows)) => rows.len() == n,
            (Want::Row(text), Answer::Rows(rows)) => *rows == [text],
            (Want::Refused(state, text), Answer::Refused(refusal)) => {
                refusal.state == state && refusal.message.contains(text)
            }
            _ => false,
        };
        ensure!(fits, "expected {self:?}, got {answer:?}");
        Ok(())
    }

    /// The last call, and what is checked at COMMIT.
    fn check_to_the_end(self, seen: &Seen) -> Result<()> {
        match (self, &seen.deferred) {
            (Want::RefusedAtCommit(state, text), Some(refusal)) => {
                ensure!(
                    matches!(last(seen)?, Answer::Rows(_))
                        && refusal.state == state
                        && refusal.message.contains(text),
                    "expected {self:?}, got {refusal:?}"
                );
                Ok(())
            }
            (Want::RefusedAtCommit(..), None) => bail!("expected {self:?}, nothing was refused"),
            (_, Some(refusal)) => bail!("expected {self:?}, at COMMIT got {refusal:?}"),
            (_, None) => self.check(last(seen)?),
        }
    }
}

/// Where both sides have to see the same.
fn agree(name: &str, plant: &str, prelude: &str, calls: &[String]) -> Test {
    let (plant, prelude, calls) = (plant.to_string(), prelude.to_string(), calls.to_vec());
    test(name, move |fleets| {
        let play = Play {
            plant: &plant,
            prelude: &prelude,
            calls: &calls,
            ..Play::default()
        };
        let (native, original) = fleets.both(|side| side.play(play));
        let native = native?;
        compare::same(&calls, &native, &original?)?;
        let shows = |answer: &Answer| match answer {
            Answer::Rows(_) => answer.is_something(),
            Answer::Refused(_) => true,
        };
        ensure!(
            plant.is_empty() || native.answers.iter().any(shows) || !compare::unchanged(&native),
            "nothing came of it on either side"
        );
        Ok(())
    })
}

/// Where a deviation shows: what the last call comes to on the native side, and on the original.
struct Deviation {
    id: &'static str,
    name: &'static str,
    plant: &'static str,
    prelude: &'static str,
    calls: Vec<String>,
    native: Want,
    original: Want,
    /// Statements before and after without which the original would do as the native does.
    remedy: Option<(&'static str, &'static str)>,
    /// The native side's warnings.
    warnings: &'static [&'static str],
}

impl Deviation {
    fn test(self) -> Test {
        test(&format!("{}: {}", self.id, self.name), move |fleets| {
            let play = Play {
                plant: self.plant,
                prelude: self.prelude,
                calls: &self.calls,
                ..Play::default()
            };
            let (native, original) = fleets.both(|side| side.play(play));
            let (native, original) = (native?, original?);
            self.native.check_to_the_end(&native)?;
            if let Err(error) = self.original.check_to_the_end(&original) {
                bail!("original: {error}");
            }
            ensure!(
                native.warnings == self.warnings,
                "warnings: {:?}",
                native.warnings
            );
            match self.original {
                Want::Refused(..) if self.calls.len() == 1 => {
                    ensure!(compare::unchanged(&original), "a refused call wrote");
                }
                _ => {}
            }
            if let Some(remedy) = self.remedy {
                let remedied = fleets.original.play(Play {
                    remedy: Some(remedy),
                    ..play
                })?;
                compare::same(&self.calls, &native, &remedied)?;
            } else if matches!(self.native, Want::Refused(..)) {
                ensure!(compare::unchanged(&native), "a refused call wrote");
            }
            Ok(())
        })
    }
}

fn last(seen: &Seen) -> Result<&Answer> {
    match seen.answers.last() {
        Some(answer) => Ok(answer),
        None => bail!("no call"),
    }
}

// Calls ------------------------------------------------------------------------------------------------

const CLAIM: &str = "'00000000-0000-4000-8000-00000000c1a1'";

fn call(function: &str, arguments: &[&str]) -> String {
    format!(
        "SELECT * FROM opengeni_private.{function}({})",
        arguments.join(", ")
    )
}

fn reap(viewer: &str, turn: &str, grace: &str) -> String {
    call("reap_sandbox_leases", &[viewer, turn, grace])
}

fn claim_processes(claim: &str, limit: &str, ttl: &str) -> String {
    call("claim_terminal_retained_processes", &[claim, limit, ttl])
}

fn claim_artifacts(claim: &str, limit: &str, ttl: &str) -> String {
    call("claim_sandbox_checkpoint_artifacts", &[claim, limit, ttl])
}

fn settle(id: &str, claim: &str, deleted: &str, error: &str, retry: &str) -> String {
    call(
        "settle_sandbox_checkpoint_artifact",
        &[id, claim, deleted, error, retry],
    )
}

fn prune(retention: &str, limit: &str) -> String {
    call(
        "prune_deleted_sandbox_checkpoint_artifacts",
        &[retention, limit],
    )
}

fn slots(limit: &str) -> String {
    call("list_legacy_modal_checkpoint_slots", &[limit])
}

fn rotate(lead: &str, limit: &str) -> String {
    call("request_due_sandbox_rotations", &[lead, limit])
}

/// The functions that take nothing and write nothing.
fn counts() -> Vec<String> {
    [
        "count_active_retained_processes_by_owner_state",
        "count_expired_draining_sandbox_leases",
        "sandbox_checkpoint_artifact_inventory",
        "sandbox_rotation_backlog",
        "list_live_modal_sandbox_leases",
    ]
    .map(|name| call(name, &[]))
    .to_vec()
}
