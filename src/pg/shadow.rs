//! Guards that only watch: their refusals are counted, never raised.
//!
//! Counts live in this backend until the statement's end, when they go into the schema's log. What a
//! rolled-back (sub)transaction counted is forgotten with it.

use std::cell::{Cell, RefCell};

use pgrx::datum::DatumWithOid;
use pgrx::pg_sys;

use super::identity;
use super::subtransaction;
use crate::protocol::refusal::Verdict;

/// The argument that makes a guard's trigger a watching one.
pub const ARGUMENT: &[u8] = b"shadow";

/// The table in the data schema that holds what watching guards found.
pub const LOG: &str = "opengeni_guards_shadow";

struct Count {
    schema: pg_sys::Oid,
    rule: String,
    object: String,
    refusals: i64,
    /// The subtransaction nesting level.
    level: i32,
}

thread_local! {
    static COUNTS: RefCell<Vec<Count>> = const { RefCell::new(Vec::new()) };
    /// Whether the log is being written.
    static FLUSHING: Cell<bool> = const { Cell::new(false) };
}

/// Where a watching guard was fired.
pub struct Place {
    pub schema: pg_sys::Oid,
    /// As the log names the guard.
    pub object: String,
}

/// Asks a guard and counts what it says against the row. Everything that it did is undone; only a cancel
/// passes through.
pub fn watch(guard: impl FnOnce() -> Verdict, place: impl FnOnce() -> Place) {
    let answer =
        subtransaction::observe(|| guard().map_err(|refusal| refusal.rule.entry().id.to_owned()));
    let rule = match answer {
        Ok(Ok(())) => return,
        Ok(Err(rule)) => rule,
        Err(error) => {
            let error = subtransaction::unless_cancelled(error);
            let state = subtransaction::unpacked(subtransaction::sqlstate(&error));
            format!("error {state}: {}", subtransaction::message(&error))
        }
    };
    let Place { schema, object } = place();
    let level = nesting_level();
    COUNTS.with_borrow_mut(|counts| {
        let known = counts.iter_mut().find(|count| {
            count.level == level
                && count.schema == schema
                && count.rule == rule
                && count.object == object
        });
        match known {
            Some(count) => count.refusals += 1,
            None => counts.push(Count {
                schema,
                rule,
                object,
                refusals: 1,
                level,
            }),
        }
    });
}

/// Appends what was counted for a schema to its log, as the owner of the guarded table. A log that cannot
/// be written loses its lines: the application's statement matters more.
pub fn flush(schema: pg_sys::Oid, quoted_schema: impl FnOnce() -> String, owner: pg_sys::Oid) {
    let counts = COUNTS.with_borrow_mut(|all| {
        let (ours, others) = std::mem::take(all)
            .into_iter()
            .partition::<Vec<_>, _>(|count| count.schema == schema);
        *all = others;
        ours
    });
    // A log whose own triggers write guarded tables would not come to an end.
    if counts.is_empty() || FLUSHING.get() {
        return;
    }
    let sql = format!(
        "INSERT INTO {}.{LOG} (rule, object, refusals) VALUES ($1, $2, $3)",
        quoted_schema()
    );
    let write = || {
        identity::as_role(owner, "pg_catalog, pg_temp", || {
            for count in &counts {
                let arguments: [DatumWithOid<'_>; 3] = [
                    count.rule.as_str().into(),
                    count.object.as_str().into(),
                    count.refusals.into(),
                ];
                let done = pgrx::Spi::connect_mut(|client| {
                    client.update(sql.as_str(), None, &arguments).map(drop)
                });
                if let Err(error) = done {
                    pgrx::error!("{error}");
                }
            }
        });
    };
    FLUSHING.set(true);
    let written = subtransaction::attempt(write);
    FLUSHING.set(false);
    if let Err(error) = written {
        drop(subtransaction::unless_cancelled(error));
    }
}

fn nesting_level() -> i32 {
    // SAFETY: reads backend state.
    unsafe { pg_sys::GetCurrentTransactionNestLevel() }
}

unsafe extern "C-unwind" fn on_transaction(
    event: pg_sys::XactEvent::Type,
    _arg: *mut std::ffi::c_void,
) {
    if matches!(
        event,
        pg_sys::XactEvent::XACT_EVENT_COMMIT
            | pg_sys::XactEvent::XACT_EVENT_ABORT
            | pg_sys::XactEvent::XACT_EVENT_PREPARE
    ) {
        COUNTS.with_borrow_mut(Vec::clear);
    }
}

unsafe extern "C-unwind" fn on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    _subtransaction: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    let level = nesting_level();
    match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
            COUNTS.with_borrow_mut(|counts| counts.retain(|count| count.level < level));
        }
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => COUNTS.with_borrow_mut(|counts| {
            for count in counts.iter_mut() {
                count.level = count.level.min(level - 1);
            }
        }),
        _ => {}
    }
}

/// Registers the callbacks; once per backend, when the library is loaded.
pub fn init() {
    // SAFETY: the callbacks neither raise nor call back, as those of an abort must not.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_transaction), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(on_subtransaction), std::ptr::null_mut());
    }
}
