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
/// A cascade deletes children from a trigger of the parent, once the parent is gone; both have to be so. An account
/// takes its workspaces along, sooner or later; the history of a workspace that is another account's stays.
pub fn reject_mutation(event: &Event<'_>) -> Verdict {
    if event.operation() == Operation::Delete && session::trigger_depth() > 1 {
        let old = event.before::<PolicyHistory>();
        let account = old.uuid(PolicyHistory::AccountId);
        let mut owner = None;
        let Some(id) = old.uuid(PolicyHistory::WorkspaceId) else {
            return refuse(Rule::PolicyImmutable, &["workspace_id"]);
        };
        let (near, workspace) = (event.relation(), [(HistoryWorkspace::Id, Key::Uuid(id))]);
        let stands = probe::exists(&near, &workspace, |row| {
            owner = row.uuid(HistoryWorkspace::AccountId).copied();
            true
        });
        let goes = match stands {
            false => !probe::has_moved(&near, &workspace),
            true => {
                account.is_some_and(|id| owner.as_ref() == Some(id) && account_is_gone(event, id))
            }
        };
        if goes {
            return Ok(());
        }
    }
    refuse(Rule::PolicyImmutable, &["workspace_id"])
}

/// Whether the account has been deleted: one that was given another id is still there.
fn account_is_gone(event: &Event<'_>, id: &[u8; 16]) -> bool {
    let (near, keys) = (event.relation(), [(HistoryAccount::Id, Key::Uuid(id))]);
    !probe::exists(&near, &keys, |_| true) && !probe::has_moved(&near, &keys)
}
