//! `enforce_sandbox_recovery_protocol_v2`: BEFORE INSERT, UPDATE, DELETE of the six protocol tables.
//!
//! A writer says that it knows the protocol by setting the marker in its transaction. It is not an
//! authentication boundary: it keeps writers of an older release out.

use crate::pg::session;
use crate::pg::trigger::Event;
use crate::protocol::refusal::{Rule, Verdict, refuse};

/// Refuses a write without the marker, unless the session user is a superuser.
pub fn check(_event: &Event<'_>) -> Verdict {
    let marked = session::setting(c"opengeni.sandbox_recovery_protocol_v2") == Some(c"1");
    if marked || session::session_user_is_superuser() {
        return Ok(());
    }
    refuse(Rule::Marker, &["opengeni.sandbox_recovery_protocol_v2"])
}
