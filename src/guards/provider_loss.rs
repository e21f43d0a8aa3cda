//! `supervised_provider_loss_commit_guard`: deferred, after a supervised command got lost with its provider.
//!
//! A loss is true only together with a lease that knows of it. It is judged by the event's own row, whose
//! columns no later write can change.

use super::lock_each;
use crate::pg::jsonb::Value;
use crate::pg::probe::{Key, Lock};
use crate::pg::row::Row;
use crate::pg::trigger::Event;
use crate::protocol::json::Json;
use crate::protocol::refusal::{Rule, Verdict, refuse};
use crate::protocol::tables::{LostProcess as P, RecoveredLease as L};

pub fn check(event: &Event<'_>) -> Verdict {
    let lost = event.after::<P>();
    let mut known = false;
    if let (Some(lease), Some(account), Some(workspace), Some(group)) = (
        lost.uuid(P::LeaseId),
        lost.uuid(P::AccountId),
        lost.uuid(P::WorkspaceId),
        lost.uuid(P::SandboxGroupId),
    ) {
        lock_each(
            event,
            &[
                (L::Id, Key::Uuid(lease)),
                (L::AccountId, Key::Uuid(account)),
                (L::WorkspaceId, Key::Uuid(workspace)),
                (L::SandboxGroupId, Key::Uuid(group)),
            ],
            Lock::ForShare,
            |lease| knows_of_loss(lease, &lost),
            |_| known = true,
        );
    }
    if known {
        return Ok(());
    }
    refuse(Rule::RecoveryTruth, &["sandbox_leases"])
}

fn knows_of_loss(lease: &Row<'_, L>, lost: &Row<'_, P>) -> bool {
    let next_epoch = lost
        .integer(P::LeaseEpoch)
        .map(|epoch| i64::from(epoch) + 1);
    let lost_instance = lost.text(P::ProviderInstanceId);
    if lease.text(L::Backend) != lost.text(P::ProviderBackend)
        || lease.is_null(L::Backend)
        || lease.integer(L::LeaseEpoch).map(i64::from) != next_epoch
        || next_epoch.is_none()
        || lease.text(L::Liveness) != Some(b"cold")
        || !lease.is_null(L::InstanceId)
    {
        return false;
    }
    let Some(state) = lease.jsonb(L::ResumeState) else {
        return false;
    };
    let Some(recovery) = state.root().get("opengeniRecovery") else {
        return false;
    };
    let is = |part: &str, member: &str, accepted: &[&[u8]]| {
        recovery
            .get(part)
            .and_then(|part: Value<'_>| part.get(member))
            .and_then(|value| value.text())
            .is_some_and(|text| accepted.contains(&&*text))
    };
    is("provider", "status", &[b"missing"])
        && lost_instance.is_some_and(|instance| is("provider", "instanceId", &[instance]))
        && is(
            "restore",
            "status",
            &[b"pending", b"degraded", b"unrecoverable"],
        )
        && is(
            "workspace",
            "status",
            &[b"not_ready", b"degraded", b"unrecoverable"],
        )
}
