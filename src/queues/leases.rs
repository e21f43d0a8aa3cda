//! Leases as the worker counts and lists them.

use pgrx::pg_sys;

use super::{LEASES, statement, within};
use crate::pg::capability;
use crate::pg::rows::Rows;
use crate::pg::statement::{Argument, DataSchema, Scope, Sight, Work};

statement!(EXPIRED, "leases_expired", []);
statement!(LIVE_MODAL, "leases_live_modal", []);
statement!(CHECKPOINT_SLOTS, "leases_checkpoint_slots", [Integer]);

/// The live leases, found by the partial indexes over them.
const FLEET: Scope = Scope {
    tables: &[LEASES],
    sight: Sight::Fleet,
    by_index: true,
};
const GATED: Scope = Scope {
    sight: Sight::User,
    ..FLEET
};

/// Counts the leases that have drained and are still there, by backend and age.
pub fn count_expired(schema: Option<&str>, rows: &Rows) {
    let schema = DataSchema::find(schema);
    Work::on(schema, &FLEET, |work| work.answer(&EXPIRED, &[], rows));
}

/// Lists checkpoints that have no artifact row yet, the leases longest untouched first.
pub fn checkpoint_slots(schema: Option<&str>, limit: Option<i32>, rows: &Rows) {
    let limit = within(
        limit,
        1..=500,
        "legacy checkpoint slot limit must be between 1 and 500",
        "List in batches.",
    );
    let schema = DataSchema::find(schema);
    Work::on(schema, &FLEET, |work| {
        work.answer(&CHECKPOINT_SLOTS, &[Argument::Integer(limit)], rows);
    });
}

/// Lists the live leases on Modal. Forced row-level security stays: the table's policy lets its owner read
/// while the capability is open, which is only while this scan runs.
pub fn live_modal(schema: Option<&str>, rows: &Rows) {
    let schema = DataSchema::find(schema);
    Work::on(schema, &GATED, |work| {
        let list = || work.answer(&LIVE_MODAL, &[], rows);
        match schema.table(LEASES) {
            Some(table) if work.owns_tables() => capability::with(table, list),
            _ => list(),
        }
    });
}

/// Whether the scan of [`live_modal`] is what is reading this schema's leases now.
pub fn capability_active(schema: Option<&str>) -> bool {
    capability::any_is_open()
        && DataSchema::find(schema)
            .table(LEASES)
            .is_some_and(capability::is_open)
}

/// [`capability_active`] for a schema's OID.
pub fn capability_active_in(schema: Option<pg_sys::Oid>) -> bool {
    capability::any_is_open()
        && schema
            .and_then(|schema| DataSchema::table_in(schema, LEASES))
            .is_some_and(capability::is_open)
}
