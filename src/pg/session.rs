//! The session and its transaction.

use std::ffi::CStr;
use std::time::Duration;

use pgrx::pg_sys;

use super::value;

/// `current_setting(name, true)`: the value stays valid until the setting changes.
pub fn setting(name: &CStr) -> Option<&CStr> {
    // SAFETY: GetConfigOption returns NULL or a NUL-terminated string that the setting owns.
    unsafe {
        let value = pg_sys::GetConfigOption(name.as_ptr(), true, false);
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

/// Opts the transaction into the protocol, as its writers have to, until it ends.
pub fn set_protocol_marker() {
    // SAFETY: a setting of a custom class; LOCAL outlives the function calls around this one.
    unsafe {
        pg_sys::set_config_option(
            c"opengeni.sandbox_recovery_protocol_v2".as_ptr(),
            c"1".as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_LOCAL,
            true,
            0,
            false,
        );
    }
}

/// `pg_notify(channel, payload)`: sent when the transaction commits.
pub fn notify(channel: &str, payload: &[u8]) {
    let arguments = [channel.as_bytes(), payload].map(value::text_datum);
    // SAFETY: pg_notify takes two texts.
    unsafe {
        value::call(
            pg_sys::pg_notify,
            std::ptr::null_mut(),
            pg_sys::InvalidOid,
            &arguments,
        );
    }
}

/// `pg_try_advisory_xact_lock(hashtextextended(name, 0))`.
pub fn try_advisory_lock(name: &[u8]) -> bool {
    let (function, seed) = (pg_sys::hashtextextended, pg_sys::Datum::from(0_i64));
    // SAFETY: the functions take a text and a bigint, and a bigint; the collation is the database's own.
    unsafe {
        let key = value::call(
            function,
            std::ptr::null_mut(),
            pg_sys::DEFAULT_COLLATION_OID,
            &[value::text_datum(name), seed],
        );
        value::call(
            pg_sys::pg_try_advisory_xact_lock_int8,
            std::ptr::null_mut(),
            pg_sys::InvalidOid,
            &[key],
        )
        .value()
            != 0
    }
}

/// Waits until nobody has a relation locked against its readers. Locks nothing, also on a standby.
pub fn wait_until_readable(relation: pg_sys::Oid) {
    let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: a pair of calls; what has been dropped meanwhile is locked by its number only.
    unsafe {
        pg_sys::LockRelationOid(relation, mode);
        pg_sys::UnlockRelationOid(relation, mode);
    }
}

/// Waits for whoever else changes a schema of this database through us, to the end of the transaction: schemas share
/// the contract's. Nobody but the extension's owner can lock it otherwise. False where it was dropped meanwhile.
pub fn take_turns() -> bool {
    require_writable();
    // SAFETY: look-ups by name; the lock is on the extension's own catalogue row.
    unsafe {
        let extension = || pg_sys::get_extension_oid(c"opengeni_guards".as_ptr(), true);
        let ours = extension();
        pg_sys::LockDatabaseObject(
            pg_sys::ExtensionRelationId,
            ours,
            0,
            pg_sys::ExclusiveLock as pg_sys::LOCKMODE,
        );
        ours != pg_sys::InvalidOid && extension() == ours
    }
}

/// The session's own limit for waiting for a lock, if it has one.
pub fn lock_timeout() -> Option<Duration> {
    // SAFETY: reads backend state.
    let milliseconds = unsafe { pg_sys::LockTimeout };
    let milliseconds = u64::try_from(milliseconds).ok().filter(|ms| *ms > 0)?;
    Some(Duration::from_millis(milliseconds))
}

/// Refuses a read-only transaction, as on a standby, with the server's own 25006.
pub fn require_writable() {
    // SAFETY: reads backend state, and raises with a NUL-terminated name.
    unsafe { pg_sys::PreventCommandIfReadOnly(c"a change of guards or grants".as_ptr()) };
}

/// Whether the session user (not the current role) is a superuser.
pub fn session_user_is_superuser() -> bool {
    // SAFETY: look-ups by OID.
    unsafe { pg_sys::superuser_arg(pg_sys::GetSessionUserId()) }
}

/// `pg_current_xact_id_if_assigned()`, as a plain number: never assigns one.
pub fn top_transaction_id() -> Option<u64> {
    // SAFETY: reads backend state.
    let id = unsafe { pg_sys::GetTopFullTransactionIdIfAny() }.value;
    (id != 0).then_some(id)
}

/// Whether a full transaction id belongs to somebody else's transaction that is still running, or to
/// one that has not begun.
pub fn is_foreign_and_unfinished(id: u64) -> bool {
    // SAFETY: reads shared transaction state.
    unsafe {
        let next = pg_sys::ReadNextFullTransactionId().value;
        if id >= next {
            return true;
        }
        // The low 32 bits name a transaction only within the last 2^31; older ones have finished.
        if next - id >= 1 << 31 {
            return false;
        }
        let xid = pg_sys::TransactionId::from(id as u32);
        pg_sys::TransactionIdIsInProgress(xid) && !pg_sys::TransactionIdIsCurrentTransactionId(xid)
    }
}

/// `pg_trigger_depth()`, as a function called by the current trigger would see it.
pub fn trigger_depth() -> i32 {
    // SAFETY: takes no argument and reads backend state.
    unsafe {
        value::call(
            pg_sys::pg_trigger_depth,
            std::ptr::null_mut(),
            pg_sys::InvalidOid,
            &[],
        )
        .value() as i32
    }
}
