//! SQL's `jsonb` as an argument and as an answer, left as it is stored: pgrx's own type goes through
//! serde_json, which loses precision and refuses documents that the server takes.

use std::ffi::CStr;

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum, FromDatum};
use pgrx::nullable::Nullable;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

use super::jsonb::Document;
use super::value;

/// A document that somebody else keeps: the caller of the function, or the work that read it.
#[derive(Clone, Copy)]
pub struct Jsonb(pg_sys::Datum);

impl Jsonb {
    /// # Safety
    /// `datum` is a non-NULL jsonb that lives as long as it is used.
    pub(super) unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        Jsonb(datum)
    }

    /// `text::jsonb`, in the current memory context.
    pub fn parse(text: &CStr) -> Self {
        Jsonb(value::cast_or_raise(value::Cast::Jsonb, text).into())
    }

    pub fn datum(self) -> pg_sys::Datum {
        self.0
    }

    /// Reads it; a toasted one is fetched into the current memory context.
    pub fn document(&self) -> Document<'_> {
        // SAFETY: by the contract of the constructors.
        unsafe { Document::from_datum(self.0) }
    }
}

impl FromDatum for Jsonb {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _type: pg_sys::Oid,
    ) -> Option<Self> {
        (!is_null).then_some(Jsonb(datum))
    }
}

// SAFETY: the datum is read as the SQL type says.
unsafe impl<'fcx> ArgAbi<'fcx> for Jsonb {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: by the trait's contract.
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(Jsonb(pg_sys::Datum::null()))
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: by the trait's contract.
        unsafe { arg.unbox_arg_using_from_datum().into() }
    }
}

// SAFETY: the datum is a jsonb that outlives the call.
unsafe impl BoxRet for Jsonb {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: by contract.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

// SAFETY: `jsonb` is a built-in type.
unsafe impl SqlTranslatable for Jsonb {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Jsonb);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("jsonb"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("jsonb")));
}
