//! The server, behind safe functions: the only module with unsafe code.

#![allow(unsafe_code)]

pub mod capability;
pub mod chain;
pub mod direct;
pub mod error;
pub mod fields;
pub mod identity;
pub mod invalidation;
pub mod jsonb;
pub mod jsonb_value;
pub mod map;
pub mod name;
pub mod probe;
pub mod query;
pub mod row;
pub mod rows;
pub mod session;
pub mod settings;
pub mod shadow;
pub mod statement;
pub mod subtransaction;
pub mod trigger;
pub mod value;

#[cfg(any(test, feature = "pg_test"))]
mod tests;
