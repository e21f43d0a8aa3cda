//! `supervised_command_guard`: BEFORE INSERT, UPDATE, DELETE of `sandbox_retained_processes`.
//!
//! A supervised command is evidence: what it ran as, what it was sent, what it wrote and how it ended
//! can be added to, never taken back. The rules run in this order; the first that refuses speaks. Comments
//! name them as `protocol/refusal.rs` does, without the guard's prefix.

use super::lock_each;
use crate::pg::jsonb::{Document, Value};
use crate::pg::probe::{self, Key, Lock};
use crate::pg::row;
use crate::pg::session;
use crate::pg::trigger::{Event, Operation};
use crate::protocol::loss::{self, Expected};
use crate::protocol::refusal::{Refusal, Rule, Verdict, refuse};
use crate::protocol::tables::{ChildAdmission, LaunchLease, Process as P};
use crate::protocol::{cancellation, command, descriptor, json, receipt, shape, streams};

type Row<'a> = row::Row<'a, P>;

pub fn check(event: &Event<'_>) -> Verdict {
    match event.operation() {
        Operation::Delete => delete(&Process::read(event.before())),
        Operation::Insert => {
            let new = Process::read(event.after());
            retention_is_own_or_finished(&new.row)?;
            any_write(event, None, &new, true)
        }
        Operation::Update => {
            let old = Process::read(event.before());
            let new = Process::read(event.after());
            // Where the images of the documents agree, nothing inside them changed.
            let command_changed = new.row.distinct(&old.row, P::Command);
            let streams_changed = command_changed && !json::same(new.streams, old.streams);
            update(event, &old, &new, command_changed, streams_changed)?;
            any_write(event, Some(&old), &new, streams_changed)
        }
        Operation::Truncate => Ok(()),
    }
}

/// A row and the parts of its documents that the rules ask for again and again.
struct Process<'a> {
    row: Row<'a>,
    document: Option<Document<'a>>,
    command: Option<Value<'a>>,
    descriptor: Option<Value<'a>>,
    streams: Option<Value<'a>>,
    supervised: bool,
}

impl<'a> Process<'a> {
    fn read(row: Row<'a>) -> Self {
        let document = row.jsonb(P::Command);
        let command = document.map(|d| d.root());
        Process {
            row,
            document,
            command,
            descriptor: command::descriptor(command),
            streams: command::streams(command),
            supervised: command::supervised(command),
        }
    }

    fn state_is(&self, state: &[u8]) -> Option<bool> {
        Some(self.row.text(P::State)? == state)
    }

    /// The receipt's document, where there is a receipt.
    fn receipt(&self) -> Option<Value<'a>> {
        self.row.jsonb(P::Receipt).map(|d| d.root())
    }

    fn captured(&self) -> bool {
        self.row.boolean(P::Captured) == Some(true)
    }

    fn is_cancelled(&self) -> bool {
        !self.row.is_null(P::CancellationRequestedAt)
    }

    fn has_receipt(&self) -> bool {
        !self.row.is_null(P::Receipt)
    }
}

/// `delete_unsettled`.
fn delete(old: &Process<'_>) -> Verdict {
    if !old.supervised {
        return Ok(());
    }
    match command::unsettled(old.row.text(P::State), old.has_receipt(), old.captured()) {
        0 => Ok(()),
        bits => Err(Refusal::new(
            Rule::DeleteUnsettled,
            &[
                "state",
                "supervision_receipt",
                "supervision_output_captured",
            ],
            bits,
        )),
    }
}

/// `retention_xid` of an INSERT: a transaction that is still to end could later pass for the retaining one.
fn retention_is_own_or_finished(new: &Row<'_>) -> Verdict {
    if let Some(id) = new.xid8(P::RetentionXid)
        && session::top_transaction_id() != Some(id)
        && session::is_foreign_and_unfinished(id)
        && !session::session_user_is_superuser()
    {
        return refuse(Rule::RetentionXid, &["supervision_retention_xid"]);
    }
    Ok(())
}

/// What a supervised command ran as.
const IDENTITY: &[P] = &[
    P::LeaseId,
    P::LeaseEpoch,
    P::ProviderBackend,
    P::ProviderInstanceId,
    P::ProviderBindingKey,
    P::ProviderBinding,
    P::ParentAdmissionId,
    P::HolderId,
    P::AccountId,
    P::WorkspaceId,
    P::SessionId,
    P::SandboxGroupId,
    P::Id,
    P::ProviderSessionId,
    P::RouteKind,
    P::RouteTargetId,
    P::RouteEpoch,
];
/// The names of [`IDENTITY`], then the two parts of the command.
const IDENTITY_NAMES: &[&str] = &[
    "lease_id",
    "lease_epoch",
    "provider_backend",
    "provider_instance_id",
    "provider_binding_key",
    "provider_binding",
    "parent_admission_id",
    "holder_id",
    "account_id",
    "workspace_id",
    "session_id",
    "sandbox_group_id",
    "id",
    "provider_session_id",
    "route_kind",
    "route_target_id",
    "route_epoch",
    "provider_command.supervision",
    "provider_command",
];

const OWNER: &[P] = &[
    P::OwnerActorKind,
    P::OwnerActorId,
    P::OwnerTurnId,
    P::OwnerAttemptId,
    P::OwnerExecutionGeneration,
];
const OWNER_NAMES: &[&str] = &[
    "owner_actor_kind",
    "owner_actor_id",
    "owner_turn_id",
    "owner_attempt_id",
    "owner_execution_generation",
];

const CANCELLATION: &[P] = &[P::CancellationRequestedAt, P::CancellationReason];
const CANCELLATION_NAMES: &[&str] = &["cancellation_requested_at", "cancellation_reason"];

const TERMINAL: &[P] = &[P::State, P::ExitCode, P::SettledAt];
const TERMINAL_NAMES: &[&str] = &["state", "exit_code", "settled_at"];

const PROOF_NAMES: &[&str] = &["supervision_receipt", "supervision_output_captured"];
const INPUT_INDEX: &[&str] = &["provider_command_input_index"];

/// Refuses where any of the columns differs, naming those that do.
fn unchanged(
    rule: Rule,
    old: &Row<'_>,
    new: &Row<'_>,
    columns: &[P],
    names: &'static [&'static str],
) -> Verdict {
    match new.distinct_among(old, columns) {
        0 => Ok(()),
        bits => Err(Refusal::new(rule, names, bits)),
    }
}

/// `retention_xid` to `output_regress`: of an UPDATE.
fn update(
    event: &Event<'_>,
    old: &Process<'_>,
    new: &Process<'_>,
    command_changed: bool,
    streams_changed: bool,
) -> Verdict {
    if new.row.distinct(&old.row, P::RetentionXid) {
        return refuse(Rule::RetentionXid, &["supervision_retention_xid"]);
    }
    if old.supervised {
        identity_is_unchanged(old, new, command_changed)?;
    } else if let (None, Some(document)) = (&old.document, &new.document) {
        // `NULL ? 'supervision'` does not end the rule's AND chain: the server's `-` is asked all the
        // same, and has its own word for a scalar.
        document.deletable("streams");
    }
    if new.descriptor.is_some() && !old.supervised {
        supervision_is_initial(old)?;
    }
    if old.is_cancelled() {
        unchanged(
            Rule::CancellationMonotonic,
            &old.row,
            &new.row,
            CANCELLATION,
            CANCELLATION_NAMES,
        )?;
    }
    proof_is_kept(old, new)?;
    if new.row.distinct(&old.row, P::InputIndex) {
        stdin_advances(event, old, new)?;
    }
    if old.is_cancelled() {
        unchanged(Rule::Adoption, &old.row, &new.row, OWNER, OWNER_NAMES)?;
    }
    if old.supervised && old.state_is(b"active") == Some(false) {
        unchanged(Rule::Terminal, &old.row, &new.row, TERMINAL, TERMINAL_NAMES)?;
    }
    if old.supervised {
        output_is_captured(old, new, streams_changed)?;
    }
    Ok(())
}

/// `identity`.
fn identity_is_unchanged(old: &Process<'_>, new: &Process<'_>, command_changed: bool) -> Verdict {
    let mut bits = 0;
    if command_changed {
        if !json::same(new.descriptor, old.descriptor) {
            bits |= 1 << IDENTITY.len();
        } else if !same_without_streams(old, new) {
            bits |= 1 << (IDENTITY.len() + 1);
        }
    }
    bits |= new.row.distinct_among(&old.row, IDENTITY);
    if bits != 0 {
        return Err(Refusal::new(Rule::Identity, IDENTITY_NAMES, bits));
    }
    Ok(())
}

/// `(NEW.provider_command - 'streams') IS NOT DISTINCT FROM (OLD.provider_command - 'streams')`.
fn same_without_streams(old: &Process<'_>, new: &Process<'_>) -> bool {
    match (&old.document, &new.document) {
        (Some(a), Some(b)) => command::same_without_streams(a.root(), b.root())
            .unwrap_or_else(|| b.same_without(a, "streams")),
        (None, None) => true,
        _ => false,
    }
}

/// `initial_retention`: the row has to be this transaction's own; one that was committed without a descriptor is a
/// legacy command for good.
fn supervision_is_initial(old: &Process<'_>) -> Verdict {
    let retained_by = old.row.xid8(P::RetentionXid);
    if retained_by.is_none() || retained_by != session::top_transaction_id() {
        return refuse(Rule::InitialRetention, &["provider_command.supervision"]);
    }
    Ok(())
}

/// `proof_immutable`.
fn proof_is_kept(old: &Process<'_>, new: &Process<'_>) -> Verdict {
    let rewritten = old.has_receipt() && new.row.distinct(&old.row, P::Receipt);
    let withdrawn = old.captured() && new.row.boolean(P::Captured) == Some(false);
    if rewritten || withdrawn {
        return Err(Refusal::new(
            Rule::ProofImmutable,
            PROOF_NAMES,
            u64::from(rewritten) | u64::from(withdrawn) << 1,
        ));
    }
    Ok(())
}

/// `stdin_closed`, `stdin_child` and `stdin_regress`, for an input index that changes.
fn stdin_advances(event: &Event<'_>, old: &Process<'_>, new: &Process<'_>) -> Verdict {
    if old.is_cancelled() || old.has_receipt() {
        return refuse(Rule::StdinClosed, INPUT_INDEX);
    }
    if new.descriptor.is_none() {
        return Ok(());
    }
    if !has_child(event, &new.row, |child| {
        child.is_null(ChildAdmission::SettledAt) && is_on_the_same_lease(child, &new.row)
    }) {
        return refuse(Rule::StdinChild, INPUT_INDEX);
    }
    let (was, is) = (old.row.bigint(P::InputIndex), new.row.bigint(P::InputIndex));
    if matches!((is, was), (Some(is), Some(was)) if is < was) {
        return refuse(Rule::StdinRegress, INPUT_INDEX);
    }
    Ok(())
}

/// Whether the process has a child admission in its own workspace that satisfies `condition`. A NULL in
/// the process equals nothing.
fn has_child(
    event: &Event<'_>,
    process: &Row<'_>,
    mut condition: impl FnMut(&row::Row<'_, ChildAdmission>) -> bool,
) -> bool {
    let (Some(account), Some(workspace), Some(id)) = (
        process.uuid(P::AccountId),
        process.uuid(P::WorkspaceId),
        process.uuid(P::Id),
    ) else {
        return false;
    };
    probe::exists(
        &event.relation(),
        &[
            (ChildAdmission::WorkspaceId, Key::Uuid(workspace)),
            (ChildAdmission::ActorKind, Key::Word("process")),
            (ChildAdmission::ActorId, Key::Uuid(id)),
            (ChildAdmission::AccountId, Key::Uuid(account)),
        ],
        &mut condition,
    )
}

fn is_on_the_same_lease(child: &row::Row<'_, ChildAdmission>, process: &Row<'_>) -> bool {
    fn equal<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
        a.is_some() && a == b
    }
    equal(
        child.uuid(ChildAdmission::LeaseId),
        process.uuid(P::LeaseId),
    ) && equal(
        child.integer(ChildAdmission::LeaseEpoch),
        process.integer(P::LeaseEpoch),
    ) && equal(
        child.text(ChildAdmission::ProviderBackend),
        process.text(P::ProviderBackend),
    ) && equal(
        child.text(ChildAdmission::ProviderInstanceId),
        process.text(P::ProviderInstanceId),
    )
}

/// `capture_protocol` and `output_regress`. Streams are judged only where they change, so that a row whose cursor was poisoned
/// long ago can still be read, claimed, lost, cancelled and repaired.
fn output_is_captured(old: &Process<'_>, new: &Process<'_>, streams_changed: bool) -> Verdict {
    let captured_changed = new.row.distinct(&old.row, P::Captured);
    if (streams_changed || captured_changed) && !capture_is_open(new) {
        return Err(Refusal::new(
            Rule::CaptureProtocol,
            &["provider_command.streams", "supervision_output_captured"],
            u64::from(streams_changed) | u64::from(captured_changed) << 1,
        ));
    }
    if streams_changed {
        streams::regress(old.streams, new.streams)
            .map_err(|bits| Refusal::new(Rule::OutputRegress, streams::PATHS, bits))?;
    }
    Ok(())
}

/// Whether the transaction said that it captures output of exactly this process.
fn capture_is_open(new: &Process<'_>) -> bool {
    let setting = session::setting(c"opengeni.supervised_output_capture_process_id");
    match (setting, new.row.uuid(P::Id)) {
        (Some(setting), Some(id)) => setting.to_bytes() == shape::uuid_text(id),
        (None, None) => true,
        _ => false,
    }
}

/// `cancellation_intent` to `stream_cursor`: of an INSERT, or of an UPDATE from `old`.
fn any_write(
    event: &Event<'_>,
    old: Option<&Process<'_>>,
    new: &Process<'_>,
    streams_changed: bool,
) -> Verdict {
    let row = &new.row;
    cancellation::validate(new.is_cancelled(), row.text(P::CancellationReason))
        .map_err(|bits| Refusal::new(Rule::CancellationIntent, CANCELLATION_NAMES, bits))?;
    let (Some(command), Some(descriptor)) = (new.command, new.descriptor) else {
        let bits = u64::from(new.has_receipt()) | u64::from(new.captured()) << 1;
        return match bits {
            0 => Ok(()),
            bits => Err(Refusal::new(Rule::LegacyProof, PROOF_NAMES, bits)),
        };
    };
    let attaching = old.is_none_or(|old| !old.supervised);
    if attaching {
        lease_is_not_contained(event, row)?;
    }
    descriptor::validate(command, descriptor)
        .map_err(|bits| Refusal::new(Rule::Descriptor, descriptor::PATHS, bits))?;
    let receipt = new.receipt();
    if let Some(receipt) = receipt {
        receipt::validate(receipt, descriptor)
            .map_err(|bits| Refusal::new(Rule::Receipt, receipt::PATHS, bits))?;
    }
    if new.captured() {
        streams::complete(new.streams)
            .map_err(|bits| Refusal::new(Rule::CaptureIncomplete, streams::PATHS, bits))?;
    }
    if new.state_is(b"lost") == Some(true) {
        return loss_is_typed(event, old, new);
    }
    if receipt.is_some() && has_child(event, row, |c| c.is_null(ChildAdmission::SettledAt)) {
        return refuse(Rule::InputSettlesFirst, &["supervision_receipt"]);
    }
    settlement_is_proven(new, receipt)?;
    if attaching || streams_changed {
        streams::well_formed(new.streams)
            .map_err(|bits| Refusal::new(Rule::StreamCursor, streams::PATHS, bits))?;
    }
    Ok(())
}

/// `containment`: attachment and capture of a lease wait for each other on its row. Another tenant's lease is
/// neither locked nor told of: a foreign key refuses it.
fn lease_is_not_contained(event: &Event<'_>, new: &Row<'_>) -> Verdict {
    let mut bits = 0;
    if let (Some(lease), Some(account), Some(workspace)) = (
        new.uuid(P::LeaseId),
        new.uuid(P::AccountId),
        new.uuid(P::WorkspaceId),
    ) {
        lock_each(
            event,
            &[
                (LaunchLease::Id, Key::Uuid(lease)),
                (LaunchLease::AccountId, Key::Uuid(account)),
                (LaunchLease::WorkspaceId, Key::Uuid(workspace)),
            ],
            Lock::ForUpdate,
            |_| true,
            |lease| {
                bits |= u64::from(!lease.is_null(LaunchLease::ArchiveCaptureId))
                    | u64::from(!lease.is_null(LaunchLease::DrainIds)) << 1;
            },
        );
    }
    match bits {
        0 => Ok(()),
        bits => Err(Refusal::new(
            Rule::Containment,
            &[
                "sandbox_leases.archive_capture_id",
                "sandbox_leases.unobservable_command_drain_ids",
            ],
            bits,
        )),
    }
}

/// `loss_fabricated`, `launch_rejection` and `typed_loss`: a supervised command gets lost only by one of two typed transitions.
fn loss_is_typed(event: &Event<'_>, old: Option<&Process<'_>>, new: &Process<'_>) -> Verdict {
    let old = loss_adds_no_proof(old, new)?;
    if new.row.text(P::SettlementReason) == Some(loss::REJECTED) {
        launch_was_rejected(event, old, new)
    } else {
        provider_was_lost(old, new)
    }
}

/// `loss_fabricated`; hands back the row that gets lost.
fn loss_adds_no_proof<'p, 'a>(
    old: Option<&'p Process<'a>>,
    new: &Process<'_>,
) -> Result<&'p Process<'a>, Refusal> {
    const NAMES: &[&str] = &[
        "state",
        "exit_code",
        "settled_at",
        "provider_command",
        "supervision_receipt",
        "supervision_output_captured",
        "provider_command_input_index",
    ];
    const FROZEN: &[P] = &[P::Command, P::Receipt, P::Captured, P::InputIndex];
    let mut bits = u64::from(!new.row.is_null(P::ExitCode)) << 1
        | u64::from(new.row.is_null(P::SettledAt)) << 2;
    match old {
        None => bits |= 1,
        Some(old) => bits |= new.row.distinct_among(&old.row, FROZEN) << 3,
    }
    match old {
        Some(old) if bits == 0 => Ok(old),
        _ => Err(Refusal::new(Rule::LossFabricated, NAMES, bits)),
    }
}

/// What a row that gets lost, or stays lost, may not do.
enum Loss {
    Fits,
    /// A lost row changes its reason.
    OtherReason,
    /// The transaction is not bound to lose exactly this row, or the row is not active.
    Unbound,
}

/// A lost row keeps its reason; an active one gets lost under its binding. A NULL state refuses nothing,
/// as in SQL.
fn loss_of(old: &Process<'_>, new: &Process<'_>, bound: impl FnOnce() -> bool) -> Loss {
    match old.state_is(b"lost") {
        Some(true) if new.row.distinct(&old.row, P::SettlementReason) => Loss::OtherReason,
        Some(false) if old.state_is(b"active") == Some(false) || !bound() => Loss::Unbound,
        _ => Loss::Fits,
    }
}

/// `nullif(setting, '')::jsonb`, parsed before anything is judged by it.
fn binding(name: &std::ffi::CStr) -> Option<Document<'static>> {
    let text = session::setting(name)?;
    (!text.is_empty()).then(|| Document::parse(text))
}

/// `launch_rejection`: the provider said that it never started, and nothing contradicts it.
fn launch_was_rejected(event: &Event<'_>, old: &Process<'_>, new: &Process<'_>) -> Verdict {
    const NAMES: &[&str] = &[
        "supervision_receipt",
        "supervision_output_captured",
        "provider_command_input_index",
        "reconcile_proof_outcome",
        "provider_command.streams",
        "opengeni.supervised_launch_rejection_binding",
        "settlement_reason",
        "sandbox_workspace_mutation_admissions",
    ];
    let binding = binding(c"opengeni.supervised_launch_rejection_binding").map(|d| d.root());
    let row = &new.row;
    let bound = || {
        let id = old.row.uuid(P::Id).map(shape::uuid_text);
        loss::binds(
            binding,
            &[
                ("processId", string(id.as_ref().map(|id| &id[..]))),
                (
                    "command",
                    old.command.map_or(Expected::Null, Expected::Json),
                ),
            ],
        )
    };
    let mut bits = u64::from(new.has_receipt())
        | u64::from(new.captured()) << 1
        | u64::from(row.bigint(P::InputIndex).is_some_and(|n| n != 0)) << 2
        | u64::from(!row.is_null(P::ReconcileProofOutcome)) << 3
        | u64::from(!streams::pristine(new.streams)) << 4
        | match loss_of(old, new, bound) {
            Loss::Fits => 0,
            Loss::Unbound => 1 << 5,
            Loss::OtherReason => 1 << 6,
        };
    // The one question to another table is asked last, and only where the answer matters.
    if bits == 0 && has_child(event, row, |_| true) {
        bits |= 1 << 7;
    }
    match bits {
        0 => Ok(()),
        bits => Err(Refusal::new(Rule::LaunchRejection, NAMES, bits)),
    }
}

/// `typed_loss`: the provider instance is gone, and the transaction names exactly which.
fn provider_was_lost(old: &Process<'_>, new: &Process<'_>) -> Verdict {
    let binding = binding(c"opengeni.supervised_provider_loss_binding").map(|d| d.root());
    let bound = || {
        let [account, workspace, lease, group] =
            [P::AccountId, P::WorkspaceId, P::LeaseId, P::SandboxGroupId]
                .map(|column| old.row.uuid(column).map(shape::uuid_text));
        loss::binds(
            binding,
            &[
                ("accountId", string(account.as_ref().map(|id| &id[..]))),
                ("workspaceId", string(workspace.as_ref().map(|id| &id[..]))),
                ("leaseId", string(lease.as_ref().map(|id| &id[..]))),
                ("sandboxGroupId", string(group.as_ref().map(|id| &id[..]))),
                (
                    "lostEpoch",
                    old.row
                        .integer(P::LeaseEpoch)
                        .map_or(Expected::Null, |n| Expected::Number(i64::from(n))),
                ),
                ("lostBackend", string(old.row.text(P::ProviderBackend))),
                (
                    "lostInstanceId",
                    string(old.row.text(P::ProviderInstanceId)),
                ),
            ],
        )
    };
    let loss = loss_of(old, new, bound);
    let other_reason = new.row.text(P::SettlementReason) != Some(loss::INSTANCE_LOST)
        || matches!(loss, Loss::OtherReason);
    let unbound = matches!(loss, Loss::Unbound);
    if !other_reason && !unbound {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::TypedLoss,
        &[
            "settlement_reason",
            "opengeni.supervised_provider_loss_binding",
        ],
        u64::from(other_reason) | u64::from(unbound) << 1,
    ))
}

fn string<'a>(text: Option<&'a [u8]>) -> Expected<'a, Value<'a>> {
    text.map_or(Expected::Null, Expected::String)
}

/// `settlement`.
fn settlement_is_proven(new: &Process<'_>, receipt: Option<Value<'_>>) -> Verdict {
    let settled = new.state_is(b"active") == Some(false) || !new.row.is_null(P::SettledAt);
    if !settled {
        return Ok(());
    }
    let exit_code = new.row.integer(P::ExitCode);
    let agreed = receipt.and_then(receipt::leader_exit_code);
    let bits = u64::from(new.state_is(b"exited") != Some(true))
        | u64::from(receipt.is_none()) << 1
        | u64::from(!new.captured()) << 2
        | u64::from(exit_code.is_none() || exit_code != agreed) << 3;
    match bits {
        0 => Ok(()),
        bits => Err(Refusal::new(
            Rule::Settlement,
            &[
                "state",
                "supervision_receipt",
                "supervision_output_captured",
                "exit_code",
            ],
            bits,
        )),
    }
}
