//! `status` and `ready`: how the guards of a schema stand.

use super::catalogue::{self, Bound, Contract, Mismatch, Schema, quote, scalar};
use super::findings;
use super::model::{self, Kind, Object};
use super::originals::Serves;

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
        None => catalogue::every_data_schema(),
    };
    schemas
        .iter()
        .flat_map(|name| of_schema(&Schema::find(Some(name))))
        .collect()
}

/// Whether every guard of a schema is native and fires.
pub fn ready(data_schema: Option<&str>) -> bool {
    let schema = Schema::find(data_schema);
    model::objects(Kind::Trigger).all(|trigger| trigger_state(&schema, trigger).0 == "native")
}

/// The first of the protocol's tables that is missing or incompatible, and why.
pub fn incomplete(schema: &Schema) -> Option<String> {
    model::objects(Kind::Table).find_map(|table| {
        let why = match catalogue::mismatch(schema, table) {
            Some(mismatch) => describe(mismatch),
            None if !catalogue::exists(schema, table) && !table.is_optional() => {
                "is missing".to_owned()
            }
            None => return None,
        };
        Some(format!("table {}: {why}", schema.qualify(table.name)))
    })
}

/// Whether an object belongs to an optional table that the schema does without.
fn left_out(schema: &Schema, object: &Object) -> bool {
    object.is_optional() && catalogue::table_owner(&schema.name, object.table).is_none()
}

fn of_schema(schema: &Schema) -> Vec<Line> {
    let line = |object: String, state, detail| Line {
        schema: schema.name.clone(),
        object,
        state,
        detail,
    };
    let mut lines = Vec::new();
    let (state, detail) = mode(schema);
    lines.push(line("mode".to_owned(), state, detail));
    for trigger in model::objects(Kind::Trigger) {
        let (state, detail) = trigger_state(schema, trigger);
        lines.push(line(
            format!("trigger {} on {}", trigger.name, trigger.table),
            state,
            detail,
        ));
    }
    for trigger in catalogue::watching(schema) {
        if !["O", "A"].contains(&trigger.enabled.as_str()) {
            let detail = "watches nothing; ALTER TABLE ... ENABLE TRIGGER brings it back";
            lines.push(line(
                format!("trigger {} on {}", trigger.name, trigger.table),
                "disabled",
                Some(detail.to_owned()),
            ));
        }
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
        if left_out(schema, table) {
            continue;
        }
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
        let missing = |o: &&Object| !catalogue::exists(schema, o) && !left_out(schema, o);
        for object in model::objects(kind).filter(missing) {
            let detail = match kind {
                Kind::Index => {
                    Some("without it the whole table is read; provision creates it".to_owned())
                }
                _ => None,
            };
            let name = match kind {
                Kind::Rls => format!("row-level security of {}", object.table),
                _ => format!("{} {} on {}", kind.noun(), object.name, object.table),
            };
            lines.push(line(name, "missing", detail));
        }
    }
    for (object, state, detail) in findings::of(schema) {
        lines.push(line(object, state, Some(detail)));
    }
    lines
}

/// native, shadow, partly or plpgsql: whether the native guards decide, watch, decide in part or do nothing.
fn mode(schema: &Schema) -> (&'static str, Option<String>) {
    let total = model::objects(Kind::Trigger).count();
    let native = model::objects(Kind::Trigger)
        .filter(|trigger| trigger_state(schema, trigger).0 == "native")
        .count();
    let watched = catalogue::watching(schema)
        .iter()
        .filter(|trigger| trigger.name.ends_with("_shadow"))
        .count();
    match (native, watched) {
        (0, 0) => ("plpgsql", Some("off: no guard is native".to_owned())),
        (_, 0) if native == total => ("native", Some("enforce".to_owned())),
        (_, 0) => (
            "partly",
            Some(format!(
                "enforce: {native} of {total} guards are native and fire"
            )),
        ),
        _ => (
            "shadow",
            Some(format!(
                "{watched} guards watch, {native} are native; see shadow_report()"
            )),
        ),
    }
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

/// native, plpgsql, altered, unknown definition or missing.
pub fn contract_state(schema: &Schema, function: &Object) -> (&'static str, Option<String>) {
    match catalogue::contract(schema, function) {
        Contract::Missing => ("missing", None),
        Contract::Native => ("native", None),
        Contract::Elsewhere(other) => ("altered", Some(format!("serves schema {other}"))),
        Contract::Altered(why) => ("altered", Some(why.to_owned())),
        Contract::Original(Serves::Named(_)) => ("plpgsql", None),
        Contract::Original(Serves::Caller) => (
            "plpgsql",
            Some("works on whichever schema the caller's search_path names".to_owned()),
        ),
        Contract::Unknown => (
            "unknown definition",
            Some("does not call the native function".to_owned()),
        ),
    }
}

/// native, plpgsql, disabled, altered or missing. Definitions are compared as the server writes them when
/// nothing is in the path (`pinned`).
pub fn trigger_state(schema: &Schema, trigger: &Object) -> (&'static str, Option<String>) {
    let Some(found) = catalogue::bound(schema, trigger.table, trigger.name) else {
        return ("missing", None);
    };
    match found.enabled.as_str() {
        "D" => (
            "disabled",
            Some("ALTER TABLE ... ENABLE TRIGGER brings it back".to_owned()),
        ),
        "R" => (
            "disabled",
            Some("fires only under session_replication_role = replica".to_owned()),
        ),
        enabled if found.definition == definition(schema, trigger) => (
            "native",
            (enabled == "A").then(|| "fires always".to_owned()),
        ),
        _ if is_original(schema, trigger, &found) => {
            ("plpgsql", Some(format!("calls {}", found.function)))
        }
        _ => ("altered", Some(found.definition)),
    }
}

/// A trigger of the model on this schema's table, as the server writes it.
pub fn definition(schema: &Schema, trigger: &Object) -> String {
    qualified(schema, trigger.table, trigger.sql)
}

/// A trigger's statement with its table qualified.
pub fn qualified(schema: &Schema, table: &str, sql: &str) -> String {
    sql.trim_end_matches(';').replacen(
        &format!(" ON {table} "),
        &format!(" ON {} ", schema.qualify(table)),
        1,
    )
}

/// The native function that a trigger calls, as the server writes it.
pub fn native(trigger: &Object) -> String {
    format!("opengeni_guards.{}", function_of(trigger))
}

fn function_of(trigger: &Object) -> &'static str {
    let call = trigger.sql.rsplit_once("opengeni_guards.");
    call.map_or("", |(_, name)| name.trim_end_matches(';'))
}

/// Whether the PL/pgSQL protocol has no such trigger.
pub fn is_ours(trigger: &Object) -> bool {
    [
        "supervised_command_holder_insert_guard",
        "supervised_command_truncate_guard",
    ]
    .contains(&trigger.name)
}

/// Where the application keeps the function that a trigger called before it called ours: those of the
/// policy tables in the data schema, the others in the contract's.
fn original_of(schema: &Schema, trigger: &Object) -> String {
    let name = function_of(trigger);
    match name.starts_with("workspace_instruction_policy_") {
        true => format!("{}.{name}", quote(&schema.name)),
        false => format!("opengeni_private.{name}"),
    }
}

/// That function, if it is there.
pub fn original(schema: &Schema, trigger: &Object) -> Option<String> {
    if is_ours(trigger) {
        return None;
    }
    let function = original_of(schema, trigger);
    let name = function_of(trigger).trim_end_matches("()");
    let home = match function.starts_with("opengeni_private.") {
        true => "opengeni_private",
        false => schema.name.as_str(),
    };
    scalar::<bool>(
        "SELECT true FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
          WHERE n.nspname = $1 AND p.proname = $2 AND p.pronargs = 0 AND p.prorettype = 'trigger'::regtype",
        &[home.into(), name.into()],
    )
    .map(|_| function)
}

/// Whether a trigger calls the contract's function of the same name, where the application keeps it.
pub fn is_original(schema: &Schema, trigger: &Object, found: &Bound) -> bool {
    !found.arguments && found.function == original_of(schema, trigger)
}
