//! Stdin: reserved here, before it is sent.

use super::supervision::is_true;
use super::{Command, Ids, PROCESS, statement};
use crate::pg::statement::Argument;
use crate::protocol::contract::{self, Protocol};
use crate::protocol::input::{self, Flaw};
use crate::protocol::refusal::Rule;

statement!(LOCK, "input_lock", [Uuid, Uuid, Uuid, Uuid]);
statement!(RESERVE, "input_reserve", [Uuid, Uuid, Uuid, Uuid, Bigint]);

/// Moves the index on and tells the caller with which one to send. What is reserved is used up, also by a send
/// that may not have arrived.
pub fn reserve(schema: Option<&str>, ids: Ids<'_>, length: Option<i64>) -> i64 {
    let command = Command::find(schema, ids, Rule::InputScope);
    command.work(&PROCESS, |work| {
        let Some([stored, active, closed, index]) = work.row(&LOCK, &command.key(&[])) else {
            command.refuse(Rule::InputUnknown, super::ID_NAMES, u64::MAX)
        };
        let stored = match stored {
            Some(stored) if is_true(active) => work.jsonb(stored),
            None => command.refuse(Rule::InputInactive, &["provider_command"], 1),
            Some(_) => command.refuse(Rule::InputInactive, &["state"], 1),
        };
        if is_true(closed) {
            command.refuse(
                Rule::InputClosed,
                &["cancellation_requested_at", "supervision_receipt"],
                u64::MAX,
            );
        }
        // As the application: whatever is not the router's is numbered.
        let protocol = contract::protocol(stored.document().root()).unwrap_or(Protocol::Control);
        let index = index.map_or(0, |index| index.value() as i64);
        match input::reserve(protocol, index, length) {
            Ok(reserved) => {
                work.run(&RESERVE, &command.key(&[Argument::Bigint(reserved.index)]));
                reserved.answer
            }
            Err(Flaw::Length) => command.refuse(Rule::InputLength, &["byte_length"], 1),
            Err(Flaw::Exhausted) => {
                command.refuse(Rule::InputExhausted, &["provider_command_input_index"], 1)
            }
        }
    })
}
