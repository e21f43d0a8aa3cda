//! A row through a guard's view of its table: raw slot values by cached attribute number.

use std::marker::PhantomData;

use pgrx::pg_sys;

use super::jsonb::Document;
use super::map::{self, Map};
use super::value;
use crate::protocol::tables::{Table, Type};

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
        // SAFETY: by contract.
        unsafe {
            if (*slot).tts_nvalid < map.last {
                pg_sys::slot_getsomeattrs_int(slot, i32::from(map.last));
            }
        }
        Row {
            slot,
            map,
            lifetime: PhantomData,
        }
    }

    fn datum(&self, column: T) -> Option<pg_sys::Datum> {
        let index = self.map.attribute(column) as usize - 1;
        // SAFETY: the slot is deformed up to the map's last attribute.
        unsafe {
            let slot = &*self.slot;
            (!*slot.tts_isnull.add(index)).then(|| *slot.tts_values.add(index))
        }
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
        match (self.datum(column), other.datum(column)) {
            (None, None) => false,
            (Some(a), Some(b)) => {
                // SAFETY: the map checked the type of both; the descriptor is the slot's own.
                unsafe {
                    let descriptor = (*self.slot).tts_tupleDescriptor;
                    let attribute = map::attribute(descriptor, self.map.attribute(column));
                    !value::equal(column.column().ty, attribute.attcollation, a, b)
                }
            }
            _ => true,
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
