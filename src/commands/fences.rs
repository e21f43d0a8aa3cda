//! Fences around a change of memberships, and around a migration.

use crate::pg::error::{self, Place};
use crate::pg::jsonb_value::Jsonb;
use crate::pg::session;
use crate::pg::statement::{Argument, DataSchema, Scope, Sight, Work};
use crate::protocol::refusal::{Refusal, Rule};
use crate::protocol::shape;

use super::statement;
use super::supervision::is_true;

statement!(MALFORMED, "roles_malformed", [Jsonb]);
statement!(RUNNING, "roles_running", [Jsonb]);

const CATALOGUE: Scope = Scope {
    tables: &[],
    sight: Sight::User,
    by_index: false,
};

/// Takes the account's membership lock to the end of the transaction, or refuses at once: whoever waited for it
/// here might hold what its holder waits for.
pub fn membership(account: Option<&[u8; 16]>, rule: Rule) {
    const NAME: &[u8; 24] = b"organization-membership:";
    let Some(account) = account else {
        super::invalid(
            "account_id must not be NULL",
            "Name the account whose memberships change.",
        )
    };
    let mut name = [0; 60];
    name[..24].copy_from_slice(NAME);
    name[24..].copy_from_slice(&shape::uuid_text(account));
    if !session::try_advisory_lock(&name) {
        error::refuse(Refusal::new(rule, &["account_id"], 1), NOWHERE);
    }
}

const NOWHERE: Place = Place {
    schema: std::ptr::null(),
    table: std::ptr::null(),
    operation: "",
    attribute: std::ptr::null(),
};

/// Refuses while a session of one of these roles is in the database, in the caller's words.
pub fn assert_roles_stopped(roles: Option<Jsonb>, message: Option<&str>) {
    let refuse = |names, message: Option<&str>| -> ! {
        let rule = Rule::FenceRolesRunning;
        let message = message.unwrap_or(rule.entry().message);
        error::refuse_saying(Refusal::new(rule, names, u64::MAX), NOWHERE, message)
    };
    let Some(roles) = roles else {
        refuse(&["roles"], message)
    };
    let catalogue = DataSchema::find(Some("pg_catalog"));
    Work::on(catalogue, &CATALOGUE, |work| {
        let roles = [Argument::Value(roles.datum())];
        if !matches!(work.row(&MALFORMED, &roles), Some([malformed]) if !is_true(malformed)) {
            refuse(&["roles"], message);
        }
        if !matches!(work.row(&RUNNING, &roles), Some([running]) if !is_true(running)) {
            refuse(&["sessions of these roles"], message);
        }
    });
}
