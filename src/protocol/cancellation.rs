//! Cancellation intent: a time and a reason, set once and together.

/// Whether time and reason stand together and the reason is one of the protocol's.
pub fn is_valid(requested: bool, reason: Option<&[u8]>) -> bool {
    match reason {
        None => !requested,
        Some(reason) => requested && matches!(reason, b"provider_deadline" | b"explicit_stop"),
    }
}
