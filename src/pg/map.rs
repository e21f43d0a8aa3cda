//! Which attribute of a relation is which column of a guard's view.

use std::cell::RefCell;
use std::ffi::CStr;

use pgrx::{PgSqlErrorCode, pg_sys};

use super::error::Failure;
use super::invalidation::{self, Memory};
use super::value;
use crate::protocol::tables::{MAX_COLUMNS, Table, Type};

/// Attribute numbers of a view's columns.
#[derive(Clone, Copy)]
pub struct Map {
    attributes: [i16; MAX_COLUMNS],
}

impl Map {
    pub fn attribute<T: Table>(&self, column: T) -> i16 {
        self.attributes[column.index()]
    }
}

/// A view is known by the address of its column list.
type View = usize;

thread_local! {
    static MAPS: RefCell<Memory<View, Map>> = const { RefCell::new(Memory::new()) };
}

pub fn forget(relation: pg_sys::Oid) {
    MAPS.with_borrow_mut(|maps| maps.forget(relation));
}

/// The protocol's type with this OID.
pub fn known_type(oid: pg_sys::Oid) -> Option<Type> {
    const ALL: [Type; 9] = [
        Type::Bigint,
        Type::Boolean,
        Type::Integer,
        Type::Jsonb,
        Type::Text,
        Type::Timestamptz,
        Type::Uuid,
        Type::UuidArray,
        Type::Xid8,
    ];
    ALL.into_iter().find(|ty| type_oid(*ty) == oid)
}

pub fn type_oid(ty: Type) -> pg_sys::Oid {
    match ty {
        Type::Bigint => pg_sys::INT8OID,
        Type::Boolean => pg_sys::BOOLOID,
        Type::Integer => pg_sys::INT4OID,
        Type::Jsonb => pg_sys::JSONBOID,
        Type::Text => pg_sys::TEXTOID,
        Type::Timestamptz => pg_sys::TIMESTAMPTZOID,
        Type::Uuid => pg_sys::UUIDOID,
        Type::UuidArray => pg_sys::UUIDARRAYOID,
        Type::Xid8 => pg_sys::XID8OID,
    }
}

/// The attributes of `relation` that `T` reads.
///
/// # Safety
/// `relation` is open.
pub unsafe fn of<T: Table>(relation: pg_sys::Relation) -> Map {
    // SAFETY: by contract.
    let oid = unsafe { (*relation).rd_id };
    let view = T::COLUMNS.as_ptr() as View;
    if let Some(map) = MAPS.with_borrow(|maps| maps.get(oid, &view)) {
        return map;
    }
    let before = invalidation::epoch();
    // SAFETY: by contract.
    let map = unsafe { build::<T>(relation) };
    if invalidation::epoch() == before {
        MAPS.with_borrow_mut(|maps| maps.put(oid, view, map));
    }
    map
}

/// An attribute of an open relation, by number.
///
/// # Safety
/// `relation` is open and has that many attributes.
pub unsafe fn attribute_of<'a>(
    relation: pg_sys::Relation,
    number: i16,
) -> &'a pg_sys::FormData_pg_attribute {
    // SAFETY: by contract.
    unsafe { attribute((*relation).rd_att, number) }
}

/// An attribute of a tuple descriptor, by number.
///
/// # Safety
/// The descriptor has that many attributes.
pub unsafe fn attribute<'a>(
    descriptor: pg_sys::TupleDesc,
    number: i16,
) -> &'a pg_sys::FormData_pg_attribute {
    // SAFETY: by contract. From 18 on the attributes follow the compact ones.
    unsafe {
        #[cfg(feature = "pg18")]
        let first = (*descriptor)
            .compact_attrs
            .as_ptr()
            .add((*descriptor).natts as usize)
            .cast::<pg_sys::FormData_pg_attribute>();
        #[cfg(not(feature = "pg18"))]
        let first = (*descriptor).attrs.as_ptr();
        &*first.add(number as usize - 1)
    }
}

/// # Safety
/// `relation` is open.
unsafe fn build<T: Table>(relation: pg_sys::Relation) -> Map {
    let mut map = Map {
        attributes: [0; MAX_COLUMNS],
    };
    for (i, column) in T::COLUMNS.iter().enumerate() {
        // SAFETY: by contract, and a tuple descriptor has natts attributes.
        let found =
            unsafe {
                (1..=(*(*relation).rd_att).natts as i16).find_map(|number| {
                    let attribute = attribute_of(relation, number);
                    let name = CStr::from_ptr(attribute.attname.data.as_ptr());
                    (!attribute.attisdropped && name.to_bytes() == column.name.as_bytes())
                        .then_some((attribute.attnum, attribute.atttypid, attribute.attcollation))
                })
            };
        match found {
            Some((number, ty, collation)) if ty == type_oid(column.ty) => {
                if !value::is_binary(collation) {
                    // SAFETY: by contract.
                    unsafe { refuse_collation::<T>(relation, column.name) }
                }
                map.attributes[i] = number;
            }
            // SAFETY: by contract.
            other => unsafe { refuse::<T>(relation, i, other.map(|(_, ty, _)| ty)) },
        }
    }
    map
}

/// # Safety
/// `relation` is open.
unsafe fn refuse<T: Table>(
    relation: pg_sys::Relation,
    column: usize,
    found: Option<pg_sys::Oid>,
) -> ! {
    let column = T::COLUMNS[column];
    // SAFETY: by contract; format_type_be returns a palloc'd string.
    let (table, what) = unsafe {
        let what = found.map(|ty| {
            CStr::from_ptr(pg_sys::format_type_be(ty))
                .to_string_lossy()
                .into_owned()
        });
        (qualified_name(relation), what)
    };
    Failure::new(
        PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
        match what {
            None => format!(
                "column \"{}\" of table {table}, which guard {} reads, does not exist",
                column.name,
                T::GUARD
            ),
            Some(ty) => format!(
                "column \"{}\" of table {table}, which guard {} reads, has type {ty} instead of {}",
                column.name,
                T::GUARD,
                column.ty.name()
            ),
        },
    )
    .hint("Put the column back as the protocol defines it: SELECT * FROM opengeni_guards.status().")
    .raise()
}

/// # Safety
/// `relation` is open.
unsafe fn refuse_collation<T: Table>(relation: pg_sys::Relation, column: &str) -> ! {
    // SAFETY: by contract.
    let table = unsafe { qualified_name(relation) };
    Failure::new(
        PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
        format!(
            "column \"{column}\" of table {table}, which guard {} reads, has a nondeterministic collation",
            T::GUARD
        ),
    )
    .hint("The protocol compares text by its bytes: give the column a deterministic collation.")
    .raise()
}

/// The quoted, qualified name of an open relation.
///
/// # Safety
/// `relation` is open.
pub unsafe fn qualified_name(relation: pg_sys::Relation) -> String {
    // SAFETY: by contract; both functions return NUL-terminated strings.
    unsafe {
        let class = &*(*relation).rd_rel;
        CStr::from_ptr(pg_sys::quote_qualified_identifier(
            pg_sys::get_namespace_name(class.relnamespace),
            class.relname.data.as_ptr(),
        ))
        .to_string_lossy()
        .into_owned()
    }
}
