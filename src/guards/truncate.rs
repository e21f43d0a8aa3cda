//! `refuse_truncate_of_unsettled_evidence`: BEFORE TRUNCATE of the process, admission, holder and lease
//! tables. Row guards do not see a TRUNCATE.

use crate::pg::probe;
use crate::pg::row::Row;
use crate::pg::trigger::Event;
use crate::protocol::command;
use crate::protocol::refusal::{Rule, Verdict, refuse};
use crate::protocol::tables::Evidence as P;

pub fn check(event: &Event<'_>) -> Verdict {
    if probe::exists(&event.relation(), &[], is_unsettled) {
        return refuse(Rule::EvidenceTruncate, &["sandbox_retained_processes"]);
    }
    Ok(())
}

/// What `supervised_command.delete_unsettled` keeps from being deleted.
fn is_unsettled(process: &Row<'_, P>) -> bool {
    let captured = process.boolean(P::Captured) == Some(true);
    command::supervised(process.jsonb(P::Command).map(|d| d.root()))
        && command::unsettled(
            process.text(P::State),
            !process.is_null(P::Receipt),
            captured,
        ) != 0
}
