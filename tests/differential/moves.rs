//! What a walk's transaction does: the protocol's own steps, whole or damaged, and arbitrary writes with valid,
//! nearly valid and invalid values.

use serde_json::Value;

use crate::tenants::{self, LEASES, SETTLED, Tenant};
use opengeni_guards_harness::random::Random;

const P: &str = "sandbox_retained_processes";
const A: &str = "sandbox_workspace_mutation_admissions";
const H: &str = "sandbox_lease_holders";
const L: &str = "sandbox_leases";
const Y: &str = "sandbox_pty_sessions";
const K: &str = "sandbox_checkpoint_artifacts";
const R: &str = "workspace_instruction_policy_revisions";
const N: &str = "workspace_instruction_policy_heads";
const E: &str = "workspace_instruction_policy_activation_events";

/// What makes a divergence explainable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Note {
    #[default]
    Plain,
    /// May take away an output cursor (D11).
    Vanish,
    /// Names a transaction id that is not finished (D12).
    Future,
    /// Leaves COMMIT without the tenant's settings (D2).
    NoTenant,
}

#[derive(Clone, Debug)]
pub struct Statement {
    pub sql: String,
    pub note: Note,
}

impl From<String> for Statement {
    fn from(sql: String) -> Self {
        Self {
            sql,
            note: Note::Plain,
        }
    }
}

/// A transaction: how it begins, what it does, and whether it commits.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub begin: String,
    pub body: Vec<Statement>,
    pub end: &'static str,
}

/// The rows that a tenant has, as far as choosing among them goes.
pub struct State(pub Value);

/// The state of a tenant as one JSON value.
pub fn state_query(workspace: &str) -> String {
    let list = |name: &str, table: &str, columns: &str| {
        format!(
            "'{name}', (SELECT coalesce(json_agg(json_build_array({columns}) ORDER BY id), '[]') FROM {table}
               WHERE workspace_id = '{workspace}')"
        )
    };
    format!(
        "SELECT json_build_object('floor', pg_snapshot_xmax(pg_current_snapshot())::text,
           'workspace', (SELECT count(*) FROM workspaces WHERE id = '{workspace}'), {}, {}, {}, {}, {}, {}, {}, {}, {})",
        list(
            "p",
            P,
            "id, lease_id, session_id, holder_id, parent_admission_id, state,
             coalesce(provider_command ? 'supervision', false), supervision_receipt IS NOT NULL,
             supervision_output_captured, cancellation_requested_at IS NOT NULL,
             coalesce(jsonb_typeof(provider_command #> '{streams,stdout,byteOffset}') = 'number', false)"
        ),
        list("a", A, "id, actor_kind, actor_id, settled_at IS NOT NULL, lease_id"),
        list("h", H, "id, kind, holder_id, lease_id"),
        list("l", L, "id, liveness, current_checkpoint_artifact_id, previous_checkpoint_artifact_id"),
        list("y", Y, "id, status, retained_process_id"),
        list("k", K, "id, state, source_lease_id"),
        list("r", R, "id"),
        list("n", N, "id"),
        list("e", E, "id"),
    )
}

#[derive(Clone)]
struct Process {
    id: String,
    lease: String,
    session: String,
    holder: String,
    parent: String,
    active: bool,
    supervised: bool,
    receipt: bool,
    captured: bool,
    cancelled: bool,
    sound: bool,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

impl State {
    pub fn floor(&self) -> String {
        text(&self.0["floor"])
    }

    pub fn is_gone(&self) -> bool {
        self.0["workspace"] != 1
    }

    fn list(&self, name: &str) -> &[Value] {
        self.0[name].as_array().map_or(&[], Vec::as_slice)
    }

    pub fn size(&self) -> usize {
        self.list("p").len()
    }

    fn processes(&self) -> Vec<Process> {
        let flag = |row: &Value, n: usize| row[n].as_bool().unwrap_or(false);
        self.list("p")
            .iter()
            .map(|row| Process {
                id: text(&row[0]),
                lease: text(&row[1]),
                session: text(&row[2]),
                holder: text(&row[3]),
                parent: text(&row[4]),
                active: row[5] == "active",
                supervised: flag(row, 6),
                receipt: flag(row, 7),
                captured: flag(row, 8),
                cancelled: flag(row, 9),
                sound: flag(row, 10),
            })
            .collect()
    }
}

pub struct Generator<'a> {
    pub random: &'a mut Random,
    pub tenant: &'a Tenant,
    pub state: &'a State,
}

type Steps = Vec<Statement>;

fn steps<const N: usize>(sql: [String; N]) -> Steps {
    sql.into_iter().map(Statement::from).collect()
}

fn setting(name: &str, value: &str) -> String {
    format!("SELECT set_config('opengeni.{name}', {value}, true)")
}

impl Generator<'_> {
    pub fn transaction(&mut self) -> Transaction {
        let isolation = match self.random.below(12) {
            0 => " ISOLATION LEVEL REPEATABLE READ",
            _ => "",
        };
        let marker = match self.random.below(60) {
            0 => "''",
            1 => "'0'",
            2 => "'1 '",
            _ => "'1'",
        };
        let mut begin = format!(
            "BEGIN{isolation}; SELECT set_config('opengeni.account_id', '{}', true),
             set_config('opengeni.workspace_id', '{}', true)",
            self.tenant.account(),
            self.tenant.workspace(),
        );
        if self.random.below(150) != 0 {
            begin +=
                &format!(", set_config('opengeni.sandbox_recovery_protocol_v2', {marker}, true)");
        }
        let mut body = Vec::new();
        match self.random.below(10) {
            0..=3 => body.extend(self.protocol_step()),
            4 | 5 => {
                let whole = self.protocol_step();
                body.extend(self.damaged(whole));
            }
            6 => {
                body.extend(self.protocol_step());
                body.extend(self.protocol_step());
            }
            7 => {
                body.extend(self.protocol_step());
                body.extend(self.arbitrary());
            }
            _ => {
                for _ in 0..=self.random.below(3) {
                    body.extend(self.arbitrary());
                }
            }
        }
        self.savepoints(&mut body);
        match self.random.below(12) {
            0 | 1 => body.push("SET CONSTRAINTS ALL IMMEDIATE".to_string().into()),
            2 if !body.is_empty() => {
                let at = self.random.below(body.len());
                body.insert(at, "SET CONSTRAINTS ALL IMMEDIATE".to_string().into());
            }
            3 if self.random.percent(25) => body.push(Statement {
                sql: setting("workspace_id", "''"),
                note: Note::NoTenant,
            }),
            _ => {}
        }
        let end = match self.random.below(12) {
            0 => "ROLLBACK",
            _ => "COMMIT",
        };
        Transaction { begin, body, end }
    }

    /// Drops, repeats, swaps or changes a statement of a step.
    fn damaged(&mut self, mut steps: Steps) -> Steps {
        if steps.is_empty() {
            return steps;
        }
        let at = self.random.below(steps.len());
        match self.random.below(4) {
            0 => drop(steps.remove(at)),
            1 => {
                let again = steps[at].clone();
                let place = self.random.below(steps.len() + 1);
                steps.insert(place, again);
            }
            2 => {
                let other = self.random.below(steps.len());
                steps.swap(at, other);
            }
            _ => {
                let extra = self.arbitrary();
                let tail = steps.split_off(at);
                steps.extend(extra);
                steps.extend(tail);
            }
        }
        steps
    }

    fn savepoints(&mut self, body: &mut Steps) {
        if body.is_empty() || !self.random.percent(25) {
            return;
        }
        let from = self.random.below(body.len());
        let to = from + 1 + self.random.below(body.len() - from);
        let (after, before) = match self.random.below(3) {
            0 => ("RELEASE s", "SAVEPOINT s"),
            _ => ("ROLLBACK TO s", "SAVEPOINT s"),
        };
        body.insert(to, after.to_string().into());
        body.insert(from, before.to_string().into());
        if after == "ROLLBACK TO s" && self.random.percent(60) {
            let more = match self.random.below(2) {
                0 => self.protocol_step(),
                _ => self.arbitrary(),
            };
            body.extend(more);
        }
    }

    fn process(&mut self, wanted: impl Fn(&Process) -> bool) -> Option<Process> {
        let mut found = self.state.processes();
        found.retain(|p| wanted(p));
        (!found.is_empty()).then(|| found[self.random.below(found.len())].clone())
    }

    fn row(&mut self, list: &str) -> Option<Value> {
        let rows = self.state.list(list);
        (!rows.is_empty()).then(|| rows[self.random.below(rows.len())].clone())
    }

    fn row_id(&mut self, list: &str) -> String {
        match self.row(list) {
            Some(row) => text(&row[0]),
            None => self.random.uuid(),
        }
    }

    /// The same sort of id of another tenant, at times.
    fn other_tenant(&mut self) -> Tenant {
        Tenant {
            number: (self.tenant.number + 1) % tenants::TENANTS,
        }
    }

    // Steps of the protocol ---------------------------------------------------------------------------

    fn protocol_step(&mut self) -> Steps {
        let step = match self.random.below(44) {
            0..=4 => return self.launch(),
            38..=41 => self.finish(),
            42 | 43 => self.touch_and_end(),
            5..=8 => self.capture_some(),
            9..=12 => self.capture_all(),
            13..=15 => self.stdin(),
            16 | 17 => self.settle_child(),
            18..=21 => self.receipt(),
            22..=25 => self.settle(),
            26 | 27 => self.lose(),
            28 => self.reject(),
            29 | 30 => self.cancel(),
            31 | 32 => self.rotate(),
            33 => self.contain(),
            34 => self.open_pty(),
            35 => self.close_pty(),
            36 => self.policy(),
            _ => self.claim(),
        };
        step.unwrap_or_else(|| self.launch())
    }

    fn next_generation(&self, lease: &str) -> String {
        format!(
            "UPDATE {L} SET workspace_generation = greatest(workspace_generation, 100,
               (SELECT max(workspace_generation) FROM {A} WHERE lease_id = '{lease}')) + 1 WHERE id = '{lease}'"
        )
    }

    /// Admission, retention and attachment.
    fn launch(&mut self) -> Steps {
        let n = self.random.below(LEASES);
        let lease = self.tenant.lease(n);
        let session = self.tenant.session(self.random.below(2));
        let [admission, process, actor, holder] = [(); 4].map(|()| self.random.uuid());
        let by_turn = self.random.percent(15);
        let (kind, actor, turn, attempt, generation) = match by_turn {
            true => (
                "turn",
                self.tenant.attempt(),
                format!("'{}'", self.tenant.turn()),
                format!("'{}'", self.tenant.attempt()),
                "1",
            ),
            false => ("direct", actor, "NULL".into(), "NULL".into(), "NULL"),
        };
        let session = if by_turn {
            self.tenant.session(0)
        } else {
            session
        };
        let (route, target) = match self.random.below(5) {
            0 => ("active", format!("'{}'", self.tenant.id(0x99))),
            _ => ("home", "NULL".to_string()),
        };
        let number = 1000 + self.random.below(1_000_000);
        let supervised = self.random.percent(75);
        let at_once = self.random.percent(25);
        let mut command =
            "jsonb_build_object('kind', 'modal-router-v1', 'sandboxId', provider_instance_id,
               'taskId', 't', 'execId', 'e'"
                .to_string();
        if self.random.percent(90) {
            command += &format!(", 'streams', '{}'::jsonb", tenants::PRISTINE);
        }
        if supervised {
            command += &format!(
                ", 'supervision', '{}'::jsonb",
                tenants::descriptor(&process)
            );
        }
        command += ")";
        let mut steps = steps([
            self.next_generation(&lease),
            format!(
                "INSERT INTO {A} (account_id, workspace_id, id, lease_id, sandbox_group_id, session_id, actor_kind,
                   actor_id, turn_id, attempt_id, execution_generation, holder_kind, holder_id, lease_epoch,
                   provider_backend, provider_instance_id, route_kind, route_target_id, route_epoch,
                   workspace_generation, operation)
                 SELECT account_id, workspace_id, '{admission}', id, sandbox_group_id, '{session}', '{kind}',
                   '{actor}', {turn}, {attempt}, {generation}, '{kind}', '{actor}', lease_epoch, backend,
                   coalesce(instance_id, 'none'), '{route}', {target}, 0, workspace_generation, 'exec'
                 FROM {L} WHERE id = '{lease}'"
            ),
            format!(
                "INSERT INTO {P} (account_id, workspace_id, id, session_id, lease_id, sandbox_group_id,
                   parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, owner_turn_id, owner_attempt_id,
                   owner_execution_generation, lease_epoch, provider_backend, provider_instance_id, route_kind,
                   route_target_id, route_epoch, provider_session_id, provider_command)
                 SELECT account_id, workspace_id, '{process}', session_id, lease_id, sandbox_group_id, id,
                   'process:{process}', actor_kind, actor_id, turn_id, attempt_id, execution_generation, lease_epoch,
                   provider_backend, provider_instance_id, route_kind, route_target_id, route_epoch, {number}, {}
                 FROM {A} WHERE id = '{admission}'",
                if at_once { &command } else { "NULL" }
            ),
            format!("UPDATE {A} SET provider_outcome = 'retained' WHERE id = '{admission}'"),
            format!(
                "INSERT INTO {H} (account_id, workspace_id, id, lease_id, kind, holder_id, subject_id)
                 VALUES ('{}', '{}', '{holder}', '{lease}', 'process', 'process:{process}', '{session}')",
                self.tenant.account(),
                self.tenant.workspace()
            ),
        ]);
        if !at_once {
            steps.push(
                format!("UPDATE {P} SET provider_command = {command} WHERE id = '{process}'")
                    .into(),
            );
        }
        steps
    }

    fn capturing(&mut self, process: &str) -> String {
        let value = match self.random.below(20) {
            0 => format!("'{}'", process.to_uppercase()),
            1 => format!("'{}'", self.row_id("p")),
            2 => "''".to_string(),
            _ => format!("'{process}'"),
        };
        setting("supervised_output_capture_process_id", &value)
    }

    fn capture_some(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active && p.supervised && p.sound && !p.captured)?;
        let stream = self.random.pick(&["stdout", "stderr"]);
        let moved = 1 + self.random.below(50);
        let eof = self.random.pick(&["false", "false", "false", "true"]);
        let remainder = self.random.pick(&[r#""""#, r#""4g==""#]);
        Some(steps([
            self.capturing(&p.id),
            format!(
                "UPDATE {P} SET provider_command = jsonb_set(provider_command, '{{streams,{stream}}}',
                   jsonb_build_object('byteOffset',
                     (provider_command #>> '{{streams,{stream},byteOffset}}')::numeric + {moved},
                     'utf8Remainder', '{remainder}'::jsonb, 'eof', {eof}, 'exitCode', NULL)) WHERE id = '{}'",
                p.id
            ),
        ]))
    }

    fn capture_all(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active && p.supervised && !p.captured)?;
        Some(steps([
            self.capturing(&p.id),
            format!(
                "UPDATE {P} SET supervision_output_captured = true,
                   provider_command = jsonb_set(provider_command, '{{streams}}', '{}') WHERE id = '{}'",
                tenants::DRAINED,
                p.id
            ),
        ]))
    }

    /// An admission in a process's name; `changes` replaces what it copies.
    fn child(&mut self, process: &str, lease: &str, change: Option<(&str, &str)>) -> String {
        let id = self.random.uuid();
        let columns = [
            ("account_id", "process.account_id"),
            ("workspace_id", "process.workspace_id"),
            ("lease_id", "process.lease_id"),
            ("sandbox_group_id", "process.sandbox_group_id"),
            ("session_id", "process.session_id"),
            ("actor_kind", "'process'"),
            ("actor_id", "process.id"),
            ("holder_kind", "'process'"),
            ("holder_id", "process.holder_id"),
            ("lease_epoch", "process.lease_epoch"),
            ("provider_backend", "process.provider_backend"),
            ("provider_instance_id", "process.provider_instance_id"),
            ("route_kind", "process.route_kind"),
            ("route_target_id", "process.route_target_id"),
            ("route_epoch", "process.route_epoch"),
            ("workspace_generation", "lease.workspace_generation"),
            ("operation", "'stdin'"),
        ];
        let names = columns.map(|(name, _)| name).join(", ");
        let values = columns
            .map(|(name, value)| match change {
                Some((changed, to)) if changed == name => to,
                _ => value,
            })
            .join(", ");
        format!(
            "INSERT INTO {A} (id, {names}) SELECT '{id}', {values}
             FROM {P} process JOIN {L} lease ON lease.id = '{lease}' WHERE process.id = '{process}'"
        )
    }

    fn stdin(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active && (p.supervised || p.cancelled))?;
        let change = match self.random.below(3) {
            0 => Some(match self.random.below(10) {
                0 => ("lease_id", format!("'{}'", self.tenant.lease(2))),
                1 => ("session_id", format!("'{}'", self.tenant.session(1))),
                2 => ("holder_id", "'process:other'".to_string()),
                3 => ("lease_epoch", "process.lease_epoch + 1".to_string()),
                4 => ("provider_instance_id", "'sb-other'".to_string()),
                5 => ("route_kind", "'active'".to_string()),
                6 => ("route_epoch", "process.route_epoch + 1".to_string()),
                7 => ("provider_backend", "'other'".to_string()),
                8 => ("actor_id", format!("'{}'", self.row_id("p"))),
                _ => ("route_target_id", format!("'{}'", self.random.uuid())),
            }),
            _ => None,
        };
        let change = change.as_ref().map(|(name, value)| (*name, value.as_str()));
        let child = self.child(&p.id, &p.lease, change);
        let moved = self.random.pick(&["+ 1", "+ 7", "- 1", "+ 0", "* 0"]);
        Some(steps([
            self.next_generation(&p.lease),
            child,
            format!(
                "UPDATE {P} SET provider_command_input_index = provider_command_input_index {moved} WHERE id = '{}'",
                p.id
            ),
        ]))
    }

    /// Everything that is left to do for a command, in one transaction.
    fn finish(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active && p.supervised && !p.receipt)?;
        let mut all = Vec::new();
        if !p.captured {
            all = steps([
                self.capturing(&p.id),
                format!(
                    "UPDATE {P} SET supervision_output_captured = true,
                       provider_command = jsonb_set(provider_command, '{{streams}}', '{}') WHERE id = '{}'",
                    tenants::DRAINED,
                    p.id
                ),
            ]);
        }
        all.push(
            format!(
                "UPDATE {P} SET supervision_receipt = {} WHERE id = '{}'",
                self.receipt_of_row(false),
                p.id
            )
            .into(),
        );
        if self.random.percent(80) {
            all.extend(self.end(&p, "state = 'exited', exit_code = 3", "resolved"));
        }
        Some(all)
    }

    /// A write that means nothing, before or after the end of a command in the same transaction.
    fn touch_and_end(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active && (!p.supervised || p.receipt && p.captured))?;
        let code = if p.supervised { "3" } else { "0" };
        let mut all = self.end(
            &p,
            &format!("state = 'exited', exit_code = {code}"),
            "resolved",
        );
        let touch = self.random.pick(&[
            "reconcile_attempts = reconcile_attempts + 1",
            "last_reconcile_outcome = 'x'",
            "settlement_reason = 'late'",
            "provider_session_id = provider_session_id",
        ]);
        let at = self.random.below(all.len() + 1);
        all.insert(
            at,
            format!("UPDATE {P} SET {touch} WHERE id = '{}'", p.id).into(),
        );
        if self.random.percent(20) {
            all.push(format!("DELETE FROM {P} WHERE id = '{}'", p.id).into());
        }
        Some(all)
    }

    fn settle_child(&mut self) -> Option<Steps> {
        let rows: Vec<Value> = self.state.list("a").to_vec();
        let children: Vec<&Value> = rows.iter().filter(|a| a[1] == "process").collect();
        let child = children.get(self.random.below(children.len()))?;
        let outcome = self.random.pick(&["resolved", "resolved", "rejected"]);
        Some(steps([format!(
            "UPDATE {A} SET provider_outcome = '{outcome}', settled_at = {SETTLED} WHERE id = '{}'",
            text(&child[0])
        )]))
    }

    fn receipt(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active && p.supervised && !p.receipt)?;
        Some(steps([format!(
            "UPDATE {P} SET supervision_receipt = {} WHERE id = '{}'",
            self.receipt_of_row(false),
            p.id
        )]))
    }

    fn receipt_of_row(&mut self, damaged: bool) -> String {
        let receipt = self.random.uuid();
        let right = format!(
            "(provider_command -> 'supervision') - '{{nonce,controlPath}}'::text[]
             || '{{\"receiptId\":\"{receipt}\",\"leaderExitCode\":3}}'"
        );
        if !damaged {
            return right;
        }
        let change = self.random.pick(&[
            r#"{"leaderExitCode":"3"}"#,
            r#"{"leaderExitCode":3.0}"#,
            r#"{"leaderExitCode":7e1}"#,
            r#"{"leaderExitCode":1e400}"#,
            r#"{"leaderExitCode":-2147483648}"#,
            r#"{"leaderExitCode":2147483648}"#,
            r#"{"leaderExitCode":null}"#,
            r#"{"receiptId":"x"}"#,
            r#"{"receiptId":null}"#,
            r#"{"receiptId":7}"#,
            r#"{"protocol":"other"}"#,
            r#"{"invocationId":"00000000-0000-4000-8000-000000000000"}"#,
            r#"{"extra":1}"#,
        ]);
        match self.random.below(8) {
            0 => "'null'".to_string(),
            1 => "'[]'".to_string(),
            2 => "'{}'".to_string(),
            3 => format!("upper(({right})::text)::jsonb"),
            4 => format!("({right}) - 'receiptId'"),
            5 => format!("jsonb_set({right}, '{{invocationId}}', to_jsonb(upper(id::text)))"),
            _ => format!("({right}) || '{change}'"),
        }
    }

    fn end(&mut self, p: &Process, set: &str, outcome: &str) -> Steps {
        let mut all = steps([
            format!(
                "UPDATE {P} SET {set}, settled_at = {SETTLED} WHERE id = '{}'",
                p.id
            ),
            format!(
                "UPDATE {A} SET provider_outcome = '{outcome}', settled_at = {SETTLED} WHERE id = '{}'",
                p.parent
            ),
            format!(
                "DELETE FROM {H} WHERE lease_id = '{}' AND kind = 'process' AND holder_id = '{}'",
                p.lease, p.holder
            ),
        ]);
        if self.random.percent(10) {
            all.swap(0, 1);
        }
        if self.random.percent(80) {
            all.insert(
                0,
                format!(
                    "UPDATE {Y} SET status = 'closed' WHERE retained_process_id = '{}'",
                    p.id
                )
                .into(),
            );
        }
        all
    }

    fn settle(&mut self) -> Option<Steps> {
        let p = match self.random.below(6) {
            0 => self.process(|p| p.active)?,
            1 => self.process(|p| p.active && !p.supervised)?,
            _ => self.process(|p| p.active && p.receipt && p.captured)?,
        };
        let code = match p.supervised {
            true => self.random.pick(&[
                "(supervision_receipt ->> 'leaderExitCode')::numeric::integer",
                "3",
                "0",
                "NULL",
            ]),
            false => "0",
        };
        Some(self.end(
            &p,
            &format!("state = 'exited', exit_code = {code}"),
            "resolved",
        ))
    }

    fn lose(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active && p.supervised)?;
        let mut all = vec![self.loss_binding(&p.id).into()];
        let outcome = self
            .random
            .pick(&["rejected", "rejected", "rejected", "resolved"]);
        all.extend(self.end(
            &p,
            "state = 'lost', settlement_reason = 'provider_instance_lost'",
            outcome,
        ));
        if self.random.percent(50) {
            all.push(
                format!(
                    "UPDATE {A} SET provider_outcome = '{}', settled_at = {SETTLED}
                     WHERE actor_id = '{}' AND settled_at IS NULL",
                    self.random.pick(&["rejected", "resolved"]),
                    p.id
                )
                .into(),
            );
        }
        all.push(self.cold(&p.id, &p.lease).into());
        Some(all)
    }

    /// The lease learns that its instance is gone, and perhaps gets the next one in a later step.
    fn cold(&mut self, process: &str, lease: &str) -> String {
        let mut part = |right: &'static [&'static str], wrong: &'static [&'static str]| match self
            .random
            .below(12)
        {
            0 => self.random.pick(wrong),
            _ => self.random.pick(right),
        };
        let provider = part(&["missing"], &["running", "null"]);
        let restore = part(&["pending", "degraded", "unrecoverable"], &["done"]);
        let workspace = part(&["not_ready", "degraded", "unrecoverable"], &["ready"]);
        let instance = part(&["process.provider_instance_id"], &["'sb-other'", "NULL"]);
        let epoch = part(
            &["process.lease_epoch + 1"],
            &["process.lease_epoch + 2", "lease.lease_epoch"],
        );
        let liveness = part(&["cold"], &["warm", "draining"]);
        let kept = part(&["NULL"], &["lease.instance_id"]);
        format!(
            "UPDATE {L} lease SET liveness = '{liveness}', instance_id = {kept}, lease_epoch = {epoch},
               resume_state = coalesce(lease.resume_state, '{{}}') || jsonb_build_object('opengeniRecovery',
                 jsonb_build_object('provider', jsonb_build_object('status', '{provider}', 'instanceId', {instance}),
                   'restore', jsonb_build_object('status', '{restore}'),
                   'workspace', jsonb_build_object('status', '{workspace}')))
             FROM {P} process WHERE process.id = '{process}' AND lease.id = '{lease}'"
        )
    }

    fn loss_binding(&mut self, process: &str) -> String {
        let right = "jsonb_build_object('accountId', account_id, 'workspaceId', workspace_id, 'leaseId', lease_id,
               'sandboxGroupId', sandbox_group_id, 'lostEpoch', lease_epoch, 'lostBackend', provider_backend,
               'lostInstanceId', provider_instance_id)";
        self.binding(
            "supervised_provider_loss_binding",
            right,
            process,
            "lostEpoch",
        )
    }

    fn binding(&mut self, name: &str, right: &str, process: &str, member: &str) -> String {
        let value = match self.random.below(30) {
            0 => "''".to_string(),
            1 => "'{'".to_string(),
            2 => "'[]'".to_string(),
            3 => "'null'".to_string(),
            4 => format!("(({right}) - '{member}')::text"),
            5 => format!("(({right}) || '{{\"extra\":1}}')::text"),
            6 => format!(
                "jsonb_set({right}, '{{{member}}}', to_jsonb(({right}) ->> '{member}'))::text"
            ),
            7 => format!("upper(({right})::text)"),
            8 => format!("replace(({right})::text, ': 1,', ': 1.0,')"),
            _ => format!("({right})::text"),
        };
        format!(
            "SELECT set_config('opengeni.{name}', {value}, true) FROM {P} WHERE id = '{process}'"
        )
    }

    fn reject(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active && p.supervised && !p.receipt && !p.captured)?;
        let right = "jsonb_build_object('processId', id, 'command', provider_command)";
        let binding = self.binding(
            "supervised_launch_rejection_binding",
            right,
            &p.id,
            "command",
        );
        let mut all = vec![binding.into()];
        all.extend(self.end(
            &p,
            "state = 'lost', settlement_reason = 'provider_start_rejected'",
            "rejected",
        ));
        Some(all)
    }

    fn cancel(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active && !p.cancelled)?;
        let reason = self.random.pick(&["explicit_stop", "provider_deadline"]);
        Some(steps([format!(
            "UPDATE {P} SET cancellation_requested_at = '2026-01-20Z', cancellation_reason = '{reason}'
             WHERE id = '{}'",
            p.id
        )]))
    }

    /// A new checkpoint becomes current, the current one previous.
    fn rotate(&mut self) -> Option<Steps> {
        let rows = self.state.list("l").to_vec();
        let lease = &rows.get(self.random.below(rows.len()))?;
        let id = text(&lease[0]);
        let fresh = self.random.uuid();
        let adopted = self.random.percent(20);
        let (provenance, generation) = match adopted {
            true => ("legacy_provider_adopted", "NULL"),
            false => ("native_capture", "workspace_generation"),
        };
        let mut all = steps([
            tenants::artifact(&fresh, &id, provenance, generation, "candidate"),
            format!(
                "UPDATE {L} lease SET archive_generation = workspace_generation,
                   previous_checkpoint_artifact_id = current_checkpoint_artifact_id,
                   current_checkpoint_artifact_id = artifact.id, resume_backend_id = 'modal',
                   resume_state = coalesce(resume_state, '{{}}') || jsonb_build_object('sessionState',
                     coalesce(resume_state -> 'sessionState', '{{}}') || jsonb_build_object(
                       'workspaceArchive', artifact.archive_base64, 'workspaceArchiveMeta', artifact.descriptor,
                       'workspaceArchivePrev', resume_state #> '{{sessionState,workspaceArchive}}',
                       'workspaceArchivePrevMeta', resume_state #> '{{sessionState,workspaceArchiveMeta}}'))
                 FROM {K} artifact WHERE lease.id = '{id}' AND artifact.id = '{fresh}'"
            ),
            format!("UPDATE {K} SET state = 'current', published_at = {SETTLED} WHERE id = '{fresh}'"),
        ]);
        if let Some(current) = lease[2].as_str() {
            all.push(format!("UPDATE {K} SET state = 'previous' WHERE id = '{current}'").into());
        }
        if let Some(previous) = lease[3].as_str() {
            all.push(
                format!("UPDATE {K} SET state = 'delete_pending', delete_after = {SETTLED} WHERE id = '{previous}'")
                    .into(),
            );
        }
        if self.random.percent(30) {
            all.push(
                format!(
                    "UPDATE {L} SET workspace_generation = workspace_generation WHERE id = '{id}'"
                )
                .into(),
            );
        }
        Some(all)
    }

    fn contain(&mut self) -> Option<Steps> {
        let lease = self.row_id("l");
        let capture = self.random.uuid();
        let set = match self.random.below(8) {
            0 => format!("archive_capture_id = '{capture}'"),
            1 => "archive_capture_id = NULL".to_string(),
            2 => format!("unobservable_command_drain_ids = ARRAY['{capture}'::uuid]"),
            3 => "unobservable_command_drain_ids = NULL".to_string(),
            4 => format!("archive_capture_published_at = {SETTLED}"),
            5 => "liveness = 'warm', instance_id = coalesce(instance_id, 'sb-next'), lease_epoch = lease_epoch + 1"
                .to_string(),
            _ => "archive_capture_id = NULL, unobservable_command_drain_ids = NULL,
                  archive_capture_published_at = NULL"
                .to_string(),
        };
        Some(steps([format!(
            "UPDATE {L} SET {set} WHERE id = '{lease}'"
        )]))
    }

    fn open_pty(&mut self) -> Option<Steps> {
        let p = self.process(|p| p.active || p.captured)?;
        let id = self.random.uuid();
        let mut all = steps([format!(
            "INSERT INTO {Y} (account_id, workspace_id, id, session_id, exec_session_id, lease_epoch, cols, rows, shell,
               cwd, status, opened_by, lease_id, sandbox_group_id, retained_process_id, open_admission_id,
               provider_backend, provider_instance_id, route_kind, route_target_id, route_epoch)
             SELECT account_id, workspace_id, '{id}', session_id, provider_session_id, lease_epoch, 80, 24, 'sh', '/',
               'open', 'u', lease_id, sandbox_group_id, id, parent_admission_id, provider_backend,
               provider_instance_id, route_kind, route_target_id, route_epoch FROM {P} WHERE id = '{}'",
            p.id
        )]);
        match self.random.below(8) {
            0 => all.push(format!("UPDATE {Y} SET status = 'closed' WHERE id = '{id}'").into()),
            1 => all.push(format!("DELETE FROM {Y} WHERE id = '{id}'").into()),
            2 => {
                let change = self.random.pick(&[
                    "lease_epoch = lease_epoch + 1",
                    "exec_session_id = exec_session_id + 1",
                    "provider_instance_id = 'sb-other'",
                    "route_epoch = 9",
                    "route_kind = 'active'",
                    "provider_backend = 'other'",
                ]);
                all.push(format!("UPDATE {Y} SET {change} WHERE id = '{id}'").into());
            }
            _ => {}
        }
        Some(all)
    }

    fn close_pty(&mut self) -> Option<Steps> {
        let id = self.row_id("y");
        let set = self
            .random
            .pick(&["status = 'closed'", "status = 'open'", "cols = 100"]);
        Some(steps([format!("UPDATE {Y} SET {set} WHERE id = '{id}'")]))
    }

    /// A reconciler claims a process and leaves its proof.
    fn claim(&mut self) -> Option<Steps> {
        let id = self.row_id("p");
        let set = self.random.pick(&[
            "reconcile_claim_id = parent_admission_id, reconcile_claimed_at = '2026-01-01Z', reconcile_attempts = reconcile_attempts + 1",
            "reconcile_claim_id = NULL, reconcile_claimed_at = NULL, last_reconcile_outcome = 'deferred'",
            "reconcile_proof_outcome = 'lost', reconcile_proof_reason = 'provider_instance_not_found', reconcile_proof_observed_at = '2026-01-01Z'",
            "reconcile_proof_outcome = NULL, reconcile_proof_reason = NULL, reconcile_proof_observed_at = NULL",
        ]);
        Some(steps([format!("UPDATE {P} SET {set} WHERE id = '{id}'")]))
    }

    fn policy(&mut self) -> Option<Steps> {
        let from = self.row_id("r");
        let id = self.random.uuid();
        let revision = 100 + self.random.below(1_000_000_000);
        let change = |random: &mut Random, right: &'static str, wrong: &[&'static str]| match random
            .below(10)
        {
            0 => random.pick(wrong).to_string(),
            _ => right.to_string(),
        };
        let r = &mut *self.random;
        let kind = change(r, "kind", &["'policy'", "'charter'"]);
        let scope = change(r, "scope", &["'global'", "'role'"]);
        let role = change(r, "role_key", &["NULL", "'dev'"]);
        let other = Tenant {
            number: (self.tenant.number + 1) % tenants::TENANTS,
        };
        let supersedes = match r.below(5) {
            0 => "NULL".to_string(),
            1 => format!("'{}'", self.row_id("r")),
            2 => format!("'{}'", other.revision(1)),
            _ => "id".to_string(),
        };
        let r = &mut *self.random;
        let number = change(r, "revision", &["revision + 1", "0"]);
        let hash = change(r, "content_hash", &["repeat('0', 64)"]);
        let version = 10 + r.below(1_000_000_000);
        Some(match r.below(5) {
            0 | 1 => steps([format!(
                "INSERT INTO {R} (account_id, workspace_id, id, revision, kind, scope, role_key, content, content_hash,
                   provenance_source, supersedes_revision_id, created_by_subject_id)
                 SELECT account_id, workspace_id, '{id}', {revision}, {kind}, {scope}, {role}, 'c{revision}',
                   encode(sha256('c{revision}'), 'hex'), 'human', {supersedes}, 's' FROM {R} WHERE id = '{from}'"
            )]),
            2 => {
                let head = self.row_id("n");
                steps([format!(
                    "UPDATE {N} SET revision_id = r.id, revision = r.{number}, content_hash = {hash},
                       activation_version = activation_version + 1
                     FROM {R} r WHERE r.id = '{from}' AND {N}.id = '{head}'",
                    hash = if hash == "content_hash" { "r.content_hash" } else { &hash }
                )])
            }
            3 => steps([format!(
                "INSERT INTO {N} (id, account_id, workspace_id, kind, scope, role_key, revision_id, revision,
                   content_hash, activation_version)
                 SELECT '{id}', account_id, workspace_id, {kind}, {scope}, {role}, id, {number}, {hash}, 1
                 FROM {R} WHERE id = '{from}'"
            )]),
            _ => {
                let old = match r.below(3) {
                    0 => ["NULL", "NULL", "NULL"],
                    1 => ["id", "revision", "content_hash"],
                    _ => ["id", "revision + 1", "content_hash"],
                }
                .join(", ");
                steps([format!(
                    "INSERT INTO {E} (id, account_id, workspace_id, kind, scope, role_key, type, activation_version,
                       old_revision_id, old_revision, old_content_hash, new_revision_id, new_revision,
                       new_content_hash, actor_subject_id, reason)
                     SELECT '{id}', account_id, workspace_id, {kind}, {scope}, {role}, 'activate', {version}, {old},
                       id, {number}, {hash}, 's', 'r' FROM {R} WHERE id = '{from}'"
                )])
            }
        })
    }

    // Arbitrary writes --------------------------------------------------------------------------------

    fn arbitrary(&mut self) -> Steps {
        match self.random.below(30) {
            0..=6 => self.change_process(),
            7..=11 => self.change_command(),
            12..=14 => self.change_admission(),
            15 | 16 => self.change_holder(),
            17..=19 => self.change_lease(),
            20 => self.change_pty(),
            21 | 22 => self.change_artifact(),
            23 => self.change_policy(),
            24 | 25 => self.delete(),
            26 => self.insert_holder(),
            27 => self.insert_process(),
            28 => self.set_something(),
            _ => {
                let p = self.row_id("p");
                let id = self.row_id("p");
                let lease = self.row_id("l");
                let actor = format!("'{id}'");
                vec![
                    self.next_generation(&lease).into(),
                    self.child(&p, &lease, Some(("actor_id", &actor))).into(),
                ]
            }
        }
    }

    /// One to three of the columns, each with one of its values.
    fn assignments(&mut self, columns: &[(&str, &[&str])]) -> String {
        let mut chosen: Vec<String> = Vec::new();
        for _ in 0..=self.random.below(3) {
            let (name, values) = columns[self.random.below(columns.len())];
            if chosen.iter().any(|c| c.starts_with(&format!("{name} ="))) {
                continue;
            }
            chosen.push(format!("{name} = {}", self.random.pick(values)));
        }
        chosen.join(", ")
    }

    /// Names of ids in the value lists, replaced by ids of this tenant and of another.
    fn with_ids(&mut self, sql: String) -> String {
        let mut sql = sql;
        let other = self.other_tenant();
        for (name, id) in [
            ("$new", self.random.uuid()),
            ("$process", self.row_id("p")),
            ("$admission", self.row_id("a")),
            ("$lease", self.row_id("l")),
            ("$artifact", self.row_id("k")),
            ("$revision", self.row_id("r")),
            ("$session", self.tenant.session(1)),
            ("$group", self.tenant.group(1)),
            ("$turn", self.tenant.turn()),
            ("$attempt", self.tenant.attempt()),
            ("$account", other.account()),
            ("$workspace", other.workspace()),
            ("$theirs", other.id(0x1000)),
        ] {
            sql = sql.replace(name, &format!("'{id}'"));
        }
        sql
    }

    fn change_process(&mut self) -> Steps {
        const COLUMNS: &[(&str, &[&str])] = &[
            ("id", &["$new", "id"]),
            ("account_id", &["$account", "account_id"]),
            ("workspace_id", &["$workspace"]),
            ("session_id", &["$session"]),
            ("lease_id", &["$lease"]),
            ("sandbox_group_id", &["$group"]),
            ("parent_admission_id", &["$admission", "$new"]),
            ("holder_id", &["'process:x'", "holder_id || ''"]),
            ("owner_actor_kind", &["'turn'", "'direct'", "'x'"]),
            ("owner_actor_id", &["$new", "$attempt"]),
            ("owner_turn_id", &["$turn", "NULL"]),
            ("owner_attempt_id", &["$attempt", "NULL"]),
            ("owner_execution_generation", &["1", "NULL", "0"]),
            ("lease_epoch", &["lease_epoch + 1", "-1"]),
            ("provider_backend", &["'other'", "'modal'"]),
            ("provider_instance_id", &["'sb-other'"]),
            ("route_kind", &["'active'", "'home'", "'x'"]),
            ("route_target_id", &["$new", "NULL"]),
            ("route_epoch", &["route_epoch + 1", "0"]),
            ("provider_session_id", &["provider_session_id + 1", "0"]),
            (
                "state",
                &["'active'", "'exited'", "'lost'", "'lost'", "'x'"],
            ),
            ("exit_code", &["NULL", "3", "0"]),
            (
                "settlement_reason",
                &[
                    "NULL",
                    "'provider_instance_lost'",
                    "'provider_start_rejected'",
                    "'x'",
                    "''",
                ],
            ),
            ("settled_at", &["NULL", "'2026-02-01Z'", "'2026-02-02Z'"]),
            ("started_at", &["'2026-01-01Z'"]),
            ("reconcile_attempts", &["reconcile_attempts + 1", "-1"]),
            ("last_reconcile_outcome", &["'x'", "NULL", "''"]),
            ("reconcile_claim_id", &["$new", "NULL"]),
            ("reconcile_claimed_at", &["'2026-01-01Z'", "NULL"]),
            (
                "provider_command_input_index",
                &[
                    "provider_command_input_index + 1",
                    "0",
                    "9007199254740992",
                    "provider_command_input_index",
                ],
            ),
            (
                "supervision_retention_xid",
                &["NULL", "'5'", "supervision_retention_xid"],
            ),
            ("supervision_output_captured", &["true", "false", "NULL"]),
            (
                "supervision_receipt",
                &["NULL", "supervision_receipt", "'{}'"],
            ),
            (
                "cancellation_requested_at",
                &["NULL", "'2026-01-15Z'", "'2026-01-16Z'"],
            ),
            (
                "cancellation_reason",
                &["NULL", "'explicit_stop'", "'provider_deadline'", "'x'"],
            ),
            (
                "provider_binding",
                &[
                    r#"'{"version":1,"serverUrl":"u","workspaceName":"w","environment":"e"}'"#,
                    "NULL",
                ],
            ),
            (
                "provider_binding_key",
                &[
                    r#"'{"version":1,"serverUrl":"u","workspaceName":"w","environment":"e"}'"#,
                    "NULL",
                ],
            ),
            (
                "provider_command",
                &[
                    "NULL",
                    "'{}'",
                    "'[]'",
                    "provider_command",
                    "'\"supervision\"'",
                ],
            ),
        ];
        let id = self.row_id("p");
        let set = match self.random.below(6) {
            0 => format!("supervision_receipt = {}", self.receipt_of_row(true)),
            1 => {
                let more = self.assignments(COLUMNS);
                let receipt = self.receipt_of_row(false);
                match more.contains("supervision_receipt =") {
                    true => more,
                    false => format!("{more}, supervision_receipt = {receipt}"),
                }
            }
            _ => self.assignments(COLUMNS),
        };
        let set = self.with_ids(set);
        steps([format!("UPDATE {P} SET {set} WHERE id = '{id}'")])
    }

    fn change_command(&mut self) -> Steps {
        const PATHS: &[&str] = &[
            "kind",
            "sandboxId",
            "taskId",
            "execId",
            "pty",
            "extra",
            "supervision",
            "supervision,protocol",
            "supervision,invocationId",
            "supervision,nonce",
            "supervision,controlPath",
            "supervision,extra",
            "streams",
            "streams,stdout",
            "streams,stderr",
            "streams,extra",
            "streams,stdout,byteOffset",
            "streams,stdout,utf8Remainder",
            "streams,stdout,eof",
            "streams,stdout,exitCode",
            "streams,stdout,extra",
            "streams,stderr,byteOffset",
            "streams,stderr,utf8Remainder",
            "streams,stderr,eof",
            "streams,stderr,exitCode",
        ];
        const VALUES: &[&str] = &[
            "null",
            "true",
            "false",
            "0",
            "1",
            "11",
            "-1",
            "1.5",
            "12.0",
            "1e2",
            "1e400",
            "99999999999999999999",
            r#""""#,
            r#""x""#,
            r#""12""#,
            r#"" 12 ""#,
            r#""true""#,
            r#""off""#,
            r#""maybe""#,
            r#""4g==""#,
            "{}",
            "[]",
            r#"["supervision"]"#,
            r#""supervision""#,
            r#""modal-router-v1""#,
            r#""modal-control-v1""#,
            r#""native-subreaper-v1""#,
            "2147483648",
        ];
        let p = self.row_id("p");
        let path = self.random.pick(PATHS);
        let mut value = self.random.pick(VALUES);
        if path == "pty" && value == r#""maybe""# {
            // Told apart from the casts of streams by what the server quotes.
            value = r#""perhaps""#;
        }
        let open = path.starts_with("streams") && self.random.percent(85);
        let change = match (path, self.random.below(6)) {
            ("supervision", 0..=2) => format!(
                "jsonb_set(provider_command, '{{supervision}}', '{}')",
                tenants::descriptor(&p)
            ),
            (_, 0) => format!("provider_command #- '{{{path}}}'"),
            ("streams", 1) => format!(
                "jsonb_set(provider_command, '{{streams}}', '{}')",
                tenants::PRISTINE
            ),
            _ => format!("jsonb_set(provider_command, '{{{path}}}', '{value}')"),
        };
        let mut all = Vec::new();
        if open {
            all.push(setting("supervised_output_capture_process_id", &format!("'{p}'")).into());
        }
        all.push(Statement {
            sql: format!("UPDATE {P} SET provider_command = {change} WHERE id = '{p}'"),
            note: match path.starts_with("streams") {
                true => Note::Vanish,
                false => Note::Plain,
            },
        });
        all
    }

    fn change_admission(&mut self) -> Steps {
        const COLUMNS: &[(&str, &[&str])] = &[
            ("id", &["$new"]),
            ("account_id", &["$account"]),
            ("workspace_id", &["$workspace"]),
            ("lease_id", &["$lease"]),
            ("session_id", &["$session"]),
            ("actor_kind", &["'process'", "'direct'", "'x'"]),
            ("actor_id", &["$process", "$new"]),
            ("holder_kind", &["'process'", "'direct'"]),
            ("holder_id", &["'x'"]),
            ("lease_epoch", &["lease_epoch + 1"]),
            ("provider_instance_id", &["'sb-other'"]),
            ("route_epoch", &["route_epoch + 1"]),
            (
                "workspace_generation",
                &["workspace_generation + 1000", "0"],
            ),
            ("operation", &["'write'", "operation"]),
            ("admitted_at", &["'2026-01-01Z'"]),
            (
                "provider_outcome",
                &["NULL", "'resolved'", "'rejected'", "'retained'", "'x'"],
            ),
            ("settled_at", &["NULL", "'2026-02-01Z'", "'2026-02-02Z'"]),
        ];
        let id = self.row_id("a");
        let set = match self.random.below(5) {
            0 => "provider_outcome = 'rejected', settled_at = '2026-02-01Z'".to_string(),
            1 => "provider_outcome = 'resolved', settled_at = '2026-02-01Z'".to_string(),
            2 => "provider_outcome = 'retained', settled_at = NULL".to_string(),
            3 => "actor_kind = 'process', holder_kind = 'process', actor_id = $process".to_string(),
            _ => self.assignments(COLUMNS),
        };
        let set = self.with_ids(set);
        steps([format!("UPDATE {A} SET {set} WHERE id = '{id}'")])
    }

    fn change_holder(&mut self) -> Steps {
        const COLUMNS: &[(&str, &[&str])] = &[
            ("id", &["$new"]),
            ("lease_id", &["$lease"]),
            ("kind", &["'process'", "'viewer'", "'direct'", "'x'"]),
            ("holder_id", &["'x'", "'process:' || $process", "holder_id"]),
            ("subject_id", &["NULL", "$session"]),
            ("last_heartbeat_at", &["'2026-01-01Z'", "last_heartbeat_at"]),
            ("account_id", &["$account"]),
        ];
        let id = self.row_id("h");
        let set = self.assignments(COLUMNS);
        let set = self.with_ids(set);
        steps([format!("UPDATE {H} SET {set} WHERE id = '{id}'")])
    }

    fn insert_holder(&mut self) -> Steps {
        let Some(p) = self.process(|_| true) else {
            return Vec::new();
        };
        let id = self.random.uuid();
        let kind = self
            .random
            .pick(&["process", "process", "viewer", "direct", "x"]);
        let conflict = self.random.pick(&[
            "",
            " ON CONFLICT DO NOTHING",
            " ON CONFLICT (lease_id, kind, holder_id) DO UPDATE SET subject_id = excluded.subject_id",
        ]);
        steps([format!(
            "INSERT INTO {H} (account_id, workspace_id, id, lease_id, kind, holder_id, subject_id)
             VALUES ('{}', '{}', '{id}', '{}', '{kind}', '{}', '{}'){conflict}",
            self.tenant.account(),
            self.tenant.workspace(),
            p.lease,
            p.holder,
            p.session
        )])
    }

    /// Another row like an existing one, attached from the start.
    fn insert_process(&mut self) -> Steps {
        let from = self.row_id("p");
        let id = self.random.uuid();
        let admission = self.row_id("a");
        let retention = match self.random.below(5) {
            0 => "NULL",
            1 => "'5'",
            2 => "(pg_current_xact_id()::text::bigint + 1000)::text::xid8",
            3 => "pg_snapshot_xmax(pg_current_snapshot())",
            _ => "pg_current_xact_id()",
        };
        let conflict = self.random.pick(&[
            "",
            "",
            " ON CONFLICT (id) DO UPDATE SET reconcile_attempts = 1",
            " ON CONFLICT DO NOTHING",
        ]);
        let id = if conflict.is_empty() || self.random.percent(50) {
            id
        } else {
            from.clone()
        };
        let mut statement = Statement::from(format!(
            "INSERT INTO {P} (account_id, workspace_id, id, session_id, lease_id, sandbox_group_id,
               parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, lease_epoch, provider_backend,
               provider_instance_id, route_kind, route_epoch, provider_session_id, state, exit_code,
               settlement_reason, settled_at, provider_command, supervision_retention_xid, supervision_receipt,
               supervision_output_captured, cancellation_requested_at, cancellation_reason)
             SELECT account_id, workspace_id, '{id}', session_id, lease_id, sandbox_group_id, '{admission}',
               'process:{id}', owner_actor_kind, owner_actor_id, lease_epoch, provider_backend, provider_instance_id,
               route_kind, route_epoch, provider_session_id + 50, state, exit_code, settlement_reason, settled_at,
               provider_command, {retention}, supervision_receipt, supervision_output_captured,
               cancellation_requested_at, cancellation_reason
             FROM {P} WHERE id = '{from}'{conflict}"
        ));
        if retention.contains("1000") || retention.contains("snapshot") {
            statement.note = Note::Future;
        }
        vec![statement]
    }

    fn change_lease(&mut self) -> Steps {
        const COLUMNS: &[(&str, &[&str])] = &[
            ("id", &["$new"]),
            ("liveness", &["'cold'", "'warm'", "'draining'", "'x'"]),
            ("instance_id", &["NULL", "'sb-next'"]),
            ("backend", &["'modal'", "'other'"]),
            ("lease_epoch", &["lease_epoch + 1", "lease_epoch"]),
            ("refcount", &["refcount + 1", "-1"]),
            ("sandbox_group_id", &["$group"]),
            ("workspace_generation", &["workspace_generation + 1", "0"]),
            (
                "archive_generation",
                &["NULL", "workspace_generation", "archive_generation", "5"],
            ),
            (
                "archive_capture_id",
                &["$new", "NULL", "archive_capture_id"],
            ),
            ("archive_capture_published_at", &["'2026-01-01Z'", "NULL"]),
            (
                "unobservable_command_drain_ids",
                &["ARRAY[$new::uuid]", "NULL", "'{}'"],
            ),
            (
                "current_checkpoint_artifact_id",
                &["$artifact", "NULL", "$new"],
            ),
            ("previous_checkpoint_artifact_id", &["$artifact", "NULL"]),
            (
                "resume_state",
                &[
                    "NULL",
                    "'{}'",
                    "'[]'",
                    r#"'{"sessionState":null}'"#,
                    r#"'{"sessionState":["workspaceArchive"]}'"#,
                    r#"'{"sessionState":{"workspaceArchive":null}}'"#,
                    r#"jsonb_set(resume_state, '{sessionState,workspaceArchive}', '"x"')"#,
                    r#"jsonb_set(resume_state, '{sessionState,workspaceArchivePrev}', '"x"')"#,
                    r#"jsonb_set(resume_state, '{sessionState,workspaceArchiveRef}', '{"a":1}')"#,
                    r#"jsonb_set(resume_state, '{sessionState,workspaceArchiveMeta,revision}', '"x"')"#,
                    "resume_state #- '{sessionState,workspaceArchiveMeta}'",
                    "resume_state #- '{sessionState,workspaceArchivePrevMeta,revision}'",
                    r#"resume_state || '{"opengeniRecovery":null}'"#,
                ],
            ),
        ];
        let id = self.row_id("l");
        let set = self.assignments(COLUMNS);
        let set = self.with_ids(set);
        steps([format!("UPDATE {L} SET {set} WHERE id = '{id}'")])
    }

    fn change_pty(&mut self) -> Steps {
        const COLUMNS: &[(&str, &[&str])] = &[
            ("status", &["'open'", "'closed'", "'x'"]),
            ("retained_process_id", &["$process", "NULL"]),
            ("open_admission_id", &["$admission", "NULL"]),
            ("exec_session_id", &["1", "exec_session_id + 1"]),
            ("lease_id", &["$lease"]),
            ("session_id", &["$session"]),
            ("sandbox_group_id", &["$group"]),
            ("lease_epoch", &["lease_epoch + 1"]),
            ("provider_backend", &["'other'"]),
            ("provider_instance_id", &["'sb-other'"]),
            ("route_kind", &["'active'"]),
            ("route_target_id", &["$new", "NULL"]),
            ("route_epoch", &["7"]),
            ("cols", &["cols + 1"]),
        ];
        let id = self.row_id("y");
        let set = self.assignments(COLUMNS);
        let set = self.with_ids(set);
        steps([format!("UPDATE {Y} SET {set} WHERE id = '{id}'")])
    }

    fn change_artifact(&mut self) -> Steps {
        const COLUMNS: &[(&str, &[&str])] = &[
            ("id", &["$new"]),
            ("account_id", &["$account"]),
            ("workspace_id", &["$workspace"]),
            ("sandbox_group_id", &["$group"]),
            ("source_lease_id", &["$lease"]),
            ("source_lease_epoch", &["source_lease_epoch + 1"]),
            ("source_instance_id", &["'sb-other'", "NULL"]),
            (
                "source_workspace_generation",
                &["source_workspace_generation + 1", "NULL"],
            ),
            ("provenance", &["'legacy_provider_adopted'", "provenance"]),
            ("provider_binding", &["provider_binding"]),
            ("object_kind", &["'modal_directory_snapshot'"]),
            ("object_id", &["'o'"]),
            ("archive_base64", &["'eA=='"]),
            ("archive_sha256", &["repeat('0', 64)"]),
            ("archive_bytes", &["1"]),
            (
                "descriptor",
                &[r#"descriptor || '{"x":1}'"#, "descriptor || '{}'"],
            ),
            ("descriptor_revision", &["'r'"]),
            (
                "state",
                &[
                    "'candidate'",
                    "'current'",
                    "'previous'",
                    "'delete_pending'",
                    "'deleted'",
                    "'x'",
                ],
            ),
            ("delete_after", &["'2026-02-01Z'"]),
            ("delete_attempts", &["delete_attempts + 1"]),
            ("created_at", &["'2026-01-02Z'"]),
            ("published_at", &["'2026-02-01Z'"]),
        ];
        let id = self.row_id("k");
        let set = self.assignments(COLUMNS);
        let set = self.with_ids(set);
        let mut all = steps([format!("UPDATE {K} SET {set} WHERE id = '{id}'")]);
        if self.random.percent(35) {
            all.push(format!("DELETE FROM {K} WHERE id = '{id}'").into());
        }
        all
    }

    fn change_policy(&mut self) -> Steps {
        let (table, list) = [(R, "r"), (N, "n"), (E, "e")][self.random.below(3)];
        let id = self.row_id(list);
        let set = match list {
            "r" => self.random.pick(&[
                "content = content",
                "supersedes_revision_id = $revision",
                "role_key = 'x'",
            ]),
            "n" => self.random.pick(&[
                "revision_id = $revision",
                "revision = revision + 1",
                "content_hash = repeat('0', 64)",
                "role_key = 'x'",
                "kind = 'policy'",
                "account_id = $account",
                "activation_version = 9",
            ]),
            _ => self.random.pick(&[
                "reason = 'other'",
                "new_revision_id = $revision",
                "new_revision = 0",
                "old_revision_id = $revision",
            ]),
        };
        let set = self.with_ids(set.to_string());
        steps([format!("UPDATE {table} SET {set} WHERE id = '{id}'")])
    }

    fn delete(&mut self) -> Steps {
        let (table, list) = [
            (P, "p"),
            (A, "a"),
            (H, "h"),
            (L, "l"),
            (Y, "y"),
            (K, "k"),
            (R, "r"),
            (N, "n"),
            (E, "e"),
        ][self.random.below(9)];
        if self.random.below(40) == 0 {
            return steps([format!(
                "DELETE FROM workspaces WHERE id = '{}'",
                self.tenant.workspace()
            )]);
        }
        let id = self.row_id(list);
        steps([format!("DELETE FROM {table} WHERE id = '{id}'")])
    }

    /// A setting of the protocol for some process, before who knows what.
    fn set_something(&mut self) -> Steps {
        let p = self.row_id("p");
        let mut all: Steps = match self.random.below(3) {
            0 => vec![self.capturing(&p).into()],
            1 => vec![self.loss_binding(&p).into()],
            _ => {
                let right = "jsonb_build_object('processId', id, 'command', provider_command)";
                vec![
                    self.binding("supervised_launch_rejection_binding", right, &p, "command")
                        .into(),
                ]
            }
        };
        let reason = self
            .random
            .pick(&["provider_instance_lost", "provider_start_rejected", "x"]);
        all.push(
            format!(
                "UPDATE {P} SET state = 'lost', settlement_reason = '{reason}', settled_at = {SETTLED} WHERE id = '{p}'"
            )
            .into(),
        );
        all
    }
}
