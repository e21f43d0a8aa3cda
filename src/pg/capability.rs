//! The capability to read a fleet's leases: held in this backend's memory, for one scan of one table.
//!
//! It is bound to the table's OID, the transaction and the nesting level at which it was opened. An error
//! never closes it by itself: the end of the (sub)transaction that it aborts does.

use std::cell::RefCell;

use pgrx::pg_sys;

/// One opening.
#[derive(Clone, Copy)]
struct Opening {
    table: pg_sys::Oid,
    /// The subtransaction nesting level.
    level: i32,
}

thread_local! {
    static OPEN: RefCell<Vec<Opening>> = const { RefCell::new(Vec::new()) };
}

/// Runs `body` with the capability for a table open. An opening around this one stays open.
pub fn with<T>(table: pg_sys::Oid, body: impl FnOnce() -> T) -> T {
    let opening = Opening {
        table,
        level: nesting_level(),
    };
    let depth = OPEN.with_borrow_mut(|open| {
        open.push(opening);
        open.len() - 1
    });
    let result = body();
    OPEN.with_borrow_mut(|open| open.truncate(depth));
    result
}

/// Whether the capability for a table is open.
pub fn is_open(table: pg_sys::Oid) -> bool {
    OPEN.with_borrow(|open| open.iter().any(|opening| opening.table == table))
}

/// Whether any is: asked for every row of a table, and nearly always answered no.
pub fn any_is_open() -> bool {
    OPEN.with_borrow(|open| !open.is_empty())
}

fn nesting_level() -> i32 {
    // SAFETY: reads backend state.
    unsafe { pg_sys::GetCurrentTransactionNestLevel() }
}

unsafe extern "C-unwind" fn on_transaction(
    _event: pg_sys::XactEvent::Type,
    _arg: *mut std::ffi::c_void,
) {
    OPEN.with_borrow_mut(Vec::clear);
}

unsafe extern "C-unwind" fn on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    _subtransaction: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        let level = nesting_level();
        OPEN.with_borrow_mut(|open| open.retain(|opening| opening.level < level));
    }
}

/// Registers the callbacks; once per backend, when the library is loaded.
pub fn init() {
    // SAFETY: the callbacks neither raise nor call back, as those of an abort must not.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_transaction), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(on_subtransaction), std::ptr::null_mut());
    }
}
