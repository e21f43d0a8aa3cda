//! `reap_sandbox_leases`: the sweep over leases and their holders.

use super::{HOLDERS, LEASES, all_but_refused, required, statement};
use crate::pg::rows::Rows;
use crate::pg::session;
use crate::pg::statement::{Argument, DataSchema, Scope, Sight, Work};

statement!(DUE, "reap_due", [Bigint, Bigint]);
statement!(LOCK, "reap_lock", [UuidArray]);
statement!(
    STALE_HOLDERS,
    "reap_stale_holders",
    [Bigint, Bigint, UuidArray]
);
statement!(RECOUNT, "reap_recount", [UuidArray, Bigint]);
statement!(UNBORN, "reap_unborn", [UuidArray]);
statement!(CHECK_REFERENCES, "reap_check_references", []);
statement!(RESET, "reap_reset", [UuidArray]);
statement!(DEFER_REFERENCES, "reap_defer_references", []);
statement!(ABANDON, "reap_abandon", [UuidArray]);
statement!(DRAINED, "reap_drained", []);

const SCOPE: Scope = Scope {
    tables: &[LEASES, HOLDERS],
    sight: Sight::Fleet,
    by_index: true,
};

/// Removes stale holders, recounts the leases that they held, ends expired warm-ups and answers with the
/// leases that have drained. Writes only what changes.
pub fn reap(
    schema: Option<&str>,
    viewer_ttl: Option<i64>,
    turn_ttl: Option<i64>,
    idle_grace: Option<i64>,
    rows: &Rows,
) {
    const MESSAGE: &str = "sandbox lease reap TTLs and idle grace are required";
    const HINT: &str = "Give all three in milliseconds; a turn holder TTL of 0 keeps turn holders.";
    let viewer_ttl = Argument::Bigint(required(viewer_ttl, MESSAGE, HINT));
    let turn_ttl = Argument::Bigint(required(turn_ttl, MESSAGE, HINT));
    let grace = Argument::Bigint(required(idle_grace, MESSAGE, HINT));
    let schema = DataSchema::find(schema);
    session::set_protocol_marker();
    Work::on(schema, &SCOPE, |work| {
        if let Some([Some(due)]) = work.row(&DUE, &[viewer_ttl, turn_ttl]) {
            let all = Argument::Value(due);
            work.run(&LOCK, &[all]);
            work.run(&STALE_HOLDERS, &[viewer_ttl, turn_ttl, all]);
            work.run(&RECOUNT, &[all, grace]);
            if let Some([Some(unborn), guarded]) = work.row(&UNBORN, &[all]) {
                // A reset whose lease refers to the wrong checkpoint is refused here, not at COMMIT with
                // everything else. What the caller has pending is its own to answer for.
                let guarded = guarded.is_some_and(|guarded| guarded.value() != 0);
                if guarded {
                    work.run(&CHECK_REFERENCES, &[]);
                }
                let reset = |which: Argument<'_>| work.run(&RESET, &[which]);
                all_but_refused(work, unborn, reset, |_| {}).tell("expired warming leases");
                if guarded {
                    work.run(&DEFER_REFERENCES, &[]);
                }
            }
            work.run(&ABANDON, &[all]);
        }
        work.answer(&DRAINED, &[], rows);
    });
}
