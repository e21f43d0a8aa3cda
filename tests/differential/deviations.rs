//! Which differences the design allows, by what either side says.

use crate::database::Outcome;
use crate::moves::{Note, Statement};

const DEFERRED: &[&str] = &[
    "retained process does not match its parent admission and holder state",
    "open PTY does not match its exact retained process identity",
    "current checkpoint artifact does not match its exact lease scope",
    "previous checkpoint artifact does not match its exact lease scope",
];
const DEFERRED_RULES: &[&str] = &[
    "retained_process.identity",
    "pty.identity",
    "provider_loss.recovery_truth",
    "checkpoint_refs.current",
    "checkpoint_refs.previous",
    "checkpoint_artifact.state",
    "checkpoint_artifact.vanished",
];

/// What a difference was seen in.
pub struct Scene<'a> {
    pub statement: &'a str,
    pub note: Note,
    /// The whole transaction so far.
    pub body: &'a [Statement],
    /// Whether deferred checks ran: at COMMIT, or by SET CONSTRAINTS at or before the statement.
    pub deferred: bool,
    /// Whether it touches a row whose streams were malformed from the start.
    pub poisoned: bool,
}

/// The deviation that explains a difference, if one does. D1 and D2 still need the rows to be consistent.
pub fn explain(scene: &Scene<'_>, native: &Outcome, original: &Outcome) -> Option<&'static str> {
    let theirs = original.refusal();
    let on_process = scene.statement.contains("sandbox_retained_processes SET")
        || scene.statement.contains("INTO sandbox_retained_processes");
    match native.rule() {
        Some("parent_admission.immutable" | "process_holder.released") => return Some("D13"),
        Some("supervised_command.retention_xid") if scene.note == Note::Future => {
            return Some("D12");
        }
        Some("supervised_command.output_regress") if scene.note == Note::Vanish => {
            let earlier_or_equal =
                theirs.is_some_and(|r| r.message.contains("atomic capture protocol"));
            return (!earlier_or_equal).then_some("D11");
        }
        // The last rule of its guard: the original lets the row through the guard, where the checks that are
        // no longer deferred judge it, or fails to cast.
        Some("supervised_command.stream_cursor")
            if on_process
                && theirs.is_none_or(|r| {
                    !r.is_raised() || scene.deferred && DEFERRED.contains(&r.message.as_str())
                }) =>
        {
            return Some("D3");
        }
        Some("checkpoint_refs.current" | "checkpoint_refs.previous")
            if original.is_done()
                && scene.deferred
                && scene
                    .body
                    .iter()
                    .any(|s| s.sql.contains("sandbox_leases SET") && s.sql.contains("id = '")) =>
        {
            return Some("D1");
        }
        _ => {}
    }
    let theirs = theirs?;
    let cast = matches!(theirs.state.as_str(), "22P02" | "22003")
        && ["bigint", "boolean"]
            .iter()
            .any(|word| theirs.message.contains(word))
        && !theirs.message.contains("perhaps");
    if cast && on_process {
        return Some("D3");
    }
    if scene.poisoned
        && (native.is_done() || native.rule() == Some("supervised_command.stream_cursor"))
        && theirs.message == "Supervised output proof cannot regress"
    {
        return Some("D3");
    }
    if scene.deferred
        && theirs.is_raised()
        && (native.is_done()
            || native
                .rule()
                .is_some_and(|rule| DEFERRED_RULES.contains(&rule)))
    {
        let lost_sight = scene.body.iter().any(|s| s.note == Note::NoTenant);
        if lost_sight
            && (DEFERRED.contains(&theirs.message.as_str())
                || theirs
                    .message
                    .contains("cold missing-provider recovery truth"))
        {
            return Some("D2");
        }
        if DEFERRED.contains(&theirs.message.as_str()) {
            return Some("D1");
        }
    }
    None
}

/// The deviations after which the rows have to be as the reference wants them.
pub fn needs_consistency(deviation: &str, native: &Outcome) -> bool {
    matches!(deviation, "D1" | "D2") && native.is_done()
}
