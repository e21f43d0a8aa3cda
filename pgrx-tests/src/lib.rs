//! What the `xtask` binary and the client cases share: where a running server is, how to reach it,
//! and the protocol's own transactions.

pub mod demo;
pub mod random;
pub mod reader;
pub mod server;
