//! `supervised_command_capture_guard`: BEFORE UPDATE OF five columns of `sandbox_leases`.
//!
//! While a supervised command is active on a lease, nobody starts or publishes a capture of it. Clearing is
//! always allowed.

use crate::pg::jsonb::Value;
use crate::pg::probe::{self, Key};
use crate::pg::row::Row;
use crate::pg::trigger::{Event, Operation};
use crate::protocol::command;
use crate::protocol::json::{Json, same};
use crate::protocol::refusal::{Refusal, Rule, Verdict};
use crate::protocol::tables::{CaptureLease as L, RunningProcess as P};

const SET: &[L] = &[
    L::DrainIds,
    L::CaptureId,
    L::PublishedAt,
    L::ArchiveGeneration,
];
const ARCHIVE: &[&str] = &[
    "workspaceArchive",
    "workspaceArchiveMeta",
    "workspaceArchiveRef",
];
/// The names of [`SET`], then of [`ARCHIVE`].
const NAMES: &[&str] = &[
    "unobservable_command_drain_ids",
    "archive_capture_id",
    "archive_capture_published_at",
    "archive_generation",
    "resume_state.sessionState.workspaceArchive",
    "resume_state.sessionState.workspaceArchiveMeta",
    "resume_state.sessionState.workspaceArchiveRef",
];

fn session_state<'a>(lease: &Row<'a, L>) -> Option<Value<'a>> {
    lease.jsonb(L::ResumeState)?.root().get("sessionState")
}

pub fn check(event: &Event<'_>) -> Verdict {
    if event.operation() != Operation::Update {
        return Ok(());
    }
    let (old, new) = (event.before::<L>(), event.after::<L>());
    let mut bits = SET
        .iter()
        .enumerate()
        .filter(|(_, column)| !new.is_null(**column) && new.distinct(&old, **column))
        .fold(0, |bits, (bit, _)| bits | 1 << bit);
    if new.distinct(&old, L::ResumeState) {
        let (was, is) = (session_state(&old), session_state(&new));
        for (bit, key) in ARCHIVE.iter().enumerate() {
            let get = |state: Option<Value<'_>>| state.and_then(|s| s.get(key)).is_some();
            let unchanged = match (was, is) {
                (Some(was), Some(is)) => same(was.get(key), is.get(key)),
                (was, is) => !get(was) && !get(is),
            };
            if !unchanged {
                bits |= 1 << (SET.len() + bit);
            }
        }
    }
    if bits == 0 {
        return Ok(());
    }
    let Some(id) = new.uuid(L::Id) else {
        return Ok(());
    };
    let running = probe::exists(
        &event.relation(),
        &[(P::LeaseId, Key::Uuid(id))],
        |process| {
            process.text(P::State) == Some(b"active")
                && command::supervised(process.jsonb(P::Command).map(|d| d.root()))
        },
    );
    if running {
        return Err(Refusal::new(Rule::CaptureBlocked, NAMES, bits));
    }
    Ok(())
}
