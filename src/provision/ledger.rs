//! `opengeni_guards_replaced`: what stood under the contract's names before `attach`, so that `detach` can
//! put it back. An ordinary table of the tables' owner, dumped and restored with them.

use std::collections::BTreeMap;

use pgrx::PgSqlErrorCode;
use pgrx::spi::quote_literal;

use super::attach::Step;
use super::catalogue::{self, Contract, Schema, execute, rows};
use super::create::Line;
use super::model::{self, Kind, Object};
use super::originals;
use crate::pg::error::Failure;
use crate::pg::identity::{self, pinned};
use crate::pg::shadow;

pub const LEDGER: &str = "opengeni_guards_replaced";

/// What stood under a name.
struct Kept {
    /// As the schema was called then.
    schema: String,
    /// None: nothing.
    definition: Option<String>,
    /// Who might execute it besides its owner; the empty name is PUBLIC.
    executors: Vec<String>,
    /// Who of them might pass that on.
    may_grant: Vec<String>,
}

fn step(object: String, action: &'static str, sql: Vec<String>) -> Step {
    Step {
        line: Line {
            object,
            action,
            note: None,
        },
        table: None,
        exclusive: false,
        sql,
        close: None,
    }
}

/// Why the ledger cannot be used, if so.
pub fn unusable(schema: &Schema) -> Option<String> {
    if catalogue::stands(schema, LEDGER) {
        return match catalogue::table_owner(&schema.name, LEDGER) {
            Some(owner) if owner == schema.owner && !is_ledger(schema) => {
                Some(format!("{} is no ledger", schema.qualify(LEDGER)))
            }
            Some(owner) if owner == schema.owner => runs_code(schema)
                .then(|| format!("{} has triggers or rules", schema.qualify(LEDGER))),
            _ => Some(format!(
                "{} is not a table of {}",
                schema.qualify(LEDGER),
                catalogue::role_name(schema.owner)
            )),
        };
    }
    match catalogue::may_create_in(schema.owner, &schema.name) {
        true => None,
        false => Some(format!(
            "{} may not create {LEDGER} in schema {}",
            catalogue::role_name(schema.owner),
            schema.name
        )),
    }
}

/// What the ledger consists of.
const COLUMNS: &[(&str, &str)] = &[
    ("object", "text"),
    ("data_schema", "text"),
    ("definition", "text"),
    ("owner", "text"),
    ("executors", "text[]"),
    ("may_grant", "text[]"),
    ("replaced_at", "timestamp with time zone"),
];

/// Whether it is a ledger as [`create`] makes it.
fn is_ledger(schema: &Schema) -> bool {
    catalogue::has_columns(schema, LEDGER, COLUMNS)
}

/// What the log of watching guards consists of.
const LOG_COLUMNS: &[(&str, &str)] = &[
    ("rule", "text"),
    ("object", "text"),
    ("refusals", "bigint"),
    ("seen_at", "timestamp with time zone"),
];

/// Whether there is a log of watching guards, or why it cannot be used.
pub fn log(schema: &Schema) -> Result<bool, String> {
    if !catalogue::stands(schema, shadow::LOG) {
        return Ok(false);
    }
    let name = schema.qualify(shadow::LOG);
    if catalogue::table_owner(&schema.name, shadow::LOG) != Some(schema.owner) {
        let owner = catalogue::role_name(schema.owner);
        return Err(format!("{name} is not a table of {owner}"));
    }
    match catalogue::has_columns(schema, shadow::LOG, LOG_COLUMNS) {
        true => Ok(true),
        false => Err(format!("{name} is no log of watching guards")),
    }
}

/// Whether writing the ledger would run somebody's code: a deferred trigger would run it at COMMIT, with the
/// rights of whoever called us.
fn runs_code(schema: &Schema) -> bool {
    catalogue::scalar::<bool>(
        "SELECT c.relrowsecurity OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid)
             OR EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid)
           FROM pg_class c WHERE c.relnamespace = $1 AND c.relname = $2",
        &[schema.oid.into(), LEDGER.into()],
    ) == Some(true)
}

/// Ends with an error where the ledger, written by now and so locked, runs code.
pub fn require_inert(schema: &Schema) {
    if runs_code(schema) {
        Failure::new(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("{} has triggers or rules", schema.qualify(LEDGER)),
        )
        .detail("Nothing has been changed.")
        .hint("Drop them: this table is written on behalf of whoever attaches and detaches.")
        .raise();
    }
}

/// Creates the ledger where it is missing.
pub fn create(schema: &Schema) -> Option<Step> {
    if catalogue::stands(schema, LEDGER) {
        return None;
    }
    let name = schema.qualify(LEDGER);
    Some(step(
        format!("table {name}"),
        "created",
        vec![format!(
            "CREATE TABLE {name} (
               object text PRIMARY KEY,
               data_schema text NOT NULL,
               definition text,
               owner text NOT NULL,
               executors text[] NOT NULL,
               may_grant text[] NOT NULL,
               replaced_at timestamptz NOT NULL DEFAULT pg_catalog.now()
             )"
        )],
    ))
}

/// Creates the log of watching guards.
pub fn create_log(schema: &Schema) -> Vec<String> {
    let name = schema.qualify(shadow::LOG);
    vec![format!(
        "CREATE TABLE {name} (
           rule text NOT NULL,
           object text NOT NULL,
           refusals bigint NOT NULL,
           seen_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
         )"
    )]
}

/// Takes from everybody what default privileges, or somebody, gave them on our tables.
pub fn close(schema: &Schema) {
    for table in [LEDGER, shadow::LOG] {
        if catalogue::table_owner(&schema.name, table) == Some(schema.owner) {
            let sql = pinned(|| closing(&schema.name, table));
            sql.iter().for_each(|sql| execute(sql));
        }
    }
}

/// What leaves a table to its owner. From everybody: what one grantee gave another goes only with the first.
pub fn closing(schema: &str, table: &str) -> Vec<String> {
    catalogue::grantees(schema, table)
        .iter()
        .map(|role| {
            format!(
                "REVOKE ALL ON TABLE {}.{} FROM {} CASCADE",
                catalogue::quote(schema),
                catalogue::quote(table),
                catalogue::grantee(role)
            )
        })
        .collect()
}

/// Whether these steps take something out of the ledger.
pub fn empties(schema: &Schema, steps: &[Step]) -> bool {
    let deletes = format!("DELETE FROM {} ", schema.qualify(LEDGER));
    let mut sql = steps.iter().flat_map(|step| &step.sql);
    sql.any(|sql| sql.starts_with(&deletes))
}

/// Locks the ledger where these steps write to it, and against its readers where it may be dropped.
pub fn lock(schema: &Schema, steps: &[Step]) {
    let name = schema.qualify(LEDGER);
    let writes = |sql: &String| sql.contains(&name);
    let mode = if empties(schema, steps) {
        "ACCESS EXCLUSIVE"
    } else if catalogue::stands(schema, LEDGER)
        && steps.iter().flat_map(|step| &step.sql).any(writes)
    {
        "ROW EXCLUSIVE"
    } else {
        return;
    };
    execute(&format!("LOCK TABLE ONLY {name} IN {mode} MODE"));
}

/// Drops the ledger once everything in it has been put back.
pub fn drop_if_empty(schema: &Schema) {
    if catalogue::table_owner(&schema.name, LEDGER) == Some(schema.owner) {
        let name = schema.qualify(LEDGER);
        let empty =
            catalogue::scalar::<bool>(&format!("SELECT NOT EXISTS (SELECT FROM {name})"), &[]);
        if empty == Some(true) {
            execute(&format!("DROP TABLE {name}"));
        }
    }
}

/// How the ledger calls a policy.
pub fn policy_key(policy: &Object) -> String {
    format!("policy {} on {}", policy.name, policy.table)
}

/// Writes down that nothing stood under a name. What is kept already is what stood there before our own, which is
/// gone.
pub fn keep_nothing(schema: &Schema, object: &str) -> String {
    keep(schema, object, "NULL", &[], &[], "NOTHING")
}

/// Writes down that a policy stood on its table: it goes with a function that it asks.
pub fn keep_policy(schema: &Schema, policy: &Object) -> String {
    let definition = quote_literal(schema.render(policy.sql));
    keep(
        schema,
        &policy_key(policy),
        &definition,
        &[],
        &[],
        "NOTHING",
    )
}

/// Writes down what stands under a contract function's name.
pub fn keep_function(schema: &Schema, function: &Object) -> String {
    let signature = schema.signature(function);
    let Some(definition) = catalogue::function_definition(&signature) else {
        return keep_nothing(schema, function.name);
    };
    keep(
        schema,
        function.name,
        &quote_literal(&definition),
        &catalogue::executors(&signature),
        &catalogue::grantors(&signature),
        "UPDATE SET data_schema = EXCLUDED.data_schema, definition = EXCLUDED.definition, owner = EXCLUDED.owner,
           executors = EXCLUDED.executors, may_grant = EXCLUDED.may_grant, replaced_at = EXCLUDED.replaced_at",
    )
}

fn keep(
    schema: &Schema,
    object: &str,
    definition: &str,
    executors: &[String],
    may_grant: &[String],
    on_conflict: &str,
) -> String {
    let array = |names: &[String]| {
        let names: Vec<String> = names.iter().map(quote_literal).collect();
        format!("ARRAY[{}]::pg_catalog.text[]", names.join(", "))
    };
    format!(
        "INSERT INTO {} AS kept (object, data_schema, definition, owner, executors, may_grant)
         VALUES ({}, {}, {definition}, {}, {}, {})
         ON CONFLICT (object) DO {on_conflict}",
        schema.qualify(LEDGER),
        quote_literal(object),
        quote_literal(&schema.name),
        quote_literal(catalogue::role_name(schema.owner)),
        array(executors),
        array(may_grant),
    )
}

fn forget(schema: &Schema, object: &str) -> String {
    format!(
        "DELETE FROM {} WHERE object OPERATOR(pg_catalog.=) {}",
        schema.qualify(LEDGER),
        quote_literal(object)
    )
}

fn names(array: Option<Vec<Option<String>>>) -> Vec<String> {
    array.into_iter().flatten().flatten().collect()
}

/// Everything that is kept, read as the owner: what stands under the ledger's name may be anything.
fn all(schema: &Schema) -> BTreeMap<String, Kept> {
    if catalogue::table_owner(&schema.name, LEDGER) != Some(schema.owner) || !is_ledger(schema) {
        return BTreeMap::new();
    }
    require_inert(schema);
    let sql = format!(
        "SELECT object, definition, executors, may_grant, data_schema FROM ONLY {}",
        schema.qualify(LEDGER)
    );
    let read = || {
        rows(&sql, &[], |row| {
            Ok((
                row.get::<String>(1)?.unwrap_or_default(),
                Kept {
                    definition: row.get::<String>(2)?,
                    executors: names(row.get(3)?),
                    may_grant: names(row.get(4)?),
                    schema: row.get::<String>(5)?.unwrap_or_default(),
                },
            ))
        })
    };
    schema.as_owner(|| pinned(read)).into_iter().collect()
}

/// What puts the contract functions back, and the natives for which there is nothing to go back to: those
/// are dropped by force.
pub fn put_back(schema: &Schema, force: bool) -> (Vec<Step>, Vec<String>) {
    let kept = all(schema);
    let (mut steps, mut gone) = (Vec::new(), Vec::new());
    let mut capability_goes = false;
    let mut capability_returns = false;
    for function in model::objects(Kind::Contract) {
        let name = schema.quoted_signature(function);
        let object = format!("function {name}");
        let contract = catalogue::contract(schema, function);
        let ours = matches!(contract, Contract::Native | Contract::Altered(_));
        let missing = matches!(contract, Contract::Missing);
        if ours && let Some(other) = owned_by_another(schema, function) {
            let mut step = step(object, "left", Vec::new());
            step.line.note = Some(other);
            steps.push(step);
            continue;
        }
        match kept.get(function.name) {
            Some(Kept {
                schema: was,
                definition: Some(definition),
                executors,
                may_grant,
            }) if ours || missing => {
                let mut sql = vec![originals::moved(definition, was, &schema.name)];
                sql.extend(grant(schema, function, executors, may_grant));
                sql.push(forget(schema, function.name));
                capability_returns |= !function.is_private();
                let mut step = step(object, "restored", sql);
                step.line.note = without(executors);
                steps.push(step);
            }
            Some(_) if ours => {
                capability_goes |= !function.is_private();
                let sql = vec![
                    format!("DROP FUNCTION {name}"),
                    forget(schema, function.name),
                ];
                steps.push(after_policy(function, step(object, "dropped", sql)));
            }
            Some(_) => {
                let mut step = step(object, "left", vec![forget(schema, function.name)]);
                step.line.note = Some("is not ours any more".to_owned());
                steps.push(step);
            }
            // Another schema's ledger knows what stood there.
            None if ours && function.is_shared() && catalogue::guarded_elsewhere(schema) => {
                let mut step = step(object, "left", Vec::new());
                step.line.note = Some("serves another schema as well".to_owned());
                steps.push(step);
            }
            None if ours => {
                gone.push(format!("function {name}"));
                if force {
                    capability_goes |= !function.is_private();
                    let mut step = step(object, "dropped", vec![format!("DROP FUNCTION {name}")]);
                    step.line.note = Some("nothing to go back to: it is gone".to_owned());
                    steps.push(after_policy(function, step));
                }
            }
            // Nothing of ours stands there.
            None => {}
        }
    }
    if !gone.is_empty() && !force {
        require_readable(schema);
    }
    for policy in model::objects(Kind::Policy).filter(|policy| policy.sql.contains("{owner}")) {
        let object = format!("policy {} on {}", policy.name, schema.qualify(policy.table));
        let key = policy_key(policy);
        let table = catalogue::table_owner(&schema.name, policy.table);
        let stands = catalogue::exists(schema, policy);
        let known = kept.get(&key);
        let was_ours = known.is_some_and(|kept| kept.definition.is_none());
        let mut sql: Vec<String> = known.iter().map(|_| forget(schema, &key)).collect();
        let drop = stands && (was_ours || capability_goes) && catalogue::asks(schema, policy);
        let comes_back = !stands && table.is_some() && (known.is_some() || capability_returns);
        let mut change = if drop {
            sql.push(format!(
                "DROP POLICY {} ON {}",
                policy.name,
                schema.qualify(policy.table)
            ));
            step(object, "dropped", sql)
        } else if comes_back && !was_ours {
            sql.push(schema.render(policy.sql));
            step(object, "restored", sql)
        } else if known.is_some() {
            steps.push(step(object, "present", sql));
            continue;
        } else {
            continue;
        };
        change.table = Some(policy.table);
        change.exclusive = true;
        // A policy goes before the function that it asks, and comes after it.
        match drop {
            true => steps.insert(0, change),
            false => steps.push(change),
        }
    }
    (steps, gone)
}

/// Who cannot be given back what they had.
fn without(executors: &[String]) -> Option<String> {
    let gone = |role: &&String| !catalogue::is_grantee(role);
    let gone: Vec<&str> = executors.iter().filter(gone).map(String::as_str).collect();
    (!gone.is_empty()).then(|| format!("there is no role {} any more", gone.join(", ")))
}

/// Whose a function is that the tables' owner can neither replace nor drop.
fn owned_by_another(schema: &Schema, function: &Object) -> Option<String> {
    let owner = catalogue::function_owner(&schema.signature(function))?;
    (!identity::has_privileges_of(schema.owner, owner)).then(|| {
        format!(
            "belongs to {}, not to {}",
            catalogue::role_name(owner),
            catalogue::role_name(schema.owner)
        )
    })
}

/// Ends with an error where something stands under the ledger's name that is not the tables' owner's ledger: what
/// stood under the contract's names may be in it.
fn require_readable(schema: &Schema) {
    if !catalogue::stands(schema, LEDGER) {
        return;
    }
    if let Some(why) = unusable(schema) {
        Failure::new(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("what stood under the contract's names before cannot be read: {why}"),
        )
        .detail("Nothing has been changed.")
        .hint(format!(
            "Give the table to {} with ALTER TABLE ... OWNER TO, or pass force => true: then nothing is put back.",
            catalogue::role_name(schema.owner)
        ))
        .raise();
    }
}

/// The function that the policy asks is dropped with its table locked, once the policy is gone.
fn after_policy(function: &Object, step: Step) -> Step {
    match function.is_private() {
        true => step,
        false => Step {
            table: Some("sandbox_leases"),
            exclusive: true,
            ..step
        },
    }
}

/// Gives a function back to whom it belonged to; a role that is gone gets nothing.
fn grant(
    schema: &Schema,
    function: &Object,
    executors: &[String],
    may_grant: &[String],
) -> Vec<String> {
    let name = schema.quoted_signature(function);
    let mut now = catalogue::executors(&schema.signature(function));
    if !now.contains(&String::new()) {
        // Freshly created, it is everybody's.
        now.push(String::new());
    }
    let mut sql: Vec<String> = now
        .iter()
        .map(|role| {
            format!(
                "REVOKE ALL ON FUNCTION {name} FROM {} CASCADE",
                catalogue::grantee(role)
            )
        })
        .collect();
    for role in executors.iter().filter(|role| catalogue::is_grantee(role)) {
        let option = match may_grant.contains(role) {
            true => " WITH GRANT OPTION",
            false => "",
        };
        sql.push(format!(
            "GRANT EXECUTE ON FUNCTION {name} TO {}{option}",
            catalogue::grantee(role)
        ));
    }
    sql
}
