//! Single values: reading a datum, comparing two as the server does.

use std::ffi::{CStr, c_char};

use pgrx::datum::DatumWithOid;
use pgrx::spi::Spi;
use pgrx::varlena;
use pgrx::{PgSqlErrorCode, pg_sys};

use super::direct;
use super::error::Failure;
use super::fields;
use super::jsonb::Document;
use super::row::Comparison;
use crate::protocol::tables::Type;

/// Copies a string into the current memory context, NUL-terminated and cut at an inner NUL.
pub fn palloc_cstr(text: &str) -> *const c_char {
    let bytes = text.as_bytes();
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    palloc_cstring(&bytes[..end]).as_ptr()
}

/// Copies bytes into a `text` datum in the current memory context.
pub fn text_datum(bytes: &[u8]) -> pg_sys::Datum {
    // SAFETY: cstring_to_text_with_len copies exactly `len` bytes.
    unsafe {
        pg_sys::Datum::from(direct::cstring_to_text_with_len(
            bytes.as_ptr(),
            bytes.len() as i32,
        ))
    }
}

/// Copies bytes into a C string in the current memory context. Document text holds no NUL.
pub fn palloc_cstring<'a>(bytes: &[u8]) -> &'a CStr {
    // SAFETY: the allocation has room for the bytes and the terminator.
    unsafe {
        let copy = pg_sys::palloc(bytes.len() + 1).cast::<u8>();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
        *copy.add(bytes.len()) = 0;
        CStr::from_ptr(copy.cast())
    }
}

/// The bytes of a C string that a function of the server returned in the current memory context.
///
/// # Safety
/// `text` is such a string, which outlives `'a`.
pub unsafe fn cstr_bytes<'a>(text: *mut c_char) -> &'a [u8] {
    // SAFETY: by contract.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// A cast of text.
#[derive(Clone, Copy)]
pub enum Cast {
    Bigint,
    Boolean,
    Jsonb,
}

#[allow(clashing_extern_declarations)]
unsafe extern "C-unwind" {
    #[link_name = "int8in"]
    fn raw_int8in(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
    #[link_name = "boolin"]
    fn raw_boolin(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
    #[link_name = "jsonb_in"]
    fn raw_jsonb_in(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
}

/// Casts text as the server does; what does not cast ends the statement with the server's own error, all
/// its fields kept. The call is unguarded, so that an error as long as the text is not copied through Rust:
/// it jumps, and no caller up to the trigger's entry owns a value whose destructor has to run.
pub fn cast_or_raise(cast: Cast, text: &CStr) -> usize {
    let function = match cast {
        Cast::Bigint => raw_int8in,
        Cast::Boolean => raw_boolin,
        Cast::Jsonb => raw_jsonb_in,
    };
    let mut frame = Frame::new(
        std::ptr::null_mut(),
        pg_sys::InvalidOid,
        &[pg_sys::Datum::from(text.as_ptr())],
    );
    // SAFETY: an input function takes a C string.
    unsafe { function(&raw mut frame.base) }.value()
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
            // Attribute maps let in deterministic collations only: equality of bytes.
            Type::Text => {
                let raw = |d: pg_sys::Datum| pg_sys::toast_raw_datum_size(d);
                raw(a) == raw(b) && payload(a) == payload(b)
            }
            Type::Jsonb => Document::from_datum(a).same(&Document::from_datum(b)),
            Type::UuidArray => call_equal(pg_sys::array_eq, collation, a, b),
        }
    }
}

/// Whether two non-NULL values of any column are stored alike, whatever header a varlena has.
///
/// # Safety
/// Both are non-NULL values of this attribute.
pub unsafe fn same_image(
    attribute: &pg_sys::FormData_pg_attribute,
    a: pg_sys::Datum,
    b: pg_sys::Datum,
) -> bool {
    // SAFETY: by contract.
    unsafe {
        match (attribute.attbyval, attribute.attlen) {
            (true, _) => a.value() == b.value(),
            (_, -1) => {
                a.value() == b.value() || image(a) == image(b) || {
                    let plain = |d: pg_sys::Datum| {
                        let pointer = d.cast_mut_ptr::<pg_sys::varlena>();
                        !varlena::varatt_is_1b_e(pointer) && !varlena::varatt_is_4b_c(pointer)
                    };
                    plain(a) && plain(b) && payload(a) == payload(b)
                }
            }
            (_, -2) => CStr::from_ptr(a.cast_mut_ptr()) == CStr::from_ptr(b.cast_mut_ptr()),
            (_, length) => {
                let bytes = |d: pg_sys::Datum| {
                    std::slice::from_raw_parts(d.cast_mut_ptr::<u8>(), length as usize)
                };
                bytes(a) == bytes(b)
            }
        }
    }
}

/// Whether two non-NULL values of any column are the same: by image, by what is known of the type, or by
/// asking the server, which only a column that the protocol does not know can come to.
///
/// # Safety
/// Both are non-NULL values of this attribute.
pub unsafe fn same_attribute(
    attribute: &pg_sys::FormData_pg_attribute,
    a: pg_sys::Datum,
    b: pg_sys::Datum,
    comparison: Comparison,
) -> bool {
    let (ty, collation) = (attribute.atttypid, attribute.attcollation);
    // SAFETY: by contract.
    unsafe {
        if comparison != Comparison::Image
            && let Some(ty) = super::map::known_type(ty)
            && (comparison == Comparison::Json || is_binary(collation))
        {
            return equal(ty, collation, a, b);
        }
        same_image(attribute, a, b)
            || match comparison {
                Comparison::Record => same_by_operator(ty, collation, a, b),
                Comparison::Json => same_as_json(ty, a, b),
                Comparison::Image => false,
            }
    }
}

/// # Safety
/// Both are non-NULL values of this type.
unsafe fn same_by_operator(
    ty: pg_sys::Oid,
    collation: pg_sys::Oid,
    a: pg_sys::Datum,
    b: pg_sys::Datum,
) -> bool {
    // SAFETY: by contract.
    unsafe {
        let entry = pg_sys::lookup_type_cache(ty, pg_sys::TYPECACHE_EQ_OPR_FINFO as i32);
        if (*entry).eq_opr == pg_sys::InvalidOid {
            let name = CStr::from_ptr(pg_sys::format_type_be(ty)).to_string_lossy();
            Failure::new(
                PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION,
                format!("could not identify an equality operator for type {name}"),
            )
            .raise();
        }
        let mut frame = Frame::new(&raw mut (*entry).eq_opr_finfo, collation, &[a, b]);
        let equal = match (*entry).eq_opr_finfo.fn_addr {
            Some(function) => function(&raw mut frame.base),
            None => pg_sys::Datum::null(),
        };
        // As the server compares records: what is not known to be equal differs.
        !frame.base.isnull && equal.value() != 0
    }
}

/// # Safety
/// Both are non-NULL values of this type.
unsafe fn same_as_json(ty: pg_sys::Oid, a: pg_sys::Datum, b: pg_sys::Datum) -> bool {
    // SAFETY: by contract.
    let arguments = unsafe { [DatumWithOid::new(a, ty), DatumWithOid::new(b, ty)] };
    let same = || {
        Spi::connect(|client| {
            client
                .select(
                    "SELECT pg_catalog.to_jsonb($1) OPERATOR(pg_catalog.=) pg_catalog.to_jsonb($2)",
                    None,
                    &arguments,
                )?
                .first()
                .get_one::<bool>()
        })
    };
    fields::kept(same).unwrap_or_else(|error| {
        Failure::new(
            PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_EXCEPTION,
            error.to_string(),
        )
        .raise()
    }) == Some(true)
}

/// Whether equality under this collation is equality of bytes. The database's own collation always is.
pub fn is_binary(collation: pg_sys::Oid) -> bool {
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
    let mut frame = Frame::new(info, collation, arguments);
    // SAFETY: by contract.
    unsafe { function(&raw mut frame.base) }
}

/// Call information with its arguments behind it, as the server's macro lays them out.
#[repr(C)]
struct Frame {
    base: pg_sys::FunctionCallInfoBaseData,
    arguments: [pg_sys::NullableDatum; 4],
}

impl Frame {
    fn new(
        info: *mut pg_sys::FmgrInfo,
        collation: pg_sys::Oid,
        arguments: &[pg_sys::Datum],
    ) -> Self {
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
        frame
    }
}
