//! What `status` finds besides the state of each guard: signs that something was restored, opened or
//! altered past them.

use pgrx::PgSqlErrorCode;
use pgrx::datum::TimestampWithTimeZone;

use super::catalogue::{self, Schema, rows, scalar};
use super::create::PRIVATE;
use super::grants::LEDGERS;
use super::ledger;
use super::model::{self, Kind};
use crate::pg::error::Failure;
use crate::pg::identity::{self, pinned};

type Finding = (String, &'static str, String);

pub fn of(schema: &Schema) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(outdated());
    findings.extend(open_ledgers(schema));
    findings.extend(owners(schema));
    findings.extend(policies(schema));
    findings.extend(of_rows(schema));
    findings
}

/// The extension's SQL, where it is not of the library's release.
fn outdated() -> Option<Finding> {
    const LIBRARY: &str = env!("CARGO_PKG_VERSION");
    let installed = scalar::<String>(
        "SELECT e.extversion FROM pg_extension e WHERE e.extname = 'opengeni_guards'",
        &[],
    )?;
    (installed != LIBRARY).then(|| {
        (
            "extension opengeni_guards".to_owned(),
            "outdated",
            format!(
                "its SQL is of version {installed}, its library of {LIBRARY}: run ALTER EXTENSION opengeni_guards UPDATE, \
                 then attach or provision"
            ),
        )
    })
}

/// Privileges on what nobody but the owner may read or write.
fn open_ledgers(schema: &Schema) -> Vec<Finding> {
    LEDGERS
        .iter()
        .filter_map(|(ledger_schema, ledger)| {
            let ledger_schema = ledger_schema.unwrap_or(&schema.name);
            let grantees: Vec<String> = catalogue::grantees(ledger_schema, ledger)
                .iter()
                .map(|role| catalogue::grantee(role))
                .collect();
            (!grantees.is_empty()).then(|| {
                (
                    format!(
                        "table {}.{}",
                        catalogue::quote(ledger_schema),
                        catalogue::quote(ledger)
                    ),
                    "open",
                    format!("privileges of {}; revoke them", grantees.join(", ")),
                )
            })
        })
        .collect()
}

/// Tables of another owner than the contract functions work as, and a superuser as that owner.
fn owners(schema: &Schema) -> Vec<Finding> {
    let mut findings = Vec::new();
    let owner = catalogue::role_name(schema.owner);
    for table in model::objects(Kind::Table) {
        if let Some(other) = catalogue::table_owner(&schema.name, table.name)
            && other != schema.owner
        {
            findings.push((
                format!("owner of table {}", table.name),
                "foreign",
                format!(
                    "belongs to {}; the contract functions work as {owner} and do not see it whole",
                    catalogue::role_name(other)
                ),
            ));
        }
    }
    let superuser = scalar::<bool>(
        "SELECT r.rolsuper FROM pg_roles r WHERE r.oid = $1",
        &[schema.owner.into()],
    );
    if superuser == Some(true) {
        findings.push((
            format!("owner of schema {}'s tables", schema.name),
            "superuser",
            format!(
                "{owner} is a superuser: what of {PRIVATE} serves this schema runs with its rights"
            ),
        ));
    }
    findings
}

/// Policies that let a role read which does not own the table any more.
fn policies(schema: &Schema) -> Vec<Finding> {
    let owner = pgrx::spi::quote_literal(catalogue::role_name(schema.owner));
    model::objects(Kind::Policy)
        .filter(|policy| policy.sql.contains("{owner}"))
        .filter_map(|policy| {
            let condition = scalar::<String>(
                "SELECT pg_get_expr(p.polqual, p.polrelid) FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
                  WHERE c.relnamespace = $1 AND c.relname = $2 AND p.polname = $3",
                &[
                    schema.oid.into(),
                    policy.table.into(),
                    policy.name.into(),
                ],
            )?;
            (!condition.contains(&format!("= {owner}::name"))).then(|| {
                (
                    format!("policy {} on {}", policy.name, policy.table),
                    "altered",
                    format!("does not name the owner, {owner}: {condition}"),
                )
            })
        })
        .collect()
}

/// What only a look at the rows shows: as the owner, and only for who may act as the owner.
fn of_rows(schema: &Schema) -> Vec<Finding> {
    const TABLE: &str = catalogue::PROCESSES;
    let process = model::objects(Kind::Table).find(|table| table.name == TABLE);
    let readable = process.is_some_and(|table| {
        catalogue::exists(schema, table) && catalogue::mismatch(schema, table).is_none()
    });
    let may_act = identity::has_privileges_of(identity::current_user(), schema.owner);
    if !readable || !may_act {
        return Vec::new();
    }
    if !catalogue::may_read(schema, TABLE) {
        let owner = catalogue::role_name(schema.owner);
        let detail = format!("{owner} may not read them: whether they are sound is unknown");
        return vec![(format!("rows of {TABLE}"), "unreadable", detail)];
    }
    let table = schema.qualify(TABLE);
    let count = |condition: &str| {
        let sql = format!("SELECT count(*) FROM ONLY {table} AS process WHERE {condition}");
        schema.as_owner(|| pinned(|| identity::unforced(|| scalar::<i64>(&sql, &[]))))
    };
    [
        (
            FUTURE,
            "retention id in the future",
            "written under transaction ids that this cluster has not reached: was it restored? A later \
             transaction of that id could turn a legacy command into a supervised one",
        ),
        (
            POISONED,
            "poisoned stream cursor",
            "the recorded streams do not have the protocol's members: repair them, or record the loss",
        ),
    ]
    .into_iter()
    .filter_map(|(condition, state, detail)| {
        let found = count(condition).filter(|found| *found > 0)?;
        Some((format!("rows of {TABLE}"), state, format!("{found} rows: {detail}")))
    })
    .collect()
}

/// Rows of other transactions are visible only when these have ended; our own id may be the next.
const FUTURE: &str = "supervision_retention_xid >= pg_snapshot_xmax(pg_current_snapshot())
    AND supervision_retention_xid IS DISTINCT FROM pg_current_xact_id_if_assigned()";

/// As `protocol::streams::well_formed` judges them.
const POISONED: &str = "process.provider_command ? 'supervision' AND process.provider_command ? 'streams'
    AND (jsonb_typeof(process.provider_command -> 'streams') <> 'object' OR EXISTS (
      SELECT FROM (VALUES (process.provider_command -> 'streams' -> 'stdout'),
                          (process.provider_command -> 'streams' -> 'stderr')) AS streams (cursor)
       WHERE cursor IS NOT NULL AND (
         cursor ->> 'byteOffset' ~ '^[[:space:]]*[+]?[0-9]{1,18}[[:space:]]*$'
         AND jsonb_typeof(cursor -> 'utf8Remainder') = 'string'
         AND jsonb_typeof(cursor -> 'eof') = 'boolean'
         AND (cursor -> 'exitCode' IS NULL OR jsonb_typeof(cursor -> 'exitCode') IN ('null', 'number'))
       ) IS NOT TRUE))";

/// What watching guards found, by rule and guard, read as the owner.
pub struct Watched {
    pub rule: String,
    pub object: String,
    pub refusals: i64,
    pub first: TimestampWithTimeZone,
    pub last: TimestampWithTimeZone,
}

pub fn shadow_report(data_schema: Option<&str>) -> Vec<Watched> {
    let schema = Schema::find(data_schema);
    schema.require_owner();
    let log = crate::pg::shadow::LOG;
    match pinned(|| ledger::log(&schema)) {
        Ok(true) => {}
        Ok(false) => return Vec::new(),
        Err(why) => Failure::new(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            why,
        )
        .hint("Rename it: attach in shadow mode creates the log under this name.")
        .raise(),
    }
    let sql = format!(
        "SELECT rule, object, sum(refusals)::bigint, min(seen_at), max(seen_at) FROM ONLY {}
          GROUP BY rule, object ORDER BY rule, object",
        schema.qualify(log)
    );
    let read = || {
        rows(&sql, &[], |row| {
            Ok((
                (row.get::<String>(1)?, row.get::<String>(2)?),
                row.get::<i64>(3)?,
                (row.get(4)?, row.get(5)?),
            ))
        })
    };
    let found = schema.as_owner(|| pinned(read));
    found
        .into_iter()
        .filter_map(|((rule, object), refusals, (first, last))| {
            Some(Watched {
                rule: rule?,
                object: object?,
                refusals: refusals?,
                first: first?,
                last: last?,
            })
        })
        .collect()
}
