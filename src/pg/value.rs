//! Single values: reading a datum, comparing two as the server does.

use std::ffi::{CStr, c_char};

use pgrx::pg_sys;
use pgrx::varlena;

use super::jsonb::Document;
use crate::protocol::tables::Type;

/// Copies a string into the current memory context, NUL-terminated and cut at an inner NUL.
pub fn palloc_cstr(text: &str) -> *const c_char {
    let bytes = text.as_bytes();
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    // SAFETY: the allocation has room for `end` bytes and the terminator.
    unsafe {
        let copy = pg_sys::palloc(end + 1).cast::<u8>();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, end);
        *copy.add(end) = 0;
        copy.cast()
    }
}

/// Copies bytes into a `text` datum in the current memory context.
pub fn text_datum(bytes: &[u8]) -> pg_sys::Datum {
    // SAFETY: cstring_to_text_with_len copies exactly `len` bytes.
    unsafe {
        pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(
            bytes.as_ptr().cast(),
            bytes.len() as i32,
        ))
    }
}

/// Frees what a C string function of the server returned after copying it.
pub fn owned_cstr(text: *mut c_char) -> Vec<u8> {
    // SAFETY: an output function returns a palloc'd NUL-terminated string that is ours to free.
    unsafe {
        let bytes = CStr::from_ptr(text).to_bytes().to_vec();
        pg_sys::pfree(text.cast());
        bytes
    }
}

/// The payload of a varlena datum, detoasted into the current memory context where it has to be.
///
/// # Safety
/// `datum` is a non-NULL varlena that outlives `'a`.
pub unsafe fn payload<'a>(datum: pg_sys::Datum) -> &'a [u8] {
    // SAFETY: by contract; a detoasted copy lives as long as the memory context.
    unsafe {
        let mut pointer = datum.cast_mut_ptr::<pg_sys::varlena>();
        if varlena::varatt_is_1b_e(pointer) || varlena::varatt_is_4b_c(pointer) {
            pointer = pg_sys::pg_detoast_datum_packed(pointer);
        }
        std::slice::from_raw_parts(
            varlena::vardata_any(pointer).cast(),
            varlena::varsize_any_exhdr(pointer),
        )
    }
}

/// The varlena as it is stored: header, compressed bytes or toast pointer included.
///
/// # Safety
/// As for [`payload`].
unsafe fn image<'a>(datum: pg_sys::Datum) -> &'a [u8] {
    let pointer = datum.cast_mut_ptr::<pg_sys::varlena>();
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(pointer.cast(), varlena::varsize_any(pointer)) }
}

/// # Safety
/// `datum` is a uuid that outlives `'a`.
pub unsafe fn uuid<'a>(datum: pg_sys::Datum) -> &'a [u8; 16] {
    // SAFETY: by contract; a uuid is 16 bytes with no alignment.
    unsafe { &*datum.cast_mut_ptr::<[u8; 16]>() }
}

/// Whether the type's `=` calls two non-NULL values equal: by image first, by the operator where
/// images may differ for equal values. Values that are still toasted alike are never fetched.
///
/// # Safety
/// Both are non-NULL values of type `ty` with this collation.
pub unsafe fn equal(ty: Type, collation: pg_sys::Oid, a: pg_sys::Datum, b: pg_sys::Datum) -> bool {
    // SAFETY: by contract.
    unsafe {
        match ty {
            Type::Boolean => (a.value() as u8 != 0) == (b.value() as u8 != 0),
            Type::Integer => a.value() as i32 == b.value() as i32,
            Type::Bigint | Type::Timestamptz | Type::Xid8 => a.value() == b.value(),
            Type::Uuid => uuid(a) == uuid(b),
            _ if a.value() == b.value() || image(a) == image(b) => true,
            Type::Text => {
                let raw = |d: pg_sys::Datum| pg_sys::toast_raw_datum_size(d);
                let binary = is_binary(collation);
                if binary && raw(a) != raw(b) {
                    return false;
                }
                payload(a) == payload(b) || !binary && call_equal(pg_sys::texteq, collation, a, b)
            }
            Type::Jsonb => Document::from_datum(a).same(&Document::from_datum(b)),
            Type::UuidArray => call_equal(pg_sys::array_eq, collation, a, b),
        }
    }
}

/// Whether equality under this collation is equality of bytes. The database's own collation always is.
fn is_binary(collation: pg_sys::Oid) -> bool {
    collation == pg_sys::DEFAULT_COLLATION_OID
        || collation == pg_sys::Oid::from(C_COLLATION_OID)
        || collation == pg_sys::InvalidOid
        // SAFETY: a catalogue look-up by OID.
        || unsafe { pg_sys::get_collation_isdeterministic(collation) }
}

const C_COLLATION_OID: u32 = 950;

type Function = unsafe fn(pg_sys::FunctionCallInfo) -> pg_sys::Datum;

/// Calls one of the server's equality functions.
///
/// # Safety
/// As for [`equal`], with `function` the operator of their type.
unsafe fn call_equal(
    function: Function,
    collation: pg_sys::Oid,
    a: pg_sys::Datum,
    b: pg_sys::Datum,
) -> bool {
    // SAFETY: by contract. array_eq caches type data in its FmgrInfo, so it is given one.
    unsafe {
        let mut info = pg_sys::FmgrInfo {
            fn_mcxt: pg_sys::CurrentMemoryContext,
            fn_nargs: 2,
            ..Default::default()
        };
        call(function, &mut info, collation, &[a, b]).value() != 0
    }
}

/// Calls a function of the server that neither takes nor returns NULL.
///
/// # Safety
/// `function` takes exactly these arguments.
pub unsafe fn call(
    function: Function,
    info: *mut pg_sys::FmgrInfo,
    collation: pg_sys::Oid,
    arguments: &[pg_sys::Datum],
) -> pg_sys::Datum {
    #[repr(C)]
    struct Frame {
        base: pg_sys::FunctionCallInfoBaseData,
        arguments: [pg_sys::NullableDatum; 4],
    }
    let mut frame = Frame {
        base: Default::default(),
        arguments: Default::default(),
    };
    frame.base.flinfo = info;
    frame.base.fncollation = collation;
    frame.base.nargs = arguments.len() as i16;
    for (slot, value) in frame.arguments.iter_mut().zip(arguments) {
        slot.value = *value;
        slot.isnull = false;
    }
    // SAFETY: by contract; the arguments follow the base as the server's macro lays them out.
    unsafe { function(&raw mut frame.base) }
}
