//! SQL over a data schema's tables: plans are kept, errors keep all their fields.
//!
//! A plan is kept per schema, statement, current user and whether forced row-level security is lifted, and
//! runs only under these: the server's own plan cache does not look at the last. The server's SPI is
//! called unguarded, so that an error does not lose its fields on its way through Rust: it jumps past the
//! frames here, none of which owns anything.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, pg_sys};

use super::error::Failure;
use super::fields;
use super::identity;
use super::jsonb_value::Jsonb;
use super::map;
use super::rows::Rows;
use super::subtransaction::{self, CLASS};
use super::value;
use crate::protocol::tables::Type;

/// A statement. `{schema}` in its text stands for the data schema, quoted.
pub struct Statement {
    pub sql: &'static str,
    pub parameters: &'static [Type],
}

/// What a parameter is bound to.
#[derive(Clone, Copy)]
pub enum Argument<'a> {
    Null,
    Bigint(i64),
    Boolean(bool),
    Integer(i32),
    Text(&'a str),
    Uuid(&'a [u8; 16]),
    /// A value that another statement of this work returned.
    Value(pg_sys::Datum),
}

/// Whose rows a statement sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// What the current user may see.
    User,
    /// Of tables that the current user owns, every row, also where row-level security is forced on owners.
    Fleet,
}

/// What a piece of work reads and writes, and how.
pub struct Scope {
    /// The tables that its statements name.
    pub tables: &'static [&'static CStr],
    pub sight: Sight,
    /// Whether it reads a small part of its tables: by index, then, whatever the statistics say.
    pub by_index: bool,
}

/// A schema that holds the protocol's tables.
#[derive(Clone, Copy)]
pub struct DataSchema {
    oid: pg_sys::Oid,
    /// In the memory context of the call.
    quoted: &'static CStr,
}

#[allow(clashing_extern_declarations)]
unsafe extern "C-unwind" {
    #[link_name = "SPI_prepare_cursor"]
    fn raw_prepare(
        src: *const c_char,
        nargs: c_int,
        argtypes: *mut pg_sys::Oid,
        options: c_int,
    ) -> pg_sys::SPIPlanPtr;
    #[link_name = "SPI_keepplan"]
    fn raw_keep(plan: pg_sys::SPIPlanPtr) -> c_int;
    #[link_name = "SPI_execute_plan_extended"]
    fn raw_execute(plan: pg_sys::SPIPlanPtr, options: *const pg_sys::SPIExecuteOptions) -> c_int;
    #[link_name = "makeParamList"]
    fn raw_parameters(count: c_int) -> pg_sys::ParamListInfo;
    #[link_name = "CreateDestReceiver"]
    fn raw_receiver(dest: pg_sys::CommandDest::Type) -> *mut pg_sys::DestReceiver;
    #[link_name = "SetTuplestoreDestReceiverParams"]
    fn raw_receive_into(
        receiver: *mut pg_sys::DestReceiver,
        store: *mut pg_sys::Tuplestorestate,
        context: pg_sys::MemoryContext,
        detoast: bool,
        columns: pg_sys::TupleDesc,
        failure: *const c_char,
    );
    #[link_name = "palloc"]
    fn raw_palloc(size: usize) -> *mut std::ffi::c_void;
}

impl DataSchema {
    /// Finds a schema by name: 22023 for NULL, 3F000 where there is none.
    pub fn find(name: Option<&str>) -> DataSchema {
        let Some(name) = name else {
            Failure::new(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                "data_schema must not be NULL",
            )
            .hint("Name the schema that holds the application's tables.")
            .raise()
        };
        let text = value::palloc_cstring(name.as_bytes());
        // SAFETY: a catalogue look-up by name; quote_identifier returns its argument or a palloc'd copy.
        unsafe {
            let oid = pg_sys::get_namespace_oid(text.as_ptr(), true);
            if oid == pg_sys::InvalidOid {
                Failure::new(
                    PgSqlErrorCode::ERRCODE_INVALID_SCHEMA_NAME,
                    format!("schema \"{name}\" does not exist"),
                )
                .hint("Name the schema that holds the application's tables.")
                .raise();
            }
            DataSchema {
                oid,
                quoted: CStr::from_ptr(pg_sys::quote_identifier(text.as_ptr())),
            }
        }
    }

    /// The OID of a table in it, if there is one.
    pub fn table(&self, name: &CStr) -> Option<pg_sys::Oid> {
        Self::table_in(self.oid, name)
    }

    /// The OID of a table in the schema with this OID, if there are both.
    pub fn table_in(schema: pg_sys::Oid, name: &CStr) -> Option<pg_sys::Oid> {
        // SAFETY: a catalogue look-up by name and namespace.
        let oid = unsafe { pg_sys::get_relname_relid(name.as_ptr(), schema) };
        (oid != pg_sys::InvalidOid).then_some(oid)
    }

    /// Its name, in the memory context of the call.
    pub fn name(&self) -> &'static CStr {
        // SAFETY: returns a palloc'd name, or NULL where the schema has just been dropped.
        unsafe {
            let name = pg_sys::get_namespace_name(self.oid);
            if name.is_null() {
                c""
            } else {
                CStr::from_ptr(name)
            }
        }
    }

    /// Whether this table is there, which may be absent; 42809 where something else stands under its name.
    pub fn has(&self, name: &CStr) -> bool {
        self.table(name).is_some() && self.owner_of(name) != pg_sys::InvalidOid
    }

    /// Whether the current user owns every one of these tables. 42P01 where one is missing, 42809 where
    /// something else stands under its name. They stay locked to the end of the transaction.
    fn owns(&self, tables: &[&CStr]) -> bool {
        let user = identity::current_user();
        // Each is looked at, whatever the others say.
        let foreign = tables.iter().filter(|name| self.owner_of(name) != user);
        foreign.count() == 0
    }

    fn owner_of(&self, name: &CStr) -> pg_sys::Oid {
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let named = || {
            format!(
                "{}.{}",
                self.quoted.to_string_lossy(),
                name.to_string_lossy()
            )
        };
        // SAFETY: try_relation_open checks that the relation is still there once it is locked.
        unsafe {
            let relation = self.table(name).map_or(std::ptr::null_mut(), |oid| {
                pg_sys::try_relation_open(oid, lock)
            });
            if relation.is_null() {
                Failure::new(
                    PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
                    format!("table {} does not exist", named()),
                )
                .hint("Run opengeni_guards.provision() for this schema, or put the table back.")
                .raise();
            }
            let class = &*(*relation).rd_rel;
            if class.relkind as u8 != pg_sys::RELKIND_RELATION {
                Failure::new(
                    PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                    format!("{} is not an ordinary table", named()),
                )
                .hint("Rename what stands under this name; provision() creates the table.")
                .raise();
            }
            let owner = class.relowner;
            pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            owner
        }
    }
}

/// What makes a plan another plan.
#[derive(Clone, Copy)]
struct Kept {
    schema: &'static str,
    statement: *const Statement,
    user: pg_sys::Oid,
    lifted: bool,
    plan: pg_sys::SPIPlanPtr,
}

/// The most plans that a backend keeps; what comes after is planned each time.
const MOST_KEPT: usize = 256;

thread_local! {
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

/// A connection to the server's SPI, under settings in which every name is the server's own.
#[derive(Clone, Copy)]
pub struct Work {
    schema: DataSchema,
    user: pg_sys::Oid,
    owned: bool,
    lifted: bool,
}

impl Work {
    /// Does some work on a data schema.
    pub fn on<R>(schema: DataSchema, scope: &Scope, body: impl FnOnce(&Work) -> R) -> R {
        let owned = schema.owns(scope.tables);
        let work = Work {
            schema,
            user: identity::current_user(),
            owned,
            lifted: owned && scope.sight == Sight::Fleet,
        };
        let connected = || {
            // SAFETY: a pair of calls; on an error the (sub)transaction's abort disconnects.
            unsafe {
                pg_sys::SPI_connect();
                let result = body(&work);
                pg_sys::SPI_finish();
                result
            }
        };
        let settings = [
            (c"search_path", c"pg_catalog, pg_temp"),
            (
                c"enable_seqscan",
                if scope.by_index { c"off" } else { c"on" },
            ),
            // Compiling costs more than these statements save, and seconds where the fleet is large.
            (c"jit", c"off"),
        ];
        identity::with_settings(&settings, || {
            if work.lifted {
                identity::unforced(connected)
            } else {
                connected()
            }
        })
    }

    /// Whether the current user owns every table of the scope.
    pub fn owns_tables(&self) -> bool {
        self.owned
    }

    /// Executes a statement and tells how many rows it wrote or returned.
    pub fn run(&self, statement: &'static Statement, arguments: &[Argument<'_>]) -> u64 {
        self.execute(statement, arguments, std::ptr::null_mut());
        // SAFETY: set by the execution just done.
        unsafe { pg_sys::SPI_processed }
    }

    /// Executes a statement and shows the first row's columns, NULL as `None`. They live until the work is
    /// done.
    pub fn row<const N: usize>(
        &self,
        statement: &'static Statement,
        arguments: &[Argument<'_>],
    ) -> Option<[Option<pg_sys::Datum>; N]> {
        if self.run(statement, arguments) == 0 {
            return None;
        }
        Some(first_row())
    }

    /// Executes a statement and puts the rows it returns into the call's answer; 42804 where they do not
    /// have the declared types.
    pub fn answer(&self, statement: &'static Statement, arguments: &[Argument<'_>], rows: &Rows) {
        // SAFETY: the receiver is the server's own; the store and its columns live as long as the query.
        unsafe {
            let receiver = raw_receiver(pg_sys::CommandDest::DestTuplestore);
            raw_receive_into(
                receiver,
                rows.store,
                pg_sys::CurrentMemoryContext,
                false,
                rows.columns,
                c"a column of the protocol's tables has another type than the function returns"
                    .as_ptr(),
            );
            self.execute(statement, arguments, receiver);
        }
    }

    /// A jsonb that a statement of this work returned, for as long as the work lasts.
    pub fn jsonb(&self, value: pg_sys::Datum) -> Jsonb {
        // SAFETY: by contract a column of type jsonb; rows live until the work is done.
        unsafe { Jsonb::from_datum(value) }
    }

    /// Keeps a jsonb that a statement returned for the caller of the work.
    pub fn keep(&self, value: pg_sys::Datum) -> Jsonb {
        // SAFETY: SPI is connected; the copy is made where the work was begun.
        unsafe { Jsonb::from_datum(pg_sys::SPI_datumTransfer(value, false, -1)) }
    }

    fn execute(
        &self,
        statement: &'static Statement,
        arguments: &[Argument<'_>],
        receiver: *mut pg_sys::DestReceiver,
    ) {
        debug_assert_eq!(arguments.len(), statement.parameters.len());
        // SAFETY: SPI is connected; parameters are of the declared types.
        unsafe {
            let plan = self.plan(statement);
            let options = pg_sys::SPIExecuteOptions {
                params: bind(statement, arguments),
                read_only: false,
                allow_nonatomic: false,
                must_return_tuples: false,
                tcount: 0,
                dest: receiver,
                owner: std::ptr::null_mut(),
            };
            let code = raw_execute(plan, &options);
            if code < 0 {
                internal(code);
            }
        }
    }

    /// # Safety
    /// SPI is connected.
    unsafe fn plan(&self, statement: &'static Statement) -> pg_sys::SPIPlanPtr {
        let known = KEPT.with_borrow(|kept| {
            kept.iter()
                .find(|k| {
                    std::ptr::eq(k.statement, statement)
                        && k.user == self.user
                        && k.lifted == self.lifted
                        && k.schema.as_bytes() == self.schema.quoted.to_bytes()
                })
                .map(|k| k.plan)
        });
        if let Some(plan) = known {
            return plan;
        }
        // SAFETY: by contract; the text and the types outlive the call.
        let plan = unsafe {
            let mut types = [pg_sys::InvalidOid; MOST_PARAMETERS];
            for (oid, ty) in types.iter_mut().zip(statement.parameters) {
                *oid = map::type_oid(*ty);
            }
            let plan = raw_prepare(
                render(statement.sql, self.schema.quoted),
                statement.parameters.len() as c_int,
                types.as_mut_ptr(),
                // No argument makes another plan better, and planning costs more than most calls.
                pg_sys::CURSOR_OPT_GENERIC_PLAN as c_int,
            );
            if plan.is_null() {
                internal(pg_sys::SPI_result);
            }
            plan
        };
        if KEPT.with_borrow(|kept| kept.len() < MOST_KEPT) {
            // SAFETY: prepared above.
            unsafe { raw_keep(plan) };
            let schema = self.schema.quoted.to_string_lossy().into_owned().leak();
            KEPT.with_borrow_mut(|kept| {
                kept.push(Kept {
                    schema,
                    statement,
                    user: self.user,
                    lifted: self.lifted,
                    plan,
                });
            });
        }
        plan
    }

    /// Executes statements in a subtransaction that is rolled back where a row or its rules refuse: a
    /// constraint, a guard, a value that does not cast. Any other error passes through. `body` owns nothing
    /// and does nothing but execute statements.
    pub fn attempt<R>(&self, body: impl FnOnce() -> R) -> Result<R, Refused> {
        fields::kept(|| subtransaction::attempt(body).map_err(Refused::unless_other))
    }
}

/// Why an attempt was rolled back.
#[derive(Clone, Copy)]
pub struct Refused {
    /// The error's message, in the memory context of the call.
    pub message: &'static CStr,
}

impl Refused {
    /// Passes on what is not a refusal: a cancel, a serialization failure, lack of memory.
    fn unless_other(error: Box<CaughtError>) -> Refused {
        let CaughtError::PostgresError(report) = &*error else {
            error.rethrow()
        };
        let state = report.sql_error_code() as i32;
        let refusal = state == PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE as i32
            || CLASSES.contains(&(state & CLASS));
        if !refusal {
            error.rethrow()
        }
        Refused {
            message: value::palloc_cstring(report.message().as_bytes()),
        }
    }
}

/// Data exceptions (22) and violated constraints (23).
const CLASSES: [i32; 2] = [
    PgSqlErrorCode::ERRCODE_DATA_EXCEPTION as i32 & CLASS,
    PgSqlErrorCode::ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION as i32 & CLASS,
];

/// The columns of the first row that the last execution returned.
fn first_row<const N: usize>() -> [Option<pg_sys::Datum>; N] {
    let mut columns = [None; N];
    // SAFETY: there is such a row; a column past its last is answered with NULL.
    unsafe {
        let table = pg_sys::SPI_tuptable;
        for (i, column) in columns.iter_mut().enumerate() {
            let mut null = true;
            let value =
                pg_sys::SPI_getbinval(*(*table).vals, (*table).tupdesc, i as c_int + 1, &mut null);
            *column = (!null).then_some(value);
        }
    }
    columns
}

/// The uuids of an array that a statement of this work returned.
#[derive(Clone, Copy)]
pub struct Uuids {
    elements: *mut pg_sys::Datum,
    count: usize,
}

impl Uuids {
    const LENGTH: c_int = 16;

    pub fn of(array: pg_sys::Datum) -> Uuids {
        let (mut elements, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: the value is a uuid[]; the elements point into it or its detoasted copy.
        unsafe {
            let array = pg_sys::pg_detoast_datum(array.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
            pg_sys::deconstruct_array(
                array,
                pg_sys::UUIDOID,
                Self::LENGTH,
                false,
                pg_sys::TYPALIGN_CHAR as c_char,
                &mut elements,
                std::ptr::null_mut(),
                &mut count,
            );
        }
        Uuids {
            elements,
            count: count as usize,
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// The first and the second half, in order.
    pub fn halves(&self) -> [Uuids; 2] {
        let middle = self.count / 2;
        [
            Uuids {
                count: middle,
                ..*self
            },
            Uuids {
                // SAFETY: within the elements, or one past the last.
                elements: unsafe { self.elements.add(middle) },
                count: self.count - middle,
            },
        ]
    }

    /// As an array again.
    pub fn argument(&self) -> Argument<'static> {
        // SAFETY: there are that many elements.
        Argument::Value(pg_sys::Datum::from(unsafe {
            pg_sys::construct_array(
                self.elements,
                self.count as c_int,
                pg_sys::UUIDOID,
                Self::LENGTH,
                false,
                pg_sys::TYPALIGN_CHAR as c_char,
            )
        }))
    }
}

/// The most parameters that a statement has.
const MOST_PARAMETERS: usize = 12;

/// # Safety
/// The arguments are of the statement's types.
unsafe fn bind(statement: &Statement, arguments: &[Argument<'_>]) -> pg_sys::ParamListInfo {
    if arguments.is_empty() {
        return std::ptr::null_mut();
    }
    // SAFETY: the list has room for as many.
    unsafe {
        let list = raw_parameters(arguments.len() as c_int);
        let slots = (*list).params.as_mut_ptr();
        for (i, (argument, ty)) in arguments.iter().zip(statement.parameters).enumerate() {
            let value = match argument {
                Argument::Null => None,
                Argument::Bigint(value) => Some(pg_sys::Datum::from(*value)),
                Argument::Boolean(value) => Some(pg_sys::Datum::from(*value)),
                Argument::Integer(value) => Some(pg_sys::Datum::from(*value)),
                Argument::Text(text) => Some(value::text_datum(text.as_bytes())),
                Argument::Uuid(uuid) => Some(pg_sys::Datum::from(uuid.as_ptr())),
                Argument::Value(value) => Some(*value),
            };
            let slot = &mut *slots.add(i);
            slot.isnull = value.is_none();
            slot.value = value.unwrap_or(pg_sys::Datum::null());
            slot.pflags = pg_sys::PARAM_FLAG_CONST as u16;
            slot.ptype = map::type_oid(*ty);
        }
        list
    }
}

/// Puts the schema's name into a statement's text, in the current memory context.
fn render(sql: &str, schema: &CStr) -> *const c_char {
    const HOLE: &[u8] = b"{schema}";
    let (sql, schema) = (sql.as_bytes(), schema.to_bytes());
    let holes = sql.windows(HOLE.len()).filter(|w| *w == HOLE).count();
    let length = sql.len() + holes * schema.len();
    // SAFETY: the rendered text is shorter than this.
    unsafe {
        let text = raw_palloc(length + 1).cast::<u8>();
        let (mut from, mut to) = (0, 0);
        while from < sql.len() {
            let piece = if sql[from..].starts_with(HOLE) {
                from += HOLE.len();
                schema
            } else {
                from += 1;
                &sql[from - 1..from]
            };
            std::ptr::copy_nonoverlapping(piece.as_ptr(), text.add(to), piece.len());
            to += piece.len();
        }
        *text.add(to) = 0;
        text.cast()
    }
}

fn internal(code: c_int) -> ! {
    // SAFETY: returns a static or palloc'd string.
    let what = unsafe { CStr::from_ptr(pg_sys::SPI_result_code_string(code)) }.to_string_lossy();
    Failure::new(
        PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_EXCEPTION,
        format!("a statement could not be executed: {what}"),
    )
    .raise()
}
