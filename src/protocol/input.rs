//! Stdin: an index that only grows, reserved before anything is sent.

use super::contract::{MAX_SAFE, Protocol};

/// Why no input can be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    Length,
    Exhausted,
}

/// A reservation: what is recorded, and what the caller sends its input with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    pub index: i64,
    pub answer: i64,
}

/// The router counts bytes and is told where they begin; otherwise each message has the next number.
pub fn reserve(protocol: Protocol, index: i64, length: Option<i64>) -> Result<Reserved, Flaw> {
    let step = match protocol {
        Protocol::Control => 1,
        Protocol::Router => length
            .filter(|length| (1..=MAX_SAFE).contains(length))
            .ok_or(Flaw::Length)?,
    };
    let next = index
        .checked_add(step)
        .filter(|next| *next <= MAX_SAFE)
        .ok_or(Flaw::Exhausted)?;
    Ok(Reserved {
        index: next,
        answer: match protocol {
            Protocol::Control => next,
            Protocol::Router => index,
        },
    })
}
