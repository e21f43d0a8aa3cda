//! The extension's own settings. Those of the protocol, `opengeni.*`, are the application's to set.

use std::ffi::{CStr, CString};

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};

static BIND_ON_CREATE: GucSetting<bool> = GucSetting::<bool>::new(true);

static LIBRARY_VERSION: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(VERSION));

/// The release that this library is of.
const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version with a NUL byte"),
    };

/// Whether CREATE EXTENSION binds the guards of tables that are there already.
pub fn bind_on_create() -> bool {
    BIND_ON_CREATE.get()
}

/// Defines the settings; once per backend, when the library is loaded.
pub fn init() {
    GucRegistry::define_bool_guc(
        c"opengeni_guards.bind_on_create",
        c"Bind the guards of existing tables at the end of CREATE EXTENSION.",
        c"Off: CREATE EXTENSION leaves every trigger as it is, and opengeni_guards.attach() binds the guards later.",
        &BIND_ON_CREATE,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"opengeni_guards.library_version",
        c"The release of the opengeni_guards library that this session has loaded.",
        c"Read-only. The extension's scripts refuse to run with a library older than themselves.",
        &LIBRARY_VERSION,
        GucContext::Internal,
        GucFlags::default(),
    );
}
