//! Output cursors: per stream a byte offset, the bytes of an unfinished character, end of file and the
//! exit code of the reader. They only move forward.

use super::chain::Chain;
use super::json::{Json, Kind, same};
use super::shape;

pub const STREAMS: [&str; 2] = ["stdout", "stderr"];
const MEMBERS: [&str; 4] = ["byteOffset", "utf8Remainder", "eof", "exitCode"];
const WIDTH: u32 = 6;

/// Offending paths, by bit: `streams` itself, then [`WIDTH`] bits per stream.
pub const PATHS: &[&str] = &[
    "provider_command.streams",
    "provider_command.streams.stdout",
    "provider_command.streams.stdout.byteOffset",
    "provider_command.streams.stdout.utf8Remainder",
    "provider_command.streams.stdout.eof",
    "provider_command.streams.stdout.exitCode",
    "provider_command.streams.stdout.*",
    "provider_command.streams.stderr",
    "provider_command.streams.stderr.byteOffset",
    "provider_command.streams.stderr.utf8Remainder",
    "provider_command.streams.stderr.eof",
    "provider_command.streams.stderr.exitCode",
    "provider_command.streams.stderr.*",
];

/// The bit of a whole stream; its members follow.
fn bit(stream: usize) -> u32 {
    1 + WIDTH * stream as u32
}

fn member<J: Json>(stream: Option<J>, name: &str) -> Option<J> {
    stream?.get(name)
}

fn is_object<J: Json>(value: Option<J>) -> bool {
    value.is_some_and(|v| v.kind() == Kind::Object)
}

/// Whether a member has the type that the protocol gives it.
fn well_typed<J: Json>(name: &str, value: Option<J>) -> bool {
    let Some(value) = value else { return false };
    match name {
        "byteOffset" => value.as_bigint().is_some_and(|n| n >= 0),
        "utf8Remainder" => value.kind() == Kind::String,
        "eof" => value.kind() == Kind::Boolean,
        "exitCode" => value.kind() == Kind::Null || is_exit_code(value),
        _ => true,
    }
}

fn is_exit_code<J: Json>(value: J) -> bool {
    value.kind() == Kind::Number
        && value
            .text()
            .is_some_and(|t| shape::parse_int4(&t).is_some())
}

/// The members of `new` that rewrite settled ones of `old`, as bits within the stream. A member of
/// the wrong type in `old` sets no floor: it may be repaired, except that end of file stays end of
/// file.
fn rewritten<J: Json>(old: Option<J>, new: Option<J>, with_exit_code: bool) -> u64 {
    let mut bits = 0;
    for (i, name) in MEMBERS.iter().enumerate() {
        if *name == "exitCode" && !with_exit_code {
            continue;
        }
        let (was, is) = (member(old, name), member(new, name));
        let kept = same(was, is)
            || match *name {
                "eof" if was.and_then(J::as_boolean) == Some(true) => {
                    is.is_some_and(|v| v.kind() == Kind::Boolean)
                        && is.and_then(J::as_boolean) == Some(true)
                }
                _ => !well_typed(name, was),
            };
        if !kept {
            bits |= 1 << (1 + i);
        }
    }
    let unknown_kept = |from: Option<J>, to: Option<J>| {
        from.is_none_or(|from| {
            from.kind() != Kind::Object
                || from.every_member(|key, value| {
                    MEMBERS.iter().any(|m| m.as_bytes() == key)
                        || same(to.and_then(|to| to.member(key)), Some(value))
                })
        })
    };
    if !(unknown_kept(old, new) && unknown_kept(new, old)) {
        bits |= 1 << 5;
    }
    bits
}

/// Whether changed streams take back output proof; the offending [`PATHS`] of the first stream that
/// does. Judges only streams that differ from what they were.
pub fn regress<J: Json>(old: Option<J>, new: Option<J>) -> Result<(), u64> {
    if is_object(old) && !is_object(new) {
        return Err(1);
    }
    for (i, name) in STREAMS.iter().enumerate() {
        let (was, is) = (member(old, name), member(new, name));
        if is_object(was) && !is_object(is) {
            return Err(1 << bit(i));
        }
        let mut bits = 0;
        if let Some(floor) = member(was, "byteOffset").and_then(J::as_bigint) {
            // A floor needs an offset above it: an absent one resets the cursor.
            if member(is, "byteOffset")
                .and_then(J::to_bigint)
                .is_none_or(|n| n < floor)
            {
                bits |= 1 << 1;
            }
        }
        let exited = member(was, "exitCode").is_some_and(is_exit_code);
        if exited || member(was, "eof").and_then(J::as_boolean) == Some(true) {
            bits |= rewritten(was, is, exited);
        }
        if bits != 0 {
            return Err(bits << bit(i));
        }
    }
    Ok(())
}

/// Whether every present cursor has the protocol's members; otherwise the offending [`PATHS`].
/// Absent streams are legal: a reader has not begun.
pub fn well_formed<J: Json>(streams: Option<J>) -> Result<(), u64> {
    let Some(streams) = streams else {
        return Ok(());
    };
    if streams.kind() != Kind::Object {
        return Err(1);
    }
    let mut bits = 0;
    for (i, name) in STREAMS.iter().enumerate() {
        let Some(stream) = streams.get(name) else {
            continue;
        };
        if stream.kind() != Kind::Object {
            bits |= 1 << bit(i);
            continue;
        }
        for (m, member) in MEMBERS.iter().enumerate() {
            let value = stream.get(member);
            // A reader that has no exit code yet may leave it out.
            let absent_is_fine = *member == "exitCode" && value.is_none();
            if !absent_is_fine && !well_typed(member, value) {
                bits |= 1 << (bit(i) + 1 + m as u32);
            }
        }
    }
    if bits == 0 { Ok(()) } else { Err(bits) }
}

/// Whether both streams were read to their end by a reader that exited with 0.
pub fn complete<J: Json>(streams: Option<J>) -> Result<(), u64> {
    let is = |stream: usize, name: &'static str, expected: &'static [u8]| {
        member(streams, STREAMS[stream])?.member_is(name, expected)
    };
    Chain::new()
        .and(bit(0) + 3, || is(0, "eof", b"true"))
        .and(bit(1) + 3, || is(1, "eof", b"true"))
        .and(bit(0) + 2, || is(0, "utf8Remainder", b""))
        .and(bit(1) + 2, || is(1, "utf8Remainder", b""))
        .and(bit(0) + 4, || is(0, "exitCode", b"0"))
        .and(bit(1) + 4, || is(1, "exitCode", b"0"))
        .verdict()
}

/// Whether no reader has moved: both streams present, at zero, nothing else.
pub fn pristine<J: Json>(streams: Option<J>) -> bool {
    streams.is_some_and(|streams| {
        streams.only_keys(&STREAMS)
            && STREAMS.iter().all(|name| {
                streams.get(name).is_some_and(|stream| {
                    let get = |key| stream.get(key);
                    stream.only_keys(&MEMBERS)
                        && get("byteOffset").is_some_and(|v| v.is_number(0))
                        && get("utf8Remainder").is_some_and(|v| v.is_string(b""))
                        && get("eof").is_some_and(|v| {
                            v.kind() == Kind::Boolean && v.as_boolean() == Some(false)
                        })
                        && get("exitCode").is_some_and(|v| v.kind() == Kind::Null)
                })
            })
    })
}
