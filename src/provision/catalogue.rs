//! Questions to the system catalogues, asked by SPI with everything named in full.

use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::{PgSqlErrorCode, pg_sys};

use super::model::{Kind, Object};
use crate::pg::error::Failure;
use crate::pg::identity;

/// A schema and the role that acts for it.
pub struct Schema {
    pub name: String,
    pub oid: pg_sys::Oid,
    pub owner: pg_sys::Oid,
}

impl Schema {
    /// Finds a schema. Its owner is the role that owns it; `pg_database_owner` stands for the owner of
    /// the database.
    pub fn find(name: Option<&str>) -> Schema {
        let Some(name) = name else {
            Failure::new(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                "data_schema must not be NULL",
            )
            .hint("Name the schema that holds, or shall hold, the application's tables.")
            .raise()
        };
        let found = row::<pg_sys::Oid, pg_sys::Oid>(
            "SELECT n.oid, CASE WHEN r.rolname OPERATOR(pg_catalog.=) 'pg_database_owner' THEN d.datdba ELSE n.nspowner END
               FROM pg_catalog.pg_namespace n
               JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) n.nspowner
               JOIN pg_catalog.pg_database d ON d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
              WHERE n.nspname OPERATOR(pg_catalog.=) $1",
            &[name.into()],
        );
        match found {
            Some((oid, owner)) => Schema {
                name: name.to_owned(),
                oid,
                owner,
            },
            None => Failure::new(
                PgSqlErrorCode::ERRCODE_INVALID_SCHEMA_NAME,
                format!("schema \"{name}\" does not exist"),
            )
            .hint("Create it first, owned by the role that shall own the tables.")
            .raise(),
        }
    }

    /// Refuses a caller who may not act as the owner.
    pub fn require_owner(&self) {
        if !identity::has_privileges_of(identity::current_user(), self.owner) {
            Failure::new(
                PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("must be owner of schema {}", self.name),
            )
            .hint(format!(
                "Call this as {}, as a member of that role, or as a superuser.",
                role_name(self.owner)
            ))
            .raise();
        }
    }

    /// Runs `body` as the owner, restricted, with the schema's own names in reach and temporary ones
    /// last.
    pub fn as_owner<T>(&self, body: impl FnOnce() -> T) -> T {
        let path = format!("{}, pg_temp", quote(&self.name));
        identity::as_role(self.owner, &path, body)
    }

    /// The quoted name of something in this schema.
    pub fn qualify(&self, name: &str) -> String {
        format!("{}.{}", quote(&self.name), quote(name))
    }
}

pub fn quote(name: &str) -> String {
    pgrx::spi::quote_identifier(name)
}

pub fn role_name(role: pg_sys::Oid) -> String {
    scalar::<String>(
        "SELECT r.rolname::pg_catalog.text FROM pg_catalog.pg_roles r WHERE r.oid OPERATOR(pg_catalog.=) $1",
        &[role.into()],
    )
    .unwrap_or_else(|| format!("role {}", role.to_u32()))
}

/// The first column of the first row, if there is one and it is not NULL.
pub fn scalar<T: FromDatum + IntoDatum>(sql: &str, args: &[DatumWithOid<'_>]) -> Option<T> {
    rows(sql, args, |row| row.get::<T>(1)).into_iter().next()?
}

/// The first two columns of the first row.
pub fn row<A: FromDatum + IntoDatum, B: FromDatum + IntoDatum>(
    sql: &str,
    args: &[DatumWithOid<'_>],
) -> Option<(A, B)> {
    rows(sql, args, |row| {
        Ok(match (row.get::<A>(1)?, row.get::<B>(2)?) {
            (Some(a), Some(b)) => Some((a, b)),
            _ => None,
        })
    })
    .into_iter()
    .next()?
}

/// Every row, as `read` sees it. The server's own errors pass through.
pub fn rows<T>(
    sql: &str,
    args: &[DatumWithOid<'_>],
    read: impl Fn(pgrx::spi::SpiHeapTupleData<'_>) -> pgrx::spi::Result<T>,
) -> Vec<T> {
    let result = Spi::connect(|client| {
        client
            .select(sql, None, args)?
            .map(read)
            .collect::<pgrx::spi::Result<Vec<T>>>()
    });
    result.unwrap_or_else(|error| internal(&error))
}

/// Executes a statement.
pub fn execute(sql: &str) {
    let result = Spi::connect_mut(|client| client.update(sql, None, &[]).map(|_| ()));
    result.unwrap_or_else(|error| internal(&error))
}

fn internal(error: &pgrx::spi::Error) -> ! {
    Failure::new(
        PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_EXCEPTION,
        format!("a catalogue query failed: {error}"),
    )
    .raise()
}

/// Whether an object of the model stands in the schema, under its name.
pub fn exists(schema: &Schema, object: &Object) -> bool {
    let sql = match object.kind {
        // By catalogue: to_regprocedure wants USAGE on the schema.
        Kind::Function => return function_owner(object.name).is_some(),
        Kind::Sequence | Kind::Table | Kind::Index => {
            "SELECT true FROM pg_catalog.pg_class c
              WHERE c.relnamespace OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $3 AND $2 IS NOT NULL"
        }
        Kind::Constraint | Kind::ForeignKey => {
            "SELECT true FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) k.conrelid
              WHERE c.relnamespace OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2
                AND k.conname OPERATOR(pg_catalog.=) $3"
        }
        Kind::Rls => {
            "SELECT c.relrowsecurity AND c.relforcerowsecurity FROM pg_catalog.pg_class c
              WHERE c.relnamespace OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2 AND $3 IS NOT NULL"
        }
        Kind::Policy => {
            "SELECT true FROM pg_catalog.pg_policy p JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) p.polrelid
              WHERE c.relnamespace OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2
                AND p.polname OPERATOR(pg_catalog.=) $3"
        }
        Kind::Trigger => {
            "SELECT true FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid
              WHERE c.relnamespace OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2
                AND t.tgname OPERATOR(pg_catalog.=) $3 AND NOT t.tgisinternal"
        }
    };
    scalar::<bool>(
        sql,
        &[schema.oid.into(), object.table.into(), object.name.into()],
    ) == Some(true)
}

/// The owner of a function, by `schema.name(types)`.
pub fn function_owner(signature: &str) -> Option<pg_sys::Oid> {
    scalar(
        "SELECT p.proowner FROM pg_catalog.pg_proc p
           JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
          WHERE $1 OPERATOR(pg_catalog.=) pg_catalog.concat(n.nspname, '.', p.proname, '(', pg_catalog.oidvectortypes(p.proargtypes), ')')",
        &[signature.into()],
    )
}

/// The owner of a schema.
pub fn schema_owner(name: &str) -> Option<pg_sys::Oid> {
    scalar(
        "SELECT n.nspowner FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) $1",
        &[name.into()],
    )
}

/// The owner of an ordinary table.
pub fn table_owner(schema: &str, name: &str) -> Option<pg_sys::Oid> {
    scalar(
        "SELECT c.relowner FROM pg_catalog.pg_class c
           JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
          WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2
            AND c.relkind OPERATOR(pg_catalog.=) 'r'",
        &[schema.into(), name.into()],
    )
}

/// What is wrong with a table of the model that already stands in the schema.
pub enum Mismatch {
    NotATable,
    Owner(String),
    MissingColumn(&'static str),
    ColumnType {
        column: &'static str,
        wanted: &'static str,
        found: String,
    },
}

/// Compares a table that stands in the schema with the model; `None` where there is no such relation or
/// nothing is wrong with it.
pub fn mismatch(schema: &Schema, table: &Object) -> Option<Mismatch> {
    let (oid, ordinary) = row::<pg_sys::Oid, bool>(
        "SELECT c.oid, c.relkind OPERATOR(pg_catalog.=) 'r' FROM pg_catalog.pg_class c
          WHERE c.relnamespace OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2",
        &[schema.oid.into(), table.name.into()],
    )?;
    if !ordinary {
        return Some(Mismatch::NotATable);
    }
    let owner = table_owner(&schema.name, table.name)?;
    if !identity::has_privileges_of(schema.owner, owner) {
        return Some(Mismatch::Owner(role_name(owner)));
    }
    let columns = rows(
        "SELECT a.attname::pg_catalog.text, pg_catalog.format_type(a.atttypid, a.atttypmod)
           FROM pg_catalog.pg_attribute a
          WHERE a.attrelid OPERATOR(pg_catalog.=) $1 AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped",
        &[oid.into()],
        |row| Ok((row.get::<String>(1)?, row.get::<String>(2)?)),
    );
    for wanted in table.columns() {
        let found = columns
            .iter()
            .find(|(name, _)| name.as_deref() == Some(wanted.name))
            .map(|(_, ty)| ty.clone().unwrap_or_default());
        match found {
            None => return Some(Mismatch::MissingColumn(wanted.name)),
            Some(found) if found != wanted.ty => {
                return Some(Mismatch::ColumnType {
                    column: wanted.name,
                    wanted: wanted.ty,
                    found,
                });
            }
            Some(_) => {}
        }
    }
    None
}
