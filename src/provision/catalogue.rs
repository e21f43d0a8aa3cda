//! Questions to the system catalogues, asked by SPI where every name is the server's own (`pinned`).

use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::{PgSqlErrorCode, pg_sys};

use super::model::{self, Kind, Object};
use super::originals::{self, Serves};
use crate::pg::error::Failure;
use crate::pg::{identity, query};

/// The table by which a data schema is known.
pub const PROCESSES: &str = "sandbox_retained_processes";

/// Stands for the owner of the database: its only, implicit member.
pub const DATABASE_OWNER: &str = "pg_database_owner";

/// A schema and the role that acts for it.
pub struct Schema {
    pub name: String,
    pub oid: pg_sys::Oid,
    /// The owner of the protocol's tables, or of the schema where there are none yet.
    pub owner: pg_sys::Oid,
}

impl Schema {
    /// Finds a schema. Where it has no process table yet, its owner acts; `pg_database_owner` stands for
    /// the owner of the database.
    pub fn find(name: Option<&str>) -> Schema {
        let Some(name) = name else {
            Failure::new(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                "data_schema must not be NULL",
            )
            .hint("Name the schema that holds, or shall hold, the application's tables.")
            .raise()
        };
        if is_reserved(name) {
            Failure::new(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("schema \"{name}\" is not one for an application's tables"),
            )
            .hint("Name the schema that holds, or shall hold, the application's tables.")
            .raise();
        }
        let found = row::<pg_sys::Oid, pg_sys::Oid>(
            "SELECT n.oid, coalesce(
                 (SELECT c.relowner FROM pg_class c WHERE c.relnamespace = n.oid
                     AND c.relname = $2 AND c.relkind = 'r'),
                 CASE WHEN r.rolname = $3 THEN d.datdba ELSE n.nspowner END)
               FROM pg_namespace n
               JOIN pg_roles r ON r.oid = n.nspowner
               JOIN pg_database d ON d.datname = current_database()
              WHERE n.nspname = $1",
            &[name.into(), PROCESSES.into(), DATABASE_OWNER.into()],
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
                format!("must be owner of schema {} and its tables", self.name),
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

    /// A statement of the model with this schema and its owner in their places.
    pub fn render(&self, sql: &str) -> String {
        let literal = |text: &str| pgrx::spi::quote_literal(text);
        let name = literal(&quote(&self.name));
        // In one pass: a name may look like another placeholder.
        let mut rendered = String::with_capacity(sql.len());
        let mut rest = sql;
        while let Some(at) = rest.find('{') {
            rendered.push_str(&rest[..at]);
            rest = &rest[at..];
            let (placeholder, value) = if rest.starts_with("{data_schema}") {
                (
                    "{data_schema}",
                    format!("(pg_catalog.parse_ident({name}::pg_catalog.regnamespace::text))[1]"),
                )
            } else if rest.starts_with("{data_schema_oid}") {
                (
                    "{data_schema_oid}",
                    format!("{name}::pg_catalog.regnamespace"),
                )
            } else if rest.starts_with("{owner}") {
                ("{owner}", literal(&role_name(self.owner)))
            } else {
                ("{", "{".to_owned())
            };
            rendered.push_str(&value);
            rest = &rest[placeholder.len()..];
        }
        rendered + rest
    }

    /// How a function of the model is called in the catalogues: `schema.name(types)`, unquoted.
    pub fn signature(&self, function: &Object) -> String {
        match function.is_private() {
            true => function.name.to_owned(),
            false => format!("{}.{}", self.name, function.name),
        }
    }

    /// How a function of the model is called in a statement.
    pub fn quoted_signature(&self, function: &Object) -> String {
        match function.is_private() {
            true => function.name.to_owned(),
            false => format!("{}.{}", quote(&self.name), function.name),
        }
    }

    /// The quoted name of something in this schema.
    pub fn qualify(&self, name: &str) -> String {
        format!("{}.{}", quote(&self.name), quote(name))
    }
}

/// Whether a schema is the server's, the extension's or the contract's.
pub fn is_reserved(name: &str) -> bool {
    let reserved = ["information_schema", "opengeni_guards", "opengeni_private"];
    name.starts_with("pg_") || reserved.contains(&name)
}

pub fn quote(name: &str) -> String {
    pgrx::spi::quote_identifier(name)
}

pub fn role_name(role: pg_sys::Oid) -> String {
    scalar::<String>(
        "SELECT r.rolname::text FROM pg_roles r WHERE r.oid = $1",
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
    query::rows(sql, args, read).unwrap_or_else(|error| internal(&error))
}

/// Executes a statement.
pub fn execute(sql: &str) {
    query::execute(sql).unwrap_or_else(|error| internal(&error));
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
        Kind::Function | Kind::Contract => {
            return function_owner(&schema.signature(object)).is_some();
        }
        Kind::Table => {
            "SELECT true FROM pg_class c
              WHERE c.relnamespace = $1 AND c.relname = $3 AND $2 IS NOT NULL"
        }
        Kind::Sequence => {
            "SELECT true FROM pg_class c
              WHERE c.relnamespace = $1 AND c.relname = $3 AND $2 IS NOT NULL AND c.relkind = 'S'"
        }
        Kind::Index => {
            "SELECT true FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class c ON c.oid = i.indrelid
              WHERE c.relnamespace = $1 AND c.relname = $2 AND x.relname = $3 AND i.indisvalid"
        }
        Kind::Constraint | Kind::ForeignKey => {
            "SELECT true FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
              WHERE c.relnamespace = $1 AND c.relname = $2
                AND k.conname = $3"
        }
        Kind::Rls => {
            "SELECT c.relrowsecurity AND c.relforcerowsecurity FROM pg_class c
              WHERE c.relnamespace = $1 AND c.relname = $2 AND $3 IS NOT NULL"
        }
        Kind::Policy => {
            "SELECT true FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
              WHERE c.relnamespace = $1 AND c.relname = $2
                AND p.polname = $3"
        }
        Kind::Trigger => {
            "SELECT true FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
              WHERE c.relnamespace = $1 AND c.relname = $2
                AND t.tgname = $3 AND NOT t.tgisinternal"
        }
    };
    scalar::<bool>(
        sql,
        &[schema.oid.into(), object.table.into(), object.name.into()],
    ) == Some(true)
}

/// A function that an object calls and that is not there. The extension's SQL may be of an earlier release than
/// the library, until ALTER EXTENSION has been run.
pub fn unmet(schema: &Schema, object: &Object) -> Option<String> {
    let absent = |name: &&str| {
        let found = scalar::<bool>(
            "SELECT true FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
              WHERE n.nspname = 'opengeni_guards' AND p.proname = $1 LIMIT 1",
            &[(*name).into()],
        );
        found != Some(true)
    };
    if let Some(native) = object.natives().find(absent) {
        return Some(format!(
            "there is no opengeni_guards.{native} yet: run ALTER EXTENSION opengeni_guards UPDATE first"
        ));
    }
    model::asked_by(object)
        .find(|function| !exists(schema, function))
        .map(|function| format!("there is no {} yet", schema.quoted_signature(function)))
}

/// Whether the policy that stands under this name asks the function that the model's does.
pub fn asks(schema: &Schema, policy: &Object) -> bool {
    let asked = model::asked_by(policy).map(|function| schema.signature(function));
    scalar::<bool>(
        "SELECT EXISTS (
           SELECT FROM pg_policy p
             JOIN pg_class c ON c.oid = p.polrelid
             JOIN pg_depend d ON d.classid = 'pg_policy'::regclass AND d.objid = p.oid
              AND d.refclassid = 'pg_proc'::regclass
             JOIN pg_proc f ON f.oid = d.refobjid
             JOIN pg_namespace n ON n.oid = f.pronamespace
            WHERE c.relnamespace = $1 AND c.relname = $2 AND p.polname = $3
              AND concat(n.nspname, '.', f.proname, '(', oidvectortypes(f.proargtypes), ')') = ANY ($4))",
        &[
            schema.oid.into(),
            policy.table.into(),
            policy.name.into(),
            asked.collect::<Vec<String>>().into(),
        ],
    ) == Some(true)
}

/// The owner of a function, by `schema.name(types)`.
pub fn function_owner(signature: &str) -> Option<pg_sys::Oid> {
    scalar(
        "SELECT p.proowner FROM pg_proc p
           JOIN pg_namespace n ON n.oid = p.pronamespace
          WHERE p.proname = substring($1, '([a-z0-9_]+)[(][^(]*$')::name
            AND concat(n.nspname, '.', p.proname, '(', oidvectortypes(p.proargtypes), ')') = $1",
        &[signature.into()],
    )
}

/// What stands under a contract name.
pub enum Contract {
    Missing,
    /// The native of the same name, for this schema, as its owner.
    Native,
    /// The native, for another schema.
    Elsewhere(String),
    /// The native, but not called as `provision` has it called: why.
    Altered(&'static str),
    /// A known original, for this schema or for whichever the caller's search_path names.
    Original(Serves),
    /// Something else.
    Unknown,
}

/// Looks at a contract function: what it depends on tells what its bound body calls, and for which schema.
pub fn contract(schema: &Schema, function: &Object) -> Contract {
    let bound = function.sql.contains("{data_schema}");
    let definer = function.sql.contains("SECURITY DEFINER");
    let found = rows(
        "SELECT EXISTS (
             SELECT FROM pg_depend d JOIN pg_proc native ON native.oid = d.refobjid
               JOIN pg_namespace n ON n.oid = native.pronamespace
              WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.refclassid = 'pg_proc'::regclass
                AND n.nspname = 'opengeni_guards' AND native.proname = p.proname),
           (SELECT min(s.nspname::text)
              FROM pg_depend d JOIN pg_namespace s ON s.oid = d.refobjid
             WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.refclassid = 'pg_namespace'::regclass
               AND d.refobjid NOT IN (p.pronamespace, $3)),
           EXISTS (
             SELECT FROM pg_depend d
              WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.refclassid = 'pg_namespace'::regclass
                AND d.refobjid = $3),
           p.prosecdef, p.proowner = $2,
           CASE WHEN $4 THEN coalesce(p.proconfig = ARRAY['search_path=pg_catalog, pg_temp'], false)
                ELSE p.proconfig IS NULL END
          FROM pg_proc p
          JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE p.proname = substring($1, '([a-z0-9_]+)[(][^(]*$')::name
            AND concat(n.nspname, '.', p.proname, '(', oidvectortypes(p.proargtypes), ')') = $1",
        &[
            schema.signature(function).into(),
            schema.owner.into(),
            schema.oid.into(),
            definer.into(),
        ],
        |row| {
            Ok((
                row.get::<bool>(1)? == Some(true),
                row.get::<String>(2)?,
                row.get::<bool>(3)? == Some(true),
                row.get::<bool>(4)? == Some(true),
                row.get::<bool>(5)? == Some(true),
                row.get::<bool>(6)? == Some(true),
            ))
        },
    );
    match found.into_iter().next() {
        None => Contract::Missing,
        Some((false, ..)) => {
            let source = originals::source(&schema.signature(function));
            match source.and_then(|source| originals::recognise(schema, function, &source)) {
                Some(Serves::Named(other)) if other != schema.name => Contract::Elsewhere(other),
                Some(serves) => Contract::Original(serves),
                None => Contract::Unknown,
            }
        }
        Some((_, Some(other), ..)) => Contract::Elsewhere(other),
        Some((_, None, here, ..)) if bound && !here => {
            Contract::Altered("does not keep its schema by OID")
        }
        Some((.., owned, _)) if !owned => Contract::Altered("does not belong to the tables' owner"),
        Some((_, _, _, secdef, ..)) if secdef != definer => Contract::Altered(match definer {
            true => "does not run as its owner",
            false => "runs as its owner",
        }),
        Some((.., pinned)) if !pinned => {
            Contract::Altered("does not pin its search_path as it was created")
        }
        Some(_) => Contract::Native,
    }
}

/// Who may execute a function besides its owner; the empty name is PUBLIC.
pub fn executors(signature: &str) -> Vec<String> {
    grants_of(signature, false)
}

/// Who of them may pass that on.
pub fn grantors(signature: &str) -> Vec<String> {
    grants_of(signature, true)
}

fn grants_of(signature: &str, with_option: bool) -> Vec<String> {
    rows(
        "SELECT DISTINCT coalesce(r.rolname::text, '')
           FROM pg_proc p
           JOIN pg_namespace n ON n.oid = p.pronamespace
           CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) acl
           LEFT JOIN pg_roles r ON r.oid = acl.grantee
          WHERE p.proname = substring($1, '([a-z0-9_]+)[(][^(]*$')::name
            AND concat(n.nspname, '.', p.proname, '(', oidvectortypes(p.proargtypes), ')') = $1
            AND acl.grantee <> p.proowner AND (acl.is_grantable OR NOT $2)",
        &[signature.into(), with_option.into()],
        |row| row.get::<String>(1),
    )
    .into_iter()
    .flatten()
    .collect()
}

/// A function's definition, as the server writes it.
pub fn function_definition(signature: &str) -> Option<String> {
    scalar(
        "SELECT pg_get_functiondef(p.oid) FROM pg_proc p
           JOIN pg_namespace n ON n.oid = p.pronamespace
          WHERE p.proname = substring($1, '([a-z0-9_]+)[(][^(]*$')::name
            AND concat(n.nspname, '.', p.proname, '(', oidvectortypes(p.proargtypes), ')') = $1",
        &[signature.into()],
    )
}

/// Who besides its owner has any privilege on a table or its columns; the empty name is PUBLIC.
pub fn grantees(schema: &str, table: &str) -> Vec<String> {
    rows(
        "SELECT DISTINCT coalesce(r.rolname::text, '')
           FROM pg_class c
           JOIN pg_namespace n ON n.oid = c.relnamespace
           CROSS JOIN LATERAL (
             SELECT acl.grantee FROM aclexplode(c.relacl) acl
             UNION ALL
             SELECT acl.grantee FROM pg_attribute a CROSS JOIN aclexplode(a.attacl) acl WHERE a.attrelid = c.oid
           ) granted
           LEFT JOIN pg_roles r ON r.oid = granted.grantee
          WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind = 'r' AND granted.grantee <> c.relowner
          ORDER BY 1",
        &[schema.into(), table.into()],
        |row| row.get::<String>(1),
    )
    .into_iter()
    .flatten()
    .collect()
}

/// What of the protocol's schemas, tables, sequences and functions a role, or everybody, may use because somebody else
/// than the owner said so, and who did: only they can revoke it.
pub fn granted_by_others(schema: &Schema, role: &str) -> Vec<(String, String)> {
    let of = |kind| model::objects(kind).map(|object| object.name.to_owned());
    let tables = of(Kind::Table).chain(of(Kind::Sequence));
    let found = rows(
        "SELECT DISTINCT granted.object, g.rolname::text
           FROM (
             SELECT format('schema %I', n.nspname), n.nspowner, acl.grantee, acl.grantor
               FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) acl
              WHERE n.nspname IN ($2, 'opengeni_private')
             UNION ALL
             SELECT format('%s %I.%I', CASE c.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, $2, c.relname),
                    c.relowner, acl.grantee, acl.grantor
               FROM pg_class c CROSS JOIN LATERAL (
                 SELECT * FROM aclexplode(c.relacl)
                 UNION ALL
                 SELECT acl.* FROM pg_attribute a CROSS JOIN aclexplode(a.attacl) acl WHERE a.attrelid = c.oid
               ) acl
              WHERE c.relnamespace = $1 AND c.relname = ANY ($3)
             UNION ALL
             SELECT format('function %s', p.oid::regprocedure), p.proowner, acl.grantee, acl.grantor
               FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace CROSS JOIN aclexplode(p.proacl) acl
              WHERE n.nspname = 'opengeni_private'
           ) granted (object, owner, grantee, grantor)
           LEFT JOIN pg_roles r ON r.oid = granted.grantee
           JOIN pg_roles g ON g.oid = granted.grantor
          WHERE granted.grantor <> granted.owner AND (granted.grantee = 0 OR r.rolname = $4)
          ORDER BY 1, 2",
        &[
            schema.oid.into(),
            schema.name.as_str().into(),
            tables.collect::<Vec<String>>().into(),
            role.into(),
        ],
        |row| Ok((row.get::<String>(1)?, row.get::<String>(2)?)),
    );
    let both = |(object, grantor)| Some((object?, grantor?));
    found.into_iter().filter_map(both).collect()
}

/// How a grantee is called in a statement.
pub fn grantee(role: &str) -> String {
    match role {
        "" => "PUBLIC".to_owned(),
        role => quote(role),
    }
}

/// Whether there is such a grantee.
pub fn is_grantee(role: &str) -> bool {
    role.is_empty()
        || scalar::<bool>(
            "SELECT true FROM pg_roles r WHERE r.rolname = $1",
            &[role.into()],
        ) == Some(true)
}

/// Whether a role may create objects in a schema.
pub fn may_create_in(role: pg_sys::Oid, schema: &str) -> bool {
    scalar::<bool>(
        "SELECT has_schema_privilege($1, n.oid, 'CREATE') AND has_schema_privilege($1, n.oid, 'USAGE')
           FROM pg_namespace n WHERE n.nspname = $2",
        &[role.into(), schema.into()],
    ) == Some(true)
}

/// Whether any relation, or a type as each has one, stands under a name.
pub fn stands(schema: &Schema, name: &str) -> bool {
    scalar::<bool>(
        "SELECT true FROM pg_class c WHERE c.relnamespace = $1 AND c.relname = $2
         UNION ALL
         SELECT true FROM pg_type t WHERE t.typnamespace = $1 AND t.typname = $2",
        &[schema.oid.into(), name.into()],
    ) == Some(true)
}

/// Whether a table of the schema has these columns, of these types.
pub fn has_columns(schema: &Schema, table: &str, columns: &[(&str, &str)]) -> bool {
    let names = columns.iter().map(|(name, _)| (*name).to_owned());
    let types = columns.iter().map(|(_, ty)| (*ty).to_owned());
    let found = scalar::<i64>(
        "SELECT count(*) FROM unnest($3, $4) AS wanted (name, type)
           JOIN pg_class c ON c.relnamespace = $1 AND c.relname = $2 AND c.relkind = 'r'
           JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = wanted.name AND NOT a.attisdropped
          WHERE format_type(a.atttypid, a.atttypmod) = wanted.type",
        &[
            schema.oid.into(),
            table.into(),
            names.collect::<Vec<String>>().into(),
            types.collect::<Vec<String>>().into(),
        ],
    );
    found == Some(columns.len() as i64)
}

/// A trigger as the catalogue has it.
pub struct Bound {
    pub definition: String,
    /// As `tgenabled` writes it.
    pub enabled: String,
    /// What it calls, qualified and with its argument types.
    pub function: String,
    /// Whether it passes arguments.
    pub arguments: bool,
    pub constraint: bool,
    pub comment: Option<String>,
    /// That of its constraint, which goes with it.
    pub constraint_comment: Option<String>,
}

/// The trigger of that name on an ordinary table.
pub fn bound(schema: &Schema, table: &str, name: &str) -> Option<Bound> {
    rows(
        "SELECT pg_get_triggerdef(t.oid), t.tgenabled::text, t.tgfoid::regprocedure::text, t.tgnargs > 0,
                t.tgconstraint <> 0, obj_description(t.oid, 'pg_trigger'), obj_description(t.tgconstraint, 'pg_constraint')
           FROM pg_trigger t
           JOIN pg_class c ON c.oid = t.tgrelid
          WHERE c.relnamespace = $1 AND c.relname = $2 AND c.relkind = 'r'
            AND t.tgname = $3 AND NOT t.tgisinternal",
        &[schema.oid.into(), table.into(), name.into()],
        |row| {
            Ok(Bound {
                definition: row.get::<String>(1)?.unwrap_or_default(),
                enabled: row.get::<String>(2)?.unwrap_or_default(),
                function: row.get::<String>(3)?.unwrap_or_default(),
                arguments: row.get::<bool>(4)? == Some(true),
                constraint: row.get::<bool>(5)? == Some(true),
                comment: row.get::<String>(6)?,
                constraint_comment: row.get::<String>(7)?,
            })
        },
    )
    .into_iter()
    .next()
}

/// What tells whether a schema's triggers have changed since.
pub fn fingerprint(schema: &Schema) -> Option<String> {
    scalar(
        "SELECT string_agg(concat_ws(' ', t.oid, t.xmin, t.tgenabled), ',' ORDER BY t.oid)
           FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
          WHERE c.relnamespace = $1 AND NOT t.tgisinternal",
        &[schema.oid.into()],
    )
}

/// The same for the functions that attach and detach replace.
pub fn functions_fingerprint(schema: &Schema) -> Option<String> {
    scalar(
        "SELECT string_agg(concat_ws(' ', p.oid, p.xmin), ',' ORDER BY p.oid)
           FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
          WHERE n.oid = $1 OR n.nspname = $2",
        &[schema.oid.into(), super::create::PRIVATE.into()],
    )
}

/// A trigger that only watches.
pub struct Watching {
    pub table: String,
    pub name: String,
    /// As `tgenabled` writes it.
    pub enabled: String,
}

/// The triggers of a schema that only watch.
pub fn watching(schema: &Schema) -> Vec<Watching> {
    rows(
        "SELECT c.relname::text, t.tgname::text, t.tgenabled::text
           FROM pg_trigger t
           JOIN pg_class c ON c.oid = t.tgrelid
           JOIN pg_proc p ON p.oid = t.tgfoid
           JOIN pg_namespace n ON n.oid = p.pronamespace
          WHERE c.relnamespace = $1 AND c.relkind = 'r' AND NOT t.tgisinternal AND n.nspname = 'opengeni_guards'
            AND (right(t.tgname, 7) = '_shadow' OR t.tgname = 'opengeni_guards_shadow_log')
            AND (p.proname = 'record_shadow_refusals' OR t.tgnargs = 1 AND t.tgargs = decode('736861646f7700', 'hex'))
          ORDER BY 1, 2",
        &[schema.oid.into()],
        |row| {
            Ok(Watching {
                table: row.get::<String>(1)?.unwrap_or_default(),
                name: row.get::<String>(2)?.unwrap_or_default(),
                enabled: row.get::<String>(3)?.unwrap_or_default(),
            })
        },
    )
}

/// The schemas that hold the protocol's process table: a table of its name that has most of its columns, by name and
/// type. One that has lost a column is still the protocol's, any other of that name is somebody else's.
pub fn data_schemas() -> Vec<String> {
    let process = model::objects(Kind::Table).find(|table| table.name == PROCESSES);
    let columns = || process.into_iter().flat_map(Object::columns);
    let names: Vec<String> = columns().map(|c| c.name.to_owned()).collect();
    let types: Vec<String> = columns().map(|c| c.ty.to_owned()).collect();
    let found = || {
        rows(
            "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
              WHERE c.relname = $1 AND c.relkind = 'r' AND c.relpersistence <> 't'
                AND (SELECT count(*) FROM unnest($2, $3) AS wanted (name, type)
                       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = wanted.name AND NOT a.attisdropped
                      WHERE format_type(a.atttypid, a.atttypmod) = wanted.type) * 2 > cardinality($2)
              ORDER BY 1",
            &[PROCESSES.into(), names.into(), types.into()],
            |row| row.get::<String>(1),
        )
    };
    identity::pinned(found)
        .into_iter()
        .flatten()
        .filter(|name| !is_reserved(name))
        .collect()
}

/// The data schemas, for a caller who names none and learns where there are none.
pub fn every_data_schema() -> Vec<String> {
    let schemas = data_schemas();
    if schemas.is_empty() {
        notice!(
            "no schema of this database holds the protocol's tables; opengeni_guards.provision() makes them"
        );
    }
    schemas
}

/// The other data schemas that share the contract's functions. Anybody may copy the tables: those count whose owner may
/// use the contract's schema.
pub fn other_data_schemas(schema: &Schema) -> Vec<String> {
    let shares = |name: &String| {
        scalar::<bool>(
            "SELECT has_schema_privilege(c.relowner, p.oid, 'USAGE')
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, pg_namespace p
              WHERE n.nspname = $1 AND c.relname = $2 AND p.nspname = 'opengeni_private'",
            &[name.as_str().into(), PROCESSES.into()],
        ) == Some(true)
    };
    data_schemas()
        .into_iter()
        .filter(|name| *name != schema.name && shares(name))
        .collect()
}

/// Whether the process table of another schema has native guards.
pub fn guarded_elsewhere(schema: &Schema) -> bool {
    scalar::<bool>(
        "SELECT true FROM pg_trigger t
           JOIN pg_class c ON c.oid = t.tgrelid
           JOIN pg_namespace s ON s.oid = c.relnamespace
           JOIN pg_proc p ON p.oid = t.tgfoid
           JOIN pg_namespace n ON n.oid = p.pronamespace
          WHERE c.relname = $1 AND s.nspname = ANY ($2)
            AND n.nspname = 'opengeni_guards' AND t.tgnargs = 0 LIMIT 1",
        &[PROCESSES.into(), other_data_schemas(schema).into()],
    ) == Some(true)
}

/// The owner of the database.
pub fn database_owner() -> pg_sys::Oid {
    let sql = "SELECT d.datdba FROM pg_database d WHERE d.datname = current_database()";
    scalar(sql, &[]).unwrap_or(pg_sys::InvalidOid)
}

/// The owner of a schema.
pub fn schema_owner(name: &str) -> Option<pg_sys::Oid> {
    scalar(
        "SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = $1",
        &[name.into()],
    )
}

/// Whether a role may read the process table of another schema of the contract's.
pub fn uses_another_schema(schema: &Schema, role: &str) -> bool {
    scalar::<bool>(
        "SELECT true FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE c.relname = $1 AND n.nspname = ANY ($2) AND has_table_privilege($3, c.oid, 'SELECT') LIMIT 1",
        &[
            PROCESSES.into(),
            other_data_schemas(schema).into(),
            role.into(),
        ],
    ) == Some(true)
}

/// The owner of an ordinary table.
pub fn table_owner(schema: &str, name: &str) -> Option<pg_sys::Oid> {
    scalar(
        "SELECT c.relowner FROM pg_class c
           JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE n.nspname = $1 AND c.relname = $2
            AND c.relkind = 'r'",
        &[schema.into(), name.into()],
    )
}

/// Whether the owner of the tables may read one of them.
pub fn may_read(schema: &Schema, table: &str) -> bool {
    scalar::<bool>(
        "SELECT has_schema_privilege($1, c.relnamespace, 'USAGE') AND has_table_privilege($1, c.oid, 'SELECT')
           FROM pg_class c WHERE c.relnamespace = $2 AND c.relname = $3",
        &[schema.owner.into(), schema.oid.into(), table.into()],
    ) == Some(true)
}

/// The OID of an ordinary table.
pub fn table_oid(schema: &Schema, name: &str) -> Option<pg_sys::Oid> {
    scalar(
        "SELECT c.oid FROM pg_class c WHERE c.relnamespace = $1 AND c.relname = $2 AND c.relkind = 'r'",
        &[schema.oid.into(), name.into()],
    )
}

/// What is wrong with a table of the model that already stands in the schema.
pub enum Mismatch {
    NotATable,
    Children,
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
        "SELECT c.oid, c.relkind = 'r' FROM pg_class c
          WHERE c.relnamespace = $1 AND c.relname = $2",
        &[schema.oid.into(), table.name.into()],
    )?;
    if !ordinary {
        return Some(Mismatch::NotATable);
    }
    let children = scalar::<bool>(
        "SELECT true FROM pg_inherits i WHERE i.inhparent = $1 LIMIT 1",
        &[oid.into()],
    );
    if children == Some(true) {
        return Some(Mismatch::Children);
    }
    let owner = table_owner(&schema.name, table.name)?;
    if !identity::has_privileges_of(schema.owner, owner) {
        return Some(Mismatch::Owner(role_name(owner)));
    }
    let columns = rows(
        "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod)
           FROM pg_attribute a
          WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped",
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
