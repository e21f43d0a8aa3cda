//! Errors of the server keep all their fields on their way through Rust.
//!
//! pgrx turns an error into a panic where it is met and raises it again at the entry from the server, with message,
//! detail, hint and an SQLSTATE that it knows. Table, constraint, context and an SQLSTATE of somebody's own are lost,
//! so a copy is kept from where the error is reported, and raised instead.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};

use super::subtransaction;

#[allow(clashing_extern_declarations)]
unsafe extern "C-unwind" {
    fn geterrcode() -> c_int;
    #[link_name = "ThrowErrorData"]
    fn raw_throw(error: *mut pg_sys::ErrorData);
}

/// How many errors are remembered: one that is raised again, by RAISE without more, was reported before those that its
/// handler met.
const MOST: usize = 64;

/// The last errors that were reported.
struct Reported {
    /// Where their copies are: the call's memory, which is not reset within it.
    memory: pg_sys::MemoryContext,
    copies: [*mut pg_sys::ErrorData; MOST],
    next: usize,
}

/// Runs `body`; an error of the server that ends it is raised as it was reported. `body` owns whatever has to be
/// dropped: its caller's frames are jumped past.
pub fn kept<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: callback and copies outlive their place on the stack of callbacks: that is put back below, or by the
    // handler that an error jumps to.
    unsafe {
        let mut reported = Reported {
            memory: pg_sys::CurrentMemoryContext,
            copies: [std::ptr::null_mut(); MOST],
            next: 0,
        };
        let mut callback = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(keep),
            arg: (&raw mut reported).cast(),
        };
        pg_sys::error_context_stack = &raw mut callback;
        let body = AssertUnwindSafe(body);
        let result = PgTryBuilder::new(|| {
            let body = body;
            Ok((body.0)())
        })
        .catch_others(|error| Err(Box::new(error)))
        .execute();
        pg_sys::error_context_stack = callback.previous;
        let error = match result {
            Ok(answer) => {
                // Sweeps handle an error a row.
                let handled = reported.copies.into_iter().filter(|copy| !copy.is_null());
                handled.for_each(|copy| pg_sys::FreeErrorData(copy));
                return answer;
            }
            Err(error) => error,
        };
        let newest_first =
            (1..=MOST).map(|back| reported.copies[(reported.next + MOST - back) % MOST]);
        match newest_first
            .into_iter()
            .find(|copy| is_copy_of(*copy, &error))
        {
            Some(copy) => {
                drop(error);
                raw_throw(copy);
                unreachable!("an ERROR was reported and came back")
            }
            None => error.rethrow(),
        }
    }
}

/// Whether this is what the error was reported as. What Rust raises itself is reported at the entry only.
///
/// # Safety
/// `copy` is NULL or one of the server's.
unsafe fn is_copy_of(copy: *mut pg_sys::ErrorData, error: &CaughtError) -> bool {
    // SAFETY: by contract; texts are NULL or NUL-terminated.
    unsafe {
        let text = |text: *const c_char| {
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        let report = subtransaction::report(error);
        !copy.is_null()
            && PgSqlErrorCode::from((*copy).sqlerrcode) as i32 == report.sql_error_code() as i32
            && text((*copy).message).as_deref() == Some(report.message())
            && text((*copy).detail).as_deref() == report.detail()
            && text((*copy).hint).as_deref() == report.hint()
    }
}

/// Called by the server for whatever it reports while its callback is on the stack.
unsafe extern "C-unwind" fn keep(reported: *mut c_void) {
    // SAFETY: the server calls this within a report, with what `kept` gave it. To copy takes memory, which is not asked
    // for where it has run out.
    unsafe {
        if geterrcode() == PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int {
            return;
        }
        let reported = &mut *reported.cast::<Reported>();
        let before = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = reported.memory;
        let mut copy = pg_sys::CopyErrorData();
        if (*copy).elevel >= pgrx::PgLogLevel::ERROR as c_int {
            std::mem::swap(&mut copy, &mut reported.copies[reported.next]);
            reported.next = (reported.next + 1) % MOST;
        }
        if !copy.is_null() {
            pg_sys::FreeErrorData(copy);
        }
        pg_sys::CurrentMemoryContext = before;
    }
}
