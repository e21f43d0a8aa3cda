//! Output that moves on: which page may follow a cursor, which acknowledgement a batch.

use super::contract::{STREAM, is_true, other_execution};
use super::json::{Json, Kind, same};
use super::streams::STREAMS;

/// The most text of one stream in a page.
pub const PAGE_BOUND: usize = 4 << 20;

/// Why a page does not follow its cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    Execution,
    Regress,
    NoAdvance,
    Remainder,
    Bound,
}

fn cursor<J: Json>(command: J, stream: &str) -> Option<J> {
    command.get("streams")?.get(stream)
}

fn position<J: Json>(cursor: Option<J>, name: &str) -> i64 {
    // A well-formed cursor has one.
    cursor
        .and_then(|c| c.get(name))
        .and_then(J::as_bigint)
        .unwrap_or(0)
}

fn has_exited<J: Json>(cursor: Option<J>) -> bool {
    cursor
        .and_then(|c| c.get("exitCode"))
        .is_some_and(|code| code.kind() == Kind::Number)
}

/// Whether a page of so many bytes of text per stream leads from one well-formed router command to the next;
/// otherwise the first flaw, stdout's before stderr's, and the bits of what has it.
pub fn advance<J: Json>(before: J, after: J, text: [usize; 2]) -> Result<(), (Flaw, u64)> {
    let other = other_execution(before, after);
    if other != 0 {
        return Err((Flaw::Execution, other));
    }
    for (i, stream) in STREAMS.iter().enumerate() {
        let (old, new) = (cursor(before, stream), cursor(after, stream));
        let member = |cursor: Option<J>, name: &str| cursor.and_then(|c| c.get(name));
        let (from, to) = (position(old, "byteOffset"), position(new, "byteOffset"));
        let (was_at_end, is_at_end) = (is_true(member(old, "eof")), is_true(member(new, "eof")));
        let flaw = if to < from
            || was_at_end && (!is_at_end || to != from)
            || has_exited(old) && !same(old, new)
        {
            Flaw::Regress
        } else if to == from
            && (was_at_end || !is_at_end)
            && (text[i] > 0 || !same(member(old, "utf8Remainder"), member(new, "utf8Remainder")))
        {
            Flaw::NoAdvance
        } else if is_at_end && !member(new, "utf8Remainder").is_some_and(|r| r.is_string(b"")) {
            Flaw::Remainder
        } else if text[i] > PAGE_BOUND {
            Flaw::Bound
        } else {
            continue;
        };
        return Err((flaw, 1 << (STREAM + i as u32)));
    }
    Ok(())
}

/// Whether a supervised command's output is complete: both streams at their end, by a reader that left with 0.
pub fn completes<J: Json>(command: J) -> bool {
    command.has("supervision")
        && STREAMS.iter().all(|stream| {
            let cursor = cursor(command, stream);
            is_true(cursor.and_then(|c| c.get("eof")))
                && cursor
                    .and_then(|c| c.get("exitCode"))
                    .is_some_and(|code| code.is_number(0))
        })
}

/// Which streams of `next` an acknowledgement moves to: a batch behind the recorded one is old news, and the
/// recorded one is repeated exactly. The bits of the streams that contradict what is recorded.
pub fn acknowledge<J: Json>(recorded: J, next: J) -> Result<[bool; 2], u64> {
    let mut moves = [false; 2];
    for (i, stream) in STREAMS.iter().enumerate() {
        let (old, new) = (cursor(recorded, stream), cursor(next, stream));
        let (from, to) = (position(old, "batchIndex"), position(new, "batchIndex"));
        if to < from {
            continue;
        }
        if (to == from || has_exited(old)) && !same(old, new) {
            return Err(1 << (STREAM + i as u32));
        }
        moves[i] = to > from;
    }
    Ok(moves)
}
