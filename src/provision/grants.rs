//! `grant_usage` and `revoke_usage`: the one authority on what an application role may do.

use pgrx::prelude::*;
use pgrx::{PgSqlErrorCode, pg_sys};

use super::catalogue::{self, Contract, Schema, execute, quote};
use super::create::{PRIVATE, role};
use super::ledger;
use super::locks::{self, Deadline};
use super::model::{self, Kind, Object};
use crate::pg::error::Failure;
use crate::pg::identity;

/// Tables that hold the protocol's private state. No role but their owner ever reads or writes them.
pub const LEDGERS: &[(Option<&str>, &str)] = &[
    (
        Some("opengeni_private"),
        "modal_inventory_read_capabilities",
    ),
    (None, "opengeni_guards_replaced"),
    (None, "opengeni_guards_shadow"),
];

pub fn grant_usage(role_name: Option<&str>, data_schema: Option<&str>) {
    converge(role_name, data_schema, true);
}

pub fn revoke_usage(role_name: Option<&str>, data_schema: Option<&str>) {
    converge(role_name, data_schema, false);
}

/// Takes every privilege away and, to grant, gives back exactly those of the contract: what somebody
/// granted by hand or by default does not stay. Objects of other owners are theirs to grant.
fn converge(role_name: Option<&str>, data_schema: Option<&str>, grant: bool) {
    let Some(role_name) = role_name else {
        Failure::new(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "role_name must not be NULL",
        )
        .hint("Name the role that the application connects as.")
        .raise()
    };
    let schema = Schema::find(data_schema);
    schema.require_owner();
    locks::take_turns(&schema, Deadline::of_a_turn());
    if identity::may_become(role(role_name), schema.owner) || role_name == catalogue::DATABASE_OWNER
    {
        Failure::new(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("role \"{role_name}\" has the rights of the owner of schema {}", schema.name),
        )
        .hint("Let the application connect as a role that is neither the owner, nor its member, nor a superuser.")
        .raise();
    }
    let role = quote(role_name);
    if catalogue::table_owner(&schema.name, catalogue::PROCESSES).is_none() {
        warning!(
            "schema {} holds no tables of the protocol yet: provision it, then call this again",
            schema.name
        );
    }
    let ours = |owner: pg_sys::Oid| identity::has_privileges_of(schema.owner, owner);
    schema.as_owner(|| {
        let mut statements = Vec::new();
        // What the schemas of the contract share stays while another one needs it.
        let shared = !grant && catalogue::uses_another_schema(&schema, role_name);
        for name in [schema.name.as_str(), PRIVATE] {
            let quoted = quote(name);
            match catalogue::schema_owner(name) {
                None => {}
                Some(_) if shared && name == PRIVATE => {}
                Some(owner) if ours(owner) => {
                    statements.push(format!("REVOKE ALL ON SCHEMA {quoted} FROM {role} CASCADE"));
                    if grant {
                        statements.push(format!("GRANT USAGE ON SCHEMA {quoted} TO {role}"));
                    }
                    if grant && name == PRIVATE {
                        // Nobody puts functions of their own beside those that every policy asks.
                        statements.push(format!(
                            "REVOKE CREATE ON SCHEMA {quoted} FROM PUBLIC CASCADE"
                        ));
                    }
                }
                Some(owner) => warning!(
                    "schema {quoted} belongs to {}, which has to grant USAGE on it to {role}",
                    catalogue::role_name(owner)
                ),
            }
        }
        for (kind, noun, privileges) in [
            (Kind::Table, "TABLE", "SELECT, INSERT, UPDATE, DELETE"),
            (Kind::Sequence, "SEQUENCE", "USAGE, SELECT"),
            (Kind::Function, "FUNCTION", "EXECUTE"),
            (Kind::Contract, "FUNCTION", "EXECUTE"),
        ] {
            for object in model::objects(kind).filter(|o| catalogue::exists(&schema, o)) {
                let name = match kind {
                    Kind::Function if shared => continue,
                    Kind::Contract if serves_another(&schema, object) => continue,
                    Kind::Function | Kind::Contract => {
                        let signature = schema.signature(object);
                        if !catalogue::function_owner(&signature).is_some_and(ours) {
                            continue;
                        }
                        schema.quoted_signature(object)
                    }
                    _ => schema.qualify(object.name),
                };
                statements.push(format!("REVOKE ALL ON {noun} {name} FROM {role} CASCADE"));
                let private = kind == Kind::Contract && object.is_private();
                if grant && (private || !matches!(kind, Kind::Function | Kind::Contract)) {
                    // Default privileges may have given everybody what nobody was to have.
                    statements.push(format!("REVOKE ALL ON {noun} {name} FROM PUBLIC CASCADE"));
                }
                if grant {
                    statements.push(format!("GRANT {privileges} ON {noun} {name} TO {role}"));
                }
            }
        }
        for (ledger_schema, table) in LEDGERS {
            let ledger_schema = ledger_schema.unwrap_or(&schema.name);
            if catalogue::table_owner(ledger_schema, table).is_some_and(ours) {
                statements.extend(ledger::closing(ledger_schema, table));
            }
        }
        statements.iter().for_each(|sql| execute(sql));
    });
    for (object, grantor) in identity::pinned(|| catalogue::granted_by_others(&schema, role_name)) {
        warning!(
            "role {role}, or everybody, still has privileges on {object} that {grantor} granted and has to revoke"
        );
    }
}

/// Whether a contract function works for another schema, whose owner grants it.
fn serves_another(schema: &Schema, function: &Object) -> bool {
    let contract = identity::pinned(|| catalogue::contract(schema, function));
    matches!(contract, Contract::Elsewhere(_))
}
