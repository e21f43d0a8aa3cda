//! The shape of a provider command, as the application's published contract has it: what it names, and how
//! far each output stream has been read.

use super::descriptor;
use super::json::{Json, Kind, same};
use super::streams::STREAMS;

/// How a command is reached at its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `modal-control-v1`: output in batches, each acknowledged. Read on, never started anew.
    Control,
    /// `modal-router-v1`: output by byte offset, captured with its cursor.
    Router,
}

/// The largest integer that the application reads exactly.
pub const MAX_SAFE: i64 = (1 << 53) - 1;

/// The members of a document that has not the shape, by bit: itself, its members, then each stream's.
macro_rules! paths {
    ($name:ident, $document:literal) => {
        pub const $name: &[&str] = &[
            $document,
            concat!($document, ".kind"),
            concat!($document, ".sandboxId"),
            concat!($document, ".taskId"),
            concat!($document, ".execId"),
            concat!($document, ".pty"),
            concat!($document, ".supervision"),
            concat!($document, ".streams"),
            concat!($document, ".*"),
            concat!($document, ".streams.stdout"),
            concat!($document, ".streams.stderr"),
        ];
    };
}
paths!(COMMAND, "command");
paths!(EXPECTED, "expected");
paths!(STORED, "provider_command");

const KIND: u32 = 1;
const PTY: u32 = 5;
const SUPERVISION: u32 = 6;
const STREAMS_BIT: u32 = 7;
const OTHERS: u32 = 8;
/// The bit of the first stream.
pub const STREAM: u32 = 9;

/// What names an execution, and their bits.
const NAMES: [(u32, &str); 3] = [(2, "sandboxId"), (3, "taskId"), (4, "execId")];

/// Which protocol a command speaks; the offending bits where its shape is neither's.
pub fn parse<J: Json>(command: J) -> Result<Protocol, u64> {
    if command.kind() != Kind::Object {
        return Err(1);
    }
    let Some(protocol) = protocol(command) else {
        return Err(1 << KIND);
    };
    let mut bits = 0;
    for (bit, name) in NAMES {
        let fits = command
            .get(name)
            .is_some_and(|value| string_of(value, 1..=200));
        bits |= u64::from(!fits) << bit;
    }
    let pty = command.get("pty");
    bits |= u64::from(pty.is_some_and(|pty| pty.kind() != Kind::Boolean)) << PTY;
    let known: &[&str] = match protocol {
        Protocol::Control => &["kind", "sandboxId", "taskId", "execId", "pty", "streams"],
        Protocol::Router => &[
            "kind",
            "sandboxId",
            "taskId",
            "execId",
            "pty",
            "streams",
            "supervision",
        ],
    };
    bits |= u64::from(!command.only_keys(known)) << OTHERS;
    match command.get("streams") {
        Some(streams) if streams.only_keys(&STREAMS) => {
            for (i, name) in STREAMS.iter().enumerate() {
                let fits = streams
                    .get(name)
                    .is_some_and(|stream| cursor(protocol, stream));
                bits |= u64::from(!fits) << (STREAM + i as u32);
            }
        }
        _ => bits |= 1 << STREAMS_BIT,
    }
    if bits == 0
        && protocol == Protocol::Router
        && let Some(descriptor) = command.get("supervision")
    {
        let strings = descriptor.every_member(|_, value| value.kind() == Kind::String);
        if !strings || descriptor::validate(command, descriptor).is_err() {
            bits |= 1 << SUPERVISION;
        }
    }
    if bits == 0 { Ok(protocol) } else { Err(bits) }
}

/// The protocol that a command's kind names.
pub fn protocol<J: Json>(command: J) -> Option<Protocol> {
    let kind = command.get("kind")?;
    if kind.is_string(b"modal-router-v1") {
        Some(Protocol::Router)
    } else if kind.is_string(b"modal-control-v1") {
        Some(Protocol::Control)
    } else {
        None
    }
}

fn cursor<J: Json>(protocol: Protocol, stream: J) -> bool {
    let integer = |name: &str| stream.get(name).and_then(safe_integer);
    let exit_code = stream.get("exitCode");
    let running = exit_code.is_some_and(|value| value.kind() == Kind::Null);
    let remainder = stream.get("utf8Remainder").is_some_and(is_remainder);
    let (keys, position): (&[&str], _) = match protocol {
        Protocol::Control => (&["batchIndex", "utf8Remainder", "exitCode"], "batchIndex"),
        Protocol::Router => (
            &["byteOffset", "utf8Remainder", "eof", "exitCode"],
            "byteOffset",
        ),
    };
    let eof = stream.get("eof");
    stream.only_keys(keys)
        && integer(position).is_some_and(|at| at >= 0)
        && remainder
        && (running || exit_code.and_then(safe_integer).is_some())
        && match protocol {
            Protocol::Control => true,
            // Whoever knows the exit code has read to the end.
            Protocol::Router => {
                eof.is_some_and(|eof| eof.kind() == Kind::Boolean) && (running || is_true(eof))
            }
        }
}

/// A JSON number that is written as an integer and that the application reads exactly.
fn safe_integer<J: Json>(value: J) -> Option<i64> {
    (value.kind() == Kind::Number)
        .then(|| value.as_bigint())?
        .filter(|n| (-MAX_SAFE..=MAX_SAFE).contains(n))
}

/// Whether this is a string of so many UTF-16 units, as the application counts.
fn string_of<J: Json>(value: J, length: std::ops::RangeInclusive<usize>) -> bool {
    let units = |text: &[u8]| {
        text.iter()
            .map(|byte| usize::from(byte & 0xC0 != 0x80) + usize::from(*byte >= 0xF0))
            .sum()
    };
    value.kind() == Kind::String
        && value
            .text()
            .is_some_and(|text| length.contains(&units(&text)))
}

/// The bytes of an unfinished character: at most eight characters of base64.
fn is_remainder<J: Json>(value: J) -> bool {
    value.kind() == Kind::String
        && value.text().is_some_and(|text| {
            let digits = text.strip_suffix(b"=").unwrap_or(&text);
            let digits = digits.strip_suffix(b"=").unwrap_or(digits);
            text.len() <= 8
                && digits
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
        })
}

pub fn is_true<J: Json>(value: Option<J>) -> bool {
    value.is_some_and(|v| v.kind() == Kind::Boolean && v.as_boolean() == Some(true))
}

/// The bits of what makes two well-formed commands different executions; none where they are one.
pub fn other_execution<J: Json>(a: J, b: J) -> u64 {
    let differs = |name: &str| !same(a.get(name), b.get(name));
    let mut bits = u64::from(differs("kind")) << KIND;
    for (bit, name) in NAMES {
        bits |= u64::from(differs(name)) << bit;
    }
    bits |= u64::from(is_true(a.get("pty")) != is_true(b.get("pty"))) << PTY;
    bits | u64::from(differs("supervision")) << SUPERVISION
}
