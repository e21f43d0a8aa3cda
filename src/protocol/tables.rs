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
        pub enum $name { $($variant,)* }

        impl Table for $name {
            const GUARD: &'static str = $guard;
            const NAME: &'static str = $table;
            const COLUMNS: &'static [Column] = {
                const COLUMNS: &[Column] = &[$(Column { name: $column, ty: Type::$ty },)*];
                assert!(COLUMNS.len() <= MAX_COLUMNS);
                COLUMNS
            };

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
        ArchiveCaptureId "archive_capture_id" Uuid,
        DrainIds "unobservable_command_drain_ids" UuidArray,
    }
}
