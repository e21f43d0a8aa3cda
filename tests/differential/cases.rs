//! Named cases: every rule on both of its sides, and every deviation shown on the native guards and the
//! originals. Each case has rows of its own.
//!
//! Statements are abbreviated: `P: x = 1` updates the case's process, `-P` deletes it; so do `A` (its parent
//! admission), `C` (a child), `H` (its holder), `L` (its lease), `Y` (a PTY), `K` (artifact 1) and `R`
//! (revision 1). `$p`, `$a`, … stand for their ids; `cap`, `loss` and `rej` set the protocol's settings.

use anyhow::{Context, Result, bail, ensure};

use crate::database::{Outcome, Pair};

/// What comes of a case's transaction.
#[derive(Clone, Copy, Debug)]
enum Want {
    Accepted,
    /// A refusal of this rule: by the native guards with its id, by the originals with the same message.
    Rule(&'static str),
    State(&'static str),
    Message(&'static str),
}
use Want::{Accepted, Message, Rule, State};

pub struct Case {
    pub name: String,
    before: Vec<String>,
    steps: Vec<String>,
    after: Vec<String>,
    /// Wants sessions that have no plans yet: a decoy does not invalidate them.
    fresh: bool,
    native: Want,
    /// The deviation, and what the originals do.
    original: Option<(&'static str, Want)>,
    superuser: bool,
}

impl Case {
    fn after(mut self, sql: &[&str]) -> Self {
        self.after = sql.iter().map(|s| s.to_string()).collect();
        self
    }

    fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    fn by_superuser(mut self) -> Self {
        self.superuser = true;
        self
    }

    pub fn run(&self, pair: &mut Pair) -> Result<()> {
        let result = self.attempt(pair);
        pair.both(|side| side.run("ROLLBACK"));
        for sql in &self.after {
            pair.admin_both(sql)?;
        }
        let (account, workspace) = tenant(pair)?;
        if self.original.is_some() || result.is_err() {
            pair.level(&account, &workspace)?;
        } else {
            pair.same_rows(&account, &workspace)?;
        }
        result
    }

    fn attempt(&self, pair: &mut Pair) -> Result<()> {
        let suite = self.name.replace('\'', "");
        let enter = format!("CALL fixture.enter('{suite}')");
        pair.admin_both(&enter)?;
        self.set_up(pair, &enter)?;
        for sql in &self.before {
            match sql.strip_prefix("su ") {
                Some(sql) => pair.admin_both(&expand(sql))?,
                None => self.set_up(pair, &expand(sql))?,
            }
        }
        if self.fresh {
            for side in [&mut pair.native, &mut pair.original] {
                side.reconnect()?;
            }
            self.set_up(pair, &enter)?;
        }
        let steps: Vec<String> = std::iter::once("BEGIN".to_string())
            .chain(self.steps.iter().map(|s| expand(s)))
            .chain(std::iter::once("COMMIT".to_string()))
            .collect();
        let (ours, theirs) = pair.both(|side| {
            let mut failed = false;
            steps
                .iter()
                .map(|sql| {
                    if failed && !sql.starts_with("ROLLBACK TO") && sql != "COMMIT" {
                        return Outcome::Skipped;
                    }
                    let outcome = match self.superuser {
                        true => side.run_as_admin(sql),
                        false => side.run(sql),
                    };
                    failed = !outcome.is_done();
                    outcome
                })
                .collect::<Vec<_>>()
        });
        let story = || -> String {
            steps
                .iter()
                .zip(ours.iter().zip(&theirs))
                .map(|(sql, (ours, theirs))| {
                    format!("\n  {sql}\n    native: {ours}; original: {theirs}")
                })
                .collect()
        };
        for (sql, outcome) in steps.iter().zip(&ours) {
            let writes = ["UPDATE", "INSERT", "DELETE"]
                .iter()
                .any(|w| sql.starts_with(w));
            ensure!(
                !writes || *outcome != Outcome::Done(0) || self.original.is_some(),
                "a statement that touches no row: {sql}"
            );
        }
        let verdict = |outcomes: &[Outcome]| -> Outcome {
            outcomes
                .iter()
                .find(|outcome| outcome.refusal().is_some())
                .unwrap_or(&outcomes[outcomes.len() - 1])
                .clone()
        };
        let (native, original) = (verdict(&ours), verdict(&theirs));
        fits(self.native, &native).with_context(|| format!("native{}", story()))?;
        match self.original {
            Some((deviation, want)) => {
                fits(want, &original)
                    .with_context(|| format!("{deviation}: original{}", story()))?;
                ensure!(
                    !native.agrees(&original),
                    "{deviation} no longer shows{}",
                    story()
                );
            }
            None => {
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    ensure!(ours.agrees(theirs), "they differ{}", story());
                }
            }
        }
        Ok(())
    }

    fn set_up(&self, pair: &mut Pair, sql: &str) -> Result<()> {
        let (native, original) = pair.both(|side| side.run(sql));
        match (&native, &original) {
            (Outcome::Done(_), Outcome::Done(_)) => Ok(()),
            _ => bail!("set-up: native: {native}; original: {original}; in: {sql}"),
        }
    }
}

/// What a RESTRICT foreign key says: the standard's own state from 18 on.
fn restrict_violation() -> &'static str {
    let major = std::env::var("OPENGENI_GUARDS_MAJOR").unwrap_or_default();
    match major.parse::<u32>() {
        Ok(18..) => "23001",
        _ => "23503",
    }
}

fn tenant(pair: &mut Pair) -> Result<(String, String)> {
    let value = crate::database::first_value(
        &mut pair.native.admin,
        "SELECT concat_ws(' ', md5('account')::uuid, md5('workspace')::uuid)",
    )?;
    let (account, workspace) = value.split_once(' ').context("two ids")?;
    Ok((account.to_string(), workspace.to_string()))
}

fn fits(want: Want, outcome: &Outcome) -> Result<()> {
    let fits = match (want, outcome) {
        (Accepted, outcome) => outcome.is_done(),
        (Rule(rule), outcome) => outcome.rule() == Some(rule),
        (State(state), Outcome::Refused(r)) => r.state == state,
        (Message(text), Outcome::Refused(r)) => r.message.contains(text),
        _ => false,
    };
    ensure!(fits, "expected {want:?}, got {outcome}");
    Ok(())
}

const TABLES: &[(&str, &str, &str)] = &[
    ("P", "sandbox_retained_processes", "$p"),
    ("A", "sandbox_workspace_mutation_admissions", "$a"),
    ("C", "sandbox_workspace_mutation_admissions", "$c"),
    ("H", "sandbox_lease_holders", "$h"),
    ("L", "sandbox_leases", "$l"),
    ("Y", "sandbox_pty_sessions", "$y"),
    ("K", "sandbox_checkpoint_artifacts", "$k1"),
    ("R", "workspace_instruction_policy_revisions", "$r1"),
];
const IDS: &[(&str, &str)] = &[
    ("$pid", "fixture.id('process','c')::text"),
    ("$p", "fixture.id('process','c')"),
    ("$a", "fixture.id('admission/1','c')"),
    ("$c", "fixture.id('admission/2','c')"),
    ("$h", "fixture.id('holder','c')"),
    ("$l", "fixture.id('lease','c')"),
    ("$y", "fixture.id('pty','c')"),
    ("$k1", "fixture.id('artifact/1','c')"),
    ("$k2", "fixture.id('artifact/2','c')"),
    ("$r1", "fixture.id('revision/1','c')"),
    ("$r2", "fixture.id('revision/2','c')"),
    ("$s", "fixture.id('session','c')"),
    ("$new", "fixture.id('new','c')"),
];
const LOSS: &str =
    "(SELECT jsonb_build_object('accountId', account_id, 'workspaceId', workspace_id,
    'leaseId', lease_id, 'sandboxGroupId', sandbox_group_id, 'lostEpoch', lease_epoch,
    'lostBackend', provider_backend, 'lostInstanceId', provider_instance_id)
  FROM sandbox_retained_processes WHERE id = $p)";
const REJECTION: &str = "(SELECT jsonb_build_object('processId', id, 'command', provider_command)
  FROM sandbox_retained_processes WHERE id = $p)";

fn expand(step: &str) -> String {
    let set =
        |name: &str, value: &str| format!("SELECT set_config('opengeni.{name}', {value}, true)");
    let mut sql = match step {
        "cap" => set("supervised_output_capture_process_id", "$pid"),
        "loss" => set("supervised_provider_loss_binding", &format!("{LOSS}::text")),
        "rej" => set(
            "supervised_launch_rejection_binding",
            &format!("{REJECTION}::text"),
        ),
        "settle" => {
            "UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'resolved',
            settled_at = '2030-01-01Z' WHERE id = $a"
                .to_string()
        }
        "reject" => {
            "UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'rejected',
            settled_at = '2030-01-01Z' WHERE id = $a"
                .to_string()
        }
        _ => match step.split_once('=') {
            Some(("cap", value)) => set("supervised_output_capture_process_id", value),
            Some(("loss", value)) => set("supervised_provider_loss_binding", value),
            Some(("rej", value)) => set("supervised_launch_rejection_binding", value),
            Some(("marker", value)) => set("sandbox_recovery_protocol_v2", value),
            _ => step.to_string(),
        },
    };
    for (short, table, id) in TABLES {
        if let Some(assignments) = sql.strip_prefix(&format!("{short}: ")) {
            sql = format!("UPDATE {table} SET {assignments} WHERE id = {id}");
        } else if sql == format!("-{short}") {
            sql = format!("DELETE FROM {table} WHERE id = {id}");
        }
    }
    sql = sql.replace("$LOSS", LOSS).replace("$REJ", REJECTION);
    for (short, id) in IDS {
        sql = sql.replace(short, id);
    }
    sql
}

fn case(name: &str, before: &[&str], steps: &[&str], native: Want) -> Case {
    let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
    Case {
        name: name.to_string(),
        before: owned(before),
        steps: owned(steps),
        after: Vec::new(),
        fresh: false,
        native,
        original: None,
        superuser: false,
    }
}

fn ok(name: &str, before: &[&str], steps: &[&str]) -> Case {
    case(name, before, steps, Accepted)
}

fn no(name: &str, rule: &'static str, before: &[&str], steps: &[&str]) -> Case {
    case(name, before, steps, Rule(rule))
}

fn differs(
    deviation: &'static str,
    name: &str,
    before: &[&str],
    steps: &[&str],
    native: Want,
    original: Want,
) -> Case {
    Case {
        original: Some((deviation, original)),
        ..case(&format!("{deviation}: {name}"), before, steps, native)
    }
}

// Rows -------------------------------------------------------------------------------------------------

const LEASE: &str = "CALL fixture.lease('c')";
const RUNNING: &str = "CALL fixture.command('c')";
const LEGACY: &str = "CALL fixture.command('c', false)";
const READ: &str = r#"CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised(
    fixture.streams(fixture.cursor('{"byteOffset": 9}')))))"#;
const EOF: &str = r#"CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised(
    fixture.streams(fixture.cursor('{"byteOffset": 9, "eof": true}')))))"#;
const DRAINED: &str =
    "CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised(
    fixture.streams(fixture.drained(), fixture.drained()))))";
const CAPTURED: &str =
    "CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised(
    fixture.streams(fixture.drained(), fixture.drained())), 'supervision_output_captured', true))";
const RECEIVED: &str =
    "CALL fixture.command('c', true, jsonb_build_object('supervision_receipt', fixture.receipt()))";
const PROVEN: &str =
    "CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised(
    fixture.streams(fixture.drained(), fixture.drained())), 'supervision_output_captured', true,
    'supervision_receipt', fixture.receipt()))";
const EXITED: &str = "CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised(
    fixture.streams(fixture.drained(), fixture.drained())), 'supervision_output_captured', true,
    'supervision_receipt', fixture.receipt(), 'state', 'exited', 'exit_code', 3, 'settled_at', '2030-01-01Z'))";
const CANCELLED: &str = r#"CALL fixture.command('c', true,
    '{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}')"#;
const LOST: &str = r#"CALL fixture.plant($x$CALL fixture.command('c', true,
    '{"state": "lost", "settled_at": "2030-01-01Z", "settlement_reason": "provider_instance_lost"}')$x$)"#;
const REJECTED: &str = r#"CALL fixture.plant($x$CALL fixture.command('c', true,
    '{"state": "lost", "settled_at": "2030-01-01Z", "settlement_reason": "provider_start_rejected"}')$x$)"#;
const CHILD: &str = "CALL fixture.child('c', 2)";
const SETTLED_CHILD: &str = r#"CALL fixture.child('c', 2, '{"provider_outcome": "resolved", "settled_at": "2030-01-01Z"}')"#;
const COLD: &str = r#"L: liveness = 'cold', instance_id = NULL, lease_epoch = 2, resume_state = '{"opengeniRecovery":
    {"provider": {"status": "missing", "instanceId": "sb-1"}, "restore": {"status": "degraded"},
     "workspace": {"status": "degraded"}}}'"#;
const LOSE: &str =
    "P: state = 'lost', settlement_reason = 'provider_instance_lost', settled_at = '2030-01-01Z'";
const REJECT: &str =
    "P: state = 'lost', settlement_reason = 'provider_start_rejected', settled_at = '2030-01-01Z'";
const EXIT: &str = "P: state = 'exited', exit_code = 3, settled_at = '2030-01-01Z'";
const DRAIN: &str = "P: supervision_output_captured = true,
    provider_command = provider_command || fixture.streams(fixture.drained(), fixture.drained())";
const RECEIPT: &str = "P: supervision_receipt = fixture.receipt()";
const POISON: &str = r#"su UPDATE sandbox_retained_processes SET provider_command = jsonb_set(provider_command,
    '{streams,stdout}', '{"byteOffset": "x", "utf8Remainder": 7, "eof": "maybe", "exitCode": "x"}') WHERE id = $p"#;

fn with_stdout(stream: &str) -> String {
    format!("P: provider_command = jsonb_set(provider_command, '{{streams,stdout}}', '{stream}')")
}

// Cases ------------------------------------------------------------------------------------------------

pub fn all() -> Vec<Case> {
    [
        marker(),
        writes_once(),
        stdin(),
        output(),
        documents(),
        losses(),
        settlement(),
        admissions(),
        holders(),
        leases(),
        identity(),
        ptys(),
        checkpoints(),
        policies(),
        values(),
        deviations(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn marker() -> Vec<Case> {
    const RULE: &str = "protocol_v2.marker";
    let mut cases = Vec::new();
    for (what, write) in [
        ("lease update", "L: refcount = 1"),
        ("lease delete", "-L"),
        ("holder update", "H: subject_id = NULL"),
        (
            "holder insert",
            r#"CALL diff.holder('c', '{"kind": "viewer"}')"#,
        ),
        ("holder delete", "-H"),
        ("admission update", "A: operation = 'x'"),
        ("admission insert", "CALL fixture.child('c', 3)"),
        ("admission delete", "-A"),
        ("process update", "P: reconcile_attempts = 1"),
        ("process delete", "-P"),
        ("pty insert", "CALL diff.pty('c')"),
        ("artifact insert", "CALL diff.artifact('c', '1')"),
    ] {
        for value in ["''", "'0'", "'1 '", "'true'"] {
            let set = format!("marker={value}");
            cases.push(no(
                &format!("marker {value}: {what}"),
                RULE,
                &[RUNNING],
                &[&set, write],
            ));
        }
    }
    cases.push(
        ok(
            "marker: a superuser session needs none",
            &[RUNNING],
            &["marker=''", "P: reconcile_attempts = 1"],
        )
        .by_superuser(),
    );
    cases.push(ok(
        "marker: other tables need none",
        &[RUNNING],
        &["marker=''", "CALL diff.revision('c', '1')"],
    ));
    cases
}

fn writes_once() -> Vec<Case> {
    let mut cases = vec![
        no(
            "1 delete active",
            "supervised_command.delete_unsettled",
            &[RUNNING],
            &["-P"],
        ),
        no(
            "1 delete proven but active",
            "supervised_command.delete_unsettled",
            &[PROVEN],
            &["-P"],
        ),
        no(
            "1 delete exited without receipt",
            "supervised_command.delete_unsettled",
            &[
                r#"CALL fixture.plant($x$CALL fixture.command('c', true, '{"state": "exited", "settled_at": "2030-01-01Z"}')$x$)"#,
            ],
            &["-P"],
        ),
        ok("1 delete exited", &[EXITED], &["-P"]),
        ok("1 delete lost", &[LOST], &["-P"]),
        case("1 delete legacy", &[LEGACY], &["-P"], Accepted),
        no(
            "2 retention id",
            "supervised_command.retention_xid",
            &[RUNNING],
            &["P: supervision_retention_xid = '5'"],
        ),
        no(
            "2 retention id of a legacy row",
            "supervised_command.retention_xid",
            &[LEGACY],
            &["P: supervision_retention_xid = NULL"],
        ),
        ok(
            "2 same retention id",
            &[RUNNING],
            &["P: supervision_retention_xid = supervision_retention_xid"],
        ),
        no(
            "4 attach later",
            "supervised_command.initial_retention",
            &[LEGACY],
            &["P: provider_command = fixture.supervised()"],
        ),
        no(
            "4 attach later to a row without retention id",
            "supervised_command.initial_retention",
            &[r#"CALL fixture.command('c', false, '{"supervision_retention_xid": null}')"#],
            &["P: provider_command = fixture.supervised()"],
        ),
        ok(
            "4 attach at once",
            &[],
            &[LEGACY, "P: provider_command = fixture.supervised()"],
        ),
        ok(
            "4 attach in a savepoint",
            &[],
            &[
                LEGACY,
                "SAVEPOINT s",
                "P: provider_command = fixture.supervised()",
                "RELEASE s",
            ],
        ),
        ok(
            "4 insert in a savepoint, attach outside",
            &[],
            &[
                "SAVEPOINT s",
                LEGACY,
                "RELEASE s",
                "P: provider_command = fixture.supervised()",
            ],
        ),
        no(
            "4 JSON null attaches too",
            "supervised_command.initial_retention",
            &[LEGACY],
            &[r#"P: provider_command = fixture.supervised('{"supervision": null}')"#],
        ),
        ok(
            "5 cancel",
            &[RUNNING],
            &[
                "P: cancellation_requested_at = '2030-01-01Z', cancellation_reason = 'provider_deadline'",
            ],
        ),
        ok(
            "5 cancel a legacy command",
            &[LEGACY],
            &[
                "P: cancellation_requested_at = '2030-01-01Z', cancellation_reason = 'explicit_stop'",
            ],
        ),
        no(
            "5 cancel again",
            "supervised_command.cancellation_monotonic",
            &[CANCELLED],
            &["P: cancellation_requested_at = '2030-01-02Z'"],
        ),
        no(
            "5 other reason",
            "supervised_command.cancellation_monotonic",
            &[CANCELLED],
            &["P: cancellation_reason = 'provider_deadline'"],
        ),
        no(
            "5 take it back",
            "supervised_command.cancellation_monotonic",
            &[CANCELLED],
            &["P: cancellation_requested_at = NULL, cancellation_reason = NULL"],
        ),
        ok(
            "5 same again",
            &[CANCELLED],
            &["P: cancellation_reason = 'explicit_stop'"],
        ),
        no(
            "6 other receipt",
            "supervised_command.proof_immutable",
            &[RECEIVED],
            &[r#"P: supervision_receipt = fixture.receipt('{"leaderExitCode": 4}')"#],
        ),
        no(
            "6 no receipt",
            "supervised_command.proof_immutable",
            &[RECEIVED],
            &["P: supervision_receipt = NULL"],
        ),
        ok(
            "6 equal receipt",
            &[RECEIVED],
            &[r#"P: supervision_receipt = fixture.receipt('{"leaderExitCode": 3}')"#],
        ),
        no(
            "6 captured no more",
            "supervised_command.proof_immutable",
            &[CAPTURED],
            &["cap", "P: supervision_output_captured = false"],
        ),
        case(
            "6 captured NULL",
            &[CAPTURED],
            &["cap", "P: supervision_output_captured = NULL"],
            State("23502"),
        ),
        no(
            "10 adopt a cancelled command",
            "supervised_command.adoption",
            &[CANCELLED],
            &["P: owner_actor_id = $new"],
        ),
        no(
            "10 adopt a cancelled legacy command",
            "supervised_command.adoption",
            &[
                r#"CALL fixture.command('c', false, '{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}')"#,
            ],
            &["P: owner_execution_generation = 4"],
        ),
        ok(
            "10 adopt",
            &[RUNNING],
            &[
                "A: operation = operation",
                "P: owner_actor_id = owner_actor_id",
            ],
        ),
        no(
            "11 exited again",
            "supervised_command.terminal",
            &[EXITED],
            &["P: settled_at = '2030-01-02Z'"],
        ),
        no(
            "11 other exit code",
            "supervised_command.terminal",
            &[EXITED],
            &["P: exit_code = 4"],
        ),
        no(
            "11 back to life",
            "supervised_command.terminal",
            &[LOST],
            &["P: state = 'active', settled_at = NULL"],
        ),
        ok(
            "11 late reason",
            &[EXITED],
            &["P: settlement_reason = 'late'"],
        ),
        ok(
            "11 late cancellation",
            &[EXITED],
            &[
                "P: cancellation_requested_at = '2030-01-01Z', cancellation_reason = 'explicit_stop'",
            ],
        ),
        ok(
            "11 contradictory proof",
            &[EXITED],
            &[
                "P: reconcile_proof_outcome = 'lost', reconcile_proof_reason = 'provider_instance_not_found', reconcile_proof_observed_at = '2030-01-01Z'",
            ],
        ),
        no(
            "15 time only",
            "supervised_command.cancellation_intent",
            &[RUNNING],
            &["P: cancellation_requested_at = '2030-01-01Z'"],
        ),
        no(
            "15 reason only",
            "supervised_command.cancellation_intent",
            &[LEGACY],
            &["P: cancellation_reason = 'explicit_stop'"],
        ),
        no(
            "15 other reason",
            "supervised_command.cancellation_intent",
            &[RUNNING],
            &["P: cancellation_requested_at = '2030-01-01Z', cancellation_reason = 'x'"],
        ),
        no(
            "15 at insertion",
            "supervised_command.cancellation_intent",
            &["CALL fixture.parent('c')"],
            &[r#"CALL fixture.process('c', true, '{"cancellation_reason": "x"}')"#],
        ),
        no(
            "16 receipt of a legacy command",
            "supervised_command.legacy_proof",
            &[LEGACY],
            &["P: supervision_receipt = '{}'"],
        ),
        no(
            "16 capture of a legacy command",
            "supervised_command.legacy_proof",
            &[LEGACY],
            &["P: supervision_output_captured = true"],
        ),
        no(
            "16 at insertion",
            "supervised_command.legacy_proof",
            &["CALL fixture.parent('c')"],
            &[r#"CALL fixture.process('c', false, '{"supervision_output_captured": true}')"#],
        ),
        ok("17 launch", &[LEASE], &[RUNNING]),
        no(
            "17 launch into a capture",
            "supervised_command.containment",
            &[LEASE, "L: archive_capture_id = $new"],
            &[RUNNING],
        ),
        no(
            "17 launch into a drain",
            "supervised_command.containment",
            &[LEASE, "L: unobservable_command_drain_ids = '{}'"],
            &[RUNNING],
        ),
        no(
            "17 attach into a capture",
            "supervised_command.containment",
            &[LEASE, "L: archive_capture_id = $new"],
            &[LEGACY, "P: provider_command = fixture.supervised()"],
        ),
        ok(
            "17 legacy launch into a capture",
            &[LEASE, "L: archive_capture_id = $new"],
            &[LEGACY],
        ),
        ok(
            "17 published capture",
            &[LEASE, "L: archive_capture_published_at = '2030-01-01Z'"],
            &[RUNNING],
        ),
    ];
    for (column, value) in [
        ("lease_epoch", "2"),
        ("provider_backend", "'x'"),
        ("provider_instance_id", "'sb-2'"),
        ("provider_binding_key", "'x'"),
        ("provider_binding", "'{}'"),
        ("parent_admission_id", "$new"),
        ("holder_id", "'x'"),
        ("account_id", "$new"),
        ("workspace_id", "$new"),
        ("session_id", "$new"),
        ("sandbox_group_id", "$new"),
        ("id", "$new"),
        ("provider_session_id", "2"),
        ("route_kind", "'active'"),
        ("route_target_id", "$new"),
        ("route_epoch", "2"),
        ("lease_id", "$new"),
        ("provider_command", "provider_command - 'supervision'"),
        ("provider_command", "provider_command || '{\"x\": 1}'"),
        ("provider_command", "provider_command - 'taskId'"),
        ("provider_command", "NULL"),
        (
            "provider_command",
            "jsonb_set(provider_command, '{supervision,nonce}', '\"x\"')",
        ),
    ] {
        cases.push(no(
            &format!("3 {column} to {value}"),
            "supervised_command.identity",
            &[RUNNING],
            &[&format!("P: {column} = {value}")],
        ));
    }
    cases.push(case(
        "3 a scalar where no command was",
        &["CALL fixture.command('c', false, '{\"provider_command\": null}')"],
        &["P: provider_command = '\"x\"'"],
        State("22023"),
    ));
    cases.push(ok(
        "3 a legacy command may change",
        &[LEGACY],
        &["P: provider_command = provider_command || '{\"x\": 1}'"],
    ));
    cases.push(ok("3 equal numbers", &[r#"CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised('{"n": 1}')))"#],
        &[r#"P: provider_command = provider_command || '{"n": 1.0}'"#]));
    cases.push(no("3 long numbers", "supervised_command.identity",
        &[r#"CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised('{"n": 123456789012345678901234567890}')))"#],
        &[r#"P: provider_command = provider_command || '{"n": 123456789012345678901234567891}'"#]));
    cases
}

fn stdin() -> Vec<Case> {
    let next = "P: provider_command_input_index = provider_command_input_index + 1";
    vec![
        ok("7 input with a child", &[RUNNING, CHILD], &[next]),
        no(
            "7 input after cancellation",
            "supervised_command.stdin_closed",
            &[
                RUNNING,
                CHILD,
                "P: cancellation_requested_at = '2030-01-01Z', cancellation_reason = 'explicit_stop'",
            ],
            &[next],
        ),
        no(
            "7 input after receipt",
            "supervised_command.stdin_closed",
            &[RECEIVED],
            &[next],
        ),
        no(
            "7 input of a cancelled legacy command",
            "supervised_command.stdin_closed",
            &[
                r#"CALL fixture.command('c', false, '{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}')"#,
            ],
            &[next],
        ),
        no(
            "8 no child",
            "supervised_command.stdin_child",
            &[RUNNING],
            &[next],
        ),
        no(
            "8 settled child",
            "supervised_command.stdin_child",
            &[RUNNING, SETTLED_CHILD],
            &[next],
        ),
        no(
            "8 child of another process",
            "supervised_command.stdin_child",
            &[
                RUNNING,
                "CALL fixture.child('c', 2, jsonb_build_object('actor_id', $new))",
            ],
            &[next],
        ),
        no(
            "8 child on another epoch",
            "supervised_command.stdin_child",
            &[
                RUNNING,
                CHILD,
                "su SET session_replication_role = replica",
                "su C: lease_epoch = 2",
                "su RESET session_replication_role",
            ],
            &[next],
        ),
        no(
            "8 child of another instance",
            "supervised_command.stdin_child",
            &[
                RUNNING,
                CHILD,
                "su SET session_replication_role = replica",
                "su C: provider_instance_id = 'x'",
                "su RESET session_replication_role",
            ],
            &[next],
        ),
        ok("8 legacy input needs none", &[LEGACY], &[next]),
        no(
            "9 back",
            "supervised_command.stdin_regress",
            &[RUNNING, CHILD, "P: provider_command_input_index = 5"],
            &["P: provider_command_input_index = 4"],
        ),
        ok(
            "9 back for a legacy command",
            &[LEGACY, "P: provider_command_input_index = 5"],
            &["P: provider_command_input_index = 4"],
        ),
        case(
            "9 too far",
            &[RUNNING, CHILD],
            &["P: provider_command_input_index = 9007199254740992"],
            State("23514"),
        ),
        case(
            "9 NULL",
            &[RUNNING, CHILD],
            &["P: provider_command_input_index = NULL"],
            State("23502"),
        ),
        no(
            "8 NULL without child",
            "supervised_command.stdin_child",
            &[RUNNING],
            &["P: provider_command_input_index = NULL"],
        ),
    ]
}

fn output() -> Vec<Case> {
    let regress = "supervised_command.output_regress";
    let forward =
        with_stdout(r#"{"byteOffset": 12, "utf8Remainder": "", "eof": false, "exitCode": null}"#);
    let end =
        with_stdout(r#"{"byteOffset": 12, "utf8Remainder": "", "eof": true, "exitCode": null}"#);
    let stream = |text: &str| with_stdout(text);
    let mut cases = vec![
        ok("12 capture", &[READ], &["cap", &forward]),
        no(
            "12 no setting",
            "supervised_command.capture_protocol",
            &[READ],
            &["cap=''", &forward],
        ),
        no(
            "12 upper case",
            "supervised_command.capture_protocol",
            &[READ],
            &["cap=upper($pid)", &forward],
        ),
        no(
            "12 other process",
            "supervised_command.capture_protocol",
            &[READ],
            &["cap=$new::text", &forward],
        ),
        no(
            "12 space",
            "supervised_command.capture_protocol",
            &[READ],
            &["cap=$pid || ' '", &forward],
        ),
        no(
            "12 captured flag alone",
            "supervised_command.capture_protocol",
            &[DRAINED],
            &["cap=''", "P: supervision_output_captured = true"],
        ),
        ok(
            "12 equal streams need none",
            &[READ],
            &[
                "cap=''",
                "P: provider_command = jsonb_set(provider_command, '{streams,stdout,byteOffset}', '9')",
            ],
        ),
        no(
            "12 streams removed",
            "supervised_command.capture_protocol",
            &[READ],
            &[
                "cap=''",
                "P: provider_command = provider_command - 'streams'",
            ],
        ),
        ok("12 legacy needs none", &[LEGACY], &[&forward]),
        no(
            "13 back",
            regress,
            &[READ],
            &[
                "cap",
                &stream(
                    r#"{"byteOffset": 8, "utf8Remainder": "", "eof": false, "exitCode": null}"#,
                ),
            ],
        ),
        ok("13 to the end", &[READ], &["cap", &end]),
        ok(
            "13 same offset, other remainder",
            &[READ],
            &[
                "cap",
                &stream(
                    r#"{"byteOffset": 9, "utf8Remainder": "x", "eof": false, "exitCode": null}"#,
                ),
            ],
        ),
        no("13 past the end", regress, &[EOF], &["cap", &end]),
        no(
            "13 no longer at the end",
            regress,
            &[EOF],
            &[
                "cap",
                &stream(
                    r#"{"byteOffset": 9, "utf8Remainder": "", "eof": false, "exitCode": null}"#,
                ),
            ],
        ),
        ok(
            "13 exit code after the end",
            &[EOF],
            &[
                "cap",
                &stream(r#"{"byteOffset": 9, "utf8Remainder": "", "eof": true, "exitCode": 0}"#),
            ],
        ),
        no(
            "13 other exit code",
            regress,
            &[DRAINED],
            &[
                "cap",
                &stream(r#"{"byteOffset": 9, "utf8Remainder": "", "eof": true, "exitCode": 1}"#),
            ],
        ),
        no(
            "13 no exit code",
            regress,
            &[DRAINED],
            &[
                "cap",
                &stream(r#"{"byteOffset": 9, "utf8Remainder": "", "eof": true}"#),
            ],
        ),
        no(
            "13 extra after the end",
            regress,
            &[EOF],
            &[
                "cap",
                &stream(
                    r#"{"byteOffset": 9, "utf8Remainder": "", "eof": true, "exitCode": 0, "x": 1}"#,
                ),
            ],
        ),
        ok(
            "13 extra before the end",
            &[READ],
            &[
                "cap",
                &stream(
                    r#"{"byteOffset": 9, "utf8Remainder": "", "eof": false, "exitCode": null, "x": 1}"#,
                ),
            ],
        ),
        ok(
            "13 offset as a string",
            &[READ],
            &[
                "cap",
                &stream(
                    r#"{"byteOffset": " 12 ", "utf8Remainder": "", "eof": false, "exitCode": null}"#,
                ),
            ],
        ),
        no(
            "13 stderr back",
            regress,
            &[READ, "cap=NULL"],
            &[
                "cap",
                "P: provider_command = jsonb_set(provider_command, '{streams,stderr,byteOffset}', '-1')",
            ],
        ),
        no(
            "13 both: stdout speaks, as does stderr",
            regress,
            &[DRAINED],
            &[
                "cap",
                "P: provider_command = provider_command || fixture.streams(fixture.cursor())",
            ],
        ),
        no(
            "20 not at the end",
            "supervised_command.capture_incomplete",
            &[READ],
            &["cap", "P: supervision_output_captured = true"],
        ),
        no(
            "20 no streams",
            "supervised_command.capture_incomplete",
            &[
                "CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised() - 'streams'))",
            ],
            &["cap", "P: supervision_output_captured = true"],
        ),
        no(
            "20 remainder",
            "supervised_command.capture_incomplete",
            &[RUNNING],
            &[
                "cap",
                r#"P: supervision_output_captured = true, provider_command = provider_command || fixture.streams(fixture.drained(), fixture.drained('{"utf8Remainder": "x"}'))"#,
            ],
        ),
        no(
            "20 exit code",
            "supervised_command.capture_incomplete",
            &[RUNNING],
            &[
                "cap",
                r#"P: supervision_output_captured = true, provider_command = provider_command || fixture.streams(fixture.drained('{"exitCode": 1}'), fixture.drained())"#,
            ],
        ),
        no(
            "20 exit code null",
            "supervised_command.capture_incomplete",
            &[RUNNING],
            &[
                "cap",
                r#"P: supervision_output_captured = true, provider_command = provider_command || fixture.streams(fixture.drained('{"exitCode": null}'), fixture.drained())"#,
            ],
        ),
        no(
            "20 exit code 0.0",
            "supervised_command.capture_incomplete",
            &[RUNNING],
            &[
                "cap",
                r#"P: supervision_output_captured = true, provider_command = provider_command || fixture.streams(fixture.drained('{"exitCode": 0.0}'), fixture.drained())"#,
            ],
        ),
        ok("20 complete", &[RUNNING], &["cap", DRAIN]),
        ok(
            "20 flag alone",
            &[DRAINED],
            &["cap", "P: supervision_output_captured = true"],
        ),
    ];
    for stage in ["[]", "{}"] {
        cases.push(no(&format!("13 captured row, stream {stage}"), regress, &[CAPTURED],
            &["cap", &format!("P: provider_command = jsonb_set(provider_command, '{{streams,stdout}}', '{stage}')")]));
    }
    cases
}

fn documents() -> Vec<Case> {
    let insert = |changes: &str| {
        format!(
            "CALL fixture.process('c', true, jsonb_build_object('provider_command', {changes}))"
        )
    };
    let mut cases = Vec::new();
    let d = "supervised_command.descriptor";
    for (what, right, changes) in [
        ("protocol", false, r#"{"protocol": "x"}"#),
        ("protocol null", false, r#"{"protocol": null}"#),
        ("invocationId", false, r#"{"invocationId": "x"}"#),
        (
            "invocationId upper",
            true,
            r#"{"invocationId": "0A1B2C3D-0000-4000-8000-00000000000F"}"#,
        ),
        (
            "invocationId newline",
            false,
            "{\"invocationId\": \"0a1b2c3d-0000-4000-8000-00000000000f\\n\"}",
        ),
        (
            "nonce upper",
            false,
            r#"{"nonce": "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef"}"#,
        ),
        ("nonce short", false, r#"{"nonce": "0"}"#),
        ("nonce number", false, r#"{"nonce": 1}"#),
        (
            "nonce digits",
            true,
            r#"{"nonce": 1234567890123456789012345678901234567890123456789012345678901234}"#,
        ),
        (
            "controlPath",
            false,
            r#"{"controlPath": "/tmp/opengeni-supervision/x.sock"}"#,
        ),
        (
            "controlPath dashes",
            true,
            r#"{"controlPath": "/tmp/opengeni-supervision/------------------------------------.sock"}"#,
        ),
        (
            "controlPath upper",
            false,
            r#"{"controlPath": "/tmp/opengeni-supervision/0A1b2c3d-0000-4000-8000-00000000000f.sock"}"#,
        ),
        (
            "controlPath newline",
            false,
            "{\"controlPath\": \"/tmp/opengeni-supervision/0a1b2c3d-0000-4000-8000-00000000000f.sock\\n\"}",
        ),
        ("extra key", false, r#"{"x": 1}"#),
        ("nothing", true, "{}"),
    ] {
        let step = insert(&format!(
            "fixture.supervised(jsonb_build_object('supervision', fixture.descriptor('{changes}')))"
        ));
        cases.push(match right {
            true => ok(
                &format!("18 {what}"),
                &["CALL fixture.parent('c')"],
                &[&step],
            ),
            false => no(
                &format!("18 {what}"),
                d,
                &["CALL fixture.parent('c')"],
                &[&step],
            ),
        });
    }
    for (what, want, changes) in [
        ("a JSON null", Rule(d), r#"{"supervision": null}"#),
        ("an array", Rule(d), r#"{"supervision": []}"#),
        (
            "a string",
            Rule(d),
            r#"{"supervision": "native-subreaper-v1"}"#,
        ),
        ("an empty object", Rule(d), r#"{"supervision": {}}"#),
        (
            "a control command",
            Rule(d),
            r#"{"kind": "modal-control-v1"}"#,
        ),
        ("another kind", Rule(d), r#"{"kind": "x"}"#),
        ("pty", Rule(d), r#"{"pty": true}"#),
        ("pty on", Rule(d), r#"{"pty": "on"}"#),
        ("pty off", Accepted, r#"{"pty": "off"}"#),
        ("pty null", Accepted, r#"{"pty": null}"#),
        ("pty 1", Rule(d), r#"{"pty": 1}"#),
        ("pty 0", Accepted, r#"{"pty": 0}"#),
        ("pty 00", State("22P02"), r#"{"pty": "00"}"#),
        ("pty word", State("22P02"), r#"{"pty": "perhaps"}"#),
        ("pty object", State("22P02"), r#"{"pty": {}}"#),
        (
            "pty word of a control command",
            Rule(d),
            r#"{"pty": "perhaps", "kind": "modal-control-v1"}"#,
        ),
        ("wrong sandbox", State("23514"), r#"{"sandboxId": "x"}"#),
        ("no task", State("23514"), r#"{"taskId": null}"#),
    ] {
        cases.push(case(
            &format!("18 {what}"),
            &["CALL fixture.parent('c')"],
            &[&insert(&format!("fixture.supervised('{changes}')"))],
            want,
        ));
    }
    for (what, want, command) in [
        (
            "an array with the word",
            Rule("supervised_command.cancellation_intent"),
            r#"'["supervision"]'::jsonb"#,
        ),
        (
            "a scalar with the word",
            Rule("supervised_command.cancellation_intent"),
            r#"'"supervision"'::jsonb"#,
        ),
    ] {
        cases.push(case(&format!("18 {what}"), &["CALL fixture.parent('c')"],
            &[&format!("CALL fixture.process('c', true, jsonb_build_object('provider_command', {command}, 'cancellation_reason', 'x'))")], want));
        cases.push(case(
            &format!("18 {what}, otherwise right"),
            &["CALL fixture.parent('c')"],
            &[&insert(command)],
            State("23514"),
        ));
    }
    let r = "supervised_command.receipt";
    for (what, want, receipt) in [
        ("right", Accepted, "fixture.receipt()"),
        ("JSON null", Rule(r), "'null'"),
        ("array", Rule(r), "'[]'"),
        ("string", Rule(r), "'\"x\"'"),
        ("empty", Rule(r), "'{}'"),
        (
            "other protocol",
            Rule(r),
            r#"fixture.receipt('{"protocol": "x"}')"#,
        ),
        (
            "invocation in upper case",
            Rule(r),
            r#"fixture.receipt('{"invocationId": "0A1B2C3D-0000-4000-8000-00000000000F"}')"#,
        ),
        (
            "receipt id in upper case",
            Accepted,
            r#"fixture.receipt('{"receiptId": "0A1B2C3D-0000-4000-8000-00000000000F"}')"#,
        ),
        (
            "receipt id",
            Rule(r),
            r#"fixture.receipt('{"receiptId": "x"}')"#,
        ),
        ("no receipt id", Rule(r), "fixture.receipt() - 'receiptId'"),
        (
            "exit code as string",
            Rule(r),
            r#"fixture.receipt('{"leaderExitCode": "3"}')"#,
        ),
        (
            "exit code null",
            Rule(r),
            r#"fixture.receipt('{"leaderExitCode": null}')"#,
        ),
        (
            "exit code 3.0",
            Rule(r),
            r#"fixture.receipt('{"leaderExitCode": 3.0}')"#,
        ),
        (
            "exit code 7e1",
            Accepted,
            r#"fixture.receipt('{"leaderExitCode": 7e1}')"#,
        ),
        (
            "exit code -0",
            Accepted,
            r#"fixture.receipt('{"leaderExitCode": -0}')"#,
        ),
        (
            "exit code max",
            Accepted,
            r#"fixture.receipt('{"leaderExitCode": 2147483647}')"#,
        ),
        (
            "exit code too large",
            Rule(r),
            r#"fixture.receipt('{"leaderExitCode": 2147483648}')"#,
        ),
        (
            "exit code min",
            Accepted,
            r#"fixture.receipt('{"leaderExitCode": -2147483648}')"#,
        ),
        (
            "exit code too small",
            Rule(r),
            r#"fixture.receipt('{"leaderExitCode": -2147483649}')"#,
        ),
        (
            "exit code huge",
            Rule(r),
            r#"fixture.receipt('{"leaderExitCode": 1e400}')"#,
        ),
        ("extra key", Rule(r), r#"fixture.receipt('{"x": 1}')"#),
        (
            "missing exit code",
            Rule(r),
            "fixture.receipt() - 'leaderExitCode'",
        ),
    ] {
        cases.push(case(
            &format!("19 {what}"),
            &[RUNNING],
            &[&format!("P: supervision_receipt = {receipt}")],
            want,
        ));
    }
    cases.push(no(
        "24 unsettled child",
        "supervised_command.input_settles_first",
        &[RUNNING, CHILD],
        &[RECEIPT],
    ));
    cases.push(ok(
        "24 settled child",
        &[RUNNING, SETTLED_CHILD],
        &[RECEIPT],
    ));
    cases
}

fn losses() -> Vec<Case> {
    let typed = "supervised_command.typed_loss";
    let rejection = "supervised_command.launch_rejection";
    let fabricated = "supervised_command.loss_fabricated";
    let mut cases = vec![
        ok("23 loss", &[RUNNING], &["loss", LOSE, "reject", "-H", COLD]),
        ok(
            "23 loss, lease first",
            &[RUNNING],
            &["loss", COLD, LOSE, "reject", "-H"],
        ),
        ok(
            "23 loss with output and receipt",
            &[PROVEN],
            &["loss", LOSE, "reject", "-H", COLD],
        ),
        ok(
            "23 loss with an unsettled child",
            &[RUNNING, CHILD],
            &[
                "loss",
                LOSE,
                "reject",
                "-H",
                "C: provider_outcome = 'rejected', settled_at = '2030-01-01Z'",
                COLD,
            ],
        ),
        ok(
            "23 loss of a cancelled command",
            &[CANCELLED],
            &["loss", LOSE, "reject", "-H", COLD],
        ),
        ok(
            "23 lost row touched",
            &[LOST],
            &["P: reconcile_attempts = 1"],
        ),
        no(
            "23 lost for another reason",
            typed,
            &[LOST],
            &["P: settlement_reason = 'x'"],
        ),
        no(
            "23 lost, then rejected",
            rejection,
            &[LOST],
            &["P: settlement_reason = 'provider_start_rejected'"],
        ),
        no(
            "22 rejected, then lost",
            typed,
            &[REJECTED],
            &["P: settlement_reason = 'provider_instance_lost'"],
        ),
        no(
            "23 no reason",
            typed,
            &[RUNNING],
            &["loss", "P: state = 'lost', settled_at = '2030-01-01Z'"],
        ),
        no(
            "23 other reason",
            typed,
            &[RUNNING],
            &[
                "loss",
                "P: state = 'lost', settled_at = '2030-01-01Z', settlement_reason = 'x'",
            ],
        ),
        no("23 no binding", typed, &[RUNNING], &["loss=''", LOSE]),
        case(
            "23 malformed binding",
            &[RUNNING],
            &["loss='{'", LOSE],
            State("22P02"),
        ),
        case(
            "23 malformed binding, other reason",
            &[RUNNING],
            &["loss='{'", "P: state = 'lost', settled_at = '2030-01-01Z'"],
            State("22P02"),
        ),
        case(
            "23 malformed binding of a lost row",
            &[LOST],
            &["loss='{'", "P: reconcile_attempts = 1"],
            State("22P02"),
        ),
        ok(
            "23 malformed rejection binding is not read",
            &[RUNNING],
            &["rej='{'", "loss", LOSE, "reject", "-H", COLD],
        ),
        no(
            "21 exit code",
            fabricated,
            &[RUNNING],
            &[
                "loss",
                "P: state = 'lost', exit_code = 0, settlement_reason = 'provider_instance_lost', settled_at = '2030-01-01Z'",
            ],
        ),
        no(
            "21 not settled",
            fabricated,
            &[RUNNING],
            &[
                "loss",
                "P: state = 'lost', settlement_reason = 'provider_instance_lost'",
            ],
        ),
        no(
            "21 with a receipt",
            fabricated,
            &[RUNNING],
            &[
                "loss",
                "P: state = 'lost', settlement_reason = 'provider_instance_lost', settled_at = '2030-01-01Z', supervision_receipt = fixture.receipt()",
            ],
        ),
        no(
            "21 with output",
            fabricated,
            &[RUNNING],
            &[
                "loss",
                "cap",
                "P: state = 'lost', settlement_reason = 'provider_instance_lost', settled_at = '2030-01-01Z', provider_command = jsonb_set(provider_command, '{streams,stdout,byteOffset}', '5')",
            ],
        ),
        no(
            "21 with input",
            fabricated,
            &[RUNNING, CHILD],
            &[
                "loss",
                "P: state = 'lost', settlement_reason = 'provider_instance_lost', settled_at = '2030-01-01Z', provider_command_input_index = 1",
            ],
        ),
        no(
            "21 inserted lost",
            fabricated,
            &[r#"CALL fixture.parent('c', '{"state": "lost"}')"#],
            &[
                r#"CALL fixture.process('c', true, '{"state": "lost", "settled_at": "2030-01-01Z", "settlement_reason": "provider_instance_lost"}')"#,
            ],
        ),
        ok(
            "21 inserted lost, legacy",
            &[r#"CALL fixture.parent('c', '{"state": "lost"}')"#],
            &[
                r#"CALL fixture.process('c', false, '{"state": "lost", "settled_at": "2030-01-01Z"}')"#,
            ],
        ),
        ok("22 rejection", &[RUNNING], &["rej", REJECT, "reject", "-H"]),
        no("22 no binding", rejection, &[RUNNING], &["rej=''", REJECT]),
        no(
            "22 other binding",
            rejection,
            &[RUNNING],
            &["rej=($REJ || '{\"x\": 1}')::text", REJECT],
        ),
        no(
            "22 other process",
            rejection,
            &[RUNNING],
            &[
                "rej=jsonb_set($REJ, '{processId}', to_jsonb($new))::text",
                REJECT,
            ],
        ),
        case(
            "22 malformed binding",
            &[RUNNING],
            &["rej='{'", REJECT],
            State("22P02"),
        ),
        case(
            "22 malformed binding though a receipt is there",
            &[RECEIVED],
            &["rej='{'", REJECT],
            State("22P02"),
        ),
        no("22 receipt", rejection, &[RECEIVED], &["rej", REJECT]),
        no("22 captured", rejection, &[CAPTURED], &["rej", REJECT]),
        no("22 output", rejection, &[READ], &["rej", REJECT]),
        no(
            "22 no streams",
            rejection,
            &[
                "CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised() - 'streams'))",
            ],
            &["rej", REJECT],
        ),
        no(
            "22 input",
            rejection,
            &[
                RUNNING,
                CHILD,
                "P: provider_command_input_index = 1",
                "C: provider_outcome = 'resolved', settled_at = '2030-01-01Z'",
            ],
            &["rej", REJECT],
        ),
        no(
            "22 child",
            rejection,
            &[RUNNING, SETTLED_CHILD],
            &["rej", REJECT],
        ),
        no(
            "22 proof",
            rejection,
            &[
                RUNNING,
                "P: reconcile_proof_outcome = 'lost', reconcile_proof_reason = 'provider_instance_not_found', reconcile_proof_observed_at = '2030-01-01Z'",
            ],
            &["rej", REJECT],
        ),
        ok(
            "22 rejected row touched",
            &[REJECTED],
            &["P: reconcile_attempts = 1"],
        ),
        no(
            "22 exit, then rejection",
            "supervised_command.terminal",
            &[EXITED],
            &["rej", REJECT],
        ),
    ];
    for (what, value) in [
        (
            "number as text",
            "jsonb_set($LOSS, '{lostEpoch}', '\"1\"')::text",
        ),
        ("member missing", "($LOSS - 'lostEpoch')::text"),
        ("extra member", "($LOSS || '{\"x\": 1}')::text"),
        ("upper case", "upper($LOSS::text)"),
        ("array", "'[]'"),
        ("null", "'null'"),
        (
            "other instance",
            "($LOSS || '{\"lostInstanceId\": \"x\"}')::text",
        ),
        ("other epoch", "($LOSS || '{\"lostEpoch\": 2}')::text"),
    ] {
        cases.push(no(
            &format!("23 binding: {what}"),
            typed,
            &[RUNNING],
            &[&format!("loss={value}"), LOSE],
        ));
    }
    for (what, value) in [
        ("1.0", "($LOSS || '{\"lostEpoch\": 1.0}')::text"),
        ("spaces", "'  ' || $LOSS::text || ' '"),
        (
            "twice the same key",
            "replace($LOSS::text, '{', '{\"lostEpoch\": 7, ')",
        ),
    ] {
        cases.push(ok(
            &format!("23 binding: {what}"),
            &[RUNNING],
            &[&format!("loss={value}"), LOSE, "reject", "-H", COLD],
        ));
    }
    let truth = "provider_loss.recovery_truth";
    for (what, lease) in [
        ("untouched", "L: refcount = 1".to_string()),
        ("warm", COLD.replace("'cold'", "'warm'")),
        (
            "same epoch",
            COLD.replace("lease_epoch = 2", "lease_epoch = 1"),
        ),
        (
            "later epoch",
            COLD.replace("lease_epoch = 2", "lease_epoch = 3"),
        ),
        (
            "instance kept",
            COLD.replace("instance_id = NULL", "instance_id = 'sb-1'"),
        ),
        (
            "other instance missing",
            COLD.replace("\"sb-1\"", "\"sb-2\""),
        ),
        (
            "instance running",
            COLD.replace("\"missing\"", "\"running\""),
        ),
        (
            "restore done",
            COLD.replace(
                "\"restore\": {\"status\": \"degraded\"}",
                "\"restore\": {\"status\": \"done\"}",
            ),
        ),
        (
            "workspace ready",
            COLD.replace(
                "\"workspace\": {\"status\": \"degraded\"}",
                "\"workspace\": {\"status\": \"ready\"}",
            ),
        ),
        ("status null", COLD.replace("\"missing\"", "null")),
        (
            "other backend",
            COLD.replace("liveness", "backend = 'x', liveness"),
        ),
    ] {
        cases.push(no(
            &format!("loss truth: {what}"),
            truth,
            &[RUNNING],
            &["loss", LOSE, "reject", "-H", &lease],
        ));
    }
    cases.push(ok(
        "loss truth: a rejection needs none",
        &[RUNNING],
        &["rej", REJECT, "reject", "-H"],
    ));
    cases.push(no(
        "loss truth: deleted afterwards",
        truth,
        &[RUNNING],
        &["loss", LOSE, "reject", "-H", "-P"],
    ));
    cases
}

fn settlement() -> Vec<Case> {
    let rule = "supervised_command.settlement";
    vec![
        ok("25 exit", &[PROVEN], &[EXIT, "settle", "-H"]),
        no("25 running", rule, &[RUNNING], &[EXIT]),
        no("25 receipt only", rule, &[RECEIVED], &[EXIT]),
        no("25 captured only", rule, &[CAPTURED], &[EXIT]),
        no(
            "25 other code",
            rule,
            &[PROVEN],
            &["P: state = 'exited', exit_code = 4, settled_at = '2030-01-01Z'"],
        ),
        no(
            "25 no code",
            rule,
            &[PROVEN],
            &["P: state = 'exited', settled_at = '2030-01-01Z'"],
        ),
        no(
            "25 other state",
            rule,
            &[PROVEN],
            &["P: state = 'x', exit_code = 3, settled_at = '2030-01-01Z'"],
        ),
        no(
            "25 active but settled",
            rule,
            &[PROVEN],
            &["P: settled_at = '2030-01-01Z'"],
        ),
        case(
            "25 exited but not settled",
            &[PROVEN],
            &["P: state = 'exited', exit_code = 3"],
            State("23514"),
        ),
        case(
            "25 state NULL",
            &[PROVEN],
            &["P: state = NULL"],
            State("23502"),
        ),
        no(
            "25 state NULL but settled",
            rule,
            &[PROVEN],
            &["P: state = NULL, settled_at = '2030-01-01Z'"],
        ),
        ok(
            "25 legacy exit",
            &[LEGACY],
            &[
                "P: state = 'exited', exit_code = 1, settled_at = '2030-01-01Z'",
                "settle",
                "-H",
            ],
        ),
        ok(
            "25 inserted settled",
            &[r#"CALL fixture.parent('c', '{"state": "exited"}')"#],
            &[&EXITED.replace("fixture.command", "fixture.process")],
        ),
        no(
            "25 insert exited without proof",
            rule,
            &[r#"CALL fixture.parent('c', '{"state": "exited"}')"#],
            &[
                r#"CALL fixture.process('c', true, '{"state": "exited", "settled_at": "2030-01-01Z"}')"#,
            ],
        ),
    ]
}

fn admissions() -> Vec<Case> {
    let mut cases = vec![
        no(
            "child delete, active",
            "child_admission.immutable",
            &[RUNNING, SETTLED_CHILD],
            &["-C"],
        ),
        no(
            "child delete, unsettled",
            "child_admission.immutable",
            &[LOST, "CALL fixture.plant($x$CALL fixture.child('c', 2)$x$)"],
            &["-C"],
        ),
        ok(
            "child delete, both ended",
            &[
                LOST,
                "CALL fixture.plant($x$CALL fixture.child('c', 2, '{\"provider_outcome\": \"resolved\", \"settled_at\": \"2030-01-01Z\"}')$x$)",
            ],
            &["-C"],
        ),
        ok(
            "child settle",
            &[RUNNING, CHILD],
            &["C: provider_outcome = 'resolved', settled_at = '2030-01-01Z'"],
        ),
        ok(
            "child settle with no change elsewhere",
            &[RUNNING, CHILD],
            &[
                "C: provider_outcome = 'rejected', settled_at = '2030-01-01Z', operation = operation",
            ],
        ),
        no(
            "child settle again",
            "child_admission.immutable",
            &[RUNNING, SETTLED_CHILD],
            &["C: settled_at = '2030-01-02Z'"],
        ),
        no(
            "child reopen",
            "child_admission.immutable",
            &[RUNNING, SETTLED_CHILD],
            &["C: provider_outcome = NULL, settled_at = NULL"],
        ),
        ok(
            "child settle the same again",
            &[RUNNING, SETTLED_CHILD],
            &["C: settled_at = '2030-01-01Z'"],
        ),
        no(
            "child of a lost process resolves",
            "child_admission.lost_outcome",
            &[LOST, "CALL fixture.plant($x$CALL fixture.child('c', 2)$x$)"],
            &["C: provider_outcome = 'resolved', settled_at = '2030-01-01Z'"],
        ),
        ok(
            "child of a lost process is rejected",
            &[LOST, "CALL fixture.plant($x$CALL fixture.child('c', 2)$x$)"],
            &["C: provider_outcome = 'rejected', settled_at = '2030-01-01Z'"],
        ),
        no(
            "child of a lost process changes",
            "child_admission.lost_outcome",
            &[LOST, "CALL fixture.plant($x$CALL fixture.child('c', 2)$x$)"],
            &["C: operation = 'x'"],
        ),
        no(
            "child by update",
            "child_admission.initial_insert",
            &[
                RUNNING,
                "CALL fixture.child('c', 2, jsonb_build_object('actor_id', $new))",
            ],
            &["C: actor_id = $p"],
        ),
        ok(
            "child by update of a legacy process",
            &[
                LEGACY,
                "CALL fixture.child('c', 2, jsonb_build_object('actor_id', $new))",
            ],
            &["C: actor_id = $p"],
        ),
        no(
            "child of a cancelled process",
            "child_admission.closed",
            &[CANCELLED],
            &[CHILD],
        ),
        no(
            "child of a proven process",
            "child_admission.closed",
            &[RECEIVED],
            &[CHILD],
        ),
        no(
            "child of a cancelled legacy process",
            "child_admission.closed",
            &[
                r#"CALL fixture.command('c', false, '{"cancellation_requested_at": "2030-01-01Z", "cancellation_reason": "explicit_stop"}')"#,
            ],
            &[CHILD],
        ),
        no(
            "child of a lost process",
            "child_admission.identity",
            &[LOST],
            &[CHILD],
        ),
        ok(
            "child of nobody",
            &[RUNNING],
            &["CALL fixture.child('c', 2, jsonb_build_object('actor_id', $new))"],
        ),
        ok(
            "child of a legacy process may differ",
            &[LEGACY],
            &[r#"CALL fixture.child('c', 2, '{"lease_epoch": 7}')"#],
        ),
        no(
            "parent settle, active",
            "parent_admission.retained",
            &[RUNNING],
            &["settle"],
        ),
        no(
            "parent delete, active",
            "parent_admission.retained",
            &[RUNNING],
            &["-A"],
        ),
        ok(
            "parent unchanged, active",
            &[RUNNING],
            &["A: operation = operation"],
        ),
        no(
            "parent of a lost process resolves",
            "parent_admission.lost_outcome",
            &[LOST],
            &["settle"],
        ),
        case(
            "parent delete, ended",
            &[EXITED],
            &["-A"],
            State(restrict_violation()),
        ),
        ok(
            "parent of a legacy process",
            &[
                r#"CALL fixture.command('c', false, '{"state": "exited", "settled_at": "2030-01-01Z"}')"#,
            ],
            &["A: operation = 'x'", "-P", "-A"],
        ),
        ok("parent and process go", &[EXITED], &["-P", "-A"]),
    ];
    for (column, value) in [
        ("id", "$new"),
        ("lease_epoch", "2"),
        ("operation", "'x'"),
        ("admitted_at", "'2020-01-01Z'"),
        ("workspace_generation", "77"),
        ("actor_id", "$new"),
        ("holder_id", "'x'"),
        ("turn_id", "$new"),
        ("route_epoch", "9"),
        ("holder_kind", "'direct'"),
        ("execution_generation", "1"),
    ] {
        cases.push(no(
            &format!("child {column}"),
            "child_admission.immutable",
            &[RUNNING, CHILD],
            &[&format!("C: {column} = {value}")],
        ));
        let value = value.replace("direct", "process");
        cases.push(no(
            &format!("parent {column}"),
            "parent_admission.retained",
            &[RUNNING],
            &[&format!("A: {column} = {value}")],
        ));
    }
    for (column, value) in [
        ("lease_epoch", "2"),
        ("provider_backend", "\"x\""),
        ("provider_instance_id", "\"x\""),
        ("holder_id", "\"x\""),
        ("holder_kind", "\"direct\""),
        ("route_kind", "\"active\""),
        ("route_epoch", "9"),
    ] {
        cases.push(no(
            &format!("child insert with {column}"),
            "child_admission.identity",
            &[RUNNING],
            &[&format!(
                "CALL fixture.child('c', 2, '{{\"{column}\": {value}}}')"
            )],
        ));
    }
    cases
}

fn holders() -> Vec<Case> {
    let rule = "process_holder.retained";
    let mut cases = vec![
        no("holder delete", rule, &[RUNNING], &["-H"]),
        ok(
            "holder unchanged",
            &[RUNNING],
            &["H: holder_id = holder_id"],
        ),
        ok(
            "holder of a legacy process",
            &[LEGACY],
            &["H: last_heartbeat_at = '2030-01-01Z'"],
        ),
        ok(
            "holder of another kind",
            &[RUNNING, r#"CALL diff.holder('c', '{"kind": "viewer"}')"#],
            &["DELETE FROM sandbox_lease_holders WHERE id = fixture.id('holder/2','c')"],
        ),
        case(
            "holder twice",
            &[RUNNING],
            &["CALL diff.holder('c')"],
            State("23505"),
        ),
        ok(
            "holder of nobody",
            &[RUNNING],
            &[r#"CALL diff.holder('c', '{"holder_id": "x"}')"#],
        ),
        ok(
            "holder of an ended legacy process",
            &[
                r#"CALL fixture.command('c', false, '{"state": "exited", "settled_at": "2030-01-01Z"}')"#,
            ],
            &["CALL diff.holder('c')"],
        ),
        ok(
            "holder of kind viewer for an ended process",
            &[EXITED],
            &[r#"CALL diff.holder('c', '{"kind": "viewer"}')"#],
        ),
        no("lease delete under a command", rule, &[RUNNING], &["-L"]),
    ];
    for (column, value) in [
        ("last_heartbeat_at", "'2030-01-01Z'"),
        ("kind", "'viewer'"),
        ("holder_id", "'x'"),
        ("subject_id", "NULL"),
        ("lease_id", "$new"),
        ("id", "$new"),
    ] {
        cases.push(no(
            &format!("holder {column}"),
            rule,
            &[RUNNING],
            &[&format!("H: {column} = {value}")],
        ));
    }
    cases
}

fn leases() -> Vec<Case> {
    let rule = "lease_capture.blocked";
    let mut cases = Vec::new();
    for (what, set) in [
        ("drain", "unobservable_command_drain_ids = '{}'"),
        ("capture", "archive_capture_id = $new"),
        (
            "publication",
            "archive_capture_published_at = '2030-01-01Z'",
        ),
        ("generation", "archive_generation = 0"),
        (
            "archive",
            r#"resume_state = '{"sessionState": {"workspaceArchive": "x"}}'"#,
        ),
        (
            "archive null",
            r#"resume_state = '{"sessionState": {"workspaceArchive": null}}'"#,
        ),
        (
            "meta",
            r#"resume_state = '{"sessionState": {"workspaceArchiveMeta": {}}}'"#,
        ),
        (
            "ref",
            r#"resume_state = '{"sessionState": {"workspaceArchiveRef": 1}}'"#,
        ),
    ] {
        let step = format!("L: {set}");
        cases.push(no(
            &format!("lease {what}, active"),
            rule,
            &[RUNNING],
            &[&step],
        ));
        cases.push(ok(&format!("lease {what}, legacy"), &[LEGACY], &[&step]));
        cases.push(ok(&format!("lease {what}, ended"), &[EXITED], &[&step]));
    }
    for (what, set) in [
        (
            "other state",
            r#"resume_state = '{"sessionState": {"x": 1}}'"#,
        ),
        (
            "previous archive",
            r#"resume_state = '{"sessionState": {"workspaceArchivePrev": "x"}}'"#,
        ),
        ("state is an array", r#"resume_state = '["sessionState"]'"#),
        (
            "session state is a string",
            r#"resume_state = '{"sessionState": "workspaceArchive"}'"#,
        ),
        (
            "nothing",
            "resume_state = NULL, archive_capture_id = NULL, archive_generation = NULL",
        ),
        (
            "cold",
            "liveness = 'cold', instance_id = NULL, lease_epoch = 9",
        ),
    ] {
        cases.push(ok(
            &format!("lease {what}, active"),
            &[RUNNING],
            &[&format!("L: {set}")],
        ));
    }
    cases.push(no(
        "lease archive taken away",
        rule,
        &[
            LEASE,
            r#"L: resume_state = '{"sessionState": {"workspaceArchive": "x"}}'"#,
            RUNNING,
        ],
        &["L: resume_state = NULL"],
    ));
    cases.push(no(
        "lease array element by path",
        rule,
        &[
            LEASE,
            r#"L: resume_state = '{"sessionState": {"workspaceArchive": 1}}'"#,
            RUNNING,
        ],
        &[r#"L: resume_state = '{"sessionState": [1]}'"#],
    ));
    cases.push(ok(
        "lease equal archive",
        &[
            LEASE,
            r#"L: resume_state = '{"sessionState": {"workspaceArchive": 1}}'"#,
            RUNNING,
        ],
        &[r#"L: resume_state = '{"sessionState": {"workspaceArchive": 1.0}}'"#],
    ));
    cases.push(ok(
        "lease generation cleared",
        &[LEASE, "L: archive_generation = 0", RUNNING],
        &["L: archive_generation = NULL"],
    ));
    cases
}

fn identity() -> Vec<Case> {
    let rule = "retained_process.identity";
    let mut cases = vec![
        no(
            "identity: no holder",
            rule,
            &[LEASE],
            &[
                RUNNING
                    .replace("fixture.command('c')", "fixture.parent('c')")
                    .as_str(),
                "-H",
                "CALL fixture.process('c')",
            ],
        ),
        no(
            "identity: through a cursor",
            "supervised_command.identity",
            &[RUNNING],
            &[
                "DECLARE c CURSOR FOR SELECT * FROM sandbox_retained_processes WHERE id = $p FOR UPDATE",
                "FETCH c",
                "UPDATE sandbox_retained_processes SET lease_epoch = 2 WHERE CURRENT OF c",
            ],
        ),
        no(
            "identity: deleted through a cursor",
            "supervised_command.delete_unsettled",
            &[RUNNING],
            &[
                "DECLARE c CURSOR FOR SELECT * FROM sandbox_retained_processes WHERE id = $p",
                "FETCH c",
                "DELETE FROM sandbox_retained_processes WHERE CURRENT OF c",
            ],
        ),
        ok(
            "identity: two writes through a cursor",
            &[RUNNING],
            &[
                "DECLARE c CURSOR FOR SELECT * FROM sandbox_retained_processes WHERE id = $p FOR UPDATE",
                "FETCH c",
                "UPDATE sandbox_retained_processes SET reconcile_attempts = 1 WHERE CURRENT OF c",
                "UPDATE sandbox_retained_processes SET reconcile_attempts = 2 WHERE CURRENT OF c",
                "CLOSE c",
            ],
        ),
        no(
            "identity: written again, unseen by its trigger",
            rule,
            &["CALL fixture.parent('c')", "-H"],
            &[
                "CALL fixture.process('c')",
                "SET LOCAL session_replication_role = replica",
                "P: reconcile_attempts = 1",
            ],
        )
        .by_superuser(),
        no(
            "identity: parent not retained",
            rule,
            &["CALL fixture.parent('c')", "A: provider_outcome = NULL"],
            &["CALL fixture.process('c')"],
        ),
        no(
            "identity: parent settled",
            rule,
            &["CALL fixture.parent('c')", "settle"],
            &["CALL fixture.process('c')"],
        ),
        no(
            "identity: exited, holder kept",
            rule,
            &[PROVEN],
            &[EXIT, "settle"],
        ),
        no(
            "identity: exited, parent retained",
            rule,
            &[PROVEN],
            &[EXIT, "-H"],
        ),
        no(
            "identity: exited, PTY open",
            rule,
            &[PROVEN, "CALL diff.pty('c')"],
            &[EXIT, "settle", "-H"],
        ),
        ok(
            "identity: exited, PTY closed",
            &[PROVEN, "CALL diff.pty('c')"],
            &[EXIT, "settle", "-H", "Y: status = 'closed'"],
        ),
        no(
            "identity: forged and deleted",
            rule,
            &["CALL fixture.parent('c')", "settle"],
            &[LEGACY.replace("command", "process").as_str(), "-P"],
        ),
        no(
            "identity: settled without release, deleted",
            rule,
            &[PROVEN],
            &[EXIT, "settle", "-P"],
        ),
        no(
            "identity: at SET CONSTRAINTS",
            rule,
            &[PROVEN],
            &[EXIT, "settle", "SET CONSTRAINTS ALL IMMEDIATE", "-H"],
        ),
        ok(
            "identity: holder back by ROLLBACK TO",
            &[LEGACY],
            &[
                "P: reconcile_attempts = 1",
                "SAVEPOINT s",
                "-H",
                "ROLLBACK TO s",
            ],
        ),
        no(
            "identity: touched, holder gone",
            rule,
            &[LEGACY],
            &["P: reconcile_attempts = 1", "-H"],
        ),
        ok(
            "identity: holder gone, process untouched",
            &[LEGACY],
            &["-H"],
        ),
        no(
            "identity: settlement rolled back, parent settled",
            rule,
            &[LEGACY],
            &[
                "P: reconcile_attempts = 1",
                "SAVEPOINT s",
                "P: state = 'exited', settled_at = '2030-01-01Z'",
                "ROLLBACK TO s",
                "settle",
                "-H",
            ],
        ),
    ];
    for (column, value) in [
        (
            "sandbox_group_id",
            "\"00000000-0000-4000-8000-000000000001\"",
        ),
        ("lease_epoch", "2"),
        ("provider_instance_id", "\"sb-2\""),
        ("route_epoch", "2"),
        ("owner_actor_id", "\"00000000-0000-4000-8000-000000000001\""),
        ("holder_id", "\"x\""),
        ("provider_backend", "\"x\""),
        ("route_kind", "\"active\""),
    ] {
        cases.push(no(&format!("identity: {column}"), rule, &["CALL fixture.parent('c')"],
            &[&format!("CALL fixture.process('c', false, '{{\"provider_command\": null, \"{column}\": {value}}}')")]));
    }
    cases
}

fn ptys() -> Vec<Case> {
    let rule = "pty.identity";
    let mut cases = vec![
        ok("pty", &[RUNNING], &["CALL diff.pty('c')"]),
        ok(
            "pty of a legacy process",
            &[LEGACY],
            &["CALL diff.pty('c')"],
        ),
        no(
            "pty of an ended process",
            rule,
            &[EXITED],
            &["CALL diff.pty('c')"],
        ),
        ok(
            "closed pty of an ended process",
            &[EXITED],
            &[r#"CALL diff.pty('c', '{"status": "closed"}')"#],
        ),
        no(
            "pty reopened",
            rule,
            &[EXITED, r#"CALL diff.pty('c', '{"status": "closed"}')"#],
            &["Y: status = 'open'"],
        ),
        ok(
            "closed pty may differ",
            &[
                RUNNING,
                r#"CALL diff.pty('c', '{"status": "closed", "lease_epoch": 7}')"#,
            ],
            &["Y: cols = 1"],
        ),
        no(
            "pty forged and deleted",
            rule,
            &[EXITED],
            &["CALL diff.pty('c')", "-Y"],
        ),
        no(
            "pty written often, and wrongly in the end",
            rule,
            &[RUNNING],
            &[
                "CALL diff.pty('c')",
                "DO $x$ BEGIN FOR i IN 1..300 LOOP UPDATE sandbox_pty_sessions SET cols = i WHERE id = $y; END LOOP; END $x$",
                "Y: lease_epoch = 7",
            ],
        ),
        no(
            "pty written again, unseen by its trigger",
            rule,
            &[EXITED],
            &[
                "CALL diff.pty('c')",
                "SET LOCAL session_replication_role = replica",
                "Y: cols = 1",
            ],
        )
        .by_superuser(),
        case(
            "pty without process",
            &[RUNNING],
            &[r#"CALL diff.pty('c', '{"retained_process_id": null}')"#],
            State("23514"),
        ),
    ];
    for (column, value) in [
        ("exec_session_id", "2"),
        ("lease_epoch", "2"),
        ("provider_backend", "\"x\""),
        ("provider_instance_id", "\"x\""),
        ("route_kind", "\"active\""),
        ("route_epoch", "2"),
        (
            "sandbox_group_id",
            "\"00000000-0000-4000-8000-000000000001\"",
        ),
        (
            "open_admission_id",
            "\"00000000-0000-4000-8000-000000000001\"",
        ),
    ] {
        cases.push(no(
            &format!("pty {column}"),
            rule,
            &[RUNNING],
            &[&format!("CALL diff.pty('c', '{{\"{column}\": {value}}}')")],
        ));
        cases.push(no(
            &format!("pty changes {column}"),
            rule,
            &[RUNNING, "CALL diff.pty('c')"],
            &[&format!("Y: {column} = {}", value.replace('"', "'"))],
        ));
    }
    cases
}

const PUBLISH: &str = "L: workspace_generation = 5, archive_generation = 5, current_checkpoint_artifact_id = $k1, resume_state = diff.archive('c', '1')";
const CURRENT: &str = "K: state = 'current'";
const PUBLISHED: &str = "DO $x$ BEGIN
    CALL fixture.lease('c');
    CALL diff.artifact('c', '1');
    UPDATE sandbox_leases SET workspace_generation = 5, archive_generation = 5,
      current_checkpoint_artifact_id = fixture.id('artifact/1','c'), resume_state = diff.archive('c', '1')
      WHERE id = fixture.id('lease','c');
    UPDATE sandbox_checkpoint_artifacts SET state = 'current' WHERE id = fixture.id('artifact/1','c');
  END $x$";
const ROTATE: &str = "L: archive_generation = 5, current_checkpoint_artifact_id = $k2, previous_checkpoint_artifact_id = $k1, resume_state = diff.archive('c', '2', '1')";
const STATES: &str = "UPDATE sandbox_checkpoint_artifacts SET state = CASE id WHEN $k1 THEN 'previous' ELSE 'current' END WHERE id IN ($k1, $k2)";

fn checkpoints() -> Vec<Case> {
    let (current, previous, state) = (
        "checkpoint_refs.current",
        "checkpoint_refs.previous",
        "checkpoint_artifact.state",
    );
    let artifact = "CALL diff.artifact('c', '1')";
    let second = "CALL diff.artifact('c', '2')";
    let mut cases = vec![
        ok(
            "checkpoint: publish",
            &[LEASE, artifact],
            &[PUBLISH, CURRENT],
        ),
        ok(
            "checkpoint: publish, artifact first",
            &[LEASE, artifact],
            &[CURRENT, PUBLISH],
        ),
        no(
            "checkpoint: state not set",
            current,
            &[LEASE, artifact],
            &[PUBLISH],
        ),
        no(
            "checkpoint: no lease",
            state,
            &[LEASE, artifact],
            &[CURRENT],
        ),
        no(
            "checkpoint: generation",
            current,
            &[LEASE, artifact],
            &[PUBLISH, CURRENT, "L: archive_generation = 4"],
        ),
        no(
            "checkpoint: archive",
            current,
            &[PUBLISHED],
            &[
                "L: resume_state = jsonb_set(resume_state, '{sessionState,workspaceArchive}', '\"x\"')",
            ],
        ),
        no(
            "checkpoint: archive gone",
            current,
            &[PUBLISHED],
            &["L: resume_state = NULL"],
        ),
        no(
            "checkpoint: revision",
            current,
            &[PUBLISHED],
            &[
                "L: resume_state = jsonb_set(resume_state, '{sessionState,workspaceArchiveMeta,revision}', '\"x\"')",
            ],
        ),
        no(
            "checkpoint: backend",
            current,
            &[PUBLISHED],
            &["L: backend = 'x'"],
        ),
        ok(
            "checkpoint: unlisted column",
            &[PUBLISHED],
            &["L: refcount = 1"],
        ),
        ok(
            "checkpoint: rotate",
            &[PUBLISHED, second],
            &[ROTATE, STATES],
        ),
        no(
            "checkpoint: rotate without states",
            current,
            &[PUBLISHED, second],
            &[ROTATE],
        ),
        no(
            "checkpoint: previous state",
            previous,
            &[PUBLISHED, second],
            &[
                ROTATE,
                "UPDATE sandbox_checkpoint_artifacts SET state = 'current' WHERE id IN ($k1, $k2)",
            ],
        ),
        no(
            "checkpoint: previous archive",
            previous,
            &[PUBLISHED, second],
            &[
                ROTATE,
                STATES,
                "L: resume_state = jsonb_set(resume_state, '{sessionState,workspaceArchivePrev}', '\"x\"')",
            ],
        ),
        no(
            "checkpoint: previous meta gone",
            previous,
            &[PUBLISHED, second],
            &[
                ROTATE,
                STATES,
                "L: resume_state = resume_state #- '{sessionState,workspaceArchivePrevMeta}'",
            ],
        ),
        case(
            "checkpoint: same twice",
            &[PUBLISHED],
            &["L: previous_checkpoint_artifact_id = $k1"],
            State("23514"),
        ),
        case(
            "checkpoint: unknown artifact",
            &[LEASE],
            &["L: current_checkpoint_artifact_id = $new"],
            State("23503"),
        ),
        no(
            "checkpoint: state taken away",
            state,
            &[PUBLISHED],
            &["K: state = 'delete_pending'"],
        ),
        ok(
            "checkpoint: unpublish",
            &[PUBLISHED],
            &[
                "L: current_checkpoint_artifact_id = NULL",
                "K: state = 'delete_pending'",
            ],
        ),
        no(
            "checkpoint: unpublish, state kept",
            state,
            &[PUBLISHED],
            &[
                "L: current_checkpoint_artifact_id = NULL",
                "K: state = 'current'",
            ],
        ),
        no(
            "checkpoint: vanished",
            "checkpoint_artifact.vanished",
            &[LEASE, artifact],
            &["K: state = 'delete_pending'", "-K"],
        ),
        no(
            "checkpoint: inserted and vanished",
            "checkpoint_artifact.vanished",
            &[LEASE],
            &[artifact, "-K"],
        ),
        ok(
            "checkpoint: gone and back",
            &[LEASE, artifact],
            &["K: state = 'delete_pending'", "-K", artifact],
        ),
        ok(
            "checkpoint: gone and back, referred to",
            &[PUBLISHED],
            &[
                "SET CONSTRAINTS ALL DEFERRED",
                "K: state = 'previous'",
                "-K",
                "CALL diff.artifact('c', '1', 'current')",
            ],
        ),
        no(
            "checkpoint: gone and back in another state",
            state,
            &[LEASE, artifact],
            &[
                "K: state = 'delete_pending'",
                "-K",
                "CALL diff.artifact('c', '1', 'current')",
            ],
        ),
        no(
            "checkpoint: back in another state, unseen by its trigger",
            state,
            &[LEASE, artifact],
            &[
                "K: state = 'delete_pending'",
                "-K",
                "SET LOCAL session_replication_role = replica",
                "CALL diff.artifact('c', '1', 'current')",
            ],
        )
        .by_superuser(),
        ok("checkpoint: deleted", &[LEASE, artifact], &["-K"]),
        ok(
            "checkpoint: adopted",
            &[
                LEASE,
                r#"CALL diff.artifact('c', '1', 'candidate', '{"provenance": "legacy_provider_adopted", "source_workspace_generation": null, "source_instance_id": null}')"#,
            ],
            &[PUBLISH, CURRENT],
        ),
        no(
            "checkpoint: adopted, stale",
            current,
            &[
                LEASE,
                r#"CALL diff.artifact('c', '1', 'candidate', '{"provenance": "legacy_provider_adopted", "source_workspace_generation": null, "source_instance_id": null}')"#,
            ],
            &[PUBLISH, CURRENT, "L: workspace_generation = 6"],
        ),
        no(
            "checkpoint: of another lease",
            current,
            &[
                LEASE,
                r#"CALL diff.artifact('c', '1', 'candidate', '{"source_lease_id": "00000000-0000-4000-8000-000000000001"}')"#,
            ],
            &[PUBLISH],
        ),
        no(
            "checkpoint: of another group",
            current,
            &[
                LEASE,
                r#"CALL diff.artifact('c', '1', 'candidate', '{"sandbox_group_id": "00000000-0000-4000-8000-000000000001"}')"#,
            ],
            &[PUBLISH, CURRENT],
        ),
    ];
    for (column, value) in [
        ("id", "$new"),
        ("sandbox_group_id", "$new"),
        ("source_lease_id", "$new"),
        ("source_lease_epoch", "2"),
        ("source_instance_id", "'x'"),
        ("source_workspace_generation", "6"),
        ("provenance", "'legacy_provider_adopted'"),
        ("object_id", "'x'"),
        ("archive_base64", "'eA=='"),
        ("archive_sha256", "'x'"),
        ("archive_bytes", "1"),
        ("descriptor", "descriptor || '{\"x\": 1}'"),
        ("descriptor_revision", "'x'"),
        ("created_at", "'2020-01-01Z'"),
        ("provider_backend", "'x'"),
        ("provider_binding_key", "'{}'"),
        ("provider_binding", "'{}'"),
        ("object_kind", "'x'"),
        ("account_id", "$new"),
        ("workspace_id", "$new"),
        ("descriptor", "NULL"),
    ] {
        cases.push(no(
            &format!("artifact {column} to {value}"),
            "checkpoint_artifact.immutable",
            &[LEASE, artifact],
            &[&format!("K: {column} = {value}")],
        ));
    }
    for set in [
        "delete_attempts = 2",
        "state = 'delete_pending', delete_after = '2030-01-01Z'",
        "last_delete_error = 'x'",
        "updated_at = '2030-01-01Z'",
        "descriptor = descriptor || '{}'",
    ] {
        cases.push(ok(
            &format!("artifact {set}"),
            &[LEASE, artifact],
            &[&format!("K: {set}")],
        ));
    }
    cases
}

fn policies() -> Vec<Case> {
    let one = "CALL diff.revision('c', '1')";
    let supersede = |changes: &str| {
        format!(
            "CALL diff.revision('c', '2', jsonb_build_object('supersedes_revision_id', $r1) || {changes})"
        )
    };
    let link = "instruction_policy.link";
    let mut cases = vec![
        ok("policy: revision", &[], &[one]),
        ok("policy: supersede", &[one], &[&supersede("'{}'")]),
        no(
            "policy: supersede another role",
            link,
            &[one],
            &[&supersede(r#"'{"role_key": "x"}'"#)],
        ),
        no(
            "policy: supersede another scope",
            link,
            &[one],
            &[&supersede(r#"'{"scope": "global", "role_key": null}'"#)],
        ),
        no(
            "policy: supersede another kind",
            link,
            &[one],
            &[&supersede(r#"'{"kind": "charter"}'"#)],
        ),
        no(
            "policy: supersede nothing",
            link,
            &[one],
            &[&supersede(
                "jsonb_build_object('supersedes_revision_id', $new)",
            )],
        ),
        no(
            "policy: supersede itself",
            link,
            &[],
            &["CALL diff.revision('c', '1', jsonb_build_object('supersedes_revision_id', $r1))"],
        ),
        ok("policy: head", &[one], &["CALL diff.head('c', '1')"]),
        ok("policy: event", &[one], &["CALL diff.event('c', '1')"]),
        ok(
            "policy: event with old",
            &[one],
            &["CALL diff.event('c', '1', '{}', 0)"],
        ),
        no(
            "policy: event with wrong old",
            "instruction_policy.event_old",
            &[one],
            &["CALL diff.event('c', '1', '{}', 1)"],
        ),
        no(
            "policy: event with old NULL parts",
            "instruction_policy.event_old",
            &[one],
            &["CALL diff.event('c', '1', jsonb_build_object('old_revision_id', $r1))"],
        ),
        no(
            "policy: both wrong",
            "instruction_policy.event_new",
            &[one],
            &[
                r#"CALL diff.event('c', '1', jsonb_build_object('old_revision_id', $r1, 'new_revision', 0))"#,
            ],
        ),
        no(
            "policy: revision immutable",
            "instruction_policy.immutable",
            &[one],
            &["R: content = content"],
        ),
        no(
            "policy: revision stays",
            "instruction_policy.immutable",
            &[one],
            &["-R"],
        ),
        no(
            "policy: event immutable",
            "instruction_policy.immutable",
            &[one, "CALL diff.event('c', '1')"],
            &[
                "UPDATE workspace_instruction_policy_activation_events SET reason = reason WHERE id = fixture.id('event','c')",
            ],
        ),
        no(
            "policy: event stays",
            "instruction_policy.immutable",
            &[one, "CALL diff.event('c', '1')"],
            &[
                "DELETE FROM workspace_instruction_policy_activation_events WHERE id = fixture.id('event','c')",
            ],
        ),
        ok(
            "policy: head goes",
            &[one, "CALL diff.head('c', '1')"],
            &["DELETE FROM workspace_instruction_policy_heads WHERE id = fixture.id('head','c')"],
        ),
        no(
            "policy: link before immutability",
            "instruction_policy.immutable",
            &[one],
            &["R: supersedes_revision_id = $new"],
        ),
    ];
    for (column, value) in [
        ("kind", "\"charter\""),
        ("scope", "\"global\""),
        ("role_key", "\"x\""),
        ("role_key", "null"),
        ("revision", "0"),
        ("content_hash", "\"x\""),
        ("revision_id", "null"),
    ] {
        cases.push(no(
            &format!("policy: head {column} {value}"),
            "instruction_policy.head",
            &[one],
            &[&format!(
                "CALL diff.head('c', '1', '{{\"{column}\": {value}}}')"
            )],
        ));
        let event = if ["revision", "content_hash", "revision_id"].contains(&column) {
            format!("new_{column}")
        } else {
            column.to_string()
        };
        cases.push(no(
            &format!("policy: event {column} {value}"),
            "instruction_policy.event_new",
            &[one],
            &[&format!(
                "CALL diff.event('c', '1', '{{\"{event}\": {value}}}')"
            )],
        ));
    }
    cases
}

/// Ways of writing: the guards see every row of every sort of statement.
fn values() -> Vec<Case> {
    vec![
        no("MERGE", "supervised_command.delete_unsettled", &[RUNNING],
            &["MERGE INTO sandbox_retained_processes t USING (SELECT $p AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE"]),
        no("ON CONFLICT DO UPDATE", "process_holder.retained", &[RUNNING],
            &["INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
               SELECT account_id, workspace_id, lease_id, kind, holder_id, subject_id FROM sandbox_lease_holders WHERE id = $h
               ON CONFLICT (lease_id, kind, holder_id) DO UPDATE SET subject_id = NULL"]),
        no("many rows, one refused", "supervised_command.identity", &[RUNNING], &["UPDATE sandbox_retained_processes SET route_epoch = 7 WHERE lease_id = $l"]),
        no("a writing CTE", "child_admission.immutable", &[RUNNING, CHILD], &["WITH gone AS (DELETE FROM sandbox_workspace_mutation_admissions WHERE id = $c RETURNING id) SELECT count(*) FROM gone"]),
        ok("deep nesting", &[r#"CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised(jsonb_build_object('deep', (repeat('[', 2000) || repeat(']', 2000))::jsonb))))"#],
            &["P: provider_command = provider_command || '{}'"]),
        no("deep nesting differs", "supervised_command.identity", &[r#"CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised(jsonb_build_object('deep', (repeat('[', 2000) || repeat(']', 2000))::jsonb))))"#],
            &["P: provider_command = jsonb_set(provider_command, '{deep}', (repeat('[', 2001) || repeat(']', 2001))::jsonb)"]),
        ok("large text", &[r#"CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised(jsonb_build_object('big', repeat('x', 3000000)))))"#],
            &["P: reconcile_attempts = 1"]),
        ok("attach, capture and prove in one transaction", &[], &[RUNNING, "cap", DRAIN, RECEIPT]),
        ok("attached with terminal streams, receipt and captured at once", &["CALL fixture.parent('c')"], &[&PROVEN.replace("fixture.command", "fixture.process")]),
        ok("streams absent at attachment", &["CALL fixture.parent('c')"], &["CALL fixture.process('c', true, jsonb_build_object('provider_command', fixture.supervised() - 'streams'))"]),
        ok("streams appear", &["CALL fixture.command('c', true, jsonb_build_object('provider_command', fixture.supervised() - 'streams'))"], &["cap", "P: provider_command = provider_command || fixture.streams(fixture.cursor())"]),
    ]
}

fn deviations() -> Vec<Case> {
    let identity = Message("retained process does not match its parent admission and holder state");
    let cast = State("22P02");
    let poisoned = [
        RUNNING,
        "su SET session_replication_role = replica",
        POISON,
        "su RESET session_replication_role",
    ];
    let read_poisoned = |stream: &str| -> String { with_stdout(stream) };
    let mut cases = vec![
        differs("D1", "touch and settle", &[PROVEN], &["P: reconcile_attempts = 1", EXIT, "settle", "-H"], Accepted, identity),
        differs("D1", "receipt and settle", &[CAPTURED], &[RECEIPT, EXIT, "settle", "-H"], Accepted, identity),
        differs("D1", "capture, receipt and settle", &[RUNNING], &["cap", DRAIN, RECEIPT, EXIT, "settle", "-H"], Accepted, identity),
        differs("D1", "insert and settle", &["CALL fixture.parent('c')"], &["CALL fixture.process('c', false)", "P: state = 'exited', settled_at = '2030-01-01Z'", "settle", "-H"], Accepted, identity),
        differs("D1", "touch and lose", &[RUNNING], &["P: reconcile_attempts = 1", "loss", LOSE, "reject", "-H", COLD], Accepted, identity),
        differs("D1", "touch and settle, at SET CONSTRAINTS", &[PROVEN], &["P: reconcile_attempts = 1", EXIT, "settle", "-H", "SET CONSTRAINTS ALL IMMEDIATE"], Accepted, identity),
        differs("D1", "settle after a savepoint rolled back", &[PROVEN], &["P: reconcile_attempts = 1", "SAVEPOINT s", "P: reconcile_attempts = 2", "ROLLBACK TO s", EXIT, "settle", "-H"], Accepted, identity),
        differs("D1", "checkpoint swapped twice", &[PUBLISHED, "CALL diff.artifact('c', '2')", "CALL diff.artifact('c', '3')"],
            &[PUBLISH, "L: current_checkpoint_artifact_id = $k2, previous_checkpoint_artifact_id = $k1, resume_state = diff.archive('c', '2', '1')",
              "L: current_checkpoint_artifact_id = $k2, previous_checkpoint_artifact_id = NULL, resume_state = diff.archive('c', '2')",
              "K: state = 'delete_pending'", "UPDATE sandbox_checkpoint_artifacts SET state = 'current' WHERE id = $k2"],
            Accepted, Message("checkpoint artifact does not match its exact lease scope")),
        differs("D1", "pty opened wrong, then right", &[RUNNING], &[r#"CALL diff.pty('c', '{"lease_epoch": 2}')"#, "Y: lease_epoch = 1"], Accepted, Message("open PTY does not match")),
        differs("D1", "pty opened wrong, then closed", &[RUNNING], &[r#"CALL diff.pty('c', '{"lease_epoch": 2}')"#, "Y: status = 'closed'"], Accepted, Message("open PTY does not match")),
        differs("D1", "a bad reference hidden by the lease's id", &[PUBLISHED], &["L: archive_generation = archive_generation", "L: id = $new"], Rule("checkpoint_refs.current"), Accepted),
        differs("D2", "tenant settings gone at COMMIT", &[LEGACY], &["P: reconcile_attempts = 1", "SELECT set_config('opengeni.workspace_id', '', true)"], Accepted, identity),
        differs("D2", "tenant settings gone, PTY", &[LEGACY], &["CALL diff.pty('c')", "SELECT set_config('opengeni.account_id', '', true)"], Accepted, Message("open PTY does not match")),
        differs("D2", "tenant settings gone, loss", &[RUNNING], &["loss", LOSE, "reject", "-H", COLD, "SELECT set_config('opengeni.workspace_id', '', true)"], Accepted, State("55000")),
        differs("D3", "poisoned row touched", &poisoned, &["P: reconcile_attempts = 1"], Accepted, cast),
        differs("D3", "poisoned row cancelled", &poisoned, &["P: cancellation_requested_at = '2030-01-01Z', cancellation_reason = 'explicit_stop'"], Accepted, cast),
        differs("D3", "poisoned row lost", &poisoned, &["loss", LOSE, "reject", "-H", COLD], Accepted, cast),
        differs("D3", "poisoned row repaired", &poisoned, &["cap", &read_poisoned(r#"{"byteOffset": 3, "utf8Remainder": "", "eof": false, "exitCode": null}"#)], Accepted, cast),
        differs("D3", "poisoned row moved aside", &poisoned, &["cap", "P: provider_command = jsonb_set(provider_command, '{streams,stderr,byteOffset}', '5')"], Rule("supervised_command.stream_cursor"), cast),
        case("13 an offset that is none", &[READ], &["cap", &read_poisoned(r#"{"byteOffset": "x", "utf8Remainder": "", "eof": false, "exitCode": null}"#)], cast),
        differs("D3", "an equal offset in other words", &[READ], &["cap=''", "P: provider_command = jsonb_set(provider_command, '{streams,stdout,byteOffset}', '9.0')"], Accepted, cast),
        differs("D3", "zero in other words, rejected", &[RUNNING, "su SET session_replication_role = replica", r#"su P: provider_command = jsonb_set(provider_command, '{streams,stdout,byteOffset}', '0.00')"#, "su RESET session_replication_role"], &["rej", REJECT, "reject", "-H"], Accepted, cast),
        differs("D11", "stream of a captured row null", &[CAPTURED], &["cap", &read_poisoned("null")], Rule("supervised_command.output_regress"), State("22023")),
        differs("D11", "stream of a captured row a number", &[CAPTURED], &["cap", &read_poisoned("7")], Rule("supervised_command.output_regress"), State("22023")),
        differs("D3", "poisoned at attachment", &["CALL fixture.parent('c')"], &[r#"CALL fixture.process('c', true, jsonb_build_object('provider_command', fixture.supervised(fixture.streams('{"byteOffset": "x"}'))))"#], Rule("supervised_command.stream_cursor"), Accepted),
        differs("D3", "negative offset at attachment", &["CALL fixture.parent('c')"], &[r#"CALL fixture.process('c', true, jsonb_build_object('provider_command', fixture.supervised(fixture.streams(fixture.cursor('{"byteOffset": -1}')))))"#], Rule("supervised_command.stream_cursor"), Accepted),
        differs("D3", "streams no object at attachment", &["CALL fixture.parent('c')"], &[r#"CALL fixture.process('c', true, jsonb_build_object('provider_command', fixture.supervised('{"streams": []}')))"#], Rule("supervised_command.stream_cursor"), Accepted),
        differs("D3", "streams null at attachment", &["CALL fixture.parent('c')"], &[r#"CALL fixture.process('c', true, jsonb_build_object('provider_command', fixture.supervised('{"streams": null}')))"#], Rule("supervised_command.stream_cursor"), Accepted),
        differs("D3", "eof as a string", &[READ], &["cap", &read_poisoned(r#"{"byteOffset": 9, "utf8Remainder": "", "eof": "true", "exitCode": null}"#)], Rule("supervised_command.stream_cursor"), Accepted),
        differs("D11", "offset vanishes", &[READ], &["cap", &read_poisoned(r#"{"utf8Remainder": "", "eof": false, "exitCode": null}"#)], Rule("supervised_command.output_regress"), Accepted),
        differs("D11", "offset null", &[READ], &["cap", &read_poisoned(r#"{"byteOffset": null, "utf8Remainder": "", "eof": false, "exitCode": null}"#)], Rule("supervised_command.output_regress"), Accepted),
        differs("D11", "stream vanishes", &[READ], &["cap", "P: provider_command = provider_command #- '{streams,stdout}'"], Rule("supervised_command.output_regress"), Accepted),
        differs("D11", "stream null", &[READ], &["cap", &read_poisoned("null")], Rule("supervised_command.output_regress"), Accepted),
        differs("D11", "stream array", &[READ], &["cap", &read_poisoned("[]")], Rule("supervised_command.output_regress"), Accepted),
        differs("D11", "streams vanish", &[READ], &["cap", "P: provider_command = provider_command - 'streams'"], Rule("supervised_command.output_regress"), Accepted),
        differs("D11", "streams null", &[READ], &["cap", r#"P: provider_command = provider_command || '{"streams": null}'"#], Rule("supervised_command.output_regress"), Accepted),
        differs("D12", "retained by a later transaction", &["CALL fixture.parent('c')"], &["CALL fixture.process('c', false, jsonb_build_object('supervision_retention_xid', (pg_current_xact_id()::text::bigint + 100000)::text))"], Rule("supervised_command.retention_xid"), Accepted),
        differs("D13", "parent reopened", &[EXITED], &["A: provider_outcome = 'retained', settled_at = NULL"], Rule("parent_admission.immutable"), Accepted),
        differs("D13", "parent changed", &[EXITED], &["A: operation = 'x'"], Rule("parent_admission.immutable"), Accepted),
        differs("D13", "parent of a lost process changed", &[LOST], &["A: operation = 'x'"], Rule("parent_admission.immutable"), Accepted),
        differs("D13", "holder back", &[EXITED], &["CALL diff.holder('c')"], Rule("process_holder.released"), Accepted),
        differs("D13", "holder back for a lost process", &[LOST], &["CALL diff.holder('c')"], Rule("process_holder.released"), Accepted),
        differs("D13", "holder renamed into one", &[EXITED, r#"CALL diff.holder('c', '{"holder_id": "x"}')"#], &["UPDATE sandbox_lease_holders SET holder_id = 'process' WHERE id = fixture.id('holder/2','c')"], Rule("process_holder.released"), Accepted),
        differs("D14", "TRUNCATE", &[RUNNING], &["TRUNCATE sandbox_retained_processes, sandbox_pty_sessions", "ROLLBACK"], Rule("evidence.truncate"), Accepted).by_superuser(),
        differs("D14", "TRUNCATE CASCADE", &[RUNNING], &["TRUNCATE sandbox_leases CASCADE", "ROLLBACK"], Rule("evidence.truncate"), Accepted).by_superuser(),
        differs("D14", "TRUNCATE of holders", &[RUNNING], &["TRUNCATE sandbox_lease_holders", "ROLLBACK"], Rule("evidence.truncate"), Accepted).by_superuser(),
        differs("D6", "a generated column, child", &[RUNNING, CHILD, "su ALTER TABLE sandbox_workspace_mutation_admissions ADD COLUMN g integer GENERATED ALWAYS AS (lease_epoch + 1) STORED"],
            &["C: provider_outcome = 'resolved', settled_at = '2030-01-01Z'"], Accepted, Message("Supervised child admission evidence is immutable"))
            .after(&["ALTER TABLE sandbox_workspace_mutation_admissions DROP COLUMN g"]),
        differs("D6", "a generated column, parent", &[RUNNING, "su ALTER TABLE sandbox_workspace_mutation_admissions ADD COLUMN g integer GENERATED ALWAYS AS (lease_epoch + 1) STORED"],
            &["A: operation = operation"], Accepted, Message("Supervised parent admission remains retained"))
            .after(&["ALTER TABLE sandbox_workspace_mutation_admissions DROP COLUMN g"]),
        differs("D6", "a generated column, holder", &[RUNNING, "su ALTER TABLE sandbox_lease_holders ADD COLUMN g text GENERATED ALWAYS AS (holder_id) STORED"],
            &["H: holder_id = holder_id"], Accepted, Message("Supervised process holder remains retained"))
            .after(&["ALTER TABLE sandbox_lease_holders DROP COLUMN g"]),
        no("D6: an added column counts", "child_admission.immutable", &[RUNNING, CHILD, "su ALTER TABLE sandbox_workspace_mutation_admissions ADD COLUMN g integer DEFAULT 7"], &["C: g = 8"])
            .after(&["ALTER TABLE sandbox_workspace_mutation_admissions DROP COLUMN g"]),
        no("D6: an added column of a holder counts", "process_holder.retained", &[RUNNING, "su ALTER TABLE sandbox_lease_holders ADD COLUMN g integer DEFAULT 7"], &["H: g = 8"])
            .after(&["ALTER TABLE sandbox_lease_holders DROP COLUMN g"]),
        ok("D6: an added column unchanged", &[RUNNING, CHILD, "su ALTER TABLE sandbox_workspace_mutation_admissions ADD COLUMN g integer DEFAULT 7"], &["C: provider_outcome = 'resolved', settled_at = '2030-01-01Z'"])
            .after(&["ALTER TABLE sandbox_workspace_mutation_admissions DROP COLUMN g"]),
        differs("D8", "processes shadowed, capture", &[RUNNING], &["CREATE TEMP TABLE sandbox_retained_processes (LIKE public.sandbox_retained_processes) ON COMMIT DROP", "L: archive_capture_id = $new"], Rule("lease_capture.blocked"), Accepted).fresh(),
        differs("D8", "processes shadowed, holder", &[RUNNING], &["CREATE TEMP TABLE sandbox_retained_processes (LIKE public.sandbox_retained_processes) ON COMMIT DROP", "-H"], Rule("process_holder.retained"), Accepted).fresh(),
        differs("D8", "children shadowed, receipt", &[RUNNING, CHILD], &["CREATE TEMP TABLE sandbox_workspace_mutation_admissions (LIKE public.sandbox_workspace_mutation_admissions) ON COMMIT DROP", RECEIPT], Rule("supervised_command.input_settles_first"), Accepted).fresh(),
        differs("D8", "leases shadowed, loss", &[RUNNING], &["loss", LOSE, "reject", "-H",
              "CREATE TEMP TABLE sandbox_leases ON COMMIT DROP AS SELECT * FROM public.sandbox_leases WHERE id = $l", COLD], Rule("provider_loss.recovery_truth"), Accepted).fresh(),
        differs("D8", "roles shadowed, marker", &[RUNNING], &["CREATE TEMP TABLE pg_roles ON COMMIT DROP AS SELECT session_user AS rolname, true AS rolsuper", "SET LOCAL search_path = pg_temp, pg_catalog, public", "marker=''", "P: reconcile_attempts = 1"], Rule("protocol_v2.marker"), Accepted).fresh(),
        differs("D9", "process hidden, capture", &[RUNNING, "su CREATE POLICY hidden ON sandbox_retained_processes AS RESTRICTIVE FOR SELECT USING (false)"], &["L: archive_capture_id = $new"], Rule("lease_capture.blocked"), Accepted)
            .after(&["DROP POLICY hidden ON sandbox_retained_processes"]),
        differs("D9", "process hidden, holder", &[RUNNING, "su CREATE POLICY hidden ON sandbox_retained_processes AS RESTRICTIVE FOR SELECT USING (false)"], &["-H"], Rule("process_holder.retained"), Accepted)
            .after(&["DROP POLICY hidden ON sandbox_retained_processes"]),
        differs("D9", "another tenant's process closes its admissions", &[CANCELLED], &["SELECT set_config('opengeni.workspace_id', $new::text, true)", CHILD], Rule("child_admission.closed"), State("42501")),
    ];
    cases.extend(accounts());
    cases
}

/// An account of its own, with policy history, is deleted.
fn accounts() -> Vec<Case> {
    let history = "su DO $x$ BEGIN
        INSERT INTO managed_accounts (id, name) VALUES (fixture.id('account','c'), 'a');
        INSERT INTO workspaces (id, account_id, name) VALUES (fixture.id('workspace','c'), fixture.id('account','c'), 'w');
        CALL diff.revision('c', '1', jsonb_build_object('account_id', fixture.id('account','c'), 'workspace_id', fixture.id('workspace','c')));
        CALL diff.head('c', '1');
        CALL diff.event('c', '1');
      END $x$";
    let restored = "su DO $x$ DECLARE c record; BEGIN
        FOR c IN SELECT conname, conrelid::regclass AS t, pg_get_constraintdef(oid) AS d FROM pg_constraint
          WHERE contype = 'f' AND confrelid = 'public.workspaces'::regclass AND conrelid::regclass::text LIKE 'workspace_instruction%'
        LOOP
          EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.conname);
          EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I %s', c.t, c.conname, c.d);
        END LOOP;
        FOR c IN SELECT conname, conrelid::regclass AS t, pg_get_constraintdef(oid) AS d FROM pg_constraint
          WHERE contype = 'f' AND confrelid = 'public.managed_accounts'::regclass AND conrelid::regclass::text = 'workspaces'
        LOOP
          EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.conname);
          EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I %s', c.t, c.conname, c.d);
        END LOOP;
      END $x$";
    let gone = "DELETE FROM managed_accounts WHERE id = fixture.id('account','c')";
    let table = "CREATE TEMP TABLE erased ON COMMIT DROP AS SELECT fixture.id('workspace','c') AS id WITH NO DATA";
    let eraser = "CREATE FUNCTION pg_temp.erase() RETURNS trigger LANGUAGE plpgsql AS $x$ BEGIN
        DELETE FROM workspace_instruction_policy_activation_events WHERE workspace_id = NEW.id;
        DELETE FROM workspace_instruction_policy_heads WHERE workspace_id = NEW.id;
        DELETE FROM workspace_instruction_policy_revisions WHERE workspace_id = NEW.id;
        RETURN NEW;
      END $x$";
    let bound = "CREATE TRIGGER erase BEFORE INSERT ON erased FOR EACH ROW EXECUTE FUNCTION pg_temp.erase()";
    // Between the two halves of one statement, at whose end the foreign keys hold again.
    let moved_account = "WITH moved AS (UPDATE managed_accounts SET id = $new WHERE id = fixture.id('account','c') RETURNING id),
        erased AS (INSERT INTO erased SELECT fixture.id('workspace','c') FROM moved RETURNING id)
      INSERT INTO managed_accounts (id, name) SELECT fixture.id('account','c'), 'a' FROM erased";
    let moved_workspace = "WITH moved AS (UPDATE workspaces SET id = $new WHERE id = fixture.id('workspace','c') RETURNING id),
        erased AS (INSERT INTO erased SELECT fixture.id('workspace','c') FROM moved RETURNING id)
      INSERT INTO workspaces (id, account_id, name) SELECT fixture.id('workspace','c'), fixture.id('account','c'), 'w' FROM erased";
    let clear = "DROP FUNCTION IF EXISTS pg_temp.erase() CASCADE";
    vec![
        no(
            "D7: an account that only has another id is not gone",
            "instruction_policy.immutable",
            &[history],
            &[table, eraser, bound, moved_account],
        )
        .by_superuser(),
        no(
            "D7: the history of a workspace that is another account's by now stays",
            "instruction_policy.immutable",
            &[history],
            &[
                "INSERT INTO managed_accounts (id, name) VALUES ($new, 'b')",
                "UPDATE workspaces SET account_id = $new WHERE id = fixture.id('workspace','c')",
                gone,
            ],
        )
        .by_superuser(),
        ok(
            "D7: a workspace with history goes whose id another had before",
            &["su DO $x$ BEGIN
                INSERT INTO managed_accounts (id, name) VALUES (fixture.id('account','c'), 'a');
                INSERT INTO workspaces (id, account_id, name) VALUES (fixture.id('workspace','c'), fixture.id('account','c'), 'w');
              END $x$"],
            &[
                "UPDATE workspaces SET id = $new WHERE id = fixture.id('workspace','c')",
                "INSERT INTO workspaces (id, account_id, name) VALUES (fixture.id('workspace','c'), fixture.id('account','c'), 'w')",
                "CALL diff.revision('c', '1', jsonb_build_object('account_id', fixture.id('account','c'), 'workspace_id', fixture.id('workspace','c')))",
                "DELETE FROM workspaces WHERE id = fixture.id('workspace','c')",
            ],
        )
        .by_superuser(),
        ok(
            "D7: a workspace with history goes that was written often",
            &[history],
            &[
                "DO $x$ BEGIN FOR i IN 1..300 LOOP UPDATE workspaces SET name = i::text WHERE id = fixture.id('workspace','c'); END LOOP; END $x$",
                "DELETE FROM workspaces WHERE id = fixture.id('workspace','c')",
            ],
        )
        .by_superuser(),
        differs(
            "D9",
            "a workspace that only has another id is not gone",
            &[history],
            &[table, eraser, bound, moved_workspace],
            Rule("instruction_policy.immutable"),
            Accepted,
        )
        .by_superuser()
        .after(&[clear]),
        ok(
            "D7: a workspace with history goes",
            &[history],
            &["DELETE FROM workspaces WHERE id = fixture.id('workspace','c')"],
        ),
        ok("D7: an account with history goes", &[history], &[gone]),
        differs(
            "D7",
            "an account goes whatever the order of its constraints",
            &[restored, history],
            &[gone],
            Accepted,
            Message("history is immutable"),
        ),
    ]
}
