//! The data model of an empty database, the privileges of an application, and how a schema stands.

pub mod catalogue;
pub mod create;
pub mod fences;
pub mod grants;
pub mod model;
pub mod status;
