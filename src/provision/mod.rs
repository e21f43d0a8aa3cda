//! The data model of an empty database, the guards of a live one, the privileges of an application, and how a
//! schema stands.

pub mod attach;
pub mod catalogue;
pub mod create;
pub mod fences;
pub mod findings;
pub mod grants;
mod ledger;
pub mod locks;
pub mod model;
mod originals;
pub mod status;
