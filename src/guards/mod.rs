//! One file per guard: which table and event, its rules in order, nothing else.

pub mod blocker;
pub mod capture;
pub mod checkpoint;
pub mod identity;
pub mod instruction_policy;
pub mod provider_loss;
pub mod recovery_protocol;
pub mod supervised_command;
pub mod truncate;

use crate::pg::probe::{self, Key, Lock};
use crate::pg::row::Row;
use crate::pg::trigger::Event;
use crate::protocol::tables::Table;

/// Locks the rows that have these keys and satisfy `condition`, and shows each that still does so then. A
/// trigger that only watches reads them.
fn lock_each<T: Table>(
    event: &Event<'_>,
    keys: &[(T, Key<'_>)],
    lock: Lock,
    condition: impl Fn(&Row<'_, T>) -> bool,
    mut visit: impl FnMut(&Row<'_, T>),
) {
    if event.is_shadow() {
        probe::exists(&event.relation(), keys, |row| {
            if condition(row) {
                visit(row);
            }
            false
        });
    } else {
        probe::lock_each(&event.relation(), keys, lock, condition, visit);
    }
}
