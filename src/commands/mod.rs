//! What the application does around the guards, one round trip each: a retained command's receipt,
//! cancellation, input and output; fences of a membership change.
//!
//! An operation says what it needs of its arguments, takes its locks in the application's order (session,
//! process, lease), decides by `protocol`, and writes. It runs as its caller, with the tenant's settings and the
//! protocol marker set for the call only.

pub mod fences;
pub mod input;
pub mod output;
pub mod supervision;

use std::ffi::CStr;

use pgrx::PgSqlErrorCode;

use crate::pg::error::{self, Failure, Place};
use crate::pg::identity;
use crate::pg::statement::{Argument, DataSchema, Scope, Sight, Work};
use crate::pg::value::palloc_cstring;
use crate::protocol::refusal::{Refusal, Rule};
use crate::protocol::shape;

const PROCESSES: &CStr = c"sandbox_retained_processes";
const LEASES: &CStr = c"sandbox_leases";
const SESSIONS: &CStr = c"sessions";

/// The single rows that an operation reads and writes, by their keys.
const PROCESS: Scope = Scope {
    tables: &[PROCESSES],
    sight: Sight::User,
    by_index: true,
};

/// Defines a statement over a data schema: its file in `sql/commands` and its parameters' types.
macro_rules! statement {
    ($name:ident, $file:literal, [$($ty:ident),*]) => {
        static $name: $crate::pg::statement::Statement = $crate::pg::statement::Statement {
            sql: include_str!(concat!("../../sql/commands/", $file, ".sql")),
            parameters: &[$($crate::protocol::tables::Type::$ty),*],
        };
    };
}
use statement;

/// The ids of a retained command, as the caller gives them.
#[derive(Clone, Copy)]
pub struct Ids<'a> {
    pub account: Option<&'a [u8; 16]>,
    pub workspace: Option<&'a [u8; 16]>,
    pub session: Option<&'a [u8; 16]>,
    pub process: Option<&'a [u8; 16]>,
}

/// A retained command in its data schema.
#[derive(Clone, Copy)]
struct Command<'a> {
    schema: DataSchema,
    account: &'a [u8; 16],
    workspace: &'a [u8; 16],
    session: &'a [u8; 16],
    process: &'a [u8; 16],
}

const ID_NAMES: &[&str] = &["account_id", "workspace_id", "session_id", "process_id"];

impl<'a> Command<'a> {
    /// Finds the schema; `incomplete` is the rule that speaks where an id is NULL.
    fn find(schema: Option<&str>, ids: Ids<'a>, incomplete: Rule) -> Command<'a> {
        let schema = DataSchema::find(schema);
        if let (Some(account), Some(workspace), Some(session), Some(process)) =
            (ids.account, ids.workspace, ids.session, ids.process)
        {
            return Command {
                schema,
                account,
                workspace,
                session,
                process,
            };
        }
        let given = [ids.account, ids.workspace, ids.session, ids.process];
        let missing = given
            .iter()
            .enumerate()
            .fold(0, |bits, (i, id)| bits | u64::from(id.is_none()) << i);
        refuse(schema, incomplete, ID_NAMES, missing)
    }

    fn refuse(&self, rule: Rule, names: &'static [&'static str], offending: u64) -> ! {
        refuse(self.schema, rule, names, offending)
    }

    /// Works on the command's rows, with its tenant's settings and the protocol marker set until it is done.
    fn work<R>(&self, scope: &Scope, body: impl FnOnce(&Work) -> R) -> R {
        identity::with_settings(&self.settings()[..3], || Work::on(self.schema, scope, body))
    }

    /// The same inside the capture protocol.
    fn capture<R>(&self, scope: &Scope, body: impl FnOnce(&Work) -> R) -> R {
        identity::with_settings(&self.settings(), || Work::on(self.schema, scope, body))
    }

    fn settings(&self) -> [(&'static CStr, &'static CStr); 4] {
        let text = |id: &[u8; 16]| palloc_cstring(&shape::uuid_text(id));
        [
            (c"opengeni.account_id", text(self.account)),
            (c"opengeni.workspace_id", text(self.workspace)),
            (c"opengeni.sandbox_recovery_protocol_v2", c"1"),
            (
                c"opengeni.supervised_output_capture_process_id",
                text(self.process),
            ),
        ]
    }

    /// A statement's parameters: the ids that lead to the command's row, then others.
    fn key(&self, more: &[Argument<'a>]) -> Key<'a> {
        let ids = [self.account, self.workspace, self.session, self.process];
        let mut key = Key {
            arguments: [Argument::Null; MOST],
            count: 0,
        };
        let all = ids
            .into_iter()
            .map(Argument::Uuid)
            .chain(more.iter().copied());
        for (slot, argument) in key.arguments.iter_mut().zip(all) {
            *slot = argument;
            key.count += 1;
        }
        key
    }
}

/// The most parameters that a statement of ours has.
const MOST: usize = 9;

/// Parameters by value: nothing to free when an error jumps past them.
struct Key<'a> {
    arguments: [Argument<'a>; MOST],
    count: usize,
}

impl<'a> std::ops::Deref for Key<'a> {
    type Target = [Argument<'a>];

    fn deref(&self) -> &Self::Target {
        &self.arguments[..self.count]
    }
}

/// Ends with a rule's refusal.
fn refuse(schema: DataSchema, rule: Rule, names: &'static [&'static str], offending: u64) -> ! {
    let table = rule.entry().table;
    error::refuse(
        Refusal::new(rule, names, offending),
        Place {
            schema: schema.name().as_ptr(),
            table: if table.is_empty() {
                std::ptr::null()
            } else {
                palloc_cstring(table.as_bytes()).as_ptr()
            },
            operation: "",
            attribute: std::ptr::null(),
        },
    )
}

/// Ends with 22023: an argument is NULL or malformed.
fn invalid(message: &'static str, hint: &'static str) -> ! {
    Failure::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, message)
        .hint(hint)
        .raise()
}
