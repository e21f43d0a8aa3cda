//! Everything that SQL sees, in one place. Each function only hands over to the module that does it.

#[pgrx::pg_schema]
mod opengeni_guards {
    use pgrx::pg_sys::FunctionCallInfo;
    use pgrx::prelude::*;

    use crate::guards;
    use crate::pg::identity::pinned;
    use crate::pg::name::Name;
    use crate::pg::trigger::{Answer, after_row, before_row, before_statement};
    use crate::protocol::refusal::Rule;
    use crate::provision;

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
            pinned(|| provision::create::provision(data_schema.as_deref(), owner.as_deref()))
                .into_iter()
                .map(|line| (line.object, line.action.to_owned(), line.note)),
        )
    }

    /// Gives an application role exactly the privileges it needs.
    #[pg_extern(volatile, parallel_unsafe)]
    fn grant_usage(role_name: Option<Name>, data_schema: default!(Option<String>, "'public'")) {
        let role = role_name.map(|name| name.0);
        pinned(|| provision::grants::grant_usage(role.as_deref(), data_schema.as_deref()));
    }

    /// Takes an application role's privileges away.
    #[pg_extern(volatile, parallel_unsafe)]
    fn revoke_usage(role_name: Option<Name>, data_schema: default!(Option<String>, "'public'")) {
        let role = role_name.map(|name| name.0);
        pinned(|| provision::grants::revoke_usage(role.as_deref(), data_schema.as_deref()));
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
            pinned(|| provision::status::status(data_schema.as_deref()))
                .into_iter()
                .map(|line| (line.schema, line.object, line.state.to_owned(), line.detail)),
        )
    }

    /// Every rule that a guard refuses by, in the order of the checks.
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
}

pgrx::extension_sql_file!("../sql/encoding.sql", name = "encoding", bootstrap);
pgrx::extension_sql_file!("../sql/privileges.sql", name = "privileges", finalize);
