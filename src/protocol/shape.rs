//! Fixed shapes of identifiers, matched by hand: a regular expression engine costs four times as much
//! per row. The tests compare each with its pattern.

/// Whether all bytes are of a kind. Without an early exit, so that it is done many bytes at a time.
fn all(text: &[u8], kind: impl Fn(u8) -> bool) -> bool {
    text.iter().fold(true, |all, &b| all & kind(b))
}

fn lower_hex(b: u8) -> bool {
    b.wrapping_sub(b'0') < 10 || b.wrapping_sub(b'a') < 6
}

fn hex(b: u8) -> bool {
    // Setting bit 5 maps A-F to a-f and no other byte into the digits.
    b.wrapping_sub(b'0') < 10 || (b | 0x20).wrapping_sub(b'a') < 6
}

/// `^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`
pub fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36
        && [8, 13, 18, 23].iter().all(|i| text[*i] == b'-')
        && [0..8, 9..13, 14..18, 19..23, 24..36]
            .into_iter()
            .all(|part| all(&text[part], hex))
}

/// `^[0-9a-f]{64}$`
pub fn is_nonce(text: &[u8]) -> bool {
    text.len() == 64 && all(text, lower_hex)
}

/// `^/tmp/opengeni-supervision/[a-f0-9-]{36}\.sock$`
pub fn is_control_path(text: &[u8]) -> bool {
    text.strip_prefix(b"/tmp/opengeni-supervision/")
        .and_then(|rest| rest.strip_suffix(b".sock"))
        .is_some_and(|name| name.len() == 36 && all(name, |b| lower_hex(b) || b == b'-'))
}

/// `^-?[0-9]+$`
pub fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// The `integer` that [`is_integer`] text of any length denotes, where it is in range.
pub fn parse_int4(text: &[u8]) -> Option<i32> {
    if !is_integer(text) {
        return None;
    }
    let negative = text.first() == Some(&b'-');
    let mut value: i64 = 0;
    for b in text.iter().filter(|b| b.is_ascii_digit()) {
        // Past the range of int4 the sign no longer matters; saturate instead of overflowing.
        value = (value * 10 + i64::from(b - b'0')).min(i64::from(u32::MAX));
    }
    i32::try_from(if negative { -value } else { value }).ok()
}

/// A uuid as the server writes it: lower case, hyphens after 4, 6, 8 and 10 bytes.
pub fn uuid_text(uuid: &[u8; 16]) -> [u8; 36] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            at += 1;
        }
        text[at] = DIGITS[usize::from(byte >> 4)];
        text[at + 1] = DIGITS[usize::from(byte & 15)];
        at += 2;
    }
    text
}
