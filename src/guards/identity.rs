//! `validate_sandbox_retained_process_v2` and `validate_sandbox_pty_process_v2`: deferred.
//!
//! By COMMIT a retained process, and an open terminal on it, agree with what they came from. The row is
//! judged as the transaction leaves it; tenant settings, roles and policies of the moment play no part.

use super::lock_each;
use crate::pg::probe::{self, Key, Lock};
use crate::pg::row::Row;
use crate::pg::session;
use crate::pg::trigger::{Event, Operation};
use crate::protocol::command;
use crate::protocol::refusal::{Rule, Verdict, refuse};
use crate::protocol::tables::{
    IdentifiedProcess as P, ParentAdmission as A, ProcessHolder as H, ProcessPty, Pty, PtyProcess,
    Table,
};

/// Columns of a sibling and of the row that have to be equal; a NULL equals nothing.
fn all_equal<T: Table, U: Table>(sibling: &Row<'_, T>, row: &Row<'_, U>, pairs: &[(T, U)]) -> bool {
    pairs.iter().all(|(theirs, mine)| {
        !sibling.is_null(*theirs) && !sibling.distinct_from(*theirs, row, *mine)
    })
}

/// Columns that may both be NULL.
fn none_distinct<T: Table, U: Table>(
    sibling: &Row<'_, T>,
    row: &Row<'_, U>,
    pairs: &[(T, U)],
) -> bool {
    pairs
        .iter()
        .all(|(theirs, mine)| !sibling.distinct_from(*theirs, row, *mine))
}

pub fn retained_process(event: &Event<'_>) -> Verdict {
    // A later version may have no event of its own: under session_replication_role = replica none is queued.
    event.with_final::<P, _>(
        |process, _| match matches_its_surroundings(event, process) {
            true => Ok(()),
            false => refuse(
                Rule::ProcessIdentity,
                &["parent_admission_id", "holder_id", "state"],
            ),
        },
    )
}

fn matches_its_surroundings(event: &Event<'_>, process: &Row<'_, P>) -> bool {
    let Some(parent) = process.uuid(P::ParentAdmissionId) else {
        return false;
    };
    let state = process.text(P::State);
    let active = state == Some(b"active");
    let ended = matches!(state, Some(b"exited" | b"lost"));
    let fits = |admission: &Row<'_, A>| continues(admission, process, active, ended);
    let keys = [(A::Id, Key::Uuid(parent))];
    // A freshly retained supervised command and whoever settles its parent or takes its holder away
    // wait for each other; anywhere else a lock would cross the application's order.
    if active && is_being_retained(event, process) {
        let mut found = false;
        lock_each(event, &keys, Lock::ForShare, fits, |_| found = true);
        return found && has_holder(event, process, Some(Lock::ForShare));
    }
    if !probe::exists(&event.relation(), &keys, fits) {
        return false;
    }
    if active {
        return has_holder(event, process, None);
    }
    !keeps_holder(event, process) && !has_open_pty(event, process)
}

fn is_being_retained(event: &Event<'_>, process: &Row<'_, P>) -> bool {
    command::supervised(process.jsonb(P::Command).map(|d| d.root()))
        && (event.operation() == Operation::Insert
            || process
                .xid8(P::RetentionXid)
                .is_some_and(|id| session::top_transaction_id() == Some(id)))
}

/// Whether the admission is the one that the process continues, in the state that fits its own.
fn continues(admission: &Row<'_, A>, process: &Row<'_, P>, active: bool, ended: bool) -> bool {
    let outcome = admission.text(A::ProviderOutcome);
    let settled = !admission.is_null(A::SettledAt);
    let fits = if active {
        outcome == Some(b"retained") && !settled
    } else {
        ended && matches!(outcome, Some(b"resolved" | b"rejected")) && settled
    };
    fits && all_equal(
        admission,
        process,
        &[
            (A::AccountId, P::AccountId),
            (A::WorkspaceId, P::WorkspaceId),
            (A::SessionId, P::SessionId),
            (A::LeaseId, P::LeaseId),
            (A::SandboxGroupId, P::SandboxGroupId),
            (A::ActorKind, P::OwnerActorKind),
            (A::ActorId, P::OwnerActorId),
            (A::LeaseEpoch, P::LeaseEpoch),
            (A::ProviderBackend, P::ProviderBackend),
            (A::ProviderInstanceId, P::ProviderInstanceId),
            (A::RouteKind, P::RouteKind),
            (A::RouteEpoch, P::RouteEpoch),
        ],
    ) && none_distinct(
        admission,
        process,
        &[
            (A::TurnId, P::OwnerTurnId),
            (A::AttemptId, P::OwnerAttemptId),
            (A::ExecutionGeneration, P::OwnerExecutionGeneration),
            (A::RouteTargetId, P::RouteTargetId),
        ],
    )
}

fn holder_keys<'k>(process: &Row<'k, P>) -> Option<[(H, Key<'k>); 3]> {
    Some([
        (H::LeaseId, Key::Uuid(process.uuid(P::LeaseId)?)),
        (H::Kind, Key::Word("process")),
        (H::HolderId, Key::Text(process.text(P::HolderId)?)),
    ])
}

/// Whether the process has exactly its holder.
fn has_holder(event: &Event<'_>, process: &Row<'_, P>, lock: Option<Lock>) -> bool {
    let Some(keys) = holder_keys(process) else {
        return false;
    };
    let is_its = |holder: &Row<'_, H>| {
        all_equal(
            holder,
            process,
            &[
                (H::AccountId, P::AccountId),
                (H::WorkspaceId, P::WorkspaceId),
                (H::SubjectId, P::SessionId),
            ],
        )
    };
    match lock {
        None => probe::exists(&event.relation(), &keys, is_its),
        Some(lock) => {
            let mut found = false;
            lock_each(event, &keys, lock, is_its, |_| found = true);
            found
        }
    }
}

/// Whether anybody still holds the lease in the process's name.
fn keeps_holder(event: &Event<'_>, process: &Row<'_, P>) -> bool {
    holder_keys(process).is_some_and(|keys| probe::exists(&event.relation(), &keys, |_| true))
}

fn has_open_pty(event: &Event<'_>, process: &Row<'_, P>) -> bool {
    process.uuid(P::Id).is_some_and(|id| {
        probe::exists(
            &event.relation(),
            &[
                (ProcessPty::RetainedProcessId, Key::Uuid(id)),
                (ProcessPty::Status, Key::Word("open")),
            ],
            |_| true,
        )
    })
}

pub fn pty(event: &Event<'_>) -> Verdict {
    event.with_final::<Pty, _>(|pty, _| {
        if pty.text(Pty::Status) != Some(b"open") {
            return Ok(());
        }
        let open_on_its_process = pty.uuid(Pty::RetainedProcessId).is_some_and(|id| {
            probe::exists(
                &event.relation(),
                &[(PtyProcess::Id, Key::Uuid(id))],
                |process| is_open_on(process, pty),
            )
        });
        match open_on_its_process {
            true => Ok(()),
            false => refuse(Rule::PtyIdentity, &["retained_process_id"]),
        }
    })
}

fn is_open_on(process: &Row<'_, PtyProcess>, pty: &Row<'_, Pty>) -> bool {
    process.text(PtyProcess::State) == Some(b"active")
        && all_equal(
            process,
            pty,
            &[
                (PtyProcess::AccountId, Pty::AccountId),
                (PtyProcess::WorkspaceId, Pty::WorkspaceId),
                (PtyProcess::SessionId, Pty::SessionId),
                (PtyProcess::LeaseId, Pty::LeaseId),
                (PtyProcess::SandboxGroupId, Pty::SandboxGroupId),
                (PtyProcess::ParentAdmissionId, Pty::OpenAdmissionId),
                (PtyProcess::LeaseEpoch, Pty::LeaseEpoch),
                (PtyProcess::ProviderBackend, Pty::ProviderBackend),
                (PtyProcess::ProviderInstanceId, Pty::ProviderInstanceId),
                (PtyProcess::RouteKind, Pty::RouteKind),
                (PtyProcess::RouteEpoch, Pty::RouteEpoch),
                (PtyProcess::ProviderSessionId, Pty::ExecSessionId),
            ],
        )
        && none_distinct(
            process,
            pty,
            &[(PtyProcess::RouteTargetId, Pty::RouteTargetId)],
        )
}
