//! The rows that a random walk starts from: a few tenants, each with commands in every stage.

use std::fmt::Write;

use crate::database::clear;

pub const TENANTS: usize = 4;
pub const LEASES: usize = 3;
/// A transaction id that ended long ago.
const FINISHED: &str = "'5'";
pub const SETTLED: &str = "'2026-02-01T00:00:00Z'";

/// Settings and column lists of one tenant; every id follows from its number.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub number: usize,
}

impl Tenant {
    pub fn id(&self, n: usize) -> String {
        format!("{:08x}-0000-4000-8000-{n:012x}", self.number + 1)
    }
    pub fn account(&self) -> String {
        self.id(1)
    }
    pub fn workspace(&self) -> String {
        self.id(2)
    }
    pub fn session(&self, n: usize) -> String {
        self.id(3 + n)
    }
    pub fn group(&self, lease: usize) -> String {
        self.id(0x10 + lease)
    }
    pub fn lease(&self, lease: usize) -> String {
        self.id(0x20 + lease)
    }
    pub fn turn(&self) -> String {
        self.id(0x30)
    }
    pub fn attempt(&self) -> String {
        self.id(0x31)
    }
    pub fn artifact(&self, n: usize) -> String {
        self.id(0x40 + n)
    }
    pub fn revision(&self, n: usize) -> String {
        self.id(0x50 + n)
    }
    fn instance(&self, lease: usize) -> String {
        format!("sb-{}-{lease}", self.number)
    }

    /// Removes what there is and plants the fixture, past all guards.
    pub fn fixture(&self) -> String {
        let mut sql = String::from("BEGIN; SET LOCAL session_replication_role = replica;\n");
        sql += &clear(&self.account(), &self.workspace());
        let (account, workspace) = (self.account(), self.workspace());
        let (s0, turn, attempt) = (self.session(0), self.turn(), self.attempt());
        let scope = format!("'{account}', '{workspace}'");
        let _ = writeln!(
            sql,
            "INSERT INTO managed_accounts (id, name) VALUES ('{account}', 'a');
             INSERT INTO workspaces (account_id, id, name) VALUES ({scope}, 'w');"
        );
        for n in 0..2 {
            let _ = writeln!(
                sql,
                "INSERT INTO sessions (account_id, workspace_id, id, sandbox_group_id, initial_message, model,
                   sandbox_backend) VALUES ({scope}, '{}', '{}', '', 'm', 'modal');",
                self.session(n),
                self.group(n)
            );
        }
        let _ = writeln!(
            sql,
            "INSERT INTO session_turns (account_id, workspace_id, id, session_id, trigger_event_id,
               temporal_workflow_id, status, position, prompt, model, reasoning_effort, sandbox_backend,
               execution_generation, active_attempt_id)
             VALUES ({scope}, '{turn}', '{s0}', '{turn}', 'w', 'running', 1, 'p', 'm', 'low', 'modal', 1, '{attempt}');
             INSERT INTO session_turn_attempts (account_id, workspace_id, id, session_id, turn_id,
               execution_generation, state, temporal_workflow_id, temporal_workflow_run_id, temporal_activity_id,
               verified_control_revision, mcp_approval_policies)
             VALUES ({scope}, '{attempt}', '{s0}', '{turn}', 1, 'running', 'w', 'r', 'a', 1, '{{}}');"
        );
        for n in 0..LEASES {
            let _ = writeln!(
                sql,
                "INSERT INTO sandbox_leases (account_id, workspace_id, id, sandbox_group_id, liveness, instance_id,
                   backend, lease_epoch, expires_at, workspace_generation)
                 VALUES ({scope}, '{}', '{}', 'warm', '{}', 'modal', 1, '2100-01-01Z', 100);",
                self.lease(n),
                self.group(n),
                self.instance(n)
            );
        }
        let last = LEASES - 1;
        for (n, state) in ["previous", "current", "candidate", "delete_pending"]
            .iter()
            .enumerate()
        {
            sql += &artifact(
                &self.artifact(n),
                &self.lease(last),
                "native_capture",
                "5",
                state,
            );
            sql += ";\n";
        }
        let _ = writeln!(
            sql,
            "UPDATE sandbox_leases SET archive_generation = 5, current_checkpoint_artifact_id = '{1}',
               previous_checkpoint_artifact_id = '{0}', resume_backend_id = 'modal', resume_state = jsonb_build_object(
                 'backendId', 'modal', 'sessionState', jsonb_build_object(
                   'workspaceArchive', (SELECT archive_base64 FROM sandbox_checkpoint_artifacts WHERE id = '{1}'),
                   'workspaceArchiveMeta', (SELECT descriptor FROM sandbox_checkpoint_artifacts WHERE id = '{1}'),
                   'workspaceArchivePrev', (SELECT archive_base64 FROM sandbox_checkpoint_artifacts WHERE id = '{0}'),
                   'workspaceArchivePrevMeta', (SELECT descriptor FROM sandbox_checkpoint_artifacts WHERE id = '{0}')))
             WHERE id = '{2}';",
            self.artifact(0),
            self.artifact(1),
            self.lease(last)
        );
        for (n, stage) in STAGES.iter().enumerate() {
            sql += &self.command(n, stage);
        }
        sql += &self.policies();
        sql += "COMMIT";
        sql
    }

    /// The process, its parent admission and what belongs to its stage.
    fn command(&self, n: usize, stage: &Stage) -> String {
        let id = |kind: usize| self.id(0x1000 * kind + n);
        let (process, admission, holder, actor) = (id(1), id(2), id(3), id(4));
        let scope = format!("'{}', '{}'", self.account(), self.workspace());
        let (lease, group, instance) = (
            self.lease(stage.lease),
            self.group(stage.lease),
            self.instance(stage.lease),
        );
        let session = self.session(0);
        let mut sql = String::new();
        let ended = stage.state != "active";
        let (outcome, settled) = match stage.state {
            "active" => ("retained", "NULL"),
            "lost" => ("rejected", SETTLED),
            _ => ("resolved", SETTLED),
        };
        let _ = writeln!(
            sql,
            "INSERT INTO sandbox_workspace_mutation_admissions (account_id, workspace_id, id, lease_id,
               sandbox_group_id, session_id, actor_kind, actor_id, holder_kind, holder_id, lease_epoch,
               provider_backend, provider_instance_id, route_kind, route_epoch, workspace_generation, operation,
               provider_outcome, settled_at)
             VALUES ({scope}, '{admission}', '{lease}', '{group}', '{session}', 'direct', '{actor}', 'direct', 'd{n}',
               1, 'modal', '{instance}', 'home', 0, {}, 'exec', '{outcome}', {settled});",
            n + 1
        );
        if !ended {
            let _ = writeln!(
                sql,
                "INSERT INTO sandbox_lease_holders (account_id, workspace_id, id, lease_id, kind, holder_id, subject_id)
                 VALUES ({scope}, '{holder}', '{lease}', 'process', 'process:{process}', '{session}');"
            );
        }
        let command = match stage.command {
            "" => "NULL".to_string(),
            "legacy" => document(&instance, None, stage.streams),
            "supervised" => document(&instance, Some(&descriptor(&process)), stage.streams),
            other => document(&instance, Some(other), stage.streams),
        };
        let receipt = match stage.receipt {
            true => format!("'{}'", receipt(&process, &actor)),
            false => "NULL".to_string(),
        };
        let exit = if stage.state == "exited" { "3" } else { "NULL" };
        let reason = match (stage.state, n % 2) {
            ("lost", 0) => "'provider_instance_lost'",
            ("lost", _) => "'provider_start_rejected'",
            _ => "NULL",
        };
        let (cancelled, why) = match stage.cancelled {
            true => ("'2026-01-15Z'", "'explicit_stop'"),
            false => ("NULL", "NULL"),
        };
        let _ = writeln!(
            sql,
            "INSERT INTO sandbox_retained_processes (account_id, workspace_id, id, session_id, lease_id,
               sandbox_group_id, parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, lease_epoch,
               provider_backend, provider_instance_id, route_kind, route_epoch, provider_session_id, state, exit_code,
               settlement_reason, settled_at, provider_command, supervision_retention_xid, supervision_receipt,
               supervision_output_captured, cancellation_requested_at, cancellation_reason)
             VALUES ({scope}, '{process}', '{session}', '{lease}', '{group}', '{admission}', 'process:{process}',
               'direct', '{actor}', 1, 'modal', '{instance}', 'home', 0, {}, '{}', {exit}, {reason}, {settled},
               {command}, {}, {receipt}, {}, {cancelled}, {why});",
            n + 1,
            stage.state,
            if stage.command == "legacy" { "NULL" } else { FINISHED },
            stage.captured
        );
        for (c, settled) in stage.children.iter().enumerate() {
            let (outcome, at) = if *settled {
                ("'resolved'", SETTLED)
            } else {
                ("NULL", "NULL")
            };
            let _ = writeln!(
                sql,
                "INSERT INTO sandbox_workspace_mutation_admissions (account_id, workspace_id, id, lease_id,
                   sandbox_group_id, session_id, actor_kind, actor_id, holder_kind, holder_id, lease_epoch,
                   provider_backend, provider_instance_id, route_kind, route_epoch, workspace_generation, operation,
                   provider_outcome, settled_at)
                 VALUES ({scope}, '{}', '{lease}', '{group}', '{session}', 'process', '{process}', 'process',
                   'process:{process}', 1, 'modal', '{instance}', 'home', 0, {}, 'stdin', {outcome}, {at});",
                id(5 + c),
                50 + 2 * n + c
            );
        }
        if stage.pty {
            let _ = writeln!(
                sql,
                "INSERT INTO sandbox_pty_sessions (account_id, workspace_id, id, session_id, exec_session_id,
                   lease_epoch, cols, rows, shell, cwd, status, opened_by, lease_id, sandbox_group_id,
                   retained_process_id, open_admission_id, provider_backend, provider_instance_id, route_kind,
                   route_epoch)
                 VALUES ({scope}, '{}', '{session}', {}, 1, 80, 24, 'sh', '/', 'open', 'u', '{lease}', '{group}',
                   '{process}', '{admission}', 'modal', '{instance}', 'home', 0);",
                id(8),
                n + 1
            );
        }
        sql
    }

    fn policies(&self) -> String {
        let mut sql = String::new();
        let scope = format!("'{}', '{}'", self.account(), self.workspace());
        for (n, (kind, reach, role)) in [
            ("charter", "global", "NULL"),
            ("charter", "global", "NULL"),
            ("policy", "global", "NULL"),
            ("policy", "role", "'ops'"),
        ]
        .iter()
        .enumerate()
        {
            let supersedes = match n {
                1 => format!("'{}'", self.revision(0)),
                _ => "NULL".to_string(),
            };
            let _ = writeln!(
                sql,
                "INSERT INTO workspace_instruction_policy_revisions (account_id, workspace_id, id, revision, kind,
                   scope, role_key, content, content_hash, provenance_source, supersedes_revision_id,
                   created_by_subject_id)
                 VALUES ({scope}, '{id}', {n} + 1, '{kind}', '{reach}', {role}, 'c{n}',
                   encode(sha256('c{n}'), 'hex'), 'human', {supersedes}, 's');
                 INSERT INTO workspace_instruction_policy_activation_events (id, account_id, workspace_id, kind, scope,
                   role_key, type, activation_version, new_revision_id, new_revision, new_content_hash,
                   actor_subject_id, reason)
                 SELECT '{event}', account_id, workspace_id, kind, scope, role_key, 'activate', {n} + 1, id, revision,
                   content_hash, 's', 'r' FROM workspace_instruction_policy_revisions WHERE id = '{id}';",
                id = self.revision(n),
                event = self.id(0x60 + n)
            );
            if n != 0 {
                let _ = writeln!(
                    sql,
                    "INSERT INTO workspace_instruction_policy_heads (id, account_id, workspace_id, kind, scope,
                       role_key, revision_id, revision, content_hash, activation_version)
                     SELECT '{}', account_id, workspace_id, kind, scope, role_key, id, revision, content_hash, 1
                     FROM workspace_instruction_policy_revisions WHERE id = '{}';",
                    self.id(0x70 + n),
                    self.revision(n)
                );
            }
        }
        sql
    }
}

/// An artifact of a lease; its archive is its own id.
pub fn artifact(id: &str, lease: &str, provenance: &str, generation: &str, state: &str) -> String {
    let source = match provenance {
        "native_capture" => "instance_id",
        _ => "NULL",
    };
    format!(
        "INSERT INTO sandbox_checkpoint_artifacts (account_id, workspace_id, id, sandbox_group_id, source_lease_id,
           source_lease_epoch, source_instance_id, source_workspace_generation, provenance, provider_backend,
           provider_binding_key, provider_binding, object_kind, object_id, archive_base64, archive_sha256,
           archive_bytes, descriptor, descriptor_revision, state, created_at)
         SELECT account_id, workspace_id, '{id}', sandbox_group_id, id, lease_epoch, {source}, {generation},
           '{provenance}', 'modal',
           '{{\"version\":1,\"serverUrl\":\"u\",\"workspaceName\":\"w\",\"environment\":\"e\"}}',
           '{{\"version\":1,\"serverUrl\":\"u\",\"workspaceName\":\"w\",\"environment\":\"e\"}}',
           'modal_filesystem_snapshot', '{id}', encode('{id}', 'base64'), encode(sha256('{id}'), 'hex'), 36,
           jsonb_build_object('version', '2', 'kind', 'provider_snapshot', 'revision', 'rev-{id}', 'archiveSha256',
             encode(sha256('{id}'), 'hex'), 'archiveBytes', 36, 'snapshotId', '{id}', 'provider',
             'modal_snapshot_filesystem', 'workspacePersistence', 'snapshot_filesystem'),
           'rev-{id}', '{state}', '2026-01-01Z'
         FROM sandbox_leases WHERE id = '{lease}'"
    )
}

pub fn descriptor(process: &str) -> String {
    let nonce = "0123456789abcdef".repeat(4);
    format!(
        r#"{{"protocol":"native-subreaper-v1","invocationId":"{process}","nonce":"{nonce}","controlPath":"/tmp/opengeni-supervision/{process}.sock"}}"#
    )
}

pub fn receipt(process: &str, receipt: &str) -> String {
    format!(
        r#"{{"protocol":"native-subreaper-v1","invocationId":"{process}","receiptId":"{receipt}","leaderExitCode":3}}"#
    )
}

/// A provider command as SQL.
fn document(instance: &str, supervision: Option<&str>, streams: &str) -> String {
    let supervision = supervision.map_or(String::new(), |s| format!(r#","supervision":{s}"#));
    let streams = match streams {
        "" => String::new(),
        s => format!(r#","streams":{s}"#),
    };
    format!(
        r#"'{{"kind":"modal-router-v1","sandboxId":"{instance}","taskId":"t","execId":"e","pty":false{streams}{supervision}}}'"#
    )
}

pub const PRISTINE: &str = r#"{"stdout":{"byteOffset":0,"utf8Remainder":"","eof":false,"exitCode":null},"stderr":{"byteOffset":0,"utf8Remainder":"","eof":false,"exitCode":null}}"#;
const READ: &str = r#"{"stdout":{"byteOffset":10,"utf8Remainder":"4g==","eof":false,"exitCode":null},"stderr":{"byteOffset":4,"utf8Remainder":"","eof":true,"exitCode":null}}"#;
pub const DRAINED: &str = r#"{"stdout":{"byteOffset":1000000000,"utf8Remainder":"","eof":true,"exitCode":0},"stderr":{"byteOffset":1000000000,"utf8Remainder":"","eof":true,"exitCode":0}}"#;

/// What stage of its life a command of the fixture is in.
pub struct Stage {
    /// '' (NULL), `legacy`, `supervised`, or the JSON text under `supervision`.
    command: &'static str,
    streams: &'static str,
    lease: usize,
    state: &'static str,
    receipt: bool,
    captured: bool,
    cancelled: bool,
    /// Settled or not, one entry per child.
    children: &'static [bool],
    pty: bool,
    /// The streams are of a form that no guard lets in any more.
    pub poisoned: bool,
}

const RUNNING: Stage = Stage {
    command: "supervised",
    streams: PRISTINE,
    lease: 0,
    state: "active",
    receipt: false,
    captured: false,
    cancelled: false,
    children: &[],
    pty: false,
    poisoned: false,
};
const CAPTURED: Stage = Stage {
    streams: DRAINED,
    captured: true,
    ..RUNNING
};
const ENDED: Stage = Stage {
    state: "exited",
    receipt: true,
    ..CAPTURED
};

macro_rules! poisoned {
    ($streams:literal) => {
        Stage {
            streams: $streams,
            poisoned: true,
            ..RUNNING
        }
    };
}

pub const STAGES: &[Stage] = &[
    RUNNING,
    Stage {
        command: "legacy",
        pty: true,
        ..RUNNING
    },
    Stage {
        command: "",
        streams: "",
        ..RUNNING
    },
    Stage {
        streams: READ,
        ..RUNNING
    },
    Stage {
        streams: DRAINED,
        ..RUNNING
    },
    Stage {
        streams: "",
        lease: 1,
        ..RUNNING
    },
    CAPTURED,
    Stage {
        receipt: true,
        ..CAPTURED
    },
    Stage {
        receipt: true,
        lease: 1,
        ..RUNNING
    },
    Stage {
        children: &[false, true],
        lease: 1,
        ..RUNNING
    },
    Stage {
        children: &[true],
        pty: true,
        ..RUNNING
    },
    Stage {
        cancelled: true,
        ..RUNNING
    },
    Stage {
        cancelled: true,
        receipt: true,
        lease: 1,
        ..CAPTURED
    },
    ENDED,
    Stage {
        children: &[true],
        lease: 1,
        cancelled: true,
        ..ENDED
    },
    Stage { lease: 2, ..ENDED },
    Stage {
        state: "lost",
        lease: 2,
        children: &[false, true],
        ..RUNNING
    },
    Stage {
        state: "lost",
        lease: 2,
        ..RUNNING
    },
    Stage {
        state: "lost",
        lease: 1,
        streams: READ,
        ..RUNNING
    },
    Stage {
        command: "legacy",
        state: "exited",
        lease: 2,
        ..RUNNING
    },
    Stage {
        command: "legacy",
        lease: 2,
        cancelled: true,
        children: &[false],
        ..RUNNING
    },
    Stage {
        command: "null",
        ..RUNNING
    },
    poisoned!(
        r#"{"stdout":{"byteOffset":"x","utf8Remainder":"","eof":false,"exitCode":null},"stderr":{"byteOffset":3}}"#
    ),
    poisoned!(
        r#"{"stdout":{"byteOffset":1.5,"utf8Remainder":"","eof":"maybe","exitCode":"x"},"stderr":[]}"#
    ),
    poisoned!(
        r#"{"stdout":{"byteOffset":5,"utf8Remainder":7,"eof":"true","exitCode":null},"stderr":{"byteOffset":5,"utf8Remainder":"","eof":true,"exitCode":"0"}}"#
    ),
    poisoned!(r#"["stdout"]"#),
    poisoned!(r#"{"stdout":{"byteOffset":99999999999999999999},"stderr":null}"#),
];
