//! The catalogue of refusals: one entry per rule, with the published SQLSTATE and message.

/// What a rule says when it refuses.
pub struct Entry {
    /// Error field CONSTRAINT.
    pub id: &'static str,
    /// The trigger function, or the operation, that refuses.
    pub guard: &'static str,
    /// The table whose write is refused; empty where the guard serves several.
    pub table: &'static str,
    pub sqlstate: &'static str,
    /// `{op}` and `{table}` stand for the operation and the table of the event, or for what is being done.
    pub message: &'static str,
    /// The protocol step that is missing.
    pub hint: &'static str,
}

macro_rules! rules {
    ($($guard:literal on $table:literal { $($variant:ident $id:literal $state:literal $message:literal, $hint:literal;)* })*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule { $($($variant,)*)* }

        impl Rule {
            /// In the order of the catalogue, which within a guard is the order of the checks.
            pub const ALL: &'static [Rule] = &[$($(Rule::$variant,)*)*];

            pub fn entry(self) -> &'static Entry {
                match self {
                    $($(Rule::$variant => &Entry {
                        id: $id,
                        guard: $guard,
                        table: $table,
                        sqlstate: $state,
                        message: $message,
                        hint: $hint,
                    },)*)*
                }
            }
        }
    };
}

rules! {
    "enforce_sandbox_recovery_protocol_v2" on "" {
        Marker "protocol_v2.marker" "55000"
            "sandbox recovery protocol v2 marker is required for {op} on {table}",
            "Set opengeni.sandbox_recovery_protocol_v2 to '1' in the transaction that writes.";
    }
    "supervised_command_guard" on "sandbox_retained_processes" {
        DeleteUnsettled "supervised_command.delete_unsettled" "55000"
            "Unsettled supervised command evidence cannot be deleted",
            "Settle the command first: receipt, captured output, then exit; or record its loss.";
        RetentionXid "supervised_command.retention_xid" "55000"
            "Retention transaction identity is immutable",
            "Leave supervision_retention_xid to its default in INSERT and out of UPDATE.";
        Identity "supervised_command.identity" "55000"
            "Supervised command identity is immutable",
            "Retain a new command instead of changing what this one ran as.";
        InitialRetention "supervised_command.initial_retention" "55000"
            "Supervision requires initial retention",
            "Attach the descriptor in the transaction that inserts the retained process.";
        CancellationMonotonic "supervised_command.cancellation_monotonic" "55000"
            "Cancellation intent is monotonic",
            "Keep the cancellation that is recorded; a second request changes nothing.";
        ProofImmutable "supervised_command.proof_immutable" "55000"
            "Supervision proof is immutable",
            "Keep the receipt and the captured flag that are recorded.";
        StdinClosed "supervised_command.stdin_closed" "55000"
            "Supervised stdin admission is closed",
            "Reserve input before the command is cancelled or has its receipt.";
        StdinChild "supervised_command.stdin_child" "55000"
            "Supervised stdin requires an unsettled child admission",
            "Insert the child admission for this command on its lease before reserving input.";
        StdinRegress "supervised_command.stdin_regress" "55000"
            "Supervised stdin sequence cannot regress",
            "Reserve input at an index above the recorded one.";
        Adoption "supervised_command.adoption" "55000"
            "Cancelled command cannot be adopted",
            "Leave the owner of a cancelled command as it is.";
        Terminal "supervised_command.terminal" "55000"
            "Supervised terminal state is immutable",
            "Leave state, exit code and settlement time of a settled command as they are.";
        CaptureProtocol "supervised_command.capture_protocol" "55000"
            "Supervised output requires atomic capture protocol",
            "Set opengeni.supervised_output_capture_process_id to the process id around the capture.";
        OutputRegress "supervised_command.output_regress" "55000"
            "Supervised output proof cannot regress",
            "Re-read the recorded cursor and capture from there.";
        CancellationIntent "supervised_command.cancellation_intent" "23514"
            "Invalid cancellation intent",
            "Set time and reason together; the reason is provider_deadline or explicit_stop.";
        LegacyProof "supervised_command.legacy_proof" "23514"
            "Legacy command cannot acquire supervision proof",
            "Only a command with a supervision descriptor has a receipt or captured output.";
        Containment "supervised_command.containment" "55000"
            "Supervised launch cannot join checkpoint containment",
            "Launch after the lease's archive capture and command drain have ended.";
        Descriptor "supervised_command.descriptor" "23514"
            "Invalid supervision descriptor",
            "See the descriptor's shape: protocol, invocationId, nonce and controlPath of a modal-router-v1 command without pty.";
        Receipt "supervised_command.receipt" "23514"
            "Invalid invocation-bound supervision receipt",
            "A receipt repeats protocol and invocationId of the descriptor and adds receiptId and leaderExitCode.";
        CaptureIncomplete "supervised_command.capture_incomplete" "55000"
            "Supervised output capture is incomplete",
            "Capture both streams to end of file, with no pending bytes and exit code 0, first.";
        LossFabricated "supervised_command.loss_fabricated" "55000"
            "Supervised loss cannot fabricate execution or output proof",
            "A loss sets state, settled_at and settlement_reason of a recorded command and nothing else.";
        LaunchRejection "supervised_command.launch_rejection" "55000"
            "Supervised launch rejection requires an exact pristine invocation",
            "Set opengeni.supervised_launch_rejection_binding to this process and command; nothing may have run.";
        TypedLoss "supervised_command.typed_loss" "55000"
            "Supervised loss requires the exact typed provider-loss transition",
            "Set opengeni.supervised_provider_loss_binding to the lost lease, epoch, backend and instance.";
        InputSettlesFirst "supervised_command.input_settles_first" "55000"
            "Admitted command input must settle before quiescence",
            "Settle the command's child admissions before its receipt is recorded.";
        Settlement "supervised_command.settlement" "55000"
            "Supervised settlement requires quiescence, provider terminal and captured output",
            "Record receipt and captured output; then exit with the receipt's leaderExitCode.";
        StreamCursor "supervised_command.stream_cursor" "23514"
            "Invalid supervision stream cursor",
            "A cursor has a byteOffset from 0, a string utf8Remainder, a boolean eof and an integer or null exitCode.";
    }
    "supervised_provider_loss_commit_guard" on "sandbox_retained_processes" {
        RecoveryTruth "provider_loss.recovery_truth" "55000"
            "Supervised loss requires matching cold missing-provider recovery truth",
            "Before COMMIT, set the lease cold at the next epoch, with the lost instance missing in its recovery state.";
    }
    "supervised_command_blocker_guard" on "sandbox_workspace_mutation_admissions" {
        ChildLostOutcome "child_admission.lost_outcome" "55000"
            "Lost provider child admission cannot resolve successfully",
            "Settle the child of a lost command as rejected.";
        ChildImmutable "child_admission.immutable" "55000"
            "Supervised child admission evidence is immutable",
            "Settle a child once, by provider_outcome and settled_at; delete it only when it and its command have ended.";
        ChildInitialInsert "child_admission.initial_insert" "55000"
            "Supervised child admission requires initial insert",
            "Insert a child admission as the command's from the start.";
        ChildClosed "child_admission.closed" "55000"
            "Command mutation admission is closed",
            "Admit input before the command is cancelled or has its receipt.";
        ChildIdentity "child_admission.identity" "55000"
            "Supervised child admission changed execution identity",
            "Copy session, lease, provider, holder and route of the active command.";
        ParentRetained "parent_admission.retained" "55000"
            "Supervised parent admission remains retained",
            "Settle the command first; its parent admission follows.";
        ParentLostOutcome "parent_admission.lost_outcome" "55000"
            "Lost provider parent admission cannot resolve successfully",
            "Settle the parent of a lost command as rejected.";
        ParentImmutable "parent_admission.immutable" "55000"
            "Supervised parent admission evidence is immutable",
            "Leave the settled parent of an ended command as it is.";
    }
    "supervised_command_blocker_guard" on "sandbox_lease_holders" {
        HolderRetained "process_holder.retained" "55000"
            "Supervised process holder remains retained",
            "Settle the command first; its holder goes with it.";
        HolderReleased "process_holder.released" "55000"
            "Supervised process holder is released",
            "A command that has ended holds no lease.";
    }
    "supervised_command_capture_guard" on "sandbox_leases" {
        CaptureBlocked "lease_capture.blocked" "55000"
            "Supervised command blocks legacy containment and checkpoint publication",
            "Wait until no supervised command is active on the lease.";
    }
    "validate_sandbox_retained_process_v2" on "sandbox_retained_processes" {
        ProcessIdentity "retained_process.identity" "55000"
            "retained process does not match its parent admission and holder state",
            "By COMMIT an active process has a retained parent and its holder; an ended one a settled parent, no holder and no open PTY.";
    }
    "validate_sandbox_pty_process_v2" on "sandbox_pty_sessions" {
        PtyIdentity "pty.identity" "55000"
            "open PTY does not match its exact retained process identity",
            "By COMMIT an open PTY copies an active process: scope, lease, parent admission, provider and route.";
    }
    "validate_sandbox_checkpoint_refs" on "sandbox_leases" {
        CurrentCheckpoint "checkpoint_refs.current" "23514"
            "current checkpoint artifact does not match its exact lease scope",
            "By COMMIT the artifact is in state current and describes exactly this lease's archive.";
        PreviousCheckpoint "checkpoint_refs.previous" "23514"
            "previous checkpoint artifact does not match its exact lease scope",
            "By COMMIT the artifact is in state previous and describes exactly this lease's previous archive.";
    }
    "validate_sandbox_checkpoint_artifact_refs" on "sandbox_checkpoint_artifacts" {
        ArtifactVanished "checkpoint_artifact.vanished" "23514"
            "checkpoint artifact vanished before reference validation",
            "Do not delete an artifact in the transaction that wrote it.";
        ArtifactState "checkpoint_artifact.state" "23514"
            "checkpoint artifact state does not match its exact lease reference",
            "By COMMIT a current or previous artifact is what its lease refers to, and no other is referred to.";
    }
    "enforce_sandbox_checkpoint_artifact_immutability" on "sandbox_checkpoint_artifacts" {
        ArtifactImmutable "checkpoint_artifact.immutable" "55000"
            "checkpoint artifact identity and receipt fields are immutable",
            "Register a new artifact instead.";
    }
    "workspace_instruction_policy_validate_revision_link" on "workspace_instruction_policy_revisions" {
        PolicyLink "instruction_policy.link" "23514"
            "superseded instruction-policy revision must use the same workspace and target",
            "Supersede a revision of the same workspace, kind, scope and role.";
    }
    "workspace_instruction_policy_validate_head" on "workspace_instruction_policy_heads" {
        PolicyHead "instruction_policy.head" "23514"
            "instruction-policy head must identify an exact target revision",
            "Copy account, workspace, target, revision and hash of the revision.";
    }
    "workspace_instruction_policy_validate_event" on "workspace_instruction_policy_activation_events" {
        PolicyEventNew "instruction_policy.event_new" "23514"
            "instruction-policy activation event has an invalid new revision",
            "Copy account, workspace, target, revision and hash of the new revision.";
        PolicyEventOld "instruction_policy.event_old" "23514"
            "instruction-policy activation event has an invalid old revision",
            "Copy account, workspace, target, revision and hash of the old revision.";
    }
    "workspace_instruction_policy_reject_mutation" on "" {
        PolicyImmutable "instruction_policy.immutable" "55000"
            "workspace instruction-policy history is immutable",
            "History goes only with its workspace or account.";
    }
    "refuse_truncate_of_unsettled_evidence" on "" {
        EvidenceTruncate "evidence.truncate" "55000"
            "Unsettled supervised command evidence cannot be truncated",
            "Settle the schema's supervised commands first.";
    }
    "record_supervision_receipt" on "sandbox_retained_processes" {
        ReceiptScope "command.record_supervision_receipt.scope" "22023"
            "Account, workspace, session and process of a retained command are required",
            "Give all four ids; none may be NULL.";
        ReceiptShape "command.record_supervision_receipt.receipt" "22023"
            "Invalid supervision receipt",
            "Pass the receipt as the supervisor sent it: protocol, invocationId, receiptId and an integer leaderExitCode.";
        ReceiptUnknown "command.record_supervision_receipt.unknown" "P0002"
            "Supervised retained command is unavailable",
            "Look the command up again: no such process belongs to this account, workspace and session.";
        ReceiptUnsupervised "command.record_supervision_receipt.unsupervised" "55000"
            "Supervised retained command is unavailable",
            "Only a command launched under a supervisor has a receipt; settle this one by its provider's exit.";
    }
    "load_supervision_receipt" on "sandbox_retained_processes" {
        LoadScope "command.load_supervision_receipt.scope" "22023"
            "Account, workspace, session and process of a retained command are required",
            "Give all four ids; none may be NULL.";
        LoadUnknown "command.load_supervision_receipt.unknown" "P0002"
            "Retained command is unavailable",
            "Look the command up again: no such process belongs to this account, workspace and session.";
    }
    "request_cancellation" on "sandbox_retained_processes" {
        CancelScope "command.request_cancellation.scope" "22023"
            "Account, workspace, session and process of a retained command are required",
            "Give all four ids; none may be NULL.";
        CancelReason "command.request_cancellation.reason" "22023"
            "Invalid cancellation reason",
            "Give provider_deadline or explicit_stop.";
        CancelUnknown "command.request_cancellation.unknown" "P0002"
            "Retained command is unavailable",
            "Look the command up again: no such process belongs to this account, workspace and session.";
    }
    "cancellation_requested" on "sandbox_retained_processes" {
        CancelledScope "command.cancellation_requested.scope" "22023"
            "Account, workspace, session and process of a retained command are required",
            "Give all four ids; none may be NULL.";
        CancelledUnknown "command.cancellation_requested.unknown" "P0002"
            "Retained command is unavailable",
            "Look the command up again: no such process belongs to this account, workspace and session.";
    }
    "request_deadline_cancellation" on "sandbox_retained_processes" {
        DeadlineScope "command.request_deadline_cancellation.scope" "22023"
            "Account, workspace, session and process of a retained command are required",
            "Give all four ids; none may be NULL.";
    }
    "reserve_input" on "sandbox_retained_processes" {
        InputScope "command.reserve_input.scope" "22023"
            "Account, workspace, session and process of a retained command are required",
            "Give all four ids; none may be NULL.";
        InputUnknown "command.reserve_input.unknown" "P0002"
            "Active retained provider command is unavailable",
            "Look the command up again: no such process belongs to this account, workspace and session.";
        InputInactive "command.reserve_input.inactive" "55000"
            "Active retained provider command is unavailable",
            "The command has ended or was never attached: send it no more input.";
        InputClosed "command.reserve_input.closed" "55000"
            "Retained command input is closed",
            "The command is cancelled or has its receipt: send it no more input.";
        InputLength "command.reserve_input.byte_length" "22023"
            "Byte-offset stdin requires a positive byte reservation",
            "Pass the number of bytes to send, from 1 to 9007199254740991.";
        InputExhausted "command.reserve_input.exhausted" "55000"
            "Provider stdin sequence exhausted",
            "The index would pass 9007199254740991: start another command.";
    }
    "acknowledge_output" on "sandbox_retained_processes" {
        AcknowledgeScope "command.acknowledge_output.scope" "22023"
            "Account, workspace, session and process of a retained command are required",
            "Give all four ids; none may be NULL.";
        AcknowledgeShape "command.acknowledge_output.command" "22023"
            "Invalid provider command",
            "Pass the command as it was read, with the cursors of this page.";
        AcknowledgeKind "command.acknowledge_output.kind" "22023"
            "Byte-offset command output requires atomic capture",
            "Capture a modal-router-v1 page with capture_router_output.";
        AcknowledgeUnknown "command.acknowledge_output.unknown" "P0002"
            "Retained provider command is unavailable",
            "Look the command up again: no such process belongs to this account, workspace and session.";
        AcknowledgeUnattached "command.acknowledge_output.unattached" "55000"
            "Retained provider command is unavailable",
            "Attach the provider command first, or leave this process to whoever does.";
        AcknowledgeMalformed "command.acknowledge_output.malformed" "55000"
            "Retained provider command is malformed",
            "The recorded document has not the published shape; repair it as its owner.";
        AcknowledgeStoredKind "command.acknowledge_output.stored_kind" "55000"
            "Legacy acknowledgment cannot advance byte-offset output",
            "The recorded command is a modal-router-v1 one: capture its pages with capture_router_output.";
        AcknowledgeExecution "command.acknowledge_output.execution" "55000"
            "Output acknowledgment changed provider execution identity",
            "Load the recorded command and acknowledge output of that execution only.";
        AcknowledgeConflict "command.acknowledge_output.conflict" "55000"
            "Provider output acknowledgment conflicts with retained evidence",
            "Another reader has recorded this batch otherwise: load the command and read on from its cursor.";
    }
    "capture_router_output" on "sandbox_retained_processes" {
        CaptureScope "command.capture_router_output.scope" "22023"
            "Account, workspace, session and process of a retained command are required",
            "Give all four ids; none may be NULL.";
        CapturePage "command.capture_router_output.page" "22023"
            "A command output page needs the text of both streams",
            "Pass an empty string for a stream that printed nothing.";
        CaptureExpected "command.capture_router_output.expected" "22023"
            "Invalid modal-router-v1 command",
            "Pass the command as it was loaded, before this page.";
        CaptureCommand "command.capture_router_output.command" "22023"
            "Invalid modal-router-v1 command",
            "Pass the command with the cursors after this page.";
        CaptureExecutionChanged "command.capture_router_output.execution" "22023"
            "Output capture changed execution identity",
            "Change nothing but streams between the two commands.";
        CaptureRegress "command.capture_router_output.regress" "22023"
            "Output capture cannot regress or rewrite terminal evidence",
            "Read on from the expected cursor; a stream at its end has nothing more.";
        CaptureNoAdvance "command.capture_router_output.no_advance" "22023"
            "Output without byte advancement requires the first EOF",
            "Advance byteOffset by the bytes read, pending ones included.";
        CaptureRemainder "command.capture_router_output.remainder" "22023"
            "EOF must flush pending UTF-8 bytes",
            "Decode what is pending into the last page and leave utf8Remainder empty.";
        CaptureBound "command.capture_router_output.bound" "22023"
            "Command output page exceeds its capture bound",
            "Capture pages of at most 4194304 bytes of text per stream.";
        CaptureSession "command.capture_router_output.session" "P0002"
            "Command output session not found",
            "Look the session up again: it is not one of this account and workspace.";
        CaptureUnknown "command.capture_router_output.unknown" "P0002"
            "Retained provider command is unavailable",
            "Look the command up again: no such process belongs to this account, workspace and session.";
        CaptureUnattached "command.capture_router_output.unattached" "55000"
            "Retained provider command is unavailable",
            "Only an attached command of backend modal has output to capture.";
        CaptureMalformed "command.capture_router_output.malformed" "55000"
            "Retained provider command is malformed",
            "The recorded document has not the published shape; repair it as its owner.";
        CaptureOwner "command.capture_router_output.owner" "55000"
            "Output capture does not own this execution",
            "Load the recorded command: another execution is retained under this process.";
        CaptureChunk "command.capture_router_output.chunk" "55000"
            "Command output retry changed the captured chunk",
            "This range is stored with another text: load the command and read on from its cursor.";
    }
    "enrollment_membership_fence" on "" {
        FenceEnrollment "fence.enrollment" "55P03"
            "enrollment membership is changing; retry the transaction",
            "Roll back and run the whole transaction again.";
    }
    "workspace_membership_fence" on "" {
        FenceWorkspace "fence.workspace" "55P03"
            "workspace membership is changing; retry the transaction",
            "Roll back and run the whole transaction again.";
    }
    "install_membership_fences" on "" {
        FenceDrift "fence.drift" "55000"
            "0498 {op} definition drift",
            "The function is not the one that 0498 fences: compare it with the release's, or put the fence in by hand.";
    }
    "assert_application_roles_stopped" on "" {
        FenceRolesRunning "fence.roles_running" "55000"
            "enrollment membership migration requires stopped application roles",
            "Name 1 to 16 roles as a JSON array, stop everything that connects as one of them, and try again.";
    }
}

/// Why a write is refused: the rule, and which columns or JSON paths offended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub rule: Rule,
    names: &'static [&'static str],
    offending: u64,
    /// A column that the guard knows by number only.
    pub attribute: Option<i16>,
}

impl Refusal {
    /// The `names` whose bit is set in `offending`.
    pub fn new(rule: Rule, names: &'static [&'static str], offending: u64) -> Self {
        Refusal {
            rule,
            names,
            offending,
            attribute: None,
        }
    }

    /// A column of the event's table, by number.
    pub fn of_attribute(rule: Rule, attribute: i16) -> Self {
        Refusal {
            rule,
            names: &[],
            offending: 0,
            attribute: Some(attribute),
        }
    }

    /// Names of columns or JSON paths, never values.
    pub fn offenders(&self) -> impl Iterator<Item = &'static str> {
        let offending = self.offending;
        self.names
            .iter()
            .enumerate()
            .filter(move |(bit, _)| offending & (1 << bit) != 0)
            .map(|(_, name)| *name)
    }
}

/// Refuses by `rule`, naming all of `names`.
pub fn refuse(rule: Rule, names: &'static [&'static str]) -> Result<(), Refusal> {
    Err(Refusal::new(rule, names, u64::MAX))
}

pub type Verdict = Result<(), Refusal>;
