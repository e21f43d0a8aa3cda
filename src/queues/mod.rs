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

use pgrx::PgSqlErrorCode;

use crate::pg::error::{Failure, warn};
use crate::pg::statement::{Argument, Work, each_uuid};

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

/// Writes rows at once, or one by one where one of them is refused: that one stays as it is, and one WARNING
/// tells how many did.
fn each_on_its_own(
    work: &Work,
    what: &str,
    all: Argument<'_>,
    write: impl Fn(Argument<'_>),
    written: impl Fn(Argument<'_>),
) {
    if work.attempt(|| write(all)).is_ok() {
        return written(all);
    }
    let (mut total, mut left, mut first) = (0, 0, None);
    each_uuid(all, |one| {
        total += 1;
        match work.attempt(|| write(one)) {
            Ok(()) => written(one),
            Err(refused) => {
                left += 1;
                first.get_or_insert(refused);
            }
        }
    });
    if let Some(refused) = first {
        warn(
            format!("{left} of {total} {what} left as they are"),
            format!("The first refusal: {}", refused.message.to_string_lossy()),
            "The others are done. These are tried again by the next call.",
        );
    }
}
