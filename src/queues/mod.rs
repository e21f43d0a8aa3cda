//! What a control worker asks over the whole fleet: sweeps, claims, counts.
//!
//! Each function says what it needs of its arguments, then has its statements (`sql/queues`) executed. It
//! sees every row of the tables that its caller owns, and of others what that role may see.

pub mod artifacts;
pub mod leases;
pub mod processes;
pub mod reap;
pub mod rotation;

use std::ffi::CStr;
use std::ops::RangeInclusive;

use pgrx::pg_sys::Datum;
use pgrx::{PgSqlErrorCode, check_for_interrupts};

use crate::pg::error::{Failure, warn};
use crate::pg::statement::{Argument, Refused, Uuids, Work};

const LEASES: &CStr = c"sandbox_leases";
const HOLDERS: &CStr = c"sandbox_lease_holders";
const PROCESSES: &CStr = c"sandbox_retained_processes";
const ARTIFACTS: &CStr = c"sandbox_checkpoint_artifacts";
const TURNS: &CStr = c"session_turns";
const ATTEMPTS: &CStr = c"session_turn_attempts";

/// Defines a statement over a data schema: its file in `sql/queues` and its parameters' types.
macro_rules! statement {
    ($name:ident, $file:literal, [$($ty:ident),*]) => {
        static $name: $crate::pg::statement::Statement = $crate::pg::statement::Statement {
            sql: include_str!(concat!("../../sql/queues/", $file, ".sql")),
            parameters: &[$($crate::protocol::tables::Type::$ty),*],
        };
    };
}
use statement;

/// Ends with 22023: an argument is NULL or out of range.
fn invalid(message: &'static str, hint: &'static str) -> ! {
    Failure::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, message)
        .hint(hint)
        .raise()
}

/// An argument that must be there.
fn required<T>(value: Option<T>, message: &'static str, hint: &'static str) -> T {
    value.unwrap_or_else(|| invalid(message, hint))
}

/// An argument that must be there and within a range.
fn within<T: PartialOrd>(
    value: Option<T>,
    range: RangeInclusive<T>,
    message: &'static str,
    hint: &'static str,
) -> T {
    value
        .filter(|value| range.contains(value))
        .unwrap_or_else(|| invalid(message, hint))
}

/// Writes rows at once where no guard or constraint refuses one of them. Else half by half, down to the rows
/// that are refused: they stay as they are.
fn all_but_refused(
    work: &Work,
    rows: Datum,
    write: impl Fn(Argument<'_>) -> u64,
    written: impl Fn(Argument<'_>),
) -> Left {
    let rows = Uuids::of(rows);
    let mut left = Left {
        total: rows.len(),
        ..Left::default()
    };
    halve(work, rows, &write, &written, &mut left);
    left
}

/// The rows that a sweep could not write.
#[derive(Clone, Copy, Default)]
struct Left {
    count: usize,
    total: usize,
    first: Option<Refused>,
}

impl Left {
    fn and(self, other: Left) -> Left {
        Left {
            count: self.count + other.count,
            total: self.total + other.total,
            first: self.first.or(other.first),
        }
    }

    /// Tells how many rows were left, by one WARNING, and why the first.
    fn tell(self, what: &str) {
        if let Some(refused) = self.first {
            warn(
                format!("{} of {} {what} left as they are", self.count, self.total),
                format!("The first refusal: {}", refused.message.to_string_lossy()),
                "The others are done. These are tried again by the next call.",
            );
        }
    }
}

fn halve(
    work: &Work,
    rows: Uuids,
    write: &impl Fn(Argument<'_>) -> u64,
    written: &impl Fn(Argument<'_>),
    left: &mut Left,
) {
    check_for_interrupts!();
    let argument = rows.argument();
    match work.attempt(|| write(argument)) {
        Ok(_) => written(argument),
        Err(refused) if rows.len() == 1 => {
            left.count += 1;
            left.first.get_or_insert(refused);
        }
        Err(_) => {
            for half in rows.halves() {
                halve(work, half, write, written, left);
            }
        }
    }
}
