//! The supervisor's receipt, and cancellation.

use super::{Command, Ids, LEASES, PROCESS, PROCESSES, statement};
use crate::pg::jsonb_value::Jsonb;
use crate::pg::statement::{Argument, DataSchema, Scope, Sight, Work};
use crate::protocol::contract::{self, Protocol};
use crate::protocol::json::{Json, Kind};
use crate::protocol::refusal::Rule;
use crate::protocol::{command, receipt};

statement!(LOCK_RECEIPT, "receipt_lock", [Uuid, Uuid, Uuid, Uuid]);
statement!(RECORD, "receipt_record", [Uuid, Uuid, Uuid, Uuid, Jsonb]);
statement!(EVIDENCE, "evidence", [Uuid, Uuid, Uuid, Uuid]);
statement!(LOCK, "cancellation_lock", [Uuid, Uuid, Uuid, Uuid]);
statement!(
    REQUEST,
    "cancellation_request",
    [Uuid, Uuid, Uuid, Uuid, Text]
);
statement!(LOCK_LEASE, "cancellation_lease", [Uuid, Uuid, Uuid, Uuid]);
statement!(READY, "ready", [Text]);

const WITH_LEASE: Scope = Scope {
    tables: &[PROCESSES, LEASES],
    ..PROCESS
};

/// Tables of the catalogue only.
const CATALOGUE: Scope = Scope {
    tables: &[],
    sight: Sight::User,
    by_index: false,
};

/// Whether a stored command runs under a supervisor.
fn is_supervised<J: Json>(stored: J) -> bool {
    contract::protocol(stored) == Some(Protocol::Router)
        && command::descriptor(Some(stored)).is_some_and(|d| d.kind() == Kind::Object)
}

/// Records the supervisor's receipt; one that is recorded already is accepted again, another is refused by the
/// guard.
pub fn record_receipt(schema: Option<&str>, ids: Ids<'_>, receipt: Option<Jsonb>) {
    let command = Command::find(schema, ids, Rule::ReceiptScope);
    let Some(receipt) = receipt else {
        command.refuse(Rule::ReceiptShape, receipt::PATHS, 1)
    };
    if let Err(bits) = receipt::well_formed(receipt.document().root()) {
        command.refuse(Rule::ReceiptShape, receipt::PATHS, bits);
    }
    command.work(&PROCESS, |work| {
        let Some([stored, recorded]) = work.row(&LOCK_RECEIPT, &command.key(&[])) else {
            command.refuse(Rule::ReceiptUnknown, super::ID_NAMES, u64::MAX)
        };
        if !stored.is_some_and(|stored| is_supervised(work.jsonb(stored).document().root())) {
            command.refuse(Rule::ReceiptUnsupervised, &["provider_command"], 1);
        }
        let replayed = recorded.is_some_and(|r| work.jsonb(r).document().same(&receipt.document()));
        if !replayed {
            work.run(&RECORD, &command.key(&[Argument::Value(receipt.datum())]));
        }
    });
}

/// The receipt, where there is one.
pub fn load_receipt(schema: Option<&str>, ids: Ids<'_>) -> Option<Jsonb> {
    let command = Command::find(schema, ids, Rule::LoadScope);
    command.work(&PROCESS, |work| {
        let Some([recorded, _]) = work.row(&EVIDENCE, &command.key(&[])) else {
            command.refuse(Rule::LoadUnknown, super::ID_NAMES, u64::MAX)
        };
        recorded.map(|receipt| work.keep(receipt))
    })
}

/// Asks for the command's end; the first request stays, and a command that has ended is left alone.
pub fn request_cancellation(schema: Option<&str>, ids: Ids<'_>, reason: Option<&str>) {
    let command = Command::find(schema, ids, Rule::CancelScope);
    let Some(reason @ ("provider_deadline" | "explicit_stop")) = reason else {
        command.refuse(Rule::CancelReason, &["reason"], 1)
    };
    command.work(&PROCESS, |work| match locked(work, &command) {
        None => command.refuse(Rule::CancelUnknown, super::ID_NAMES, u64::MAX),
        Some(Locked {
            active: true,
            cancelled: false,
            ..
        }) => request(work, &command, reason),
        Some(_) => {}
    });
}

/// Whether somebody has asked for the command's end.
pub fn cancellation_requested(schema: Option<&str>, ids: Ids<'_>) -> bool {
    let command = Command::find(schema, ids, Rule::CancelledScope);
    command.work(&PROCESS, |work| {
        let Some([_, requested]) = work.row(&EVIDENCE, &command.key(&[])) else {
            command.refuse(Rule::CancelledUnknown, super::ID_NAMES, u64::MAX)
        };
        is_true(requested)
    })
}

/// Asks for the command's end where exactly its lease is to rotate before its provider's deadline; whether that
/// is so.
pub fn request_deadline_cancellation(schema: Option<&str>, ids: Ids<'_>) -> bool {
    let command = Command::find(schema, ids, Rule::DeadlineScope);
    command.work(&WITH_LEASE, |work| {
        let Some(process) = locked(work, &command) else {
            return false;
        };
        if !process.active || !process.supervised || work.run(&LOCK_LEASE, &command.key(&[])) == 0 {
            return false;
        }
        if !process.cancelled {
            request(work, &command, "provider_deadline");
        }
        true
    })
}

/// What cancellation has to know of a locked process.
struct Locked {
    active: bool,
    cancelled: bool,
    supervised: bool,
}

fn locked(work: &Work, command: &Command<'_>) -> Option<Locked> {
    let [active, cancelled, stored] = work.row(&LOCK, &command.key(&[]))?;
    Some(Locked {
        active: is_true(active),
        cancelled: is_true(cancelled),
        supervised: stored
            .is_some_and(|stored| is_supervised(work.jsonb(stored).document().root())),
    })
}

fn request<'a>(work: &Work, command: &Command<'a>, reason: &'a str) {
    work.run(&REQUEST, &command.key(&[Argument::Text(reason)]));
}

pub(super) fn is_true(column: Option<pgrx::pg_sys::Datum>) -> bool {
    column.is_some_and(|value| value.value() != 0)
}

/// Whether a schema has the five triggers that a launcher asks for, enabled.
pub fn ready(schema: Option<&str>) -> bool {
    let found = DataSchema::find(schema);
    Work::on(found, &CATALOGUE, |work| {
        let row = work.row(&READY, &[Argument::Text(schema.unwrap_or_default())]);
        matches!(row, Some([ready]) if is_true(ready))
    })
}
