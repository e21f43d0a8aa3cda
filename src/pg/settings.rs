//! The extension's own settings. Those of the protocol, `opengeni.*`, are the application's to set.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};

static BIND_ON_CREATE: GucSetting<bool> = GucSetting::<bool>::new(true);

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
}
