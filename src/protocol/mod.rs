//! What the protocol *is*, as decisions over plain values: no server call, safe code only.
//!
//! Everything here can be tested without a server. Documents are read through [`json::Json`], which
//! the binary jsonb reader implements at the edge and `serde_json` implements in the tests.

pub mod cancellation;
pub mod chain;
pub mod command;
pub mod contract;
pub mod descriptor;
pub mod fence;
pub mod input;
pub mod json;
pub mod loss;
pub mod output;
pub mod receipt;
pub mod refusal;
pub mod shape;
pub mod streams;
pub mod tables;

#[cfg(test)]
mod operation_tests;
#[cfg(test)]
mod tests;
