//! The rows that a set-returning function answers with: all at once, in a tuplestore.

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pg_sys;

/// Where a call's rows go.
#[derive(Clone, Copy)]
pub struct Rows {
    pub(super) store: *mut pg_sys::Tuplestorestate,
    pub(super) columns: pg_sys::TupleDesc,
}

impl Rows {
    /// Prepares the answer of the function that is being called; 0A000 where the caller takes no set.
    pub fn of(fcinfo: pg_sys::FunctionCallInfo) -> Rows {
        // SAFETY: the server's own call information, for a function that returns a set of rows.
        unsafe {
            pg_sys::InitMaterializedSRF(fcinfo, 0);
            let info = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            Rows {
                store: (*info).setResult,
                columns: (*info).setDesc,
            }
        }
    }

    /// Adds a row, given as its columns; NULL as `None`. It is copied.
    pub fn put(&self, row: &[Option<pg_sys::Datum>]) {
        const MOST: usize = 8;
        let (mut values, mut nulls) = ([pg_sys::Datum::null(); MOST], [true; MOST]);
        for (i, column) in row.iter().enumerate().take(MOST) {
            values[i] = column.unwrap_or(pg_sys::Datum::null());
            nulls[i] = column.is_none();
        }
        // SAFETY: the store and its columns live as long as the call; the function's declared columns are no
        // more than the arrays hold.
        unsafe {
            pg_sys::tuplestore_putvalues(
                self.store,
                self.columns,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
        }
    }
}

// SAFETY: in materialize mode a function's own result is ignored.
unsafe impl BoxRet for Rows {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: by contract.
        unsafe { fcinfo.return_raw_datum(pg_sys::Datum::null()) }
    }
}

/// Defines a function's answer by its `RETURNS TABLE` columns.
macro_rules! answer {
    ($name:ident, $columns:literal) => {
        pub struct $name(pub $crate::pg::rows::Rows);

        // SAFETY: as for `Rows`.
        unsafe impl pgrx::callconv::BoxRet for $name {
            unsafe fn box_into<'fcx>(
                self,
                fcinfo: &mut pgrx::callconv::FcInfo<'fcx>,
            ) -> pgrx::datum::Datum<'fcx> {
                // SAFETY: by contract.
                unsafe { self.0.box_into(fcinfo) }
            }
        }

        // SAFETY: the rows are checked against the declared columns when they are put in.
        unsafe impl pgrx::pgrx_sql_entity_graph::metadata::SqlTranslatable for $name {
            const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!($name);
            const TYPE_ORIGIN: pgrx::pgrx_sql_entity_graph::metadata::TypeOrigin =
                pgrx::pgrx_sql_entity_graph::metadata::TypeOrigin::External;
            const ARGUMENT_SQL: Result<
                pgrx::pgrx_sql_entity_graph::metadata::SqlMappingRef,
                pgrx::pgrx_sql_entity_graph::metadata::ArgumentError,
            > = Err(
                pgrx::pgrx_sql_entity_graph::metadata::ArgumentError::NotValidAsArgument("rows"),
            );
            const RETURN_SQL: Result<
                pgrx::pgrx_sql_entity_graph::metadata::ReturnsRef,
                pgrx::pgrx_sql_entity_graph::metadata::ReturnsError,
            > = Ok(pgrx::pgrx_sql_entity_graph::metadata::ReturnsRef::One(
                pgrx::pgrx_sql_entity_graph::metadata::SqlMappingRef::literal(concat!(
                    "TABLE (", $columns, ")"
                )),
            ));
        }
    };
}

answer!(
    ReapedLeases,
    "workspace_id uuid, sandbox_group_id uuid, instance_id text, lease_epoch integer"
);
answer!(
    ClaimedProcesses,
    "account_id uuid, workspace_id uuid, session_id uuid, process_id uuid, claim_id uuid, owner_state text, owner_attempt_outcome text"
);
answer!(
    ActiveProcesses,
    "owner_state text, active_count bigint, terminal_owner_count bigint"
);
answer!(ExpiredLeases, "backend text, age_bucket text, count bigint");
answer!(
    ClaimedArtifacts,
    "id uuid, provider_backend text, provider_binding_key text, provider_binding jsonb, object_kind text, object_id text, delete_attempts integer"
);
answer!(
    CheckpointSlots,
    "account_id uuid, workspace_id uuid, sandbox_group_id uuid, lease_id uuid, lease_epoch integer, instance_id text, workspace_generation integer, slot text, archive_base64 text, descriptor jsonb"
);
answer!(ArtifactStates, "state text, count bigint");
answer!(
    RotationBacklog,
    "requested bigint, overdue bigint, turn_blocked bigint, direct_blocked bigint, process_blocked bigint"
);
answer!(
    LiveLeases,
    "lease_id uuid, workspace_id uuid, sandbox_group_id uuid, instance_id text, liveness text"
);
answer!(
    CapturedPage,
    "command jsonb, captured boolean, events jsonb"
);
