//! The instruction-policy guards: revisions, heads and events name each other exactly, and history stays.

use crate::pg::probe::{self, Key};
use crate::pg::row::Row;
use crate::pg::session;
use crate::pg::trigger::{Event, Operation};
use crate::protocol::refusal::{Rule, Verdict, refuse};
use crate::protocol::tables::{
    HistoryAccount, HistoryWorkspace, LinkedRevision as R, NamedRevision as N, PolicyEvent as E,
    PolicyHead as H, PolicyHistory, Table,
};

/// `workspace_instruction_policy_validate_revision_link`: BEFORE INSERT, UPDATE of the revisions.
pub fn revision_link(event: &Event<'_>) -> Verdict {
    let new = event.after::<R>();
    let Some(superseded) = new.uuid(R::SupersedesId) else {
        return Ok(());
    };
    let fits = probe::exists(
        &event.relation(),
        &[(R::Id, Key::Uuid(superseded))],
        |target| {
            [R::WorkspaceId, R::Kind, R::Scope, R::RoleKey]
                .iter()
                .all(|column| !target.distinct(&new, *column))
        },
    );
    match fits {
        true => Ok(()),
        false => refuse(Rule::PolicyLink, &["supersedes_revision_id"]),
    }
}

/// Whether the revision that `row` names by `id` is the one that it describes.
fn names<T: Table>(
    event: &Event<'_>,
    row: &Row<'_, T>,
    id: T,
    equal: &[(N, T)],
    role_key: T,
) -> bool {
    row.uuid(id).is_some_and(|id| {
        probe::exists(&event.relation(), &[(N::Id, Key::Uuid(id))], |revision| {
            equal.iter().all(|(theirs, mine)| {
                !revision.is_null(*theirs) && !revision.distinct_from(*theirs, row, *mine)
            }) && !revision.distinct_from(N::RoleKey, row, role_key)
        })
    })
}

/// `workspace_instruction_policy_validate_head`: BEFORE INSERT, UPDATE of the heads.
pub fn head(event: &Event<'_>) -> Verdict {
    let exact = [
        (N::AccountId, H::AccountId),
        (N::WorkspaceId, H::WorkspaceId),
        (N::Kind, H::Kind),
        (N::Scope, H::Scope),
        (N::Revision, H::Revision),
        (N::ContentHash, H::ContentHash),
    ];
    match names(event, &event.after(), H::RevisionId, &exact, H::RoleKey) {
        true => Ok(()),
        false => refuse(Rule::PolicyHead, &["revision_id"]),
    }
}

/// `workspace_instruction_policy_validate_event`: BEFORE INSERT, UPDATE of the activation events.
pub fn activation(event: &Event<'_>) -> Verdict {
    let row = event.after::<E>();
    let exact = |revision, hash| {
        [
            (N::AccountId, E::AccountId),
            (N::WorkspaceId, E::WorkspaceId),
            (N::Kind, E::Kind),
            (N::Scope, E::Scope),
            (N::Revision, revision),
            (N::ContentHash, hash),
        ]
    };
    let new = exact(E::NewRevision, E::NewContentHash);
    if !names(event, &row, E::NewRevisionId, &new, E::RoleKey) {
        return refuse(Rule::PolicyEventNew, &["new_revision_id"]);
    }
    let old = exact(E::OldRevision, E::OldContentHash);
    if !row.is_null(E::OldRevisionId) && !names(event, &row, E::OldRevisionId, &old, E::RoleKey) {
        return refuse(Rule::PolicyEventOld, &["old_revision_id"]);
    }
    Ok(())
}

/// `workspace_instruction_policy_reject_mutation`: BEFORE UPDATE, DELETE of revisions and events.
///
/// A cascade deletes children from a trigger of the parent, once the parent is gone; both have to be so.
pub fn reject_mutation(event: &Event<'_>) -> Verdict {
    if event.operation() == Operation::Delete && session::trigger_depth() > 1 {
        let old = event.before::<PolicyHistory>();
        let workspace = old.uuid(PolicyHistory::WorkspaceId);
        let account = old.uuid(PolicyHistory::AccountId);
        if workspace.is_some_and(|id| is_gone(event, HistoryWorkspace::Id, id))
            || account.is_some_and(|id| is_gone(event, HistoryAccount::Id, id))
        {
            return Ok(());
        }
    }
    refuse(Rule::PolicyImmutable, &["workspace_id"])
}

/// Whether the row with this id has been deleted: one that was given another id is still there.
fn is_gone<T: Table>(event: &Event<'_>, column: T, id: &[u8; 16]) -> bool {
    let (near, keys) = (event.relation(), [(column, Key::Uuid(id))]);
    !probe::exists(&near, &keys, |_| true) && !probe::has_moved(&near, &keys)
}
