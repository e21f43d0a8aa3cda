//! The supervision descriptor: the names by which a supervisor is found again.

use super::chain::Chain;
use super::json::{Json, Kind};
use super::shape;

/// The members of a failed check, by bit.
pub const PATHS: &[&str] = &[
    "provider_command.supervision",
    "provider_command.kind",
    "provider_command.pty",
    "provider_command.supervision.protocol",
    "provider_command.supervision.invocationId",
    "provider_command.supervision.nonce",
    "provider_command.supervision.controlPath",
    "provider_command.supervision.*",
];

const KEYS: &[&str] = &["protocol", "invocationId", "nonce", "controlPath"];

/// Whether `command` may carry `descriptor`; otherwise the offending [`PATHS`].
pub fn validate<J: Json>(command: J, descriptor: J) -> Result<(), u64> {
    let matches = |key: &str, shape: fn(&[u8]) -> bool| Some(shape(&descriptor.get(key)?.text()?));
    Chain::new()
        .and(0, || Some(descriptor.kind() == Kind::Object))
        .and(1, || command.member_is("kind", b"modal-router-v1"))
        .and(2, || {
            Some(!command.get("pty").and_then(J::to_boolean).unwrap_or(false))
        })
        .and(3, || {
            descriptor.member_is("protocol", b"native-subreaper-v1")
        })
        .and(4, || matches("invocationId", shape::is_uuid))
        .and(5, || matches("nonce", shape::is_nonce))
        .and(6, || matches("controlPath", shape::is_control_path))
        .and(7, || Some(descriptor.only_keys(KEYS)))
        .verdict()
}
