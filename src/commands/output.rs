//! Output: captured page by page with its cursor, or acknowledged batch by batch.

use std::ffi::CStr;

use super::supervision::is_true;
use super::{Command, Ids, PROCESS, PROCESSES, SESSIONS, statement};
use crate::pg::jsonb_value::Jsonb;
use crate::pg::rows::Rows;
use crate::pg::session;
use crate::pg::statement::{Argument, Scope, Work};
use crate::protocol::contract::{self, Protocol};
use crate::protocol::json::Json;
use crate::protocol::output::{self, Flaw};
use crate::protocol::refusal::Rule;
use crate::protocol::shape;

statement!(LOCK_SESSION, "output_session", [Uuid, Uuid, Uuid]);
statement!(LOCK, "output_lock", [Uuid, Uuid, Uuid, Uuid]);
statement!(
    ADVANCE,
    "output_advance",
    [Uuid, Uuid, Uuid, Uuid, Jsonb, Boolean]
);
statement!(
    STORE,
    "output_store",
    [Uuid, Uuid, Uuid, Uuid, Jsonb, Jsonb, Text, Text, Text]
);
statement!(CHANGED, "output_changed", [Uuid, Jsonb]);
statement!(SHOW, "output_show", [Uuid, Jsonb, Jsonb, Text, Text, Text]);
statement!(
    ACKNOWLEDGE,
    "output_acknowledge",
    [Uuid, Uuid, Uuid, Uuid, Jsonb, Boolean, Boolean]
);

const WITH_SESSION: Scope = Scope {
    tables: &[SESSIONS, PROCESSES],
    ..PROCESS
};
/// Where chunks are stored; an application that keeps output elsewhere has no such table.
const OUTPUT: &CStr = c"sandbox_command_output";
/// Where a captured page is announced, by its process's id.
const CHANNEL: &str = "opengeni_command_output";
const NO_EVENTS: &CStr = c"[]";

/// What a reader read: the cursors before and after, and the text between.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    pub expected: Option<Jsonb>,
    pub command: Option<Jsonb>,
    pub stdout: Option<&'a str>,
    pub stderr: Option<&'a str>,
}

/// Captures a page: cursor, captured flag and chunks at once, and announces it. A reader whose cursor is not the
/// recorded one is shown the recorded one instead.
pub fn capture(schema: Option<&str>, ids: Ids<'_>, page: Page<'_>, rows: &Rows) {
    let command = Command::find(schema, ids, Rule::CaptureScope);
    let (Some(stdout), Some(stderr)) = (page.stdout, page.stderr) else {
        let missing = u64::from(page.stdout.is_none()) | u64::from(page.stderr.is_none()) << 1;
        command.refuse(Rule::CapturePage, &["stdout", "stderr"], missing)
    };
    let expected = router(
        &command,
        page.expected,
        Rule::CaptureExpected,
        contract::EXPECTED,
    );
    let next = router(
        &command,
        page.command,
        Rule::CaptureCommand,
        contract::COMMAND,
    );
    let advance = output::advance(
        expected.document().root(),
        next.document().root(),
        [stdout.len(), stderr.len()],
    );
    if let Err((flaw, bits)) = advance {
        let rule = match flaw {
            Flaw::Execution => Rule::CaptureExecutionChanged,
            Flaw::Regress => Rule::CaptureRegress,
            Flaw::NoAdvance => Rule::CaptureNoAdvance,
            Flaw::Remainder => Rule::CaptureRemainder,
            Flaw::Bound => Rule::CaptureBound,
        };
        command.refuse(rule, contract::COMMAND, bits);
    }
    command.capture(&WITH_SESSION, |work| {
        let key = command.key(&[]);
        if work.run(&LOCK_SESSION, &key[..3]) == 0 {
            command.refuse(Rule::CaptureSession, super::ID_NAMES, 0b111);
        }
        let (current, captured) = locked(work, &command);
        let stored = current.document();
        if contract::other_execution(stored.root(), expected.document().root()) != 0 {
            command.refuse(Rule::CaptureOwner, contract::EXPECTED, 1);
        }
        if !stored.same(&expected.document()) {
            let nothing = Jsonb::parse(NO_EVENTS);
            return answer(rows, current, false, nothing);
        }
        let complete = output::completes(next.document().root());
        // A reader that finds nothing new writes nothing.
        if stored.same(&next.document()) && (captured || !complete) {
            return answer(rows, next, true, Jsonb::parse(NO_EVENTS));
        }
        let values = [Argument::Value(next.datum()), Argument::Boolean(complete)];
        work.run(&ADVANCE, &command.key(&values));
        let merged = contract::is_true(stored.root().get("pty"));
        let fidelity = if merged { "merged" } else { "separate" };
        let events = chunks(work, &command, [expected, next], [stdout, stderr], fidelity);
        session::notify(CHANNEL, &shape::uuid_text(command.process));
        answer(rows, next, true, events)
    });
}

fn answer(rows: &Rows, command: Jsonb, captured: bool, events: Jsonb) {
    rows.put(&[
        Some(command.datum()),
        Some(captured.into()),
        Some(events.datum()),
    ]);
}

/// A router command that the caller gave.
fn router(
    command: &Command<'_>,
    given: Option<Jsonb>,
    rule: Rule,
    names: &'static [&'static str],
) -> Jsonb {
    let Some(given) = given else {
        command.refuse(rule, names, 1)
    };
    match contract::parse(given.document().root()) {
        Ok(Protocol::Router) => given,
        Ok(Protocol::Control) => command.refuse(rule, names, 1 << 1),
        Err(bits) => command.refuse(rule, names, bits),
    }
}

/// Locks the process and shows its router command and whether its output is complete.
fn locked(work: &Work, command: &Command<'_>) -> (Jsonb, bool) {
    let Some([stored, modal, captured]) = work.row(&LOCK, &command.key(&[])) else {
        command.refuse(Rule::CaptureUnknown, super::ID_NAMES, u64::MAX)
    };
    let stored = match stored {
        Some(stored) if is_true(modal) => work.jsonb(stored),
        None => command.refuse(Rule::CaptureUnattached, &["provider_command"], 1),
        Some(_) => command.refuse(Rule::CaptureUnattached, &["provider_backend"], 1),
    };
    match contract::parse(stored.document().root()) {
        Ok(Protocol::Router) => (stored, is_true(captured)),
        Ok(Protocol::Control) => command.refuse(Rule::CaptureMalformed, contract::STORED, 1 << 1),
        Err(bits) => command.refuse(Rule::CaptureMalformed, contract::STORED, bits),
    }
}

/// A page's chunks as events, stored where the schema has a table for them.
fn chunks<'a>(
    work: &Work,
    command: &Command<'a>,
    [before, after]: [Jsonb; 2],
    [stdout, stderr]: [&'a str; 2],
    fidelity: &'a str,
) -> Jsonb {
    if stdout.is_empty() && stderr.is_empty() {
        return Jsonb::parse(NO_EVENTS);
    }
    let page = [
        Argument::Value(before.datum()),
        Argument::Value(after.datum()),
        Argument::Text(stdout),
        Argument::Text(stderr),
        Argument::Text(fidelity),
    ];
    let shown = if command.schema.has(OUTPUT) {
        let [shown, new] = work.row(&STORE, &command.key(&page)).unwrap_or_default();
        if let Some(events) = shown
            && !is_true(new)
        {
            let page = [Argument::Uuid(command.process), Argument::Value(events)];
            if !matches!(work.row(&CHANGED, &page), Some([changed]) if !is_true(changed)) {
                command.refuse(Rule::CaptureChunk, &["chunk_id"], 1);
            }
        }
        shown
    } else {
        let [before, after, stdout, stderr, fidelity] = page;
        let process = Argument::Uuid(command.process);
        let row = work.row(&SHOW, &[process, before, after, stdout, stderr, fidelity]);
        let [shown] = row.unwrap_or_default();
        shown
    };
    shown.map_or_else(|| Jsonb::parse(NO_EVENTS), |events| work.jsonb(events))
}

/// Moves a batch command's cursors on to what a reader has acknowledged and shows the result.
pub fn acknowledge(schema: Option<&str>, ids: Ids<'_>, next: Option<Jsonb>) -> Option<Jsonb> {
    let command = Command::find(schema, ids, Rule::AcknowledgeScope);
    let Some(next) = next else {
        command.refuse(Rule::AcknowledgeShape, contract::COMMAND, 1)
    };
    match contract::parse(next.document().root()) {
        Ok(Protocol::Control) => {}
        Ok(Protocol::Router) => command.refuse(Rule::AcknowledgeKind, contract::COMMAND, 1 << 1),
        Err(bits) => command.refuse(Rule::AcknowledgeShape, contract::COMMAND, bits),
    }
    command.work(&PROCESS, |work| {
        let Some([stored]) = work.row(&LOCK, &command.key(&[])) else {
            command.refuse(Rule::AcknowledgeUnknown, super::ID_NAMES, u64::MAX)
        };
        let Some(stored) = stored else {
            command.refuse(Rule::AcknowledgeUnattached, contract::STORED, 1)
        };
        let stored = work.jsonb(stored);
        let (recorded, given) = (stored.document(), next.document());
        match contract::parse(recorded.root()) {
            Ok(Protocol::Control) => {}
            Ok(Protocol::Router) => {
                command.refuse(Rule::AcknowledgeStoredKind, contract::STORED, 1 << 1)
            }
            Err(bits) => command.refuse(Rule::AcknowledgeMalformed, contract::STORED, bits),
        }
        let other = contract::other_execution(recorded.root(), given.root());
        if other != 0 {
            command.refuse(Rule::AcknowledgeExecution, contract::COMMAND, other);
        }
        match output::acknowledge(recorded.root(), given.root()) {
            Err(bits) => command.refuse(Rule::AcknowledgeConflict, contract::COMMAND, bits),
            // Old news, or what is recorded already.
            Ok([false, false]) => Some(work.keep(stored.datum())),
            Ok([stdout, stderr]) => {
                let values = [
                    Argument::Value(next.datum()),
                    Argument::Boolean(stdout),
                    Argument::Boolean(stderr),
                ];
                let row = work.row(&ACKNOWLEDGE, &command.key(&values));
                row.and_then(|[merged]: [_; 1]| merged)
                    .map(|merged| work.keep(merged))
            }
        }
    })
}
