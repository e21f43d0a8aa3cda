//! Native guards for the OpenGeni sandbox protocol.
//!
//! A rule is a pure decision (`protocol`) over rows that the edge hands it (`pg`); a guard (`guards`)
//! puts rules in their order; `surface` is what SQL sees.

pgrx::pg_module_magic!();

#[deny(unsafe_code)]
mod commands;
#[deny(unsafe_code)]
mod guards;
mod pg;
#[deny(unsafe_code)]
mod protocol;
#[deny(unsafe_code)]
mod provision;
#[deny(unsafe_code)]
mod queues;
mod surface;

#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::capability::init();
    pg::chain::init();
    pg::invalidation::init();
    pg::settings::init();
    pg::shadow::init();
}

#[cfg(test)]
pub mod pg_test {
    pub fn setup(_options: Vec<&str>) {}

    pub fn postgresql_conf_options() -> Vec<&'static str> {
        Vec::new()
    }
}
