//! One file per guard: which table and event, its rules in order, nothing else.

pub mod recovery_protocol;
pub mod supervised_command;
