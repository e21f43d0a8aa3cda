//! Acting as somebody else, always restricted.

use std::ffi::{CStr, CString, c_int};

use pgrx::pg_sys;

/// Runs `body` as `role` under SECURITY_RESTRICTED_OPERATION, with this search_path, and puts back identity and
/// every setting: whatever code of that role's ran, what it has set ends here.
///
/// On an error nothing is put back here: the (sub)transaction's abort restores identity and settings.
pub fn as_role<T>(role: pg_sys::Oid, search_path: &str, body: impl FnOnce() -> T) -> T {
    let (mut user, mut context): (pg_sys::Oid, c_int) = (pg_sys::InvalidOid, 0);
    let restricted = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
    // SAFETY: the server's own pairs of calls.
    let level = unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::SetUserIdAndSecContext(role, context | restricted as c_int);
        pg_sys::NewGUCNestLevel()
    };
    let result = with_search_path(search_path, body);
    // SAFETY: restores what was read above, and rolls the settings back to the level that was opened.
    unsafe {
        pg_sys::AtEOXact_GUC(false, level);
        pg_sys::SetUserIdAndSecContext(user, context);
    }
    result
}

/// Runs `body` with this search_path and what else decides how the server reads and writes names, and puts
/// the caller's settings back.
fn with_search_path<T>(search_path: &str, body: impl FnOnce() -> T) -> T {
    let path = CString::new(search_path).unwrap_or_default();
    with_settings(
        &[
            (c"search_path", path.as_c_str()),
            (c"quote_all_identifiers", c"off"),
        ],
        body,
    )
}

/// Runs `body` with these settings and puts the caller's back.
pub fn with_settings<T>(settings: &[(&CStr, &CStr)], body: impl FnOnce() -> T) -> T {
    // SAFETY: a nest level of its own, closed below or by abort; the settings are plain user ones.
    let level = unsafe {
        let level = pg_sys::NewGUCNestLevel();
        for (name, value) in settings {
            pg_sys::set_config_option(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
        level
    };
    let result = body();
    // SAFETY: closes the level opened above.
    unsafe { pg_sys::AtEOXact_GUC(true, level) };
    result
}

/// Runs `body` with the current user's own tables free of the row-level security that is forced on their
/// owner. Anybody else's tables keep theirs.
pub fn unforced<T>(body: impl FnOnce() -> T) -> T {
    let (mut user, mut context): (pg_sys::Oid, c_int) = (pg_sys::InvalidOid, 0);
    // SAFETY: the server's own pair of calls; on an error the (sub)transaction's abort restores both.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::SetUserIdAndSecContext(user, context | pg_sys::SECURITY_NOFORCE_RLS as c_int);
    }
    let result = body();
    // SAFETY: restores what was read above.
    unsafe { pg_sys::SetUserIdAndSecContext(user, context) };
    result
}

/// Runs `body` where every unqualified name is the server's own.
pub fn pinned<T>(body: impl FnOnce() -> T) -> T {
    with_search_path("pg_catalog, pg_temp", body)
}

/// The current user's OID.
pub fn current_user() -> pg_sys::Oid {
    // SAFETY: reads backend state.
    unsafe { pg_sys::GetUserId() }
}

/// Whether `member` may do what `role` may; a superuser may.
pub fn has_privileges_of(member: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    // SAFETY: a catalogue look-up by OID.
    unsafe { pg_sys::has_privs_of_role(member, role) }
}

/// Whether `role` is `owner`, may become it, or is a superuser.
pub fn may_become(role: pg_sys::Oid, owner: pg_sys::Oid) -> bool {
    // SAFETY: a catalogue look-up by OID.
    unsafe { pg_sys::is_member_of_role(role, owner) }
}
