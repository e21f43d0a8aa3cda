//! The one way out with an error.
//!
//! pgrx's own report copies only message, detail, hint, SQLSTATE and location when an error passes
//! through Rust. A refusal also carries schema, table and constraint, so it is raised by direct calls
//! of the server's ereport functions, from a frame that owns nothing: they jump past it.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write;

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

use super::value::palloc_cstr;
use crate::protocol::refusal::Refusal;

#[allow(clashing_extern_declarations)]
unsafe extern "C-unwind" {
    fn errstart(elevel: c_int, domain: *const c_char) -> bool;
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn errmsg_internal(fmt: *const c_char, ...) -> c_int;
    fn errdetail_internal(fmt: *const c_char, ...) -> c_int;
    fn errhint(fmt: *const c_char, ...) -> c_int;
    fn err_generic_string(field: c_int, value: *const c_char) -> c_int;
    fn errfinish(filename: *const c_char, lineno: c_int, funcname: *const c_char);
}

/// An error that is not a rule's refusal: a wrong table, a bad argument.
pub struct Failure {
    report: ErrorReport,
}

impl Failure {
    pub fn new(code: PgSqlErrorCode, message: impl Into<String>) -> Self {
        Failure {
            report: ErrorReport::new(code, message.into(), "opengeni_guards"),
        }
    }

    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.report = self.report.set_detail(detail);
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.report = self.report.set_hint(hint);
        self
    }

    /// Raises the error by unwinding, so that callers may own what they like.
    pub fn raise(self) -> ! {
        self.report.report(PgLogLevel::ERROR);
        unreachable!("an ERROR was reported and came back")
    }
}

/// Tells the caller something by WARNING (01000).
pub fn warn(message: impl Into<String>, detail: impl Into<String>, hint: &str) {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_WARNING,
        message.into(),
        "opengeni_guards",
    )
    .set_detail(detail)
    .set_hint(hint)
    .report(PgLogLevel::WARNING);
}

/// A SQLSTATE in the server's packed form: six bits a character.
fn packed(state: &str) -> c_int {
    state.bytes().take(5).enumerate().fold(0, |packed, (i, b)| {
        packed | (c_int::from(b.wrapping_sub(b'0') & 0x3f) << (6 * i))
    })
}

/// Where a refusal happened.
pub struct Place {
    pub schema: *const c_char,
    /// NULL where it is not about a table.
    pub table: *const c_char,
    pub operation: &'static str,
    /// The column that the refusal knows by number only, or NULL.
    pub attribute: *const c_char,
}

/// Raises a rule's refusal with all its fields.
pub fn refuse(refusal: Refusal, place: Place) -> ! {
    prepare(refusal, place).throw()
}

/// Raises a rule's refusal in the caller's own words.
pub fn refuse_saying(refusal: Refusal, place: Place, message: &str) -> ! {
    let report = prepare(refusal, place);
    Report {
        message: palloc_cstr(message),
        ..report
    }
    .throw()
}

/// Composes the texts in the server's memory, so that nothing of ours is alive when it jumps.
fn prepare(refusal: Refusal, place: Place) -> Report {
    let entry = refusal.rule.entry();
    let mut detail = String::new();
    let mut offend = |name: &str| {
        let separator = if detail.is_empty() {
            "Offending: "
        } else {
            ", "
        };
        // Writing to a String cannot fail.
        let _ = write!(detail, "{separator}{name}");
    };
    refusal.offenders().for_each(&mut offend);
    if !place.attribute.is_null() {
        // SAFETY: as below.
        offend(&unsafe { CStr::from_ptr(place.attribute) }.to_string_lossy());
    }
    if !detail.is_empty() {
        detail.push('.');
    }
    let table = if place.table.is_null() {
        c""
    } else {
        // SAFETY: the names belong to the relation's catalogue entry, which the event holds open, or live as
        // long as the call.
        unsafe { CStr::from_ptr(place.table) }
    };
    let message = if entry.message.contains('{') {
        palloc_cstr(
            &entry
                .message
                .replace("{op}", place.operation)
                .replace("{table}", &table.to_string_lossy()),
        )
    } else {
        palloc_cstr(entry.message)
    };
    Report {
        state: packed(entry.sqlstate),
        message,
        detail: if detail.is_empty() {
            std::ptr::null()
        } else {
            palloc_cstr(&detail)
        },
        hint: palloc_cstr(entry.hint),
        schema: place.schema,
        table: place.table,
        constraint: palloc_cstr(entry.id),
    }
}

/// The finished fields of an error, in memory of the server's.
#[derive(Clone, Copy)]
struct Report {
    state: c_int,
    message: *const c_char,
    detail: *const c_char,
    hint: *const c_char,
    schema: *const c_char,
    table: *const c_char,
    constraint: *const c_char,
}

impl Report {
    fn throw(self) -> ! {
        // SAFETY: plain calls of the server's error functions in their prescribed order, with
        // NUL-terminated strings; this frame and its callers up to the server's handler own no
        // value whose destructor has to run.
        unsafe {
            errstart(PgLogLevel::ERROR as c_int, std::ptr::null());
            errcode(self.state);
            errmsg_internal(c"%s".as_ptr(), self.message);
            if !self.detail.is_null() {
                errdetail_internal(c"%s".as_ptr(), self.detail);
            }
            if !self.hint.is_null() {
                errhint(c"%s".as_ptr(), self.hint);
            }
            for (field, value) in [
                (pg_sys::PG_DIAG_SCHEMA_NAME, self.schema),
                (pg_sys::PG_DIAG_TABLE_NAME, self.table),
                (pg_sys::PG_DIAG_CONSTRAINT_NAME, self.constraint),
            ] {
                if !value.is_null() {
                    err_generic_string(field as c_int, value);
                }
            }
            errfinish(
                concat!(file!(), "\0").as_ptr().cast(),
                line!() as c_int,
                c"opengeni_guards".as_ptr(),
            );
        }
        unreachable!("errfinish returned from an ERROR")
    }
}
