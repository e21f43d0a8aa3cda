//! `attach` and `detach`: the guards of a live database go over to the native functions, and back.
//!
//! What has to change is planned first, without a lock. Then the tables are locked, all at once, and the
//! plan is made again; it is carried out as the tables' owner, restricted.

use std::time::Duration;

use pgrx::PgSqlErrorCode;

use super::catalogue::{self, Bound, Contract, Schema, execute, quote, rows};
use super::create::{self, Line, PRIVATE};
use super::ledger;
use super::locks::{self, Deadline};
use super::model::{self, Kind, Object};
use super::originals::Serves;
use super::status;
use crate::pg::error::{Failure, warn};
use crate::pg::identity::{self, pinned};
use crate::pg::{query, session, settings, shadow, subtransaction};

/// How the native guards stand beside the PL/pgSQL ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// In their place.
    Enforce,
    /// Beside them, watching.
    Shadow,
}

/// What is wanted of the triggers.
#[derive(Clone, Copy)]
struct Wanted {
    mode: Mode,
    /// Whether they fire under every session_replication_role.
    always: bool,
    /// Whether the contract functions are replaced as well.
    functions: bool,
}

/// One change, or the reason for none.
pub struct Step {
    pub line: Line,
    /// The table that has to be locked, and whether against readers too.
    pub table: Option<&'static str>,
    pub exclusive: bool,
    pub sql: Vec<String>,
    /// A function that default privileges must not have opened to anybody.
    pub close: Option<&'static Object>,
}

impl Step {
    fn none(object: String, action: &'static str, note: Option<String>) -> Step {
        Step {
            line: Line {
                object,
                action,
                note,
            },
            table: None,
            exclusive: false,
            sql: Vec::new(),
            close: None,
        }
    }

    pub fn on(table: &'static str, object: String, action: &'static str, sql: Vec<String>) -> Step {
        Step {
            table: Some(table),
            sql,
            ..Step::none(object, action, None)
        }
    }

    pub fn exclusive(mut self) -> Step {
        self.exclusive = true;
        self
    }

    fn note(mut self, note: impl Into<String>) -> Step {
        self.line.note = Some(note.into());
        self
    }
}

/// The longest that `CREATE EXTENSION`, `provision` and `detach` wait for a schema's tables.
pub const LIMIT: Duration = Duration::from_secs(5);

pub fn attach(
    data_schema: Option<&str>,
    mode: Option<&str>,
    fire: Option<&str>,
    limit: Option<Duration>,
) -> Vec<Line> {
    let wanted = Wanted {
        mode: match mode {
            Some("enforce") => Mode::Enforce,
            Some("shadow") => Mode::Shadow,
            _ => invalid("mode must be 'enforce' or 'shadow'"),
        },
        always: match fire {
            Some("origin") => false,
            Some("always") => true,
            _ => invalid("fire must be 'origin' or 'always'"),
        },
        functions: mode == Some("enforce"),
    };
    let limit = limit.unwrap_or_else(|| invalid("lock_timeout must be longer than 0"));
    let (schemas, mut lines) = chosen(data_schema);
    for schema in schemas {
        lines.extend(attach_one(&schema, wanted, limit));
    }
    lines
}

/// What `provision` wants.
const ENFORCED: Wanted = Wanted {
    mode: Mode::Enforce,
    always: false,
    functions: true,
};

/// Contract functions that stand there are replaced first, before any table is locked.
pub fn enforce_functions(schema: &Schema) -> Vec<Line> {
    carry_out(schema, LIMIT, || {
        pinned(|| replace_functions(schema, false))
    })
}

/// What `provision` ends with.
pub fn enforce(schema: &Schema) -> Vec<Line> {
    attach_one(schema, ENFORCED, LIMIT)
}

/// What that will change as things stand.
pub fn enforcing(schema: &Schema, deadline: Deadline) -> Vec<Step> {
    locks::wait_until_readable(schema, deadline);
    locks::within(deadline.left(), || planned(schema, ENFORCED))
}

fn invalid(message: &str) -> ! {
    Failure::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, message)
        .hint("mode is 'enforce' or 'shadow', fire 'origin' or 'always', lock_timeout an interval such as '5s'.")
        .raise()
}

/// The schema of that name, or every one that holds the protocol's tables and is the caller's; the others
/// are reported. A caller who owns none is refused.
fn chosen(data_schema: Option<&str>) -> (Vec<Schema>, Vec<Line>) {
    if let Some(name) = data_schema {
        let schema = Schema::find(Some(name));
        schema.require_owner();
        create::require_complete(&schema);
        return (vec![schema], Vec::new());
    }
    let all: Vec<Schema> = catalogue::every_data_schema()
        .iter()
        .map(|name| Schema::find(Some(name)))
        .collect();
    let mine =
        |schema: &Schema| identity::has_privileges_of(identity::current_user(), schema.owner);
    if let Some(foreign) = all.first()
        && !all.iter().any(mine)
    {
        foreign.require_owner();
    }
    let (mut schemas, mut lines) = (Vec::new(), Vec::new());
    for schema in all {
        let reason = match mine(&schema) {
            false => Some(format!("belongs to {}", catalogue::role_name(schema.owner))),
            true => status::incomplete(&schema),
        };
        match reason {
            None => schemas.push(schema),
            Some(reason) => lines.push(Line {
                object: format!("schema {}", quote(&schema.name)),
                action: "skipped",
                note: Some(reason),
            }),
        }
    }
    (schemas, lines)
}

fn attach_one(schema: &Schema, wanted: Wanted, limit: Duration) -> Vec<Line> {
    if wanted.always {
        warn_subscriber(schema);
    }
    carry_out(schema, limit, || planned(schema, wanted))
}

fn planned(schema: &Schema, wanted: Wanted) -> Vec<Step> {
    pinned(|| {
        let mut steps = Vec::new();
        if wanted.mode == Mode::Enforce {
            steps.extend(unwatch(schema));
            steps.extend(model::objects(Kind::Trigger).map(|t| bind(schema, t, wanted)));
        } else {
            steps.extend(watch(schema, wanted));
        }
        if wanted.functions {
            steps.extend(replace_functions(schema, true));
        }
        steps
    })
}

/// Makes a plan, locks what it needs and carries it out. Where nothing has to change, nothing is locked.
///
/// What concerns no table is done before the locks are there, and the plan is not made again under them: it
/// stands if the triggers are still those that it was made for.
fn carry_out(schema: &Schema, limit: Duration, plan: impl Fn() -> Vec<Step>) -> Vec<Line> {
    let deadline = Deadline::after(limit);
    carry_out_by(schema, deadline, plan)
}

fn carry_out_by(schema: &Schema, deadline: Deadline, plan: impl Fn() -> Vec<Step>) -> Vec<Line> {
    let bounded = || {
        locks::wait_until_readable(schema, deadline);
        locks::within(deadline.left(), || query::at_once(&plan))
    };
    let mut steps = bounded();
    if steps.iter().all(|step| step.sql.is_empty()) {
        return steps.into_iter().map(|step| step.line).collect();
    }
    require_no_trigger();
    locks::take_turns(schema, deadline);
    let triggers = catalogue::fingerprint(schema);
    let functions = catalogue::functions_fingerprint(schema);
    steps = bounded();
    let execute_all = |on_tables: bool| {
        for step in steps.iter().filter(|s| s.table.is_some() == on_tables) {
            // An SQL body that is put back may read a table that is not there any more.
            identity::with_settings(&[(c"check_function_bodies", c"off")], || {
                step.sql.iter().for_each(|sql| execute(sql));
            });
            if let Some(function) = step.close {
                create::close(schema, function);
            }
        }
    };
    run_pending_checks(schema, deadline);
    schema.as_owner(|| {
        locks::within(deadline.left(), || {
            // Dropped in the end, when the tables are locked and nothing may be waited for.
            ledger::lock(schema, &steps);
            if pinned(|| catalogue::functions_fingerprint(schema)) != functions {
                locks::meanwhile(format!(
                    "functions of schema {} or of the contract were changed",
                    schema.name
                ));
            }
            execute_all(false);
        });
    });
    let on_tables = steps
        .iter()
        .any(|step| step.table.is_some() && !step.sql.is_empty());
    if on_tables {
        schema.as_owner(|| locks::lock(schema, &steps, deadline));
        if pinned(|| catalogue::fingerprint(schema)) != triggers {
            locks::meanwhile(format!(
                "the triggers of schema {} were changed",
                schema.name
            ));
        }
        schema.as_owner(|| locks::within(locks::patience(), || execute_all(true)));
    }
    schema.as_owner(|| {
        locks::within(locks::patience(), || {
            let kept = |sql: &String| sql.contains(ledger::LEDGER);
            if steps.iter().flat_map(|step| &step.sql).any(kept) {
                ledger::require_inert(schema);
            }
            if ledger::empties(schema, &steps) {
                ledger::drop_if_empty(schema);
            }
            ledger::close(schema);
        });
    });
    run_pending(&pending_checks(schema, true), "DEFERRED");
    steps.into_iter().map(|step| step.line).collect()
}

/// Checks that a transaction has deferred run in a row with others' triggers: those that come later would go with their
/// own.
fn require_no_trigger() {
    if session::trigger_depth() > 0 {
        Failure::new(
            PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
            "guards cannot be changed within a trigger",
        )
        .detail("Checks that are still pending would be lost. Nothing has been changed.")
        .hint("Call this by itself.")
        .raise();
    }
}

/// The checks of the protocol that a transaction can defer, or those that it defers by themselves: dropping one's
/// trigger would silently discard what is pending.
fn pending_checks(schema: &Schema, by_themselves: bool) -> Vec<String> {
    let names: Vec<String> = model::objects(Kind::Trigger)
        .filter(|trigger| trigger.sql.starts_with("CREATE CONSTRAINT"))
        .map(|trigger| trigger.name.to_owned())
        .collect();
    rows(
        "SELECT DISTINCT k.conname::text FROM pg_constraint k
          WHERE k.connamespace = $1 AND k.contype = 't' AND k.condeferrable AND (k.condeferred OR NOT $3)
            AND k.conname = ANY ($2)
            -- SET CONSTRAINTS takes a name for every constraint of the schema that has it.
            AND NOT ($3 AND EXISTS (SELECT FROM pg_constraint other WHERE other.connamespace = $1
                                       AND other.conname = k.conname AND NOT other.condeferrable))
          ORDER BY 1",
        &[schema.oid.into(), names.into(), by_themselves.into()],
        |row| row.get::<String>(1),
    )
    .into_iter()
    .flatten()
    .map(|name| schema.qualify(&name))
    .collect()
}

pub fn run_pending_checks(schema: &Schema, deadline: Deadline) {
    let checks = pending_checks(schema, false);
    locks::within(deadline.left(), || run_pending(&checks, "IMMEDIATE"));
}

/// As the caller: the pending checks are of the caller's own statements.
fn run_pending(checks: &[String], when: &str) {
    if !checks.is_empty() {
        execute(&format!("SET CONSTRAINTS {} {when}", checks.join(", ")));
    }
}

fn warn_subscriber(schema: &Schema) {
    let listed = rows(
        "SELECT c.relname::text FROM pg_subscription_rel s JOIN pg_class c ON c.oid = s.srrelid
          WHERE c.relnamespace = $1 ORDER BY 1",
        &[schema.oid.into()],
        |row| row.get::<String>(1),
    );
    let tables: Vec<String> = listed.into_iter().flatten().collect();
    let guarded = |name: &str| model::objects(Kind::Trigger).any(|t| t.table == name);
    if tables.iter().any(|name| guarded(name)) {
        warn(
            format!(
                "tables in schema {} are filled by a subscription",
                schema.name
            ),
            format!("Subscribed: {}.", tables.join(", ")),
            "The protocol's settings are not replicated: guards that fire always refuse what the publisher accepted. \
             On a subscriber they had better fire on origin: ALTER TABLE ... ENABLE TRIGGER sets them so.",
        );
    }
}

// Triggers --------------------------------------------------------------------------------------------

fn trigger_name(schema: &Schema, trigger: &Object) -> String {
    format!(
        "trigger {} on {}",
        quote(trigger.name),
        schema.qualify(trigger.table)
    )
}

/// Sets when a trigger fires, as `tgenabled` writes it.
fn set_enabled(schema: &Schema, table: &str, name: &str, enabled: &str) -> String {
    let verb = match enabled {
        "A" => "ENABLE ALWAYS",
        "R" => "ENABLE REPLICA",
        "D" => "DISABLE",
        _ => "ENABLE",
    };
    format!(
        "ALTER TABLE {} {verb} TRIGGER {}",
        schema.qualify(table),
        quote(name)
    )
}

fn bind(schema: &Schema, trigger: &Object, wanted: Wanted) -> Step {
    let object = trigger_name(schema, trigger);
    let always = |sql: &mut Vec<String>| {
        if wanted.always {
            sql.push(set_enabled(schema, trigger.table, trigger.name, "A"));
        }
    };
    let found = catalogue::bound(schema, trigger.table, trigger.name);
    let stands_for_ours = |found: &Bound| status::is_original(schema, trigger, found);
    if found.as_ref().is_none_or(stands_for_ours)
        && let Some(why) = catalogue::unmet(schema, trigger)
    {
        return Step::none(object, "left", Some(why));
    }
    let Some(found) = found else {
        let mut sql = vec![status::definition(schema, trigger)];
        always(&mut sql);
        return Step::on(trigger.table, object, "created", sql);
    };
    if status::is_original(schema, trigger, &found) {
        let native = status::native(trigger);
        let mut sql = rebind(schema, trigger, &found, &native);
        if found.enabled == "O" {
            always(&mut sql);
        }
        let step = Step::on(trigger.table, object, "rebound", sql);
        let step = if found.constraint {
            step.exclusive()
        } else {
            step
        };
        return match found.enabled.as_str() {
            "O" | "A" => step,
            _ => step.note("is disabled, as it was"),
        };
    }
    let (state, detail) = status::trigger_state(schema, trigger);
    match state {
        "native" if found.enabled == "O" && wanted.always => {
            let mut sql = Vec::new();
            always(&mut sql);
            Step::on(trigger.table, object, "set to fire always", sql)
        }
        "native" => Step::none(object, "present", None),
        _ => Step::none(
            object,
            "left",
            Some(match detail {
                Some(detail) => format!("{state}: {detail}"),
                None => state.to_owned(),
            }),
        ),
    }
}

/// Has a trigger call another function and keeps everything else: timing, columns, WHEN, deferrability,
/// when it fires, its comment.
fn rebind(schema: &Schema, trigger: &Object, found: &Bound, function: &str) -> Vec<String> {
    let table = schema.qualify(trigger.table);
    let name = quote(trigger.name);
    let call = format!(" EXECUTE FUNCTION {}", found.function);
    let definition = found.definition.as_str();
    let head = definition.strip_suffix(&call).unwrap_or(definition);
    let mut sql = Vec::new();
    if found.constraint {
        sql.push(format!("DROP TRIGGER {name} ON {table}"));
        sql.push(format!("{head} EXECUTE FUNCTION {function}"));
        for (kind, comment) in [
            ("TRIGGER", &found.comment),
            ("CONSTRAINT", &found.constraint_comment),
        ] {
            sql.extend(comment.as_ref().map(|comment| {
                let text = pgrx::spi::quote_literal(comment);
                format!("COMMENT ON {kind} {name} ON {table} IS {text}")
            }));
        }
    } else {
        let head = head.replacen("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1);
        sql.push(format!("{head} EXECUTE FUNCTION {function}"));
    }
    if found.enabled != "O" {
        sql.push(set_enabled(
            schema,
            trigger.table,
            trigger.name,
            &found.enabled,
        ));
    }
    sql
}

// Watching --------------------------------------------------------------------------------------------

/// The end of a watching trigger's name.
const WATCHING: &str = "_shadow";
/// The trigger that writes the log at the end of each statement.
const LOG_TRIGGER: &str = "opengeni_guards_shadow_log";

fn watch(schema: &Schema, wanted: Wanted) -> Vec<Step> {
    let watched: Vec<&Object> = model::objects(Kind::Trigger)
        .filter(|trigger| status::trigger_state(schema, trigger).0 != "native")
        .collect();
    if watched.is_empty() {
        let note = "every guard is native already: there is nothing to watch before a detach";
        let object = format!("guards of schema {}", quote(&schema.name));
        return vec![Step::none(object, "present", Some(note.to_owned()))];
    }
    let log = format!("table {}", schema.qualify(shadow::LOG));
    let mut steps = vec![match ledger::log(schema) {
        Ok(true) => Step::none(log, "present", None),
        Err(why) => {
            let note = format!("{why}; nothing is watched");
            return vec![Step::none(log, "left", Some(note))];
        }
        Ok(false) => {
            let mut step = Step::none(log, "created", None);
            step.sql = ledger::create_log(schema);
            step
        }
    }];
    let mut create = |object: String, table: &'static str, name: &str, definition: String| {
        steps.push(match catalogue::bound(schema, table, name) {
            Some(found) if found.definition == definition => match found.enabled.as_str() {
                "O" if wanted.always => {
                    let sql = vec![set_enabled(schema, table, name, "A")];
                    Step::on(table, object, "set to fire always", sql)
                }
                "O" | "A" => Step::none(object, "present", None),
                _ => Step::none(object, "present", Some("is disabled, as it was".to_owned())),
            },
            Some(found) => Step::none(
                object,
                "left",
                Some(format!("altered: {}", found.definition)),
            ),
            None => {
                let mut sql = vec![definition];
                if wanted.always {
                    sql.push(set_enabled(schema, table, name, "A"));
                }
                Step::on(table, object, "created", sql)
            }
        });
    };
    for trigger in &watched {
        let name = format!("{}{WATCHING}", trigger.name);
        let object = format!("trigger {name} on {}", schema.qualify(trigger.table));
        let watching = trigger
            .sql
            .replacen(
                &format!("TRIGGER {} ", trigger.name),
                &format!("TRIGGER {name} "),
                1,
            )
            .replace("();", "('shadow');");
        let definition = status::qualified(schema, trigger.table, &watching);
        create(object, trigger.table, &name, definition);
    }
    for table in locks::ORDER
        .iter()
        .filter(|table| watched.iter().any(|trigger| trigger.table == **table))
    {
        let qualified = schema.qualify(table);
        create(
            format!("trigger {LOG_TRIGGER} on {qualified}"),
            table,
            LOG_TRIGGER,
            format!(
                "CREATE TRIGGER {LOG_TRIGGER} AFTER INSERT OR DELETE OR UPDATE ON {qualified} FOR EACH STATEMENT \
                 EXECUTE FUNCTION opengeni_guards.record_shadow_refusals()"
            ),
        );
    }
    steps
}

/// Takes the watching triggers away; what they found stays in the log.
fn unwatch(schema: &Schema) -> Vec<Step> {
    catalogue::watching(schema)
        .into_iter()
        .filter_map(|trigger| {
            let table = locks::ORDER.iter().find(|t| **t == trigger.table)?;
            let qualified = schema.qualify(table);
            let name = quote(&trigger.name);
            Some(
                Step::on(
                    table,
                    format!("trigger {name} on {qualified}"),
                    "dropped",
                    vec![format!("DROP TRIGGER {name} ON {qualified}")],
                )
                .exclusive(),
            )
        })
        .collect()
}

// Contract functions ----------------------------------------------------------------------------------

/// What replaces the contract functions, and with `policies` creates what asks them.
fn replace_functions(schema: &Schema, policies: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut ledger_wanted = false;
    let closed = ledger::unusable(schema);
    for function in model::objects(Kind::Contract) {
        let object = format!("function {}", schema.quoted_signature(function));
        let left = |note: String| Step::none(object.clone(), "left", Some(note));
        let contract = catalogue::contract(schema, function);
        let blocked = || {
            closed
                .clone()
                .or_else(|| may_not_replace(schema, function, &contract))
                .or_else(|| catalogue::unmet(schema, function))
        };
        let step = match &contract {
            Contract::Native => Step::none(object, "present", None),
            Contract::Elsewhere(other) => left(format!("serves schema {other}")),
            Contract::Altered(why) => left((*why).to_owned()),
            Contract::Unknown => left("unknown definition".to_owned()),
            Contract::Original(Serves::Caller) if ambiguous(schema, function) => left(
                "serves whichever schema the caller's search_path names, and several hold the protocol's tables"
                    .to_owned(),
            ),
            Contract::Missing | Contract::Original(_) => match blocked() {
                Some(why) => left(why),
                None => {
                    ledger_wanted = true;
                    let action = match contract {
                        Contract::Missing => "created",
                        _ => "replaced",
                    };
                    let mut step = Step::none(object, action, None);
                    step.sql = vec![ledger::keep_function(schema, function)];
                    let stands = |policy: &&Object| catalogue::exists(schema, policy);
                    step.sql.extend(
                        model::asking(function)
                            .filter(stands)
                            .map(|policy| ledger::keep_policy(schema, policy)),
                    );
                    step.sql.extend(create::contract_sql(schema, function));
                    step.close = matches!(contract, Contract::Missing).then_some(function);
                    step
                }
            },
        };
        steps.push(step);
    }
    steps.extend(close_capability_table(schema));
    let asking = |policy: &&Object| policies && policy.sql.contains("{owner}");
    for policy in model::objects(Kind::Policy).filter(asking) {
        let asks = |step: &Step, function: &Object| {
            !step.sql.is_empty()
                && step.line.object == format!("function {}", schema.quoted_signature(function))
        };
        let answered = model::asked_by(policy).all(|function| {
            catalogue::exists(schema, function) || steps.iter().any(|step| asks(step, function))
        });
        if answered && closed.is_none() && !catalogue::exists(schema, policy) {
            let object = format!("policy {} on {}", policy.name, schema.qualify(policy.table));
            let sql = vec![
                ledger::keep_nothing(schema, &ledger::policy_key(policy)),
                schema.render(policy.sql),
            ];
            steps.push(Step::on(policy.table, object, "created", sql).exclusive());
            ledger_wanted = true;
        }
    }
    if ledger_wanted && let Some(step) = ledger::create(schema) {
        steps.insert(0, step);
    }
    steps
}

/// Whether nobody can say which of several schemas a function without a schema of its own works on.
fn ambiguous(schema: &Schema, function: &Object) -> bool {
    function.sql.contains("{data_schema}") && !catalogue::other_data_schemas(schema).is_empty()
}

fn may_not_replace(schema: &Schema, function: &Object, contract: &Contract) -> Option<String> {
    let name = match function.is_private() {
        true => PRIVATE,
        false => schema.name.as_str(),
    };
    if catalogue::schema_owner(name).is_none() {
        return Some(format!("schema {name} does not exist"));
    }
    let owner = catalogue::role_name(schema.owner);
    if !catalogue::may_create_in(schema.owner, name) {
        return Some(format!("{owner} may not create functions in schema {name}"));
    }
    let stands = catalogue::function_owner(&schema.signature(function));
    match (contract, stands) {
        (Contract::Missing, _) | (_, None) => None,
        (_, Some(role)) if role == schema.owner => None,
        (_, Some(role)) => Some(format!(
            "belongs to {}, not to {owner}",
            catalogue::role_name(role)
        )),
    }
}

/// The application's own capability table is left, unused, and closed.
fn close_capability_table(schema: &Schema) -> Option<Step> {
    const TABLE: &str = "modal_inventory_read_capabilities";
    let owner = catalogue::table_owner(PRIVATE, TABLE)?;
    let sql = ledger::closing(PRIVATE, TABLE);
    if owner != schema.owner || sql.is_empty() {
        return None;
    }
    let note = "every grant on it is revoked".to_owned();
    let mut step = Step::none(format!("table {PRIVATE}.{TABLE}"), "closed", Some(note));
    step.sql = sql;
    Some(step)
}

// Going back ------------------------------------------------------------------------------------------

pub fn detach(data_schema: Option<&str>, force: Option<bool>) -> Vec<Line> {
    let force = force.unwrap_or_else(|| {
        Failure::new(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "force must not be NULL",
        )
        .hint("Pass true to drop what has nothing to go back to, or leave it out.")
        .raise()
    });
    let (schemas, mut lines) = match data_schema {
        // Unlike attach, it takes tables as they are: what can be put back is.
        Some(name) => {
            let schema = Schema::find(Some(name));
            schema.require_owner();
            (vec![schema], Vec::new())
        }
        None => chosen(None),
    };
    for schema in schemas {
        // Its plan reads the ledger, and whoever has the turn may have to drop that.
        let deadline = Deadline::after(LIMIT);
        locks::take_turns(&schema, deadline);
        lines.extend(carry_out_by(&schema, deadline, || {
            pinned(|| {
                let (steps, gone) = going_back(&schema, force);
                if !gone.is_empty() && !force {
                    refuse_detach(&schema, &gone);
                }
                steps
            })
        }));
    }
    lines
}

fn refuse_detach(schema: &Schema, gone: &[String]) -> ! {
    Failure::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!(
            "schema {} has nothing to go back to for {} of its guards and contract functions",
            schema.name,
            gone.len()
        ),
    )
    .detail(format!("{}. Nothing has been changed.", gone.join("; ")))
    .hint("Create the PL/pgSQL functions first, or pass force => true: then these are dropped and nothing stands in their place.")
    .raise()
}

/// What `detach` does, and what it can only drop.
fn going_back(schema: &Schema, force: bool) -> (Vec<Step>, Vec<String>) {
    let (mut steps, mut gone) = (unwatch(schema), Vec::new());
    for trigger in model::objects(Kind::Trigger) {
        let object = trigger_name(schema, trigger);
        let Some(found) = catalogue::bound(schema, trigger.table, trigger.name) else {
            continue;
        };
        if found.function == status::native(trigger) && found.arguments {
            let note = format!("altered: {}", found.definition);
            steps.push(Step::none(object, "left", Some(note)));
            continue;
        }
        if found.function != status::native(trigger) {
            let action = match status::is_original(schema, trigger, &found) {
                true => "present",
                false => "left",
            };
            let note = format!("calls {}", found.function);
            steps.push(Step::none(object, action, Some(note)));
            continue;
        }
        let step = match status::original(schema, trigger) {
            Some(function) => {
                let sql = rebind(schema, trigger, &found, &function);
                let step = Step::on(trigger.table, object, "restored", sql);
                match found.constraint {
                    true => step.exclusive(),
                    false => step,
                }
            }
            None => {
                let sql = vec![format!(
                    "DROP TRIGGER {} ON {}",
                    quote(trigger.name),
                    schema.qualify(trigger.table)
                )];
                let step = Step::on(trigger.table, object, "dropped", sql).exclusive();
                match status::is_ours(trigger) {
                    true => step.note("has no PL/pgSQL original"),
                    false => {
                        gone.push(format!("{} on {}", trigger.name, trigger.table));
                        step.note("no function to go back to: this guard is gone")
                    }
                }
            }
        };
        steps.push(step);
    }
    let (functions, unknown) = ledger::put_back(schema, force);
    steps.extend(functions);
    gone.extend(unknown);
    (steps, gone)
}

// CREATE EXTENSION ------------------------------------------------------------------------------------

/// Binds the triggers of every schema whose tables are complete. Whatever goes wrong with a schema leaves
/// it as it was and is told by WARNING: the server shows nothing less from an extension's script.
pub fn bind_on_create() {
    if !settings::bind_on_create() {
        return;
    }
    let wanted = Wanted {
        mode: Mode::Enforce,
        always: false,
        functions: false,
    };
    for name in catalogue::data_schemas() {
        let bound = subtransaction::attempt(|| {
            let schema = Schema::find(Some(&name));
            match status::incomplete(&schema) {
                Some(reason) => Err(reason),
                None => Ok(attach_one(&schema, wanted, LIMIT)),
            }
        });
        let failed = match bound {
            Ok(Ok(lines)) => {
                tell(&name, &lines);
                continue;
            }
            Ok(Err(reason)) => reason,
            Err(error) => {
                let error = subtransaction::unless_cancelled(error);
                subtransaction::message(&error)
            }
        };
        warn(
            format!("the guards of schema {} are left as they are", quote(&name)),
            format!("{failed}."),
            &format!(
                "Then run SELECT * FROM opengeni_guards.attach({}).",
                pgrx::spi::quote_literal(&name)
            ),
        );
    }
}

fn tell(name: &str, lines: &[Line]) {
    let count = |action: &str| lines.iter().filter(|l| l.action == action).count();
    let changed = count("rebound") + count("created");
    let left: Vec<String> = lines
        .iter()
        .filter(|line| line.action == "left")
        .map(|line| format!("{} ({})", line.object, line.note.as_deref().unwrap_or("")))
        .collect();
    if changed == 0 && left.is_empty() {
        return;
    }
    warn(
        format!(
            "{changed} guards of schema {} are native from now on",
            quote(name)
        ),
        match left.is_empty() {
            true => "No other guard is bound to anything else.".to_owned(),
            false => format!("Left as they are: {}.", left.join("; ")),
        },
        &format!(
            "SELECT * FROM opengeni_guards.attach({0}) also replaces the contract functions; detach({0}) goes back, also to watch \
             first, with attach({0}, mode => 'shadow').",
            pgrx::spi::quote_literal(name)
        ),
    );
}
