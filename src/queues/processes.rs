//! Retained processes whose owner has ended: claimed for reconciliation, counted.

use super::{ATTEMPTS, Left, PROCESSES, TURNS, all_but_refused, required, statement, within};
use crate::pg::rows::Rows;
use crate::pg::session;
use crate::pg::statement::{Argument, DataSchema, Scope, Sight, Work};

statement!(DUE, "processes_due", [Integer, UuidArray]);
statement!(CLAIM, "processes_claim", [UuidArray, Uuid, Bigint]);
statement!(CLAIMED, "processes_claimed", [UuidArray, Uuid]);
statement!(BY_OWNER, "processes_by_owner", []);
statement!(CHECK_IDENTITY, "processes_check_identity", []);
statement!(DEFER_IDENTITY, "processes_defer_identity", []);

const QUEUE: Scope = Scope {
    tables: &[PROCESSES, TURNS, ATTEMPTS],
    sight: Sight::Fleet,
    by_index: true,
};
const COUNT: Scope = Scope {
    by_index: false,
    ..QUEUE
};

/// Claims the due processes whose owner has ended, oldest first, and puts the others off.
pub fn claim(
    schema: Option<&str>,
    claim: Option<&[u8; 16]>,
    limit: Option<i32>,
    ttl: Option<i64>,
    rows: &Rows,
) {
    let limit = within(
        limit,
        1..=100,
        "retained-process reconciliation limit must be between 1 and 100",
        "Claim in batches.",
    );
    let ttl = within(
        ttl,
        0..=3_600_000,
        "retained-process reconciliation claim TTL is invalid",
        "Give milliseconds between 0 and one hour.",
    );
    let claim = required(
        claim,
        "retained-process reconciliation claim id is required",
        "Generate one uuid per claim.",
    );
    let schema = DataSchema::find(schema);
    session::set_protocol_marker();
    Work::on(schema, &QUEUE, |work| {
        // What the caller has pending is its own to answer for; then each row is judged as it is written.
        work.run(&CHECK_IDENTITY, &[]);
        let claim = Argument::Uuid(claim);
        let (mut wanted, mut seen, mut left) = (limit, Argument::Null, Left::default());
        // In place of those that are refused, others are claimed: else they could stand at the head of the
        // queue for ever.
        while let Some([Some(due), Some(all)]) = work.row(&DUE, &[Argument::Integer(wanted), seen])
        {
            let round = all_but_refused(
                work,
                due,
                |which| work.run(&CLAIM, &[which, claim, Argument::Bigint(ttl)]),
                |which| work.answer(&CLAIMED, &[which, claim], rows),
            );
            left = left.and(round);
            (wanted, seen) = (round.count as i32, Argument::Value(all));
            if wanted == 0 {
                break;
            }
        }
        left.tell("due retained processes");
        work.run(&DEFER_IDENTITY, &[]);
    });
}

/// Counts the active processes by their owner's state.
pub fn count_by_owner(schema: Option<&str>, rows: &Rows) {
    let schema = DataSchema::find(schema);
    Work::on(schema, &COUNT, |work| work.answer(&BY_OWNER, &[], rows));
}
