//! Errors of the server keep all their fields on their way through Rust.
//!
//! pgrx turns an error into a panic where it is met and raises it again at the entry from the server, with message,
//! detail, hint and an SQLSTATE that it knows. Table, constraint, context and an SQLSTATE of somebody's own are lost,
//! so a copy is kept from where the error is reported, and raised instead.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
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

thread_local! {
    /// The last error that was reported, in the memory of the call that keeps it.
    static LAST: Cell<*mut pg_sys::ErrorData> = const { Cell::new(std::ptr::null_mut()) };
}

/// Runs `body`; an error of the server that ends it is raised as it was reported. `body` owns whatever has to be
/// dropped: its caller's frames are jumped past.
pub fn kept<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: the callback's frame outlives its place on the stack of callbacks: that is put back below, or by the
    // handler that an error jumps to. The copy lives in the memory of the call, which is not reset within it.
    unsafe {
        let mut callback = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(keep),
            arg: pg_sys::CurrentMemoryContext.cast(),
        };
        pg_sys::error_context_stack = &raw mut callback;
        let outer = LAST.replace(std::ptr::null_mut());
        let body = AssertUnwindSafe(body);
        let result = PgTryBuilder::new(|| {
            let body = body;
            Ok((body.0)())
        })
        .catch_others(|error| Err(Box::new(error)))
        .execute();
        pg_sys::error_context_stack = callback.previous;
        let last = LAST.replace(outer);
        match result {
            Ok(answer) => answer,
            Err(error) if is_the_same(last, &error) => {
                drop(error);
                raw_throw(last);
                unreachable!("an ERROR was reported and came back")
            }
            Err(error) => error.rethrow(),
        }
    }
}

/// Whether this is what was reported last: what Rust raises itself is reported at the entry only.
///
/// # Safety
/// `last` is NULL or a copy in memory that is still there.
unsafe fn is_the_same(last: *mut pg_sys::ErrorData, error: &CaughtError) -> bool {
    // SAFETY: by contract; a message is NUL-terminated.
    unsafe {
        !last.is_null()
            && !(*last).message.is_null()
            && CStr::from_ptr((*last).message).to_string_lossy() == subtransaction::message(error)
    }
}

/// Called by the server for whatever it reports while its callback is on the stack.
unsafe extern "C-unwind" fn keep(memory: *mut c_void) {
    // SAFETY: the server calls this within a report; `memory` is the context that `kept` was called in. To copy takes
    // memory, which is not asked for where it has run out.
    unsafe {
        let state = geterrcode();
        let success_or_warning = state & 0xfff == 0 || state & 0xfff == 1 << 6;
        if success_or_warning || state == PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int {
            return;
        }
        let before = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = memory.cast();
        let copy = pg_sys::CopyErrorData();
        pg_sys::CurrentMemoryContext = before;
        if (*copy).elevel >= pgrx::PgLogLevel::ERROR as c_int {
            LAST.set(copy);
        }
    }
}
