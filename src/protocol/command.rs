//! The provider command: where its descriptor and its streams are.

use super::json::{Json, Kind, same};

/// `command ? 'supervision'`; a NULL command is not supervised.
pub fn supervised<J: Json>(command: Option<J>) -> bool {
    command.is_some_and(|c| c.has("supervision"))
}

/// `command -> 'supervision'`.
pub fn descriptor<J: Json>(command: Option<J>) -> Option<J> {
    command?.get("supervision")
}

/// `command -> 'streams'`.
pub fn streams<J: Json>(command: Option<J>) -> Option<J> {
    command?.get("streams")
}

/// `(a - 'streams') = (b - 'streams')` for two objects; `None` where one is not an object and the
/// server's own operator has to answer.
pub fn same_without_streams<J: Json>(a: J, b: J) -> Option<bool> {
    if a.kind() != Kind::Object || b.kind() != Kind::Object {
        return None;
    }
    let counted = |value: J| {
        let mut n = 0usize;
        value.every_member(|key, _| {
            n += usize::from(key != b"streams");
            true
        });
        n
    };
    if counted(a) != counted(b) {
        return Some(false);
    }
    Some(a.every_member(|key, value| key == b"streams" || same(b.member(key), Some(value))))
}

/// What keeps a supervised command's evidence from being removed: bits for its being active, for a receipt
/// and for captured output that are missing. A lost command has nothing left to wait for.
pub fn unsettled(state: Option<&[u8]>, has_receipt: bool, captured: bool) -> u64 {
    match state {
        Some(b"lost") | None => 0,
        Some(state) => {
            u64::from(state == b"active") | u64::from(!has_receipt) << 1 | u64::from(!captured) << 2
        }
    }
}
