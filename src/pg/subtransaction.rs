//! Work that may be undone: a subtransaction around it, as the server's own exception blocks have.

use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};

/// What becomes of the subtransaction of a body that ends without an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Keep,
    Undo,
}

/// Runs `body`; on an error everything it did is undone, locks, settings and identity included.
pub fn attempt<R>(body: impl FnOnce() -> R) -> Result<R, Box<CaughtError>> {
    run(body, End::Keep)
}

/// Runs `body` and undoes everything it did, whatever it answers.
pub fn observe<R>(body: impl FnOnce() -> R) -> Result<R, Box<CaughtError>> {
    run(body, End::Undo)
}

fn run<R>(body: impl FnOnce() -> R, end: End) -> Result<R, Box<CaughtError>> {
    let body = std::panic::AssertUnwindSafe(body);
    // SAFETY: the sequence of the server's own exception blocks. An error arrives as a jump from a direct
    // call of the server, or as a panic from a guarded one: the boundary turns the one into the other, and
    // no panic passes through it.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = PgTryBuilder::new(|| {
            let body = body;
            pg_guard_ffi_boundary(|| {
                PgTryBuilder::new(|| {
                    let body = body;
                    Ok((body.0)())
                })
                .catch_others(|error| Err(Box::new(error)))
                .execute()
            })
        })
        .catch_others(|error| Err(Box::new(error)))
        .execute();
        match (&result, end) {
            (Ok(_), End::Keep) => pg_sys::ReleaseCurrentSubTransaction(),
            _ => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

/// What an error that was caught was reported with.
pub fn report(error: &CaughtError) -> &ErrorReportWithLevel {
    match error {
        CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic {
            ereport: report, ..
        } => report,
    }
}

/// The first two of an SQLSTATE's characters, as the server packs them.
pub const CLASS: i32 = 0xfff;

/// The SQLSTATE of an error that was caught, as the server packs it.
pub fn sqlstate(error: &CaughtError) -> i32 {
    report(error).sql_error_code() as i32
}

/// What an error that was caught says.
pub fn message(error: &CaughtError) -> String {
    report(error).message().to_owned()
}

/// Passes on what nobody may swallow: a cancel, a shutdown.
pub fn unless_cancelled(error: Box<CaughtError>) -> Box<CaughtError> {
    let operator = PgSqlErrorCode::ERRCODE_QUERY_CANCELED as i32 & CLASS;
    if sqlstate(&error) & CLASS == operator {
        error.rethrow();
    }
    error
}

/// The five characters of an SQLSTATE.
pub fn unpacked(state: i32) -> String {
    (0..5)
        .map(|i| char::from(((state >> (6 * i)) & 0x3f) as u8 + b'0'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sqlstate_is_unpacked() {
        let state = PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE as i32;
        assert_eq!(unpacked(state), "55P03");
    }
}
