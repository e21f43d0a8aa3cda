//! A trigger event, and how a guard answers it.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{PgSqlErrorCode, pg_sys};

use super::error::{self, Failure, Place};
use super::row::{Comparison, Pair, Row};
use super::shadow;
use super::{chain, map};
use crate::protocol::refusal::Verdict;
use crate::protocol::tables::Table;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Insert,
    Update,
    Delete,
    Truncate,
}

impl Operation {
    /// As `TG_OP` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Insert => "INSERT",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Truncate => "TRUNCATE",
        }
    }
}

/// The relation that a trigger fires on, open for the event.
#[derive(Clone, Copy)]
pub struct Relation<'a> {
    pointer: pg_sys::Relation,
    lifetime: PhantomData<&'a ()>,
}

impl Relation<'_> {
    pub fn schema_oid(&self) -> pg_sys::Oid {
        // SAFETY: open for the event.
        unsafe { (*(*self.pointer).rd_rel).relnamespace }
    }

    pub fn schema_name(&self) -> String {
        let name = self.schema_cstr();
        if name.is_null() {
            return String::new();
        }
        // SAFETY: get_namespace_name returns a NUL-terminated copy.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    pub fn has_name(&self, name: &str) -> bool {
        // SAFETY: a relation's name is NUL-terminated.
        unsafe { CStr::from_ptr(self.name_cstr()) }.to_bytes() == name.as_bytes()
    }

    fn owner(&self) -> pg_sys::Oid {
        // SAFETY: open for the event.
        unsafe { (*(*self.pointer).rd_rel).relowner }
    }

    fn name(&self) -> String {
        // SAFETY: a relation's name is NUL-terminated.
        unsafe { CStr::from_ptr(self.name_cstr()) }
            .to_string_lossy()
            .into_owned()
    }

    /// Writes down what watching guards counted in this relation's schema.
    fn flush_shadow(&self) {
        let quoted = || pgrx::spi::quote_identifier(self.schema_name());
        shadow::flush(self.schema_oid(), quoted, self.owner());
    }

    fn schema_cstr(&self) -> *const c_char {
        // SAFETY: a catalogue look-up by OID.
        unsafe { pg_sys::get_namespace_name(self.schema_oid()) }
    }

    fn name_cstr(&self) -> *const c_char {
        // SAFETY: open for the event.
        unsafe { (*(*self.pointer).rd_rel).relname.data.as_ptr() }
    }
}

/// One firing of a row trigger.
pub struct Event<'a> {
    data: &'a pg_sys::TriggerData,
    operation: Operation,
}

impl<'a> Event<'a> {
    pub fn operation(&self) -> Operation {
        self.operation
    }

    pub fn relation(&self) -> Relation<'a> {
        Relation {
            pointer: self.data.tg_relation,
            lifetime: PhantomData,
        }
    }

    /// Whether the trigger only watches: what its guard says is counted, and the guard takes no locks.
    pub fn is_shadow(&self) -> bool {
        // SAFETY: the event's own trigger, with as many NUL-terminated arguments as it says.
        unsafe {
            let trigger = &*self.data.tg_trigger;
            trigger.tgnargs == 1 && CStr::from_ptr(*trigger.tgargs).to_bytes() == shadow::ARGUMENT
        }
    }

    fn shadow_place(&self) -> shadow::Place {
        // SAFETY: the event's own trigger.
        let trigger = unsafe { CStr::from_ptr((*self.data.tg_trigger).tgname) }.to_string_lossy();
        let guard = trigger.strip_suffix("_shadow").unwrap_or(&trigger);
        shadow::Place {
            schema: self.relation().schema_oid(),
            object: format!("trigger {guard} on {}", self.relation().name()),
        }
    }

    /// The row before the event: of an UPDATE or DELETE.
    pub fn before<T: Table>(&self) -> Row<'a, T> {
        debug_assert_ne!(self.operation, Operation::Insert);
        // SAFETY: the event holds its relation and slots for as long as the trigger runs.
        unsafe { Row::new(self.data.tg_relation, self.data.tg_trigslot) }
    }

    /// The row after the event: of an INSERT or UPDATE.
    pub fn after<T: Table>(&self) -> Row<'a, T> {
        debug_assert_ne!(self.operation, Operation::Delete);
        let slot = match self.operation {
            Operation::Update => self.data.tg_newslot,
            _ => self.data.tg_trigslot,
        };
        // SAFETY: as above.
        unsafe { Row::new(self.data.tg_relation, slot) }
    }
}

/// What became of the row that a deferred event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Final {
    /// It is still the row that the event wrote.
    Current,
    /// The transaction wrote it again.
    Replaced,
    /// The transaction deleted it; what is shown is what the event wrote.
    Deleted,
}

impl<'a> Event<'a> {
    fn slots(&self) -> (*mut pg_sys::TupleTableSlot, *mut pg_sys::TupleTableSlot) {
        (self.data.tg_trigslot, self.data.tg_newslot)
    }

    /// Whether an UPDATE stores anything new: asked first, for no operator is called to find out.
    pub fn is_rewritten(&self) -> bool {
        self.pair().differs_as_stored()
    }

    /// The first column by which an UPDATE's rows differ as records (`NEW IS DISTINCT FROM OLD`).
    pub fn changed_column(&self) -> Option<i16> {
        self.pair().first_difference(&[], Comparison::Record)
    }

    /// The first column but these by which an UPDATE's rows differ as `to_jsonb` would write them.
    pub fn changed_column_as_json(&self, except: &[&str]) -> Option<i16> {
        self.pair().first_difference(except, Comparison::Json)
    }

    fn pair(&self) -> Pair {
        debug_assert_eq!(self.operation, Operation::Update);
        let (old, new) = self.slots();
        // SAFETY: the event holds its relation and slots for as long as the trigger runs.
        unsafe { Pair::new(self.data.tg_relation, old, new) }
    }

    /// Whether the trigger that fired is bound to this operation.
    pub fn trigger_fires_on(&self, operation: Operation) -> bool {
        let bit = match operation {
            Operation::Insert => pg_sys::TRIGGER_TYPE_INSERT,
            Operation::Update => pg_sys::TRIGGER_TYPE_UPDATE,
            Operation::Delete => pg_sys::TRIGGER_TYPE_DELETE,
            Operation::Truncate => pg_sys::TRIGGER_TYPE_TRUNCATE,
        };
        // SAFETY: the event's own trigger.
        i64::from(unsafe { (*self.data.tg_trigger).tgtype }) & i64::from(bit) != 0
    }

    /// Judges the row of a deferred event as the transaction leaves it.
    ///
    /// It is found along the update chain of the tuple that the event wrote, never by key: a key can be
    /// changed, or taken by another row. The chain is followed while the updater is current in this
    /// transaction; after ROLLBACK TO the pointer still names the dead version.
    pub fn with_final<T: Table, R>(&self, judge: impl FnOnce(&Row<'_, T>, Final) -> R) -> R {
        let (old, new) = self.slots();
        let written = match self.operation {
            Operation::Update => new,
            _ => old,
        };
        // SAFETY: the event holds its relation and slots; the scratch slot is dropped after use.
        unsafe {
            let relation = self.data.tg_relation;
            let scratch = pg_sys::table_slot_create(relation, std::ptr::null_mut());
            let fate = chain::follow(relation, (*written).tts_tid, scratch);
            let shown = if fate == Final::Replaced {
                scratch
            } else {
                written
            };
            let result = judge(&Row::new(relation, shown), fate);
            pg_sys::ExecDropSingleTupleTableSlot(scratch);
            result
        }
    }
}

/// What a guard hands back to the server: the row to go on with, or nothing where nothing is asked.
pub struct Answer(pg_sys::Datum);

// SAFETY: a trigger function returns a tuple pointer or zero, and never sets isnull.
unsafe impl BoxRet for Answer {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: by contract.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

// SAFETY: `trigger` is a built-in pseudo-type.
unsafe impl SqlTranslatable for Answer {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Answer);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> =
        Err(ArgumentError::NotValidAsArgument("trigger"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("trigger")));
}

type Guard = fn(&Event<'_>) -> Verdict;

const ROW: u32 = pg_sys::TRIGGER_EVENT_ROW;
const BEFORE: u32 = pg_sys::TRIGGER_EVENT_BEFORE;

/// Runs a BEFORE ROW guard: the row passes unchanged, or the statement ends with the refusal.
pub fn before_row(fcinfo: pg_sys::FunctionCallInfo, guard: Guard) -> Answer {
    let event = run(fcinfo, ROW | BEFORE, "BEFORE ROW", guard);
    let tuple = match event.operation {
        Operation::Update => event.data.tg_newtuple,
        _ => event.data.tg_trigtuple,
    };
    Answer(pg_sys::Datum::from(tuple))
}

/// Runs an AFTER ROW guard, whose answer the server ignores.
pub fn after_row(fcinfo: pg_sys::FunctionCallInfo, guard: Guard) -> Answer {
    let event = run(fcinfo, ROW, "AFTER ROW", guard);
    if event.is_shadow() {
        event.relation().flush_shadow();
    }
    Answer(pg_sys::Datum::null())
}

/// Runs a BEFORE STATEMENT guard, whose answer the server ignores.
pub fn before_statement(fcinfo: pg_sys::FunctionCallInfo, guard: Guard) -> Answer {
    let event = run(fcinfo, BEFORE, "BEFORE STATEMENT", guard);
    if event.is_shadow() {
        event.relation().flush_shadow();
    }
    Answer(pg_sys::Datum::null())
}

/// Writes down what the statement's watching guards counted, AFTER STATEMENT.
pub fn after_watched_statement(fcinfo: pg_sys::FunctionCallInfo) -> Answer {
    run(fcinfo, 0, "AFTER STATEMENT", |event| {
        event.relation().flush_shadow();
        Ok(())
    });
    Answer(pg_sys::Datum::null())
}

fn run<'a>(fcinfo: pg_sys::FunctionCallInfo, timing: u32, name: &str, guard: Guard) -> Event<'a> {
    let data = trigger_data(fcinfo);
    let event = Event {
        data,
        operation: operation(data),
    };
    if data.tg_event & (ROW | pg_sys::TRIGGER_EVENT_TIMINGMASK) != timing {
        Failure::new(
            PgSqlErrorCode::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
            format!("this guard has to be fired {name}"),
        )
        .hint("Bind it with opengeni_guards.provision().")
        .raise();
    }
    if event.is_shadow() {
        shadow::watch(|| guard(&event), || event.shadow_place());
        return event;
    }
    if let Err(refusal) = guard(&event) {
        let relation = event.relation();
        let attribute = refusal.attribute.map_or(std::ptr::null(), |number| {
            // SAFETY: the refusal names an attribute of the event's relation.
            unsafe { map::attribute_of(data.tg_relation, number) }
                .attname
                .data
                .as_ptr()
        });
        error::refuse(
            refusal,
            Place {
                schema: relation.schema_cstr(),
                table: relation.name_cstr(),
                operation: event.operation.name(),
                attribute,
            },
        );
    }
    event
}

/// The event, where the function is called by the trigger manager.
fn trigger_data<'a>(fcinfo: pg_sys::FunctionCallInfo) -> &'a pg_sys::TriggerData {
    // SAFETY: the server's own call information; the context is what its tag says it is.
    let context = unsafe {
        let context = (*fcinfo).context;
        (!context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData)
            .then(|| &*context.cast::<pg_sys::TriggerData>())
    };
    context.unwrap_or_else(|| {
        Failure::new(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "trigger functions can only be called as triggers",
        )
        .raise()
    })
}

fn operation(data: &pg_sys::TriggerData) -> Operation {
    match data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
        pg_sys::TRIGGER_EVENT_INSERT => Operation::Insert,
        pg_sys::TRIGGER_EVENT_UPDATE => Operation::Update,
        pg_sys::TRIGGER_EVENT_DELETE => Operation::Delete,
        _ => Operation::Truncate,
    }
}
