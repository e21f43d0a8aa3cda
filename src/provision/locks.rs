//! The locks that `attach` and `detach` need, taken so that nobody else pays for them.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder};

use super::attach::Step;
use super::catalogue::{self, Schema, execute, scalar};
use crate::pg::error::Failure;
use crate::pg::identity;
use crate::pg::session;
use crate::pg::subtransaction;

/// The guarded tables, in the order in which the application locks their rows; then those that no
/// transaction locks together with others.
pub const ORDER: &[&str] = &[
    "sandbox_retained_processes",
    "sandbox_workspace_mutation_admissions",
    "sandbox_leases",
    "sandbox_lease_holders",
    "sandbox_pty_sessions",
    "sandbox_checkpoint_artifacts",
    "workspace_instruction_policy_revisions",
    "workspace_instruction_policy_heads",
    "workspace_instruction_policy_activation_events",
];

/// The longest that others queue behind one attempt.
const LONGEST: Duration = Duration::from_millis(250);
/// How long others have the tables to themselves after an attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// How long whoever does not say waits for its turn: nothing is locked by then.
const TURN: Duration = Duration::from_secs(60);

/// How long a call waits for locks, all its waits together.
#[derive(Clone, Copy)]
pub struct Deadline {
    limit: Duration,
    end: Instant,
}

impl Deadline {
    pub fn after(limit: Duration) -> Deadline {
        Deadline {
            limit,
            end: Instant::now() + limit,
        }
    }

    /// A minute, or as long as the session waits for locks, whichever is shorter.
    pub fn of_a_turn() -> Deadline {
        Deadline::after(session::lock_timeout().unwrap_or(TURN).min(TURN))
    }

    pub fn left(self) -> Duration {
        remaining(self.end)
    }
}

/// Runs what changes a schema, and says in our words what the server says of a lock that was not to be had in time and
/// of a row of its catalogues that somebody else changed.
pub fn in_our_words<R>(body: impl FnOnce() -> R) -> R {
    let body = AssertUnwindSafe(body);
    PgTryBuilder::new(|| {
        let body = body;
        (body.0)()
    })
    .catch_others(|error| {
        let CaughtError::PostgresError(report) = &error else {
            error.rethrow()
        };
        let said = report.message().to_owned();
        // Somebody's own code may raise the same.
        let by = |function| report.function_name() == Some(function);
        let timed_out = by("ProcessInterrupts");
        let concurrent = by("simple_heap_update") || by("simple_heap_delete");
        let failure = match report.sql_error_code() {
            PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE if timed_out => Failure::new(
                PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
                "another session has locked what has to be changed",
            )
            .hint("pg_locks shows who; try again once its transaction has ended."),
            PgSqlErrorCode::ERRCODE_INTERNAL_ERROR if concurrent => Failure::new(
                PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
                "another session has changed meanwhile what has to be changed",
            )
            .hint("Try again."),
            _ => error.rethrow(),
        };
        failure
            .detail(format!(
                "The server says: {said}. Nothing has been changed."
            ))
            .raise()
    })
    .execute()
}

/// Waits for whoever else changes a schema through us. What the call may do is asked again: its schema, or the caller's
/// rights, may have gone meanwhile.
pub fn take_turns(schema: &Schema, deadline: Deadline) {
    take_turn(deadline);
    if Schema::find(Some(&schema.name)).oid != schema.oid {
        meanwhile(format!("schema {} has become another one", schema.name));
    }
    schema.require_owner();
}

/// The same for what asks by itself what it may do.
pub fn take_turn(deadline: Deadline) {
    let turn = subtransaction::attempt(|| within(deadline.left(), session::take_turns));
    match turn {
        Ok(true) => {}
        Ok(false) => Failure::new(
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            "the extension opengeni_guards has been dropped meanwhile",
        )
        .detail("Nothing has been changed.")
        .hint("Try again once it is there.")
        .raise(),
        Err(error) => match is_timeout(subtransaction::sqlstate(&error)) {
            true => Failure::new(
                PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
                format!(
                    "another call still changes a schema of this database after {} ms",
                    deadline.limit.as_millis()
                ),
            )
            .detail("Nothing has been changed.")
            .hint("pg_locks shows who has locked the extension (classid pg_extension); try again once its transaction has ended.")
            .raise(),
            false => error.rethrow(),
        },
    }
}

/// Refuses to go on with a plan that was made for what has changed since.
pub fn meanwhile(what: String) -> ! {
    Failure::new(
        PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
        format!("{what} meanwhile"),
    )
    .detail("Nothing has been changed.")
    .hint("Try again.")
    .raise()
}

/// Waits until the guarded tables can be read, and lets go of them: to write a trigger's WHEN the server reads its
/// table, and would wait for whoever has locked it.
pub fn wait_until_readable(schema: &Schema, deadline: Deadline) {
    let oid = |table: &&str| catalogue::table_oid(schema, table);
    let tables: Vec<_> = ORDER.iter().filter_map(oid).collect();
    let read = || {
        for table in &tables {
            within(deadline.left(), || session::wait_until_readable(*table));
        }
    };
    match subtransaction::observe(read) {
        Ok(()) => {}
        Err(error) if is_timeout(subtransaction::sqlstate(&error)) => {
            give_up(schema, deadline.limit)
        }
        Err(error) => error.rethrow(),
    }
}

/// Locks every table that a step needs, all or none.
///
/// Each attempt ends well before the server looks for deadlocks and lets go of everything, so that where
/// the application's locks cross ours it is us who yield.
pub fn lock(schema: &Schema, steps: &[Step], deadline: Deadline) {
    // What no guard stands on comes last.
    let others: BTreeSet<&str> = steps
        .iter()
        .filter_map(|step| step.table)
        .filter(|table| !ORDER.contains(table))
        .collect();
    let needed: Vec<(&str, bool)> = ORDER
        .iter()
        .chain(&others)
        .filter_map(|table| {
            let mut of_table = steps
                .iter()
                .filter(|step| step.table == Some(*table) && !step.sql.is_empty())
                .peekable();
            of_table.peek()?;
            Some((*table, of_table.any(|step| step.exclusive)))
        })
        .collect();
    let patience = patience();
    loop {
        let attempt = subtransaction::attempt(|| {
            let end = deadline.end.min(Instant::now() + patience);
            for (table, exclusive) in &needed {
                let mode = match exclusive {
                    true => "ACCESS EXCLUSIVE",
                    false => "SHARE ROW EXCLUSIVE",
                };
                let sql = format!("LOCK TABLE ONLY {} IN {mode} MODE", schema.qualify(table));
                within(remaining(end), || execute(&sql));
            }
        });
        match attempt {
            Ok(()) => return,
            Err(error) if is_timeout(subtransaction::sqlstate(&error)) => {}
            Err(error) => error.rethrow(),
        }
        if deadline.left() <= PAUSE {
            give_up(schema, deadline.limit);
        }
        std::thread::sleep(PAUSE);
        pgrx::check_for_interrupts!();
    }
}

/// How long an attempt may take: well below deadlock_timeout.
pub fn patience() -> Duration {
    let deadlock = scalar::<i64>(
        "SELECT s.setting::bigint FROM pg_catalog.pg_settings s WHERE s.name = 'deadlock_timeout'",
        &[],
    );
    let deadlock = Duration::from_millis(deadlock.unwrap_or(1000).max(1) as u64);
    LONGEST.min(deadlock / 4).max(Duration::from_millis(1))
}

fn is_timeout(state: i32) -> bool {
    state == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE as i32
}

fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Runs `body` with this lock_timeout, of at least a millisecond: 0 would mean none.
pub fn within<T>(limit: Duration, body: impl FnOnce() -> T) -> T {
    let milliseconds = limit.as_millis().clamp(1, i32::MAX as u128);
    let text = CString::new(milliseconds.to_string()).unwrap_or_default();
    identity::with_settings(&[(c"lock_timeout", text.as_c_str())], body)
}

fn give_up(schema: &Schema, limit: Duration) -> ! {
    Failure::new(
        PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
        format!(
            "the tables of schema {} could not be locked within {} ms",
            schema.name,
            limit.as_millis()
        ),
    )
    .detail("Some transaction, or a vacuum, holds one of them all the time. Nothing has been changed.")
    .hint("Look for long transactions on these tables in pg_locks, then try again, or pass a longer lock_timeout.")
    .raise()
}
