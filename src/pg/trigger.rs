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
use super::row::Row;
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

/// Runs a BEFORE ROW guard: the row passes unchanged, or the statement ends with the refusal.
pub fn before_row(fcinfo: pg_sys::FunctionCallInfo, guard: Guard) -> Answer {
    let timing = pg_sys::TRIGGER_EVENT_ROW | pg_sys::TRIGGER_EVENT_BEFORE;
    let event = run(fcinfo, timing, "BEFORE ROW", guard);
    let tuple = match event.operation {
        Operation::Update => event.data.tg_newtuple,
        _ => event.data.tg_trigtuple,
    };
    Answer(pg_sys::Datum::from(tuple))
}

fn run<'a>(fcinfo: pg_sys::FunctionCallInfo, timing: u32, name: &str, guard: Guard) -> Event<'a> {
    let data = trigger_data(fcinfo);
    let event = Event {
        data,
        operation: operation(data),
    };
    let when = pg_sys::TRIGGER_EVENT_ROW | pg_sys::TRIGGER_EVENT_TIMINGMASK;
    if data.tg_event & when != timing {
        Failure::new(
            PgSqlErrorCode::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
            format!("this guard has to be fired {name}"),
        )
        .hint("Bind it with opengeni_guards.provision().")
        .raise();
    }
    if let Err(refusal) = guard(&event) {
        let relation = event.relation();
        error::refuse(
            refusal,
            Place {
                schema: relation.schema_cstr(),
                table: relation.name_cstr(),
                operation: event.operation.name(),
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
