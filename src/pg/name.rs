//! SQL's `name` as an argument: pgrx maps no Rust type to it.

use std::ffi::CStr;

use pgrx::callconv::{Arg, ArgAbi};
use pgrx::datum::FromDatum;
use pgrx::nullable::Nullable;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

/// An identifier, at most 63 bytes.
pub struct Name(pub String);

impl FromDatum for Name {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _type: pg_sys::Oid,
    ) -> Option<Self> {
        // SAFETY: a non-NULL name is a NUL-terminated buffer of NAMEDATALEN bytes.
        (!is_null).then(|| unsafe {
            let name = datum.cast_mut_ptr::<pg_sys::NameData>();
            Name(
                CStr::from_ptr((*name).data.as_ptr())
                    .to_string_lossy()
                    .into_owned(),
            )
        })
    }
}

// SAFETY: the datum is read as the SQL type says.
unsafe impl<'fcx> ArgAbi<'fcx> for Name {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(Name(String::new()))
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: by the trait's contract.
        unsafe { arg.unbox_arg_using_from_datum().into() }
    }
}

// SAFETY: `name` is a built-in type.
unsafe impl SqlTranslatable for Name {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Name);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("name"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("name")));
}
