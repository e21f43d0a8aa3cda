//! `status`: how the guards of a schema stand.

use super::catalogue::{self, Contract, Mismatch, Schema, quote, rows};
use super::model::{self, Kind, Object};

pub struct Line {
    pub schema: String,
    pub object: String,
    pub state: &'static str,
    pub detail: Option<String>,
}

/// One line per guard and helper function of one schema, or of every schema that holds the protocol's
/// process table; then what else a DBA should know.
pub fn status(data_schema: Option<&str>) -> Vec<Line> {
    let schemas = match data_schema {
        Some(name) => vec![name.to_owned()],
        None => rows(
            "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
              WHERE c.relname = 'sandbox_retained_processes' AND c.relkind = 'r' AND c.relpersistence <> 't'
              ORDER BY 1",
            &[],
            |row| row.get::<String>(1),
        )
        .into_iter()
        .flatten()
        .collect(),
    };
    schemas
        .iter()
        .flat_map(|name| of_schema(&Schema::find(Some(name))))
        .collect()
}

fn of_schema(schema: &Schema) -> Vec<Line> {
    let line = |object: String, state, detail| Line {
        schema: schema.name.clone(),
        object,
        state,
        detail,
    };
    let mut lines = Vec::new();
    for trigger in model::objects(Kind::Trigger) {
        let (state, detail) = trigger_state(schema, trigger);
        lines.push(line(
            format!("trigger {} on {}", trigger.name, trigger.table),
            state,
            detail,
        ));
    }
    for function in model::objects(Kind::Function) {
        let present = catalogue::exists(schema, function);
        lines.push(line(
            format!("function {}", function.name),
            if present { "present" } else { "missing" },
            None,
        ));
    }
    for function in model::objects(Kind::Contract) {
        let (state, detail) = contract_state(schema, function);
        lines.push(line(
            format!("function {}", schema.quoted_signature(function)),
            state,
            detail,
        ));
    }
    for table in model::objects(Kind::Table) {
        let name = format!("table {}", table.name);
        if !catalogue::exists(schema, table) {
            lines.push(line(name, "missing", None));
        } else if let Some(mismatch) = catalogue::mismatch(schema, table) {
            lines.push(line(name, "incompatible", Some(describe(mismatch))));
        }
    }
    for kind in [
        Kind::Index,
        Kind::Constraint,
        Kind::ForeignKey,
        Kind::Rls,
        Kind::Policy,
    ] {
        for object in model::objects(kind).filter(|o| !catalogue::exists(schema, o)) {
            let detail = match kind {
                Kind::Index => Some("without it the whole table is read".to_owned()),
                _ => None,
            };
            let name = match kind {
                Kind::Rls => format!("row-level security of {}", object.table),
                _ => format!("{} {} on {}", kind.noun(), object.name, object.table),
            };
            lines.push(line(name, "missing", detail));
        }
    }
    lines
}

fn describe(mismatch: Mismatch) -> String {
    match mismatch {
        Mismatch::NotATable => "not an ordinary table".to_owned(),
        Mismatch::Children => "has child tables, which no guard reads".to_owned(),
        Mismatch::Owner(owner) => format!("belongs to {owner}, not to the schema's owner"),
        Mismatch::MissingColumn(column) => format!("column {column} is missing"),
        Mismatch::ColumnType {
            column,
            wanted,
            found,
        } => format!("column {column} has type {found} instead of {wanted}"),
    }
}

/// native, altered, unknown definition or missing.
pub fn contract_state(schema: &Schema, function: &Object) -> (&'static str, Option<String>) {
    match catalogue::contract(schema, function) {
        Contract::Missing => ("missing", None),
        Contract::Native => ("native", None),
        Contract::Elsewhere(other) => ("altered", Some(format!("serves schema {other}"))),
        Contract::Altered(why) => ("altered", Some(why.to_owned())),
        Contract::Unknown => (
            "unknown definition",
            Some("does not call the native function".to_owned()),
        ),
    }
}

/// native, plpgsql, disabled, altered or missing. Definitions are compared as the server writes them when
/// nothing is in the path (`pinned`).
pub fn trigger_state(schema: &Schema, trigger: &Object) -> (&'static str, Option<String>) {
    let found = rows(
        "SELECT pg_get_triggerdef(t.oid), t.tgenabled::text,
                t.tgfoid::regprocedure::text
           FROM pg_trigger t
           JOIN pg_class c ON c.oid = t.tgrelid
          WHERE c.relnamespace = $1 AND c.relname = $2
            AND t.tgname = $3 AND NOT t.tgisinternal",
        &[schema.oid.into(), trigger.table.into(), trigger.name.into()],
        |row| {
            Ok([
                row.get::<String>(1)?,
                row.get::<String>(2)?,
                row.get::<String>(3)?,
            ]
            .map(Option::unwrap_or_default))
        },
    );
    let Some([definition, enabled, function]) = found.into_iter().next() else {
        return ("missing", None);
    };
    let wanted = trigger.sql.trim_end_matches(';').replace(
        &format!(" ON {} ", trigger.table),
        &format!(" ON {}.{} ", quote(&schema.name), quote(trigger.table)),
    );
    match enabled.as_str() {
        "D" => (
            "disabled",
            Some("ALTER TABLE ... ENABLE TRIGGER brings it back".to_owned()),
        ),
        "R" => (
            "disabled",
            Some("fires only under session_replication_role = replica".to_owned()),
        ),
        _ if definition == wanted => ("native", None),
        _ if is_original(schema, trigger, &function) => {
            ("plpgsql", Some(format!("calls {function}")))
        }
        _ => ("altered", Some(definition)),
    }
}

/// Whether a trigger calls the contract's function of the same name: where the application keeps it.
fn is_original(schema: &Schema, trigger: &Object, function: &str) -> bool {
    let native = trigger.sql.rsplit_once("opengeni_guards.");
    native.is_some_and(|(_, name)| {
        let name = name.trim_end_matches(';');
        function == format!("opengeni_private.{name}")
            || function == format!("{}.{name}", quote(&schema.name))
    })
}
