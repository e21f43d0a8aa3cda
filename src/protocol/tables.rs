//! The columns that guards read: for each guard its own view of each table, so that a guard depends on
//! nothing it does not need.

/// The column types that the protocol uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Bigint,
    Boolean,
    Integer,
    Jsonb,
    Text,
    Timestamptz,
    Uuid,
    UuidArray,
    Xid8,
}

impl Type {
    /// The name as `format_type` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Type::Bigint => "bigint",
            Type::Boolean => "boolean",
            Type::Integer => "integer",
            Type::Jsonb => "jsonb",
            Type::Text => "text",
            Type::Timestamptz => "timestamp with time zone",
            Type::Uuid => "uuid",
            Type::UuidArray => "uuid[]",
            Type::Xid8 => "xid8",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub ty: Type,
}

/// One guard's view of one table.
pub trait Table: Copy + Eq + 'static {
    const GUARD: &'static str;
    const NAME: &'static str;
    const COLUMNS: &'static [Column];
    /// The names of [`Table::COLUMNS`], for a refusal to pick from.
    const COLUMN_NAMES: &'static [&'static str];

    /// All of the view's columns, in the order of [`Table::COLUMNS`].
    const ALL: &'static [Self];

    fn index(self) -> usize;

    fn column(self) -> Column {
        Self::COLUMNS[self.index()]
    }
}

/// The most columns that one view has.
pub const MAX_COLUMNS: usize = 48;

macro_rules! view {
    ($(#[$doc:meta])* $name:ident, $guard:literal reads $table:literal { $($variant:ident $column:literal $ty:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        // Variants are named after their columns, whatever the view is called.
        #[allow(clippy::enum_variant_names)]
        pub enum $name { $($variant,)* }

        impl Table for $name {
            const GUARD: &'static str = $guard;
            const NAME: &'static str = $table;
            const COLUMNS: &'static [Column] = {
                const COLUMNS: &[Column] = &[$(Column { name: $column, ty: Type::$ty },)*];
                assert!(COLUMNS.len() <= MAX_COLUMNS);
                COLUMNS
            };
            const COLUMN_NAMES: &'static [&'static str] = &[$($column,)*];
            const ALL: &'static [Self] = &[$($name::$variant,)*];

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

view! {
    /// A retained command, as the supervised command guard reads it.
    Process, "supervised_command_guard" reads "sandbox_retained_processes" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SessionId "session_id" Uuid,
        LeaseId "lease_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        ParentAdmissionId "parent_admission_id" Uuid,
        HolderId "holder_id" Text,
        OwnerActorKind "owner_actor_kind" Text,
        OwnerActorId "owner_actor_id" Uuid,
        OwnerTurnId "owner_turn_id" Uuid,
        OwnerAttemptId "owner_attempt_id" Uuid,
        OwnerExecutionGeneration "owner_execution_generation" Integer,
        LeaseEpoch "lease_epoch" Integer,
        ProviderBackend "provider_backend" Text,
        ProviderInstanceId "provider_instance_id" Text,
        ProviderBindingKey "provider_binding_key" Text,
        ProviderBinding "provider_binding" Jsonb,
        ProviderSessionId "provider_session_id" Integer,
        RouteKind "route_kind" Text,
        RouteTargetId "route_target_id" Uuid,
        RouteEpoch "route_epoch" Integer,
        State "state" Text,
        ExitCode "exit_code" Integer,
        SettlementReason "settlement_reason" Text,
        SettledAt "settled_at" Timestamptz,
        ReconcileProofOutcome "reconcile_proof_outcome" Text,
        Command "provider_command" Jsonb,
        InputIndex "provider_command_input_index" Bigint,
        RetentionXid "supervision_retention_xid" Xid8,
        Receipt "supervision_receipt" Jsonb,
        Captured "supervision_output_captured" Boolean,
        CancellationRequestedAt "cancellation_requested_at" Timestamptz,
        CancellationReason "cancellation_reason" Text,
    }
}

view! {
    /// An admission that a running command may have made.
    ChildAdmission, "supervised_command_guard" reads "sandbox_workspace_mutation_admissions" {
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        ActorKind "actor_kind" Text,
        ActorId "actor_id" Uuid,
        SettledAt "settled_at" Timestamptz,
        LeaseId "lease_id" Uuid,
        LeaseEpoch "lease_epoch" Integer,
        ProviderBackend "provider_backend" Text,
        ProviderInstanceId "provider_instance_id" Text,
    }
}

view! {
    /// The lease that a launch joins.
    LaunchLease, "supervised_command_guard" reads "sandbox_leases" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        ArchiveCaptureId "archive_capture_id" Uuid,
        DrainIds "unobservable_command_drain_ids" UuidArray,
    }
}

// supervised_command_blocker_guard ------------------------------------------------------------------

view! {
    /// An admission, as the blocker guard reads it.
    Admission, "supervised_command_blocker_guard" reads "sandbox_workspace_mutation_admissions" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SessionId "session_id" Uuid,
        LeaseId "lease_id" Uuid,
        LeaseEpoch "lease_epoch" Integer,
        ActorKind "actor_kind" Text,
        ActorId "actor_id" Uuid,
        HolderKind "holder_kind" Text,
        HolderId "holder_id" Text,
        ProviderBackend "provider_backend" Text,
        ProviderInstanceId "provider_instance_id" Text,
        RouteKind "route_kind" Text,
        RouteTargetId "route_target_id" Uuid,
        RouteEpoch "route_epoch" Integer,
        ProviderOutcome "provider_outcome" Text,
        SettledAt "settled_at" Timestamptz,
    }
}

view! {
    /// A lease holder.
    Holder, "supervised_command_blocker_guard" reads "sandbox_lease_holders" {
        LeaseId "lease_id" Uuid,
        Kind "kind" Text,
        HolderId "holder_id" Text,
    }
}

view! {
    /// The command that an admission or a holder belongs to.
    BlockingProcess, "supervised_command_blocker_guard" reads "sandbox_retained_processes" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SessionId "session_id" Uuid,
        LeaseId "lease_id" Uuid,
        LeaseEpoch "lease_epoch" Integer,
        ParentAdmissionId "parent_admission_id" Uuid,
        HolderId "holder_id" Text,
        ProviderBackend "provider_backend" Text,
        ProviderInstanceId "provider_instance_id" Text,
        RouteKind "route_kind" Text,
        RouteTargetId "route_target_id" Uuid,
        RouteEpoch "route_epoch" Integer,
        State "state" Text,
        Command "provider_command" Jsonb,
        Receipt "supervision_receipt" Jsonb,
        CancellationRequestedAt "cancellation_requested_at" Timestamptz,
    }
}

// supervised_command_capture_guard ------------------------------------------------------------------

view! {
    /// A lease whose content may be captured.
    CaptureLease, "supervised_command_capture_guard" reads "sandbox_leases" {
        Id "id" Uuid,
        DrainIds "unobservable_command_drain_ids" UuidArray,
        CaptureId "archive_capture_id" Uuid,
        PublishedAt "archive_capture_published_at" Timestamptz,
        ArchiveGeneration "archive_generation" Integer,
        ResumeState "resume_state" Jsonb,
    }
}

view! {
    /// A command that may be running on the lease.
    RunningProcess, "supervised_command_capture_guard" reads "sandbox_retained_processes" {
        LeaseId "lease_id" Uuid,
        State "state" Text,
        Command "provider_command" Jsonb,
    }
}

// supervised_provider_loss_commit_guard ---------------------------------------------------------------

view! {
    /// A command that was lost with its provider.
    LostProcess, "supervised_provider_loss_commit_guard" reads "sandbox_retained_processes" {
        LeaseId "lease_id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        LeaseEpoch "lease_epoch" Integer,
        ProviderBackend "provider_backend" Text,
        ProviderInstanceId "provider_instance_id" Text,
    }
}

view! {
    /// The lease that has to know of the loss.
    RecoveredLease, "supervised_provider_loss_commit_guard" reads "sandbox_leases" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        Backend "backend" Text,
        LeaseEpoch "lease_epoch" Integer,
        Liveness "liveness" Text,
        InstanceId "instance_id" Text,
        ResumeState "resume_state" Jsonb,
    }
}

// validate_sandbox_retained_process_v2 ----------------------------------------------------------------

view! {
    /// A retained process whose identity is checked.
    IdentifiedProcess, "validate_sandbox_retained_process_v2" reads "sandbox_retained_processes" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SessionId "session_id" Uuid,
        LeaseId "lease_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        ParentAdmissionId "parent_admission_id" Uuid,
        HolderId "holder_id" Text,
        OwnerActorKind "owner_actor_kind" Text,
        OwnerActorId "owner_actor_id" Uuid,
        OwnerTurnId "owner_turn_id" Uuid,
        OwnerAttemptId "owner_attempt_id" Uuid,
        OwnerExecutionGeneration "owner_execution_generation" Integer,
        LeaseEpoch "lease_epoch" Integer,
        ProviderBackend "provider_backend" Text,
        ProviderInstanceId "provider_instance_id" Text,
        RouteKind "route_kind" Text,
        RouteTargetId "route_target_id" Uuid,
        RouteEpoch "route_epoch" Integer,
        State "state" Text,
        Command "provider_command" Jsonb,
        RetentionXid "supervision_retention_xid" Xid8,
    }
}

view! {
    /// The admission that a process continues.
    ParentAdmission, "validate_sandbox_retained_process_v2" reads "sandbox_workspace_mutation_admissions" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SessionId "session_id" Uuid,
        LeaseId "lease_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        ActorKind "actor_kind" Text,
        ActorId "actor_id" Uuid,
        TurnId "turn_id" Uuid,
        AttemptId "attempt_id" Uuid,
        ExecutionGeneration "execution_generation" Integer,
        LeaseEpoch "lease_epoch" Integer,
        ProviderBackend "provider_backend" Text,
        ProviderInstanceId "provider_instance_id" Text,
        RouteKind "route_kind" Text,
        RouteTargetId "route_target_id" Uuid,
        RouteEpoch "route_epoch" Integer,
        ProviderOutcome "provider_outcome" Text,
        SettledAt "settled_at" Timestamptz,
    }
}

view! {
    /// The holder that keeps a process's lease alive.
    ProcessHolder, "validate_sandbox_retained_process_v2" reads "sandbox_lease_holders" {
        LeaseId "lease_id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        Kind "kind" Text,
        HolderId "holder_id" Text,
        SubjectId "subject_id" Uuid,
    }
}

view! {
    /// A terminal that may be open on a process.
    ProcessPty, "validate_sandbox_retained_process_v2" reads "sandbox_pty_sessions" {
        RetainedProcessId "retained_process_id" Uuid,
        Status "status" Text,
    }
}

// validate_sandbox_pty_process_v2 ---------------------------------------------------------------------

view! {
    /// A terminal.
    Pty, "validate_sandbox_pty_process_v2" reads "sandbox_pty_sessions" {
        Status "status" Text,
        RetainedProcessId "retained_process_id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SessionId "session_id" Uuid,
        LeaseId "lease_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        OpenAdmissionId "open_admission_id" Uuid,
        LeaseEpoch "lease_epoch" Integer,
        ProviderBackend "provider_backend" Text,
        ProviderInstanceId "provider_instance_id" Text,
        RouteKind "route_kind" Text,
        RouteTargetId "route_target_id" Uuid,
        RouteEpoch "route_epoch" Integer,
        ExecSessionId "exec_session_id" Integer,
    }
}

view! {
    /// The process that a terminal is open on.
    PtyProcess, "validate_sandbox_pty_process_v2" reads "sandbox_retained_processes" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SessionId "session_id" Uuid,
        LeaseId "lease_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        ParentAdmissionId "parent_admission_id" Uuid,
        LeaseEpoch "lease_epoch" Integer,
        ProviderBackend "provider_backend" Text,
        ProviderInstanceId "provider_instance_id" Text,
        RouteKind "route_kind" Text,
        RouteTargetId "route_target_id" Uuid,
        RouteEpoch "route_epoch" Integer,
        ProviderSessionId "provider_session_id" Integer,
        State "state" Text,
    }
}

// validate_sandbox_checkpoint_refs --------------------------------------------------------------------

view! {
    /// A lease that refers to checkpoints.
    CheckpointLease, "validate_sandbox_checkpoint_refs" reads "sandbox_leases" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        Backend "backend" Text,
        WorkspaceGeneration "workspace_generation" Integer,
        ArchiveGeneration "archive_generation" Integer,
        ResumeState "resume_state" Jsonb,
        CurrentId "current_checkpoint_artifact_id" Uuid,
        PreviousId "previous_checkpoint_artifact_id" Uuid,
    }
}

view! {
    /// A checkpoint that a lease refers to.
    ReferredArtifact, "validate_sandbox_checkpoint_refs" reads "sandbox_checkpoint_artifacts" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        SourceLeaseId "source_lease_id" Uuid,
        SourceWorkspaceGeneration "source_workspace_generation" Integer,
        ProviderBackend "provider_backend" Text,
        Provenance "provenance" Text,
        ArchiveBase64 "archive_base64" Text,
        DescriptorRevision "descriptor_revision" Text,
        State "state" Text,
    }
}

// validate_sandbox_checkpoint_artifact_refs -----------------------------------------------------------

view! {
    /// A checkpoint whose state has to agree with its references.
    StatedArtifact, "validate_sandbox_checkpoint_artifact_refs" reads "sandbox_checkpoint_artifacts" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        SourceLeaseId "source_lease_id" Uuid,
        ProviderBackend "provider_backend" Text,
        State "state" Text,
    }
}

view! {
    /// A lease that may refer to the checkpoint.
    ReferringLease, "validate_sandbox_checkpoint_artifact_refs" reads "sandbox_leases" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        Backend "backend" Text,
        CurrentId "current_checkpoint_artifact_id" Uuid,
        PreviousId "previous_checkpoint_artifact_id" Uuid,
    }
}

// enforce_sandbox_checkpoint_artifact_immutability ----------------------------------------------------

view! {
    /// What a checkpoint is, for good.
    Artifact, "enforce_sandbox_checkpoint_artifact_immutability" reads "sandbox_checkpoint_artifacts" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        SandboxGroupId "sandbox_group_id" Uuid,
        SourceLeaseId "source_lease_id" Uuid,
        SourceLeaseEpoch "source_lease_epoch" Integer,
        SourceInstanceId "source_instance_id" Text,
        SourceWorkspaceGeneration "source_workspace_generation" Integer,
        Provenance "provenance" Text,
        ProviderBackend "provider_backend" Text,
        ProviderBindingKey "provider_binding_key" Text,
        ProviderBinding "provider_binding" Jsonb,
        ObjectKind "object_kind" Text,
        ObjectId "object_id" Text,
        ArchiveBase64 "archive_base64" Text,
        ArchiveSha256 "archive_sha256" Text,
        ArchiveBytes "archive_bytes" Integer,
        Descriptor "descriptor" Jsonb,
        DescriptorRevision "descriptor_revision" Text,
        CreatedAt "created_at" Timestamptz,
    }
}

// workspace_instruction_policy_* ------------------------------------------------------------------------

view! {
    /// A revision that supersedes another.
    LinkedRevision, "workspace_instruction_policy_validate_revision_link" reads "workspace_instruction_policy_revisions" {
        Id "id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        Kind "kind" Text,
        Scope "scope" Text,
        RoleKey "role_key" Text,
        SupersedesId "supersedes_revision_id" Uuid,
    }
}

view! {
    /// The revision that is in force.
    PolicyHead, "workspace_instruction_policy_validate_head" reads "workspace_instruction_policy_heads" {
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        Kind "kind" Text,
        Scope "scope" Text,
        RoleKey "role_key" Text,
        RevisionId "revision_id" Uuid,
        Revision "revision" Bigint,
        ContentHash "content_hash" Text,
    }
}

view! {
    /// An activation of a revision, perhaps in place of another.
    PolicyEvent, "workspace_instruction_policy_validate_event" reads "workspace_instruction_policy_activation_events" {
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        Kind "kind" Text,
        Scope "scope" Text,
        RoleKey "role_key" Text,
        OldRevisionId "old_revision_id" Uuid,
        OldRevision "old_revision" Bigint,
        OldContentHash "old_content_hash" Text,
        NewRevisionId "new_revision_id" Uuid,
        NewRevision "new_revision" Bigint,
        NewContentHash "new_content_hash" Text,
    }
}

view! {
    /// A revision that a head or an event names.
    NamedRevision, "workspace_instruction_policy_validate_head" reads "workspace_instruction_policy_revisions" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
        Kind "kind" Text,
        Scope "scope" Text,
        RoleKey "role_key" Text,
        Revision "revision" Bigint,
        ContentHash "content_hash" Text,
    }
}

view! {
    /// A piece of policy history, of either table.
    PolicyHistory, "workspace_instruction_policy_reject_mutation" reads "workspace_instruction_policy_revisions" {
        AccountId "account_id" Uuid,
        WorkspaceId "workspace_id" Uuid,
    }
}

view! {
    /// The workspace that history belongs to.
    HistoryWorkspace, "workspace_instruction_policy_reject_mutation" reads "workspaces" {
        Id "id" Uuid,
        AccountId "account_id" Uuid,
    }
}

view! {
    /// The account that history belongs to.
    HistoryAccount, "workspace_instruction_policy_reject_mutation" reads "managed_accounts" {
        Id "id" Uuid,
    }
}

// refuse_truncate_of_unsettled_evidence -----------------------------------------------------------------

view! {
    /// A command that may still be evidence.
    Evidence, "refuse_truncate_of_unsettled_evidence" reads "sandbox_retained_processes" {
        State "state" Text,
        Command "provider_command" Jsonb,
        Receipt "supervision_receipt" Jsonb,
        Captured "supervision_output_captured" Boolean,
    }
}
