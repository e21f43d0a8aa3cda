//! What the `xtask` binary and the client cases share: where a running server is and how to reach it.

pub mod server;
