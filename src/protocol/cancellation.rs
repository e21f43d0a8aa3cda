//! Cancellation intent: a time and a reason, set once and together.

/// Whether time and reason stand together and the reason is one of the protocol's; otherwise the bits of
/// what offends: the time, the reason.
pub fn validate(requested: bool, reason: Option<&[u8]>) -> Result<(), u64> {
    match (requested, reason) {
        (false, None) => Ok(()),
        (true, Some(b"provider_deadline" | b"explicit_stop")) => Ok(()),
        (true, _) => Err(1 << 1),
        (false, Some(b"provider_deadline" | b"explicit_stop")) => Err(1),
        (false, Some(_)) => Err(1 | 1 << 1),
    }
}
