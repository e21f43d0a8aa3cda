//! One file per guard: which table and event, its rules in order, nothing else.

pub mod blocker;
pub mod capture;
pub mod checkpoint;
pub mod identity;
pub mod instruction_policy;
pub mod provider_loss;
pub mod recovery_protocol;
pub mod supervised_command;
pub mod truncate;
