//! A row through a guard's view of its table: raw slot values by cached attribute number.

use std::ffi::CStr;
use std::marker::PhantomData;

use pgrx::pg_sys;

use super::direct;
use super::jsonb::Document;
use super::map::{self, Map};
use super::value;
use crate::protocol::tables::{Table, Type};

/// An attribute of the row in a slot, which is deformed as far as that takes; `None` for NULL.
///
/// # Safety
/// The slot holds a row that has this attribute.
unsafe fn attribute_value(slot: *mut pg_sys::TupleTableSlot, number: i16) -> Option<pg_sys::Datum> {
    let index = number as usize - 1;
    // SAFETY: by contract.
    unsafe {
        if (*slot).tts_nvalid < number {
            direct::slot_getsomeattrs_int(slot, i32::from(number));
        }
        (!*(*slot).tts_isnull.add(index)).then(|| *(*slot).tts_values.add(index))
    }
}

/// How whole rows are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// As records: by each type's own equality.
    Record,
    /// As `to_jsonb` of both would compare.
    Json,
    /// As they are stored: what is alike is equal, what is not may be.
    Image,
}

/// Two rows of a relation, whatever columns it has by now. Generated columns are left out: they say nothing
/// of their own, and a stored one is not computed yet.
#[derive(Clone, Copy)]
pub struct Pair {
    relation: pg_sys::Relation,
    old: *mut pg_sys::TupleTableSlot,
    new: *mut pg_sys::TupleTableSlot,
}

impl Pair {
    /// # Safety
    /// Both slots hold rows of the relation, which is open, and stay so for as long as the pair is used.
    pub unsafe fn new(
        relation: pg_sys::Relation,
        old: *mut pg_sys::TupleTableSlot,
        new: *mut pg_sys::TupleTableSlot,
    ) -> Self {
        Pair { relation, old, new }
    }

    fn attributes(&self) -> impl Iterator<Item = &pg_sys::FormData_pg_attribute> {
        // SAFETY: the relation is open, and its descriptor has natts attributes.
        let count = unsafe { (*(*self.relation).rd_att).natts as i16 };
        (1..=count)
            // SAFETY: as above.
            .map(|number| unsafe { map::attribute_of(self.relation, number) })
            .filter(|attribute| !attribute.attisdropped && attribute.attgenerated == 0)
    }

    fn differs(&self, attribute: &pg_sys::FormData_pg_attribute, comparison: Comparison) -> bool {
        let number = attribute.attnum;
        // SAFETY: both slots hold a row with this attribute.
        unsafe {
            match (
                attribute_value(self.old, number),
                attribute_value(self.new, number),
            ) {
                (None, None) => false,
                (Some(a), Some(b)) => !value::same_attribute(attribute, a, b, comparison),
                _ => true,
            }
        }
    }

    /// The first attribute by which the rows differ.
    pub fn first_difference(&self, except: &[&str], comparison: Comparison) -> Option<i16> {
        self.attributes()
            .filter(|attribute| {
                // SAFETY: an attribute's name is NUL-terminated.
                let name = unsafe { CStr::from_ptr(attribute.attname.data.as_ptr()) }.to_bytes();
                !except.iter().any(|e| e.as_bytes() == name)
            })
            .find(|attribute| self.differs(attribute, comparison))
            .map(|attribute| attribute.attnum)
    }

    /// Whether the rows are stored differently. Times, counters and states of a fixed size are looked at
    /// first: by them most writes are told without looking at the rest.
    pub fn differs_as_stored(&self) -> bool {
        [true, false].into_iter().any(|by_value| {
            self.attributes()
                .filter(|attribute| attribute.attbyval == by_value)
                .any(|attribute| self.differs(attribute, Comparison::Image))
        })
    }
}

/// One version of a row. Values stay in the slot.
#[derive(Clone, Copy)]
pub struct Row<'a, T> {
    slot: *mut pg_sys::TupleTableSlot,
    map: Map,
    lifetime: PhantomData<(&'a (), T)>,
}

impl<'a, T: Table> Row<'a, T> {
    /// # Safety
    /// `slot` holds a row of `relation`, which is open; both stay so for `'a`.
    pub unsafe fn new(relation: pg_sys::Relation, slot: *mut pg_sys::TupleTableSlot) -> Self {
        // SAFETY: by contract.
        unsafe { Self::mapped(map::of::<T>(relation), slot) }
    }

    /// # Safety
    /// As for [`Row::new`], with the map of that relation.
    pub unsafe fn mapped(map: Map, slot: *mut pg_sys::TupleTableSlot) -> Self {
        Row {
            slot,
            map,
            lifetime: PhantomData,
        }
    }

    fn datum(&self, column: T) -> Option<pg_sys::Datum> {
        // SAFETY: the slot holds a row of the relation that the map is of.
        unsafe { attribute_value(self.slot, self.map.attribute(column)) }
    }

    fn typed(&self, column: T, ty: Type) -> Option<pg_sys::Datum> {
        debug_assert_eq!(
            column.column().ty,
            ty,
            "{} is read as {ty:?}",
            column.column().name
        );
        self.datum(column)
    }

    pub fn is_null(&self, column: T) -> bool {
        self.datum(column).is_none()
    }

    pub fn uuid(&self, column: T) -> Option<&'a [u8; 16]> {
        // SAFETY: the map checked the type; the value lives in the slot or its tuple.
        self.typed(column, Type::Uuid)
            .map(|d| unsafe { value::uuid(d) })
    }

    pub fn text(&self, column: T) -> Option<&'a [u8]> {
        // SAFETY: as above.
        self.typed(column, Type::Text)
            .map(|d| unsafe { value::payload(d) })
    }

    pub fn integer(&self, column: T) -> Option<i32> {
        self.typed(column, Type::Integer).map(|d| d.value() as i32)
    }

    pub fn bigint(&self, column: T) -> Option<i64> {
        self.typed(column, Type::Bigint).map(|d| d.value() as i64)
    }

    pub fn boolean(&self, column: T) -> Option<bool> {
        self.typed(column, Type::Boolean)
            .map(|d| d.value() as u8 != 0)
    }

    pub fn xid8(&self, column: T) -> Option<u64> {
        self.typed(column, Type::Xid8).map(|d| d.value() as u64)
    }

    pub fn jsonb(&self, column: T) -> Option<Document<'a>> {
        // SAFETY: as above.
        self.typed(column, Type::Jsonb)
            .map(|d| unsafe { Document::from_datum(d) })
    }

    /// `self.column IS DISTINCT FROM other.column`, for two rows of one table.
    pub fn distinct(&self, other: &Row<'_, T>, column: T) -> bool {
        self.distinct_from(column, other, column)
    }

    /// `self.column IS DISTINCT FROM other.theirs`, for columns of one type.
    pub fn distinct_from<U: Table>(&self, column: T, other: &Row<'_, U>, theirs: U) -> bool {
        let ty = column.column().ty;
        debug_assert_eq!(ty, theirs.column().ty);
        let (mine, theirs) = (self.map.attribute(column), other.map.attribute(theirs));
        // SAFETY: the maps checked the types; the descriptor is the slot's own.
        unsafe {
            match (
                attribute_value(self.slot, mine),
                attribute_value(other.slot, theirs),
            ) {
                (None, None) => false,
                (Some(a), Some(b)) => {
                    let descriptor = (*self.slot).tts_tupleDescriptor;
                    let collation = map::attribute(descriptor, mine).attcollation;
                    !value::equal(ty, collation, a, b)
                }
                _ => true,
            }
        }
    }

    /// The bits of those `columns` that differ.
    pub fn distinct_among(&self, other: &Row<'_, T>, columns: &[T]) -> u64 {
        columns
            .iter()
            .enumerate()
            .filter(|(_, column)| self.distinct(other, **column))
            .fold(0, |bits, (bit, _)| bits | 1 << bit)
    }
}
