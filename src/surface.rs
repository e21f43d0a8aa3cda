//! Everything that SQL sees, in one place. Each function only hands over to the module that does it.
//!
//! pgspot says PS010 (unsafe schema creation) of the CREATE SCHEMA IF NOT EXISTS that `pg_schema` becomes: from
//! PostgreSQL 15 on an extension's script refuses a schema that is there and not its own.

#[pgrx::pg_schema]
mod opengeni_guards {
    use std::time::Duration;

    use pgrx::Uuid;
    use pgrx::pg_sys::FunctionCallInfo;
    use pgrx::prelude::*;

    use crate::commands;
    use crate::commands::Ids;
    use crate::commands::output::Page;
    use crate::guards;
    use crate::pg::fields;
    use crate::pg::identity::pinned;
    use crate::pg::jsonb_value::Jsonb;
    use crate::pg::name::Name;
    use crate::pg::query;
    use crate::pg::rows::{self, Rows};
    use crate::pg::trigger::{
        Answer, after_row, after_watched_statement, before_row, before_statement,
    };
    use crate::protocol::refusal::Rule;
    use crate::provision;
    use crate::queues;

    #[pg_extern(volatile, parallel_unsafe)]
    fn enforce_sandbox_recovery_protocol_v2(fcinfo: FunctionCallInfo) -> Answer {
        before_row(fcinfo, guards::recovery_protocol::check)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn supervised_command_guard(fcinfo: FunctionCallInfo) -> Answer {
        before_row(fcinfo, guards::supervised_command::check)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn supervised_provider_loss_commit_guard(fcinfo: FunctionCallInfo) -> Answer {
        after_row(fcinfo, guards::provider_loss::check)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn supervised_command_blocker_guard(fcinfo: FunctionCallInfo) -> Answer {
        before_row(fcinfo, guards::blocker::check)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn supervised_command_capture_guard(fcinfo: FunctionCallInfo) -> Answer {
        before_row(fcinfo, guards::capture::check)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn validate_sandbox_retained_process_v2(fcinfo: FunctionCallInfo) -> Answer {
        after_row(fcinfo, guards::identity::retained_process)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn validate_sandbox_pty_process_v2(fcinfo: FunctionCallInfo) -> Answer {
        after_row(fcinfo, guards::identity::pty)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn validate_sandbox_checkpoint_refs(fcinfo: FunctionCallInfo) -> Answer {
        after_row(fcinfo, guards::checkpoint::refs)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn validate_sandbox_checkpoint_artifact_refs(fcinfo: FunctionCallInfo) -> Answer {
        after_row(fcinfo, guards::checkpoint::artifact_refs)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn enforce_sandbox_checkpoint_artifact_immutability(fcinfo: FunctionCallInfo) -> Answer {
        before_row(fcinfo, guards::checkpoint::immutability)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn workspace_instruction_policy_validate_revision_link(fcinfo: FunctionCallInfo) -> Answer {
        before_row(fcinfo, guards::instruction_policy::revision_link)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn workspace_instruction_policy_validate_head(fcinfo: FunctionCallInfo) -> Answer {
        before_row(fcinfo, guards::instruction_policy::head)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn workspace_instruction_policy_validate_event(fcinfo: FunctionCallInfo) -> Answer {
        before_row(fcinfo, guards::instruction_policy::activation)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn workspace_instruction_policy_reject_mutation(fcinfo: FunctionCallInfo) -> Answer {
        before_row(fcinfo, guards::instruction_policy::reject_mutation)
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn refuse_truncate_of_unsettled_evidence(fcinfo: FunctionCallInfo) -> Answer {
        before_statement(fcinfo, guards::truncate::check)
    }

    // The fleet's queues: sql/model/contract.sql has the names under which the application calls them.

    /// Removes stale holders, recounts their leases, ends expired warm-ups; the leases that have drained.
    #[pg_extern(volatile, parallel_unsafe)]
    fn reap_sandbox_leases(
        data_schema: Option<&str>,
        viewer_holder_ttl_ms: Option<i64>,
        turn_holder_ttl_ms: Option<i64>,
        idle_grace_ms: Option<i64>,
        fcinfo: FunctionCallInfo,
    ) -> rows::ReapedLeases {
        let rows = Rows::of(fcinfo);
        queues::reap::reap(
            data_schema,
            viewer_holder_ttl_ms,
            turn_holder_ttl_ms,
            idle_grace_ms,
            &rows,
        );
        rows::ReapedLeases(rows)
    }

    /// Claims due retained processes whose owner has ended.
    #[pg_extern(volatile, parallel_unsafe)]
    fn claim_terminal_retained_processes(
        data_schema: Option<&str>,
        claim_id: Option<Uuid>,
        claim_limit: Option<i32>,
        claim_ttl_ms: Option<i64>,
        fcinfo: FunctionCallInfo,
    ) -> rows::ClaimedProcesses {
        let rows = Rows::of(fcinfo);
        queues::processes::claim(
            data_schema,
            claim_id.as_ref().map(Uuid::as_bytes),
            claim_limit,
            claim_ttl_ms,
            &rows,
        );
        rows::ClaimedProcesses(rows)
    }

    /// Active retained processes, counted by their owner's state.
    #[pg_extern(volatile, parallel_unsafe)]
    fn count_active_retained_processes_by_owner_state(
        data_schema: Option<&str>,
        fcinfo: FunctionCallInfo,
    ) -> rows::ActiveProcesses {
        let rows = Rows::of(fcinfo);
        queues::processes::count_by_owner(data_schema, &rows);
        rows::ActiveProcesses(rows)
    }

    /// Drained leases that are still there, counted by backend and age.
    #[pg_extern(volatile, parallel_unsafe)]
    fn count_expired_draining_sandbox_leases(
        data_schema: Option<&str>,
        fcinfo: FunctionCallInfo,
    ) -> rows::ExpiredLeases {
        let rows = Rows::of(fcinfo);
        queues::leases::count_expired(data_schema, &rows);
        rows::ExpiredLeases(rows)
    }

    /// Claims checkpoint artifacts that no lease refers to, for deletion at the provider.
    #[pg_extern(volatile, parallel_unsafe)]
    fn claim_sandbox_checkpoint_artifacts(
        data_schema: Option<&str>,
        claim_id: Option<Uuid>,
        claim_limit: Option<i32>,
        claim_ttl_ms: Option<i64>,
        fcinfo: FunctionCallInfo,
    ) -> rows::ClaimedArtifacts {
        let rows = Rows::of(fcinfo);
        queues::artifacts::claim(
            data_schema,
            claim_id.as_ref().map(Uuid::as_bytes),
            claim_limit,
            claim_ttl_ms,
            &rows,
        );
        rows::ClaimedArtifacts(rows)
    }

    /// Ends the claim on a checkpoint artifact; false where it is not held.
    #[pg_extern(volatile, parallel_unsafe)]
    fn settle_sandbox_checkpoint_artifact(
        data_schema: Option<&str>,
        artifact_id: Option<Uuid>,
        claim_id: Option<Uuid>,
        deleted: Option<bool>,
        error: Option<&str>,
        retry_after_ms: Option<i64>,
    ) -> bool {
        queues::artifacts::settle(
            data_schema,
            artifact_id.as_ref().map(Uuid::as_bytes),
            claim_id.as_ref().map(Uuid::as_bytes),
            deleted,
            error,
            retry_after_ms,
        )
    }

    /// Forgets checkpoint artifacts deleted longer ago than the retention; how many.
    #[pg_extern(volatile, parallel_unsafe)]
    fn prune_deleted_sandbox_checkpoint_artifacts(
        data_schema: Option<&str>,
        retention_ms: Option<i64>,
        prune_limit: Option<i32>,
    ) -> i32 {
        queues::artifacts::prune(data_schema, retention_ms, prune_limit)
    }

    /// Checkpoints that have no artifact row yet.
    #[pg_extern(volatile, parallel_unsafe)]
    fn list_legacy_modal_checkpoint_slots(
        data_schema: Option<&str>,
        slot_limit: Option<i32>,
        fcinfo: FunctionCallInfo,
    ) -> rows::CheckpointSlots {
        let rows = Rows::of(fcinfo);
        queues::leases::checkpoint_slots(data_schema, slot_limit, &rows);
        rows::CheckpointSlots(rows)
    }

    /// Requests the rotation of leases whose provider's deadline is near; how many.
    #[pg_extern(volatile, parallel_unsafe)]
    fn request_due_sandbox_rotations(
        data_schema: Option<&str>,
        lead_ms: Option<i64>,
        batch_limit: Option<i32>,
    ) -> i32 {
        queues::rotation::request_due(data_schema, lead_ms, batch_limit)
    }

    /// Checkpoint artifacts, counted by state.
    #[pg_extern(volatile, parallel_unsafe)]
    fn sandbox_checkpoint_artifact_inventory(
        data_schema: Option<&str>,
        fcinfo: FunctionCallInfo,
    ) -> rows::ArtifactStates {
        let rows = Rows::of(fcinfo);
        queues::artifacts::inventory(data_schema, &rows);
        rows::ArtifactStates(rows)
    }

    /// Requested rotations, and what stands in their way.
    #[pg_extern(volatile, parallel_unsafe)]
    fn sandbox_rotation_backlog(
        data_schema: Option<&str>,
        fcinfo: FunctionCallInfo,
    ) -> rows::RotationBacklog {
        let rows = Rows::of(fcinfo);
        queues::rotation::backlog(data_schema, &rows);
        rows::RotationBacklog(rows)
    }

    /// The live leases on Modal, through the read capability of the tables' owner.
    #[pg_extern(volatile, parallel_unsafe)]
    fn list_live_modal_sandbox_leases(
        data_schema: Option<&str>,
        fcinfo: FunctionCallInfo,
    ) -> rows::LiveLeases {
        let rows = Rows::of(fcinfo);
        queues::leases::live_modal(data_schema, &rows);
        rows::LiveLeases(rows)
    }

    /// Whether `list_live_modal_sandbox_leases` is reading this schema's leases at the moment.
    #[pg_extern(stable, parallel_restricted)]
    fn modal_inventory_read_capability_active(data_schema: Option<&str>) -> bool {
        queues::leases::capability_active(data_schema)
    }

    /// The same for a schema's OID, which does not have to be looked up for every row of a scan.
    #[pg_extern(
        stable,
        parallel_restricted,
        name = "modal_inventory_read_capability_active"
    )]
    fn modal_inventory_read_capability_active_by_oid(data_schema: Option<pg_sys::Oid>) -> bool {
        queues::leases::capability_active_in(data_schema)
    }

    /// Where every name is the server's own, its errors stay as they are, and all is seen at once.
    fn looking<R>(body: impl FnOnce() -> R) -> R {
        fields::kept(|| pinned(|| query::at_once(body)))
    }

    /// The same for what changes something.
    fn changing<R>(body: impl FnOnce() -> R) -> R {
        fields::kept(|| provision::locks::in_our_words(|| pinned(body)))
    }

    /// Creates what is missing of the data model in a schema and binds the guards.
    #[pg_extern(volatile, parallel_unsafe)]
    fn provision(
        data_schema: default!(Option<String>, "'public'"),
        owner: default!(Option<Name>, "NULL"),
    ) -> TableIterator<
        'static,
        (
            name!(object, String),
            name!(action, String),
            name!(note, Option<String>),
        ),
    > {
        let owner = owner.map(|name| name.0);
        TableIterator::new(
            changing(move || {
                provision::create::provision(data_schema.as_deref(), owner.as_deref())
            })
            .into_iter()
            .map(|line| (line.object, line.action.to_owned(), line.note)),
        )
    }

    /// Has the guards of a live database call the native functions, or watch beside the PL/pgSQL ones.
    #[pg_extern(volatile, parallel_unsafe)]
    fn attach(
        data_schema: default!(Option<String>, "NULL"),
        mode: default!(Option<String>, "'enforce'"),
        fire: default!(Option<String>, "'origin'"),
        lock_timeout: default!(Option<Interval>, "'5s'"),
    ) -> TableIterator<
        'static,
        (
            name!(object, String),
            name!(action, String),
            name!(note, Option<String>),
        ),
    > {
        let limit = lock_timeout
            .and_then(|limit| u64::try_from(limit.as_micros()).ok())
            .filter(|microseconds| *microseconds > 0)
            .map(Duration::from_micros);
        TableIterator::new(
            changing(move || {
                provision::attach::attach(
                    data_schema.as_deref(),
                    mode.as_deref(),
                    fire.as_deref(),
                    limit,
                )
            })
            .into_iter()
            .map(|line| (line.object, line.action.to_owned(), line.note)),
        )
    }

    /// Goes back to the PL/pgSQL functions.
    #[pg_extern(volatile, parallel_unsafe)]
    fn detach(
        data_schema: default!(Option<String>, "NULL"),
        force: default!(Option<bool>, "false"),
    ) -> TableIterator<
        'static,
        (
            name!(object, String),
            name!(action, String),
            name!(note, Option<String>),
        ),
    > {
        TableIterator::new(
            changing(move || provision::attach::detach(data_schema.as_deref(), force))
                .into_iter()
                .map(|line| (line.object, line.action.to_owned(), line.note)),
        )
    }

    /// What the guards would have refused while they watched (`attach` with mode 'shadow').
    #[allow(clippy::type_complexity)]
    #[pg_extern(volatile, parallel_unsafe)]
    fn shadow_report(
        data_schema: Option<String>,
    ) -> TableIterator<
        'static,
        (
            name!(rule, String),
            name!(object, String),
            name!(refusals, i64),
            name!(first_seen, TimestampWithTimeZone),
            name!(last_seen, TimestampWithTimeZone),
        ),
    > {
        TableIterator::new(
            looking(move || provision::findings::shadow_report(data_schema.as_deref()))
                .into_iter()
                .map(|w| (w.rule, w.object, w.refusals, w.first, w.last)),
        )
    }

    /// Writes down what the statement's watching guards counted.
    #[pg_extern(volatile, parallel_unsafe)]
    fn record_shadow_refusals(fcinfo: FunctionCallInfo) -> Answer {
        after_watched_statement(fcinfo)
    }

    /// The last step of CREATE EXTENSION; sql/finish.sql calls it and drops it.
    #[pg_extern(sql = false)]
    fn bind_on_create() {
        pinned(provision::attach::bind_on_create);
    }

    /// Whether every guard of a schema is native and fires.
    #[pg_extern(volatile, parallel_unsafe)]
    fn ready(data_schema: Option<String>) -> bool {
        looking(move || provision::status::ready(data_schema.as_deref()))
    }

    /// Gives an application role exactly the privileges it needs.
    #[pg_extern(volatile, parallel_unsafe)]
    fn grant_usage(role_name: Option<Name>, data_schema: default!(Option<String>, "'public'")) {
        let role = role_name.map(|name| name.0);
        changing(move || provision::grants::grant_usage(role.as_deref(), data_schema.as_deref()));
    }

    /// Takes an application role's privileges away.
    #[pg_extern(volatile, parallel_unsafe)]
    fn revoke_usage(role_name: Option<Name>, data_schema: default!(Option<String>, "'public'")) {
        let role = role_name.map(|name| name.0);
        changing(move || provision::grants::revoke_usage(role.as_deref(), data_schema.as_deref()));
    }

    /// How the guards of a schema stand; of every schema that holds the protocol's tables for NULL.
    #[pg_extern(volatile, parallel_unsafe)]
    fn status(
        data_schema: default!(Option<String>, "NULL"),
    ) -> TableIterator<
        'static,
        (
            name!(data_schema, String),
            name!(object, String),
            name!(state, String),
            name!(detail, Option<String>),
        ),
    > {
        TableIterator::new(
            looking(move || provision::status::status(data_schema.as_deref()))
                .into_iter()
                .map(|line| (line.schema, line.object, line.state.to_owned(), line.detail)),
        )
    }

    /// Every rule that a guard or an operation refuses by, in the order of the checks.
    #[pg_extern(immutable, parallel_safe)]
    fn rules() -> TableIterator<
        'static,
        (
            name!(rule, String),
            name!(guard, String),
            name!(table_name, Option<String>),
            name!(sqlstate, String),
            name!(message, String),
            name!(hint, String),
        ),
    > {
        TableIterator::new(Rule::ALL.iter().map(|rule| {
            let entry = rule.entry();
            (
                entry.id.to_owned(),
                entry.guard.to_owned(),
                (!entry.table.is_empty()).then(|| entry.table.to_owned()),
                entry.sqlstate.to_owned(),
                entry.message.to_owned(),
                entry.hint.to_owned(),
            )
        }))
    }

    // Retained-command operations: they run as the caller, on the command that the first four arguments name.

    fn scope<'a>(ids: [&'a Option<Uuid>; 4]) -> Ids<'a> {
        let [account, workspace, session, process] = ids.map(|id| id.as_ref().map(Uuid::as_bytes));
        Ids {
            account,
            workspace,
            session,
            process,
        }
    }

    /// Records the supervisor's receipt of a command.
    #[pg_extern(volatile, parallel_unsafe)]
    fn record_supervision_receipt(
        account_id: Option<Uuid>,
        workspace_id: Option<Uuid>,
        session_id: Option<Uuid>,
        process_id: Option<Uuid>,
        receipt: Option<Jsonb>,
        data_schema: default!(Option<&str>, "'public'"),
    ) {
        let ids = [&account_id, &workspace_id, &session_id, &process_id];
        commands::supervision::record_receipt(data_schema, scope(ids), receipt);
    }

    /// The supervisor's receipt of a command; NULL where there is none yet.
    #[pg_extern(volatile, parallel_unsafe)]
    fn load_supervision_receipt(
        account_id: Option<Uuid>,
        workspace_id: Option<Uuid>,
        session_id: Option<Uuid>,
        process_id: Option<Uuid>,
        data_schema: default!(Option<&str>, "'public'"),
    ) -> Option<Jsonb> {
        let ids = [&account_id, &workspace_id, &session_id, &process_id];
        commands::supervision::load_receipt(data_schema, scope(ids))
    }

    /// Asks for a command's end, once.
    #[pg_extern(volatile, parallel_unsafe)]
    fn request_cancellation(
        account_id: Option<Uuid>,
        workspace_id: Option<Uuid>,
        session_id: Option<Uuid>,
        process_id: Option<Uuid>,
        reason: Option<&str>,
        data_schema: default!(Option<&str>, "'public'"),
    ) {
        let ids = [&account_id, &workspace_id, &session_id, &process_id];
        commands::supervision::request_cancellation(data_schema, scope(ids), reason);
    }

    /// Whether a command's end has been asked for.
    #[pg_extern(volatile, parallel_unsafe)]
    fn cancellation_requested(
        account_id: Option<Uuid>,
        workspace_id: Option<Uuid>,
        session_id: Option<Uuid>,
        process_id: Option<Uuid>,
        data_schema: default!(Option<&str>, "'public'"),
    ) -> bool {
        let ids = [&account_id, &workspace_id, &session_id, &process_id];
        commands::supervision::cancellation_requested(data_schema, scope(ids))
    }

    /// Asks for a command's end where its lease is to rotate before its provider's deadline.
    #[pg_extern(volatile, parallel_unsafe)]
    fn request_deadline_cancellation(
        account_id: Option<Uuid>,
        workspace_id: Option<Uuid>,
        session_id: Option<Uuid>,
        process_id: Option<Uuid>,
        data_schema: default!(Option<&str>, "'public'"),
    ) -> bool {
        let ids = [&account_id, &workspace_id, &session_id, &process_id];
        commands::supervision::request_deadline_cancellation(data_schema, scope(ids))
    }

    /// Reserves stdin: of a router command bytes, answering where they begin; else the next message's number.
    #[pg_extern(volatile, parallel_unsafe)]
    fn reserve_input(
        account_id: Option<Uuid>,
        workspace_id: Option<Uuid>,
        session_id: Option<Uuid>,
        process_id: Option<Uuid>,
        byte_length: default!(Option<i64>, "NULL"),
        data_schema: default!(Option<&str>, "'public'"),
    ) -> i64 {
        let ids = [&account_id, &workspace_id, &session_id, &process_id];
        commands::input::reserve(data_schema, scope(ids), byte_length)
    }

    /// Moves a modal-control-v1 command's cursors on; the command as it is then.
    #[pg_extern(volatile, parallel_unsafe)]
    fn acknowledge_output(
        account_id: Option<Uuid>,
        workspace_id: Option<Uuid>,
        session_id: Option<Uuid>,
        process_id: Option<Uuid>,
        command: Option<Jsonb>,
        data_schema: default!(Option<&str>, "'public'"),
    ) -> Option<Jsonb> {
        let ids = [&account_id, &workspace_id, &session_id, &process_id];
        commands::output::acknowledge(data_schema, scope(ids), command)
    }

    /// Captures a page of a modal-router-v1 command: cursors and chunks at once.
    #[allow(clippy::too_many_arguments)] // An SQL signature: the command, the page, the schema.
    #[pg_extern(volatile, parallel_unsafe)]
    fn capture_router_output(
        account_id: Option<Uuid>,
        workspace_id: Option<Uuid>,
        session_id: Option<Uuid>,
        process_id: Option<Uuid>,
        expected: Option<Jsonb>,
        command: Option<Jsonb>,
        stdout: Option<&str>,
        stderr: Option<&str>,
        data_schema: default!(Option<&str>, "'public'"),
        fcinfo: FunctionCallInfo,
    ) -> rows::CapturedPage {
        let ids = [&account_id, &workspace_id, &session_id, &process_id];
        let rows = Rows::of(fcinfo);
        let page = Page {
            expected,
            command,
            stdout,
            stderr,
        };
        commands::output::capture(data_schema, scope(ids), page, &rows);
        rows::CapturedPage(rows)
    }

    /// Whether a schema has the five triggers that a launcher asks for before it starts a supervisor.
    #[pg_extern(volatile, parallel_unsafe)]
    fn supervised_command_protocol_ready(data_schema: default!(Option<&str>, "'public'")) -> bool {
        commands::supervision::ready(data_schema)
    }

    // Fences.

    /// Keeps an account's memberships as they are to the end of the transaction, or refuses at once (55P03).
    #[pg_extern(volatile, parallel_unsafe)]
    fn enrollment_membership_fence(account_id: Option<Uuid>) {
        let account = account_id.as_ref().map(Uuid::as_bytes);
        commands::fences::membership(account, Rule::FenceEnrollment);
    }

    /// The same for a workspace's membership changes.
    #[pg_extern(volatile, parallel_unsafe)]
    fn workspace_membership_fence(account_id: Option<Uuid>) {
        let account = account_id.as_ref().map(Uuid::as_bytes);
        commands::fences::membership(account, Rule::FenceWorkspace);
    }

    /// Puts the fences into the application's two functions, or leaves both as they are (55000).
    #[pg_extern(volatile, parallel_unsafe)]
    fn install_membership_fences(
        data_schema: default!(Option<&str>, "'public'"),
    ) -> TableIterator<
        'static,
        (
            name!(object, String),
            name!(action, String),
            name!(note, Option<String>),
        ),
    > {
        TableIterator::new(
            changing(|| provision::fences::install(data_schema))
                .into_iter()
                .map(|line| (line.object, line.action.to_owned(), line.note)),
        )
    }

    /// Refuses while a session of one of 1 to 16 roles, a JSON array of names, is in the database (55000).
    #[pg_extern(volatile, parallel_unsafe)]
    fn assert_application_roles_stopped(
        roles: Option<Jsonb>,
        message: default!(
            Option<&str>,
            "'enrollment membership migration requires stopped application roles'"
        ),
    ) {
        commands::fences::assert_roles_stopped(roles, message);
    }
}

pgrx::extension_sql_file!("../sql/start.sql", name = "start", bootstrap);
pgrx::extension_sql_file!(
    "../sql/warming_reset.sql",
    name = "warming_reset",
    requires = [opengeni_guards]
);
pgrx::extension_sql_file!(
    "../sql/session_metadata.sql",
    name = "session_metadata",
    requires = [opengeni_guards]
);
pgrx::extension_sql_file!("../sql/finish.sql", name = "finish", finalize);
