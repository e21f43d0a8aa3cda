//! `supervised_command_blocker_guard`: what keeps a supervised command's surroundings in place.
//!
//! BEFORE INSERT, UPDATE, DELETE of `sandbox_workspace_mutation_admissions`: a command's child admissions
//! and the parent that it continues. BEFORE UPDATE, DELETE of `sandbox_lease_holders`, and BEFORE INSERT or
//! UPDATE into a process holder: the holder that keeps its lease.

use super::lock_each;
use crate::pg::probe::{self, Key, Lock};
use crate::pg::row;
use crate::pg::trigger::{Event, Operation};
use crate::protocol::command;
use crate::protocol::refusal::{Refusal, Rule, Verdict, refuse};
use crate::protocol::tables::{Admission as A, BlockingProcess as P, Holder as H, Table};

type Process<'a> = row::Row<'a, P>;

pub fn check(event: &Event<'_>) -> Verdict {
    if event.relation().has_name(H::NAME) {
        holder(event)
    } else {
        admission(event)
    }
}

fn supervised(process: &Process<'_>) -> bool {
    command::supervised(process.jsonb(P::Command).map(|d| d.root()))
}

/// What the rules want to know of a command once it is found.
#[derive(Clone, Copy)]
struct Found {
    active: bool,
    lost: bool,
}

impl Found {
    fn of(process: &Process<'_>) -> Self {
        let state = process.text(P::State);
        Found {
            active: state == Some(b"active"),
            lost: state == Some(b"lost"),
        }
    }
}

/// What keeps a row from being deleted.
const STATE: &[&str] = &["sandbox_retained_processes.state"];

/// The supervised command that has these keys, as the latest committed truth has it. Not locked: an
/// admission's or holder's row is locked already, and the application locks processes first.
fn supervised_process(event: &Event<'_>, keys: &[(P, Key<'_>)]) -> Option<Found> {
    let mut found = None;
    probe::exists(&event.relation(), keys, |process| {
        let supervised = supervised(process);
        if supervised {
            found = Some(Found::of(process));
        }
        supervised
    });
    found
}

// Admissions -----------------------------------------------------------------------------------------

fn admission(event: &Event<'_>) -> Verdict {
    match event.operation() {
        Operation::Insert => child_insert(event, &event.after()),
        Operation::Update => {
            let (old, new) = (event.before::<A>(), event.after::<A>());
            if is_child(&old) {
                child_update(event, &old, &new)?;
            }
            if is_child(&new) && new.distinct_among(&old, CHILD_KEY) != 0 {
                child_is_inserted_as_such(event, &new)?;
            }
            parent_update(event, &old, &new)
        }
        Operation::Delete => {
            let old = event.before::<A>();
            if is_child(&old)
                && let Some(process) = process_of_child(event, &old)
            {
                if process.active || old.is_null(A::SettledAt) {
                    return refuse(Rule::ChildImmutable, &["settled_at"]);
                }
                return Ok(());
            }
            match parent_process(event, &old) {
                Some(process) if process.active => refuse(Rule::ParentRetained, STATE),
                _ => Ok(()),
            }
        }
        Operation::Truncate => Ok(()),
    }
}

const CHILD_KEY: &[A] = &[A::ActorId, A::ActorKind, A::AccountId, A::WorkspaceId];

fn is_child(admission: &row::Row<'_, A>) -> bool {
    admission.text(A::ActorKind) == Some(b"process")
}

/// The keys of the command whose child an admission is; none equals a NULL.
fn child_keys<'k>(admission: &row::Row<'k, A>) -> Option<[(P, Key<'k>); 3]> {
    Some([
        (P::Id, Key::Uuid(admission.uuid(A::ActorId)?)),
        (P::AccountId, Key::Uuid(admission.uuid(A::AccountId)?)),
        (P::WorkspaceId, Key::Uuid(admission.uuid(A::WorkspaceId)?)),
    ])
}

fn process_of_child(event: &Event<'_>, admission: &row::Row<'_, A>) -> Option<Found> {
    supervised_process(event, &child_keys(admission)?)
}

fn parent_process(event: &Event<'_>, admission: &row::Row<'_, A>) -> Option<Found> {
    let id = admission.uuid(A::Id)?;
    supervised_process(event, &[(P::ParentAdmissionId, Key::Uuid(id))])
}

/// An UPDATE of a supervised command's child: settled once, changed never.
fn child_update(event: &Event<'_>, old: &row::Row<'_, A>, new: &row::Row<'_, A>) -> Verdict {
    let Some(process) = process_of_child(event, old) else {
        return Ok(());
    };
    let settled = !old.is_null(A::SettledAt);
    if process.lost && !settled && new.text(A::ProviderOutcome) != Some(b"rejected") {
        return refuse(Rule::ChildLostOutcome, &["provider_outcome"]);
    }
    if settled {
        const SETTLEMENT: &[A] = &[A::ProviderOutcome, A::SettledAt];
        let bits = new.distinct_among(old, SETTLEMENT);
        if bits != 0 {
            return Err(Refusal::new(
                Rule::ChildImmutable,
                &["provider_outcome", "settled_at"],
                bits,
            ));
        }
    }
    if let Some(column) = event.changed_column_as_json(&["provider_outcome", "settled_at"]) {
        return Err(Refusal::of_attribute(Rule::ChildImmutable, column));
    }
    Ok(())
}

/// An UPDATE that makes a row a supervised command's child.
fn child_is_inserted_as_such(event: &Event<'_>, new: &row::Row<'_, A>) -> Verdict {
    let mut found = false;
    if let Some(keys) = child_keys(new) {
        lock_each(event, &keys, Lock::ForUpdate, supervised, |_| {
            found = true;
        });
    }
    if found {
        return refuse(Rule::ChildInitialInsert, &["actor_kind", "actor_id"]);
    }
    Ok(())
}

const IDENTITY: &[(A, Option<P>)] = &[
    (A::SessionId, Some(P::SessionId)),
    (A::LeaseId, Some(P::LeaseId)),
    (A::LeaseEpoch, Some(P::LeaseEpoch)),
    (A::ProviderBackend, Some(P::ProviderBackend)),
    (A::ProviderInstanceId, Some(P::ProviderInstanceId)),
    (A::HolderKind, None),
    (A::HolderId, Some(P::HolderId)),
    (A::RouteKind, Some(P::RouteKind)),
    (A::RouteTargetId, Some(P::RouteTargetId)),
    (A::RouteEpoch, Some(P::RouteEpoch)),
];
const IDENTITY_NAMES: &[&str] = &[
    "session_id",
    "lease_id",
    "lease_epoch",
    "provider_backend",
    "provider_instance_id",
    "holder_kind",
    "holder_id",
    "route_kind",
    "route_target_id",
    "route_epoch",
    "actor_id",
];

/// An INSERT of a process's child waits for whoever changes the process, then copies it exactly.
fn child_insert(event: &Event<'_>, new: &row::Row<'_, A>) -> Verdict {
    if !is_child(new) {
        return Ok(());
    }
    let mut verdict = Ok(());
    if let Some(keys) = child_keys(new) {
        lock_each(
            event,
            &keys,
            Lock::ForUpdate,
            |_| true,
            |process| {
                verdict = child_fits(new, process);
            },
        );
    }
    verdict
}

fn child_fits(new: &row::Row<'_, A>, process: &Process<'_>) -> Verdict {
    if !process.is_null(P::CancellationRequestedAt) || !process.is_null(P::Receipt) {
        return refuse(Rule::ChildClosed, &["actor_id"]);
    }
    if !supervised(process) {
        return Ok(());
    }
    let mut bits = IDENTITY
        .iter()
        .enumerate()
        .filter(|(_, (mine, theirs))| match theirs {
            Some(theirs) => new.distinct_from(*mine, process, *theirs),
            None => new.text(*mine) != Some(b"process"),
        })
        .fold(0, |bits, (bit, _)| bits | 1 << bit);
    if process
        .text(P::State)
        .is_some_and(|state| state != b"active")
    {
        bits |= 1 << IDENTITY.len();
    }
    match bits {
        0 => Ok(()),
        bits => Err(Refusal::new(Rule::ChildIdentity, IDENTITY_NAMES, bits)),
    }
}

/// An UPDATE of a supervised command's parent.
fn parent_update(event: &Event<'_>, old: &row::Row<'_, A>, new: &row::Row<'_, A>) -> Verdict {
    if !event.is_rewritten() {
        return Ok(());
    }
    let Some(process) = parent_process(event, old) else {
        return Ok(());
    };
    let Some(column) = event.changed_column() else {
        return Ok(());
    };
    if process.active {
        return Err(Refusal::of_attribute(Rule::ParentRetained, column));
    }
    if process.lost && new.text(A::ProviderOutcome) != Some(b"rejected") {
        return refuse(Rule::ParentLostOutcome, &["provider_outcome"]);
    }
    if !old.is_null(A::SettledAt) {
        return Err(Refusal::of_attribute(Rule::ParentImmutable, column));
    }
    Ok(())
}

// Holders ----------------------------------------------------------------------------------------------

fn holder(event: &Event<'_>) -> Verdict {
    // Two triggers call this: one before UPDATE and DELETE for the holder that was, one before INSERT
    // and UPDATE for the holder that is to be.
    if event.trigger_fires_on(Operation::Insert) {
        let new = event.after::<H>();
        let becomes = event.operation() == Operation::Insert
            || new.distinct_among(&event.before(), &[H::LeaseId, H::Kind, H::HolderId]) != 0;
        return if becomes {
            holder_is_not_released(event, &new)
        } else {
            Ok(())
        };
    }
    let old = event.before::<H>();
    let Some(keys) = process_holder_keys(&old) else {
        return Ok(());
    };
    let update = event.operation() == Operation::Update;
    if update && !event.is_rewritten() {
        return Ok(());
    }
    match supervised_process(event, &keys) {
        Some(process) if process.active && update => match event.changed_column() {
            Some(column) => Err(Refusal::of_attribute(Rule::HolderRetained, column)),
            None => Ok(()),
        },
        Some(process) if process.active => refuse(Rule::HolderRetained, STATE),
        _ => Ok(()),
    }
}

/// The keys of the command that a process holder belongs to.
fn process_holder_keys<'k>(holder: &row::Row<'k, H>) -> Option<[(P, Key<'k>); 2]> {
    if holder.text(H::Kind) != Some(b"process") {
        return None;
    }
    Some([
        (P::LeaseId, Key::Uuid(holder.uuid(H::LeaseId)?)),
        (P::HolderId, Key::Text(holder.text(H::HolderId)?)),
    ])
}

/// A holder for a command that has ended; a settlement in flight is waited for.
fn holder_is_not_released(event: &Event<'_>, new: &row::Row<'_, H>) -> Verdict {
    let Some(keys) = process_holder_keys(new) else {
        return Ok(());
    };
    let mut ended = false;
    lock_each(event, &keys, Lock::ForShare, supervised, |process| {
        ended |= !Found::of(process).active;
    });
    if ended {
        return refuse(Rule::HolderReleased, &["holder_id"]);
    }
    Ok(())
}
