//! Rotation of leases whose provider will end their sandbox.

use super::{HOLDERS, LEASES, statement, within};
use crate::pg::rows::Rows;
use crate::pg::session;
use crate::pg::statement::{Argument, DataSchema, Scope, Sight, Work};

statement!(DUE, "rotation_due", [Bigint, Integer]);
statement!(EVICT, "rotation_evict", [UuidArray]);
statement!(REQUEST, "rotation_request", [UuidArray]);
statement!(BACKLOG, "rotation_backlog", []);

const SCOPE: Scope = Scope {
    tables: &[LEASES, HOLDERS],
    sight: Sight::Fleet,
    by_index: true,
};

/// Requests the rotation of the leases whose deadline is within the lead, nearest first, and tells how many.
pub fn request_due(schema: Option<&str>, lead: Option<i64>, limit: Option<i32>) -> i32 {
    let lead = within(
        lead,
        0..=86_400_000,
        "sandbox rotation lead must be between 0 and 24h",
        "Give milliseconds.",
    );
    let limit = within(
        limit,
        1..=500,
        "sandbox rotation batch limit must be between 1 and 500",
        "Rotate in batches.",
    );
    let schema = DataSchema::find(schema);
    session::set_protocol_marker();
    Work::on(schema, &SCOPE, |work| {
        // Whoever has a lease locked is passed by, so that nobody waits for a lease while holding one.
        let due = work.row(&DUE, &[Argument::Bigint(lead), Argument::Integer(limit)]);
        let Some([Some(due)]) = due else { return 0 };
        let due = Argument::Value(due);
        work.run(&EVICT, &[due]);
        work.run(&REQUEST, &[due]) as i32
    })
}

/// Counts the requested rotations, and what still stands in their way.
pub fn backlog(schema: Option<&str>, rows: &Rows) {
    let schema = DataSchema::find(schema);
    Work::on(schema, &SCOPE, |work| work.answer(&BACKLOG, &[], rows));
}
