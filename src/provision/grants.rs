//! `grant_usage` and `revoke_usage`: the one authority on what an application role may do.

use super::catalogue::{self, Schema, execute, quote, scalar};
use super::create::role;
use super::model::{self, Kind};

/// Tables that hold the protocol's private state. No role but their owner ever reads or writes them.
const LEDGERS: &[(Option<&str>, &str)] = &[
    (Some("opengeni_private"), "modal_inventory_read_capabilities"),
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
/// granted by hand or by default does not stay.
fn converge(role_name: Option<&str>, data_schema: Option<&str>, grant: bool) {
    let Some(role_name) = role_name else {
        crate::pg::error::Failure::new(
            pgrx::PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "role_name must not be NULL",
        )
        .hint("Name the role that the application connects as.")
        .raise()
    };
    let schema = Schema::find(data_schema);
    schema.require_owner();
    role(role_name);
    let role = quote(role_name);
    schema.as_owner(|| {
        let data = quote(&schema.name);
        let mut statements = vec![format!("REVOKE CREATE ON SCHEMA {data} FROM {role}")];
        if schema_exists("opengeni_private") {
            statements.push(format!("REVOKE CREATE ON SCHEMA opengeni_private FROM {role}"));
        }
        for (kind, noun, privileges) in [
            (Kind::Table, "TABLE", "SELECT, INSERT, UPDATE, DELETE"),
            (Kind::Sequence, "SEQUENCE", "USAGE, SELECT"),
            (Kind::Function, "FUNCTION", "EXECUTE"),
        ] {
            for object in model::objects(kind).filter(|o| catalogue::exists(&schema, o)) {
                let name = match kind {
                    Kind::Function => object.name.to_owned(),
                    _ => schema.qualify(object.name),
                };
                statements.push(format!("REVOKE ALL ON {noun} {name} FROM {role}"));
                if grant {
                    statements.push(format!("GRANT {privileges} ON {noun} {name} TO {role}"));
                }
            }
        }
        for (ledger_schema, ledger) in LEDGERS {
            let ledger_schema = ledger_schema.unwrap_or(&schema.name);
            if table_exists(ledger_schema, ledger) {
                let name = format!("{}.{}", quote(ledger_schema), quote(ledger));
                statements.push(format!("REVOKE ALL ON TABLE {name} FROM {role}, PUBLIC"));
            }
        }
        let schemas = if schema_exists("opengeni_private") {
            format!("{data}, opengeni_private")
        } else {
            data
        };
        statements.push(if grant {
            format!("GRANT USAGE ON SCHEMA {schemas} TO {role}")
        } else {
            format!("REVOKE USAGE ON SCHEMA {schemas} FROM {role}")
        });
        statements.iter().for_each(|sql| execute(sql));
    });
}

fn schema_exists(name: &str) -> bool {
    scalar::<bool>(
        "SELECT true FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) $1",
        &[name.into()],
    ) == Some(true)
}

fn table_exists(schema: &str, name: &str) -> bool {
    scalar::<bool>(
        "SELECT true FROM pg_catalog.pg_class c
           JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
          WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2
            AND c.relkind OPERATOR(pg_catalog.=) 'r'",
        &[schema.into(), name.into()],
    ) == Some(true)
}
