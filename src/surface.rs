//! Everything that SQL sees, in one place. Each function only hands over to the module that does it.

#[pgrx::pg_schema]
mod opengeni_guards {
    use std::convert::Infallible;

    use pgrx::prelude::*;

    use crate::guards;
    use crate::pg::trigger::{Answer, before_row};

    #[pg_trigger]
    fn enforce_sandbox_recovery_protocol_v2<'a>(
        trigger: &'a PgTrigger<'a>,
    ) -> Result<Answer<'a>, Infallible> {
        Ok(before_row(trigger, guards::recovery_protocol::check))
    }

    #[pg_trigger]
    fn supervised_command_guard<'a>(
        trigger: &'a PgTrigger<'a>,
    ) -> Result<Answer<'a>, Infallible> {
        Ok(before_row(trigger, guards::supervised_command::check))
    }
}
