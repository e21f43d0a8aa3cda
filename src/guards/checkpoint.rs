//! The checkpoint guards: what a lease refers to and what an artifact says of itself agree by COMMIT, and
//! an artifact's identity never changes.

use std::borrow::Cow;

use crate::pg::probe::{self, Key};
use crate::pg::row::Row;
use crate::pg::trigger::{Event, Final};
use crate::protocol::json::Json;
use crate::protocol::refusal::{Refusal, Rule, Verdict, refuse};
use crate::protocol::tables::{
    Artifact, CheckpointLease as L, ReferredArtifact as R, ReferringLease, StatedArtifact as S,
    Table,
};

/// `validate_sandbox_checkpoint_refs`: deferred, on `sandbox_leases`.
pub fn refs(event: &Event<'_>) -> Verdict {
    event.with_final::<L, _>(|lease, _| {
        let current = reference_fits(event, lease, L::CurrentId, |artifact| {
            let wants = |generation| {
                !artifact.distinct_from(R::SourceWorkspaceGeneration, lease, generation)
            };
            let provenance_fits = match artifact.text(R::Provenance) {
                Some(b"native_capture") => wants(L::ArchiveGeneration),
                Some(b"legacy_provider_adopted") => {
                    !lease.distinct_from(L::ArchiveGeneration, lease, L::WorkspaceGeneration)
                }
                _ => true,
            };
            provenance_fits
                && describes(artifact, lease, "workspaceArchive", "workspaceArchiveMeta")
                && not_other(artifact.text(R::State), b"current")
        });
        if !current {
            return refuse(Rule::CurrentCheckpoint, &["current_checkpoint_artifact_id"]);
        }
        let previous = reference_fits(event, lease, L::PreviousId, |artifact| {
            describes(
                artifact,
                lease,
                "workspaceArchivePrev",
                "workspaceArchivePrevMeta",
            ) && not_other(artifact.text(R::State), b"previous")
        });
        if !previous {
            return refuse(
                Rule::PreviousCheckpoint,
                &["previous_checkpoint_artifact_id"],
            );
        }
        Ok(())
    })
}

/// `NOT (value <> wanted)`, which a NULL passes.
fn not_other(value: Option<&[u8]>, wanted: &[u8]) -> bool {
    value.is_none_or(|value| value == wanted)
}

/// `NOT (a <> b)`, which a NULL on either side passes.
fn not_unequal<T: Table, U: Table>(a: &Row<'_, T>, ours: T, b: &Row<'_, U>, theirs: U) -> bool {
    a.is_null(ours) || b.is_null(theirs) || !a.distinct_from(ours, b, theirs)
}

/// Whether the lease refers to nothing there, or to an artifact of its own that `fits`.
fn reference_fits(
    event: &Event<'_>,
    lease: &Row<'_, L>,
    reference: L,
    mut fits: impl FnMut(&Row<'_, R>) -> bool,
) -> bool {
    let Some(id) = lease.uuid(reference) else {
        return true;
    };
    const SCOPE: &[(R, L)] = &[
        (R::AccountId, L::AccountId),
        (R::WorkspaceId, L::WorkspaceId),
        (R::SandboxGroupId, L::SandboxGroupId),
        (R::SourceLeaseId, L::Id),
        (R::ProviderBackend, L::Backend),
    ];
    probe::exists(&event.relation(), &[(R::Id, Key::Uuid(id))], |artifact| {
        SCOPE
            .iter()
            .all(|(theirs, mine)| not_unequal(artifact, *theirs, lease, *mine))
            && fits(artifact)
    })
}

/// Whether archive and revision are those that the lease would resume from.
fn describes(artifact: &Row<'_, R>, lease: &Row<'_, L>, archive: &str, meta: &str) -> bool {
    let state = lease.jsonb(L::ResumeState).map(|d| d.root());
    let session = state.and_then(|s| s.get("sessionState"));
    let text = |path: &[&str]| -> Option<Cow<'_, [u8]>> {
        path.iter()
            .try_fold(session?, |value, key| value.get(key))?
            .text()
    };
    text(&[archive]).as_deref() == artifact.text(R::ArchiveBase64)
        && text(&[meta, "revision"]).as_deref() == artifact.text(R::DescriptorRevision)
}

/// `validate_sandbox_checkpoint_artifact_refs`: deferred, on `sandbox_checkpoint_artifacts`.
pub fn artifact_refs(event: &Event<'_>) -> Verdict {
    event.with_final::<S, _>(|artifact, row| {
        let Some(id) = artifact.uuid(S::Id) else {
            return Ok(());
        };
        let mut fits = None;
        if row == Final::Deleted {
            // Another row may have taken its id.
            probe::exists(&event.relation(), &[(S::Id, Key::Uuid(id))], |standing| {
                fits = Some(state_fits(event, standing, id));
                true
            });
        } else {
            fits = Some(state_fits(event, artifact, id));
        }
        match fits {
            Some(true) => Ok(()),
            Some(false) => refuse(Rule::ArtifactState, &["state"]),
            None => refuse(Rule::ArtifactVanished, &["id"]),
        }
    })
}

/// Whether the leases refer to the artifact as its state says.
fn state_fits(event: &Event<'_>, artifact: &Row<'_, S>, id: &[u8; 16]) -> bool {
    match artifact.text(S::State) {
        Some(b"current") => own_references(event, artifact, id) == (true, false),
        Some(b"previous") => own_references(event, artifact, id) == (false, true),
        Some(_) => !is_referred_to(event, id),
        None => true,
    }
}

/// Whether the lease that the artifact came from refers to it as current and as previous.
fn own_references(event: &Event<'_>, artifact: &Row<'_, S>, id: &[u8; 16]) -> (bool, bool) {
    const SCOPE: &[(ReferringLease, S)] = &[
        (ReferringLease::AccountId, S::AccountId),
        (ReferringLease::WorkspaceId, S::WorkspaceId),
        (ReferringLease::SandboxGroupId, S::SandboxGroupId),
        (ReferringLease::Backend, S::ProviderBackend),
    ];
    let mut found = (false, false);
    if let Some(source) = artifact.uuid(S::SourceLeaseId) {
        let keys = [(ReferringLease::Id, Key::Uuid(source))];
        probe::exists(&event.relation(), &keys, |lease| {
            let own = SCOPE.iter().all(|(theirs, mine)| {
                !lease.is_null(*theirs) && !lease.distinct_from(*theirs, artifact, *mine)
            });
            found.0 |= own && lease.uuid(ReferringLease::CurrentId) == Some(id);
            found.1 |= own && lease.uuid(ReferringLease::PreviousId) == Some(id);
            false
        });
    }
    found
}

/// Whether any lease refers to the artifact.
fn is_referred_to(event: &Event<'_>, id: &[u8; 16]) -> bool {
    let columns = [ReferringLease::CurrentId, ReferringLease::PreviousId];
    probe::any_refers(&event.relation(), &columns, id)
}

/// `enforce_sandbox_checkpoint_artifact_immutability`: BEFORE UPDATE of `sandbox_checkpoint_artifacts`.
pub fn immutability(event: &Event<'_>) -> Verdict {
    let (old, new) = (event.before::<Artifact>(), event.after::<Artifact>());
    let bits = new.distinct_among(&old, Artifact::ALL);
    if bits != 0 {
        return Err(Refusal::new(
            Rule::ArtifactImmutable,
            Artifact::COLUMN_NAMES,
            bits,
        ));
    }
    Ok(())
}
