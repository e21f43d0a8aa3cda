//! `provision`: creates what is missing of the data model, then attaches.

use pgrx::PgSqlErrorCode;
use pgrx::prelude::*;

use super::attach::{self, Step};
use super::catalogue::{self, Mismatch, Schema, quote, scalar};
use super::locks::{self, Deadline};
use super::model::{self, Kind, Object};
use crate::pg::error::Failure;
use crate::pg::identity::{self, pinned};

/// What became of one object.
pub struct Line {
    pub object: String,
    pub action: &'static str,
    pub note: Option<String>,
}

/// The schema that holds the contract's functions.
pub const PRIVATE: &str = "opengeni_private";

pub fn provision(data_schema: Option<&str>, owner: Option<&str>) -> Vec<Line> {
    let mut schema = Schema::find(data_schema);
    if let Some(owner) = owner {
        schema.owner = match owner {
            catalogue::DATABASE_OWNER => catalogue::database_owner(),
            owner => role(owner),
        };
    }
    schema.require_owner();
    locks::take_turns(&schema, Deadline::of_a_turn());
    if scalar::<bool>(
        "SELECT r.rolsuper FROM pg_roles r WHERE r.oid = $1",
        &[schema.owner.into()],
    ) == Some(true)
    {
        warning!(
            "the tables in schema {} belong to superuser {}: row-level security does not bind their owner",
            schema.name,
            catalogue::role_name(schema.owner)
        );
    }
    for table in model::objects(Kind::Table) {
        if let Some(mismatch) = catalogue::mismatch(&schema, table) {
            refuse(&schema, table, mismatch);
        }
        // A superuser could, and the schema would have two owners.
        let other = catalogue::table_owner(&schema.name, table.name);
        if let Some(other) = other.filter(|other| owner.is_some() && *other != schema.owner) {
            refuse(&schema, table, Mismatch::Owner(catalogue::role_name(other)));
        }
    }
    contract_is_trusted(&schema);
    let create = |kinds: &'static [Kind]| {
        let objects = kinds.iter().flat_map(|kind| model::objects(*kind));
        objects.map(|object| converge(&schema, object))
    };
    let mut lines = schema.as_owner(|| {
        locks::within(attach::LIMIT, || {
            let mut lines = vec![private_schema(&schema)];
            lines.extend(create(Kind::FUNCTIONS));
            lines
        })
    });
    merge(&mut lines, attach::enforce_functions(&schema));
    // From here on others wait for us: we wait for nobody any more.
    let limit = match lock_tables(&schema) {
        true => locks::patience(),
        false => attach::LIMIT,
    };
    lines.extend(
        schema.as_owner(|| locks::within(limit, || create(Kind::OF_TABLES).collect::<Vec<_>>())),
    );
    merge(&mut lines, attach::enforce(&schema));
    lines
}

/// Adds what `attach` did; of an object that both tell of, what has changed.
fn merge(lines: &mut Vec<Line>, attached: Vec<Line>) {
    for line in attached {
        match lines.iter_mut().find(|l| l.object == line.object) {
            Some(known) if known.action == "present" => *known = line,
            Some(_) => {}
            None => lines.push(line),
        }
    }
}

/// Locks the tables that stand there and have to change, all or none, as `attach` does: while one of them is
/// waited for, the application waits for no other. Whether there was any.
fn lock_tables(schema: &Schema) -> bool {
    let deadline = Deadline::after(attach::LIMIT);
    let mut steps = attach::enforcing(schema, deadline);
    for kind in Kind::OF_TABLES {
        let missing = |object: &&Object| {
            !catalogue::exists(schema, object) && catalogue::unmet(schema, object).is_none()
        };
        for object in model::objects(*kind).filter(missing) {
            for table in object.tables() {
                let step = Step::on(table, String::new(), "created", vec![object.sql.to_owned()]);
                steps.push(match kind {
                    Kind::Index | Kind::ForeignKey => step,
                    _ => step.exclusive(),
                });
            }
        }
    }
    let stands = |table: &str| catalogue::table_owner(&schema.name, table).is_some();
    steps.retain(|step| !step.sql.is_empty() && step.table.is_some_and(stands));
    if !steps.is_empty() {
        attach::run_pending_checks(schema, deadline);
        schema.as_owner(|| locks::lock(schema, &steps, deadline));
    }
    !steps.is_empty()
}

/// Refuses to build on somebody else's contract schema or helper functions: every policy would ask them
/// who may see what. The database's owner and superusers have that power anyway.
fn contract_is_trusted(schema: &Schema) {
    let owners = std::iter::once((
        format!("schema {PRIVATE}"),
        catalogue::schema_owner(PRIVATE),
    ))
    .chain(
        model::objects(Kind::Function)
            .chain(model::objects(Kind::Contract).filter(|function| !function.is_private()))
            .map(|function| {
                let signature = schema.signature(function);
                let owner = catalogue::function_owner(&signature);
                (format!("function {signature}"), owner)
            }),
    );
    for (object, owner) in owners {
        let Some(owner) = owner else { continue };
        let powerful = scalar::<bool>(
            "SELECT r.rolsuper OR d.datdba = r.oid
               FROM pg_roles r, pg_database d
              WHERE r.oid = $1 AND d.datname = current_database()",
            &[owner.into()],
        );
        if powerful != Some(true) && !identity::has_privileges_of(schema.owner, owner) {
            Failure::new(
                PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("{object} belongs to {}", catalogue::role_name(owner)),
            )
            .detail("Row-level security would rest on what that role makes of it. Nothing has been changed.")
            .hint(format!(
                "Give the schema and the helper functions in it to {}, to the database's owner or to a superuser.",
                catalogue::role_name(schema.owner)
            ))
            .raise();
        }
    }
}

/// A role's OID; 42704 where there is none.
pub fn role(name: &str) -> pg_sys::Oid {
    scalar::<pg_sys::Oid>(
        "SELECT r.oid FROM pg_roles r WHERE r.rolname = $1",
        &[name.into()],
    )
    .unwrap_or_else(|| {
        Failure::new(
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            format!("role \"{name}\" does not exist"),
        )
        .hint("Create the role first.")
        .raise()
    })
}

/// Refuses a schema in which a table of the protocol is missing or incompatible.
pub fn require_complete(schema: &Schema) {
    for table in model::objects(Kind::Table) {
        if let Some(mismatch) = catalogue::mismatch(schema, table) {
            refuse(schema, table, mismatch);
        }
        if !catalogue::exists(schema, table) && !table.is_optional() {
            Failure::new(
                PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
                format!("table {} does not exist", schema.qualify(table.name)),
            )
            .detail("Nothing has been changed.")
            .hint("The guards read every table of the protocol: provision creates what is missing.")
            .raise();
        }
    }
}

/// The statements that put a contract function in the place of what stands under its name. Whoever was
/// granted the right to execute it keeps it; everybody has none where it runs as its owner.
pub fn contract_sql(schema: &Schema, function: &Object) -> Vec<String> {
    let create = function
        .sql
        .find("CREATE FUNCTION")
        .map_or(function.sql, |at| &function.sql[at..])
        .replacen("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1);
    let mut sql = vec![schema.render(&create)];
    if function.sql.contains("SECURITY DEFINER") && function.is_private() {
        sql.push(format!(
            "REVOKE ALL ON FUNCTION {} FROM PUBLIC CASCADE",
            schema.quoted_signature(function)
        ));
    }
    sql
}

/// Ends with the error for a table that stands in the way, before anything has been changed.
fn refuse(schema: &Schema, table: &Object, mismatch: Mismatch) -> ! {
    let name = schema.qualify(table.name);
    match mismatch {
        Mismatch::NotATable => Failure::new(
            PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
            format!("{name} is not an ordinary table"),
        )
        .hint("Rename what stands under this name; provision creates the table."),
        Mismatch::Children => Failure::new(
            PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
            format!("table {name} has child tables, which no guard reads"),
        )
        .hint("Let no table inherit from the protocol's tables."),
        Mismatch::Owner(owner) => Failure::new(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!(
                "table {name} belongs to {owner}, not to {}",
                catalogue::role_name(schema.owner)
            ),
        )
        .hint("Give all tables of the model to one role, or pass it as owner."),
        Mismatch::MissingColumn(column) => Failure::new(
            PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
            format!("column \"{column}\" of table {name} does not exist"),
        )
        .hint("provision does not change existing tables: add the column first."),
        Mismatch::ColumnType {
            column,
            wanted,
            found,
        } => Failure::new(
            PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
            format!("column \"{column}\" of table {name} has type {found} instead of {wanted}"),
        )
        .hint("provision does not change existing tables: change the column's type first."),
    }
    .detail("Nothing has been changed.")
    .raise()
}

/// The contract's schema, created where it is missing.
fn private_schema(schema: &Schema) -> Line {
    let object = format!("schema {PRIVATE}");
    if catalogue::schema_owner(PRIVATE).is_some() {
        let usable = scalar::<bool>(
            "SELECT has_schema_privilege($1, 'USAGE')",
            &[PRIVATE.into()],
        );
        if usable != Some(true) {
            let owner = quote(&catalogue::role_name(schema.owner));
            Failure::new(
                PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("role {owner} may not use schema {PRIVATE}"),
            )
            .detail("Nothing has been changed.")
            .hint(format!("Run GRANT USAGE ON SCHEMA {PRIVATE} TO {owner}."))
            .raise();
        }
        return Line {
            object,
            action: "present",
            note: None,
        };
    }
    let may_create = scalar::<bool>(
        "SELECT has_database_privilege(current_database(), 'CREATE')",
        &[],
    );
    if may_create != Some(true) {
        let owner = quote(&catalogue::role_name(schema.owner));
        Failure::new(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!("role {owner} may not create schema {PRIVATE} in this database"),
        )
        .detail("Nothing has been changed.")
        .hint(format!(
            "Run CREATE SCHEMA {PRIVATE} AUTHORIZATION {owner}, or grant it CREATE on the database."
        ))
        .raise();
    }
    catalogue::execute(&format!("CREATE SCHEMA {PRIVATE}"));
    Line {
        object,
        action: "created",
        note: None,
    }
}

/// Creates one object where it is missing.
fn converge(schema: &Schema, object: &Object) -> Line {
    let name = match object.kind {
        Kind::Function | Kind::Contract => schema.quoted_signature(object),
        Kind::Sequence | Kind::Table | Kind::Index => schema.qualify(object.name),
        Kind::Rls => format!("of {}", schema.qualify(object.table)),
        _ => format!("{} on {}", quote(object.name), schema.qualify(object.table)),
    };
    let mut line = Line {
        object: format!("{} {name}", object.kind.noun()),
        action: "present",
        note: None,
    };
    if catalogue::exists(schema, object) {
        return line;
    }
    if let Some(why) = catalogue::unmet(schema, object) {
        line.action = "left";
        line.note = Some(why);
        return line;
    }
    let create = || catalogue::execute(&schema.render(object.sql));
    match object.kind {
        // The server looks whether the rows that are there fit: at all of them.
        Kind::ForeignKey => identity::unforced(create),
        _ => create(),
    }
    if object.kind == Kind::Contract {
        close(schema, object);
    }
    line.action = "created";
    line
}

/// Takes a new contract function from everybody whom default privileges gave it to. Only what the policies
/// ask is everybody's.
pub fn close(schema: &Schema, function: &Object) {
    let name = schema.quoted_signature(function);
    for role in pinned(|| catalogue::executors(&schema.signature(function))) {
        let role = catalogue::grantee(&role);
        catalogue::execute(&format!(
            "REVOKE ALL ON FUNCTION {name} FROM {role} CASCADE"
        ));
    }
    if !function.is_private() {
        catalogue::execute(&format!("GRANT EXECUTE ON FUNCTION {name} TO PUBLIC"));
    }
}
