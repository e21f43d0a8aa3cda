//! Checkpoint artifacts on their way out: claimed for deletion, settled, forgotten.

use super::{ARTIFACTS, LEASES, required, statement, within};
use crate::pg::rows::Rows;
use crate::pg::session;
use crate::pg::statement::{Argument, DataSchema, Scope, Sight, Work};

statement!(RECOVER, "artifacts_recover", [Integer, Bigint]);
statement!(CLAIM, "artifacts_claim", [Uuid, Integer]);
statement!(
    SETTLE,
    "artifacts_settle",
    [Uuid, Uuid, Boolean, Text, Bigint]
);
statement!(PRUNE, "artifacts_prune", [Bigint, Integer]);
statement!(INVENTORY, "artifacts_inventory", []);

const ALONE: Scope = Scope {
    tables: &[ARTIFACTS],
    sight: Sight::Fleet,
    by_index: true,
};
/// Where the leases decide what may go.
const REFERRED: Scope = Scope {
    tables: &[ARTIFACTS, LEASES],
    ..ALONE
};
const COUNT: Scope = Scope {
    by_index: false,
    ..ALONE
};

/// Takes back claims older than the TTL, then claims what no lease refers to, longest due first.
pub fn claim(
    schema: Option<&str>,
    claim: Option<&[u8; 16]>,
    limit: Option<i32>,
    ttl: Option<i64>,
    rows: &Rows,
) {
    let claim = required(
        claim,
        "checkpoint artifact claim id is required",
        "Generate one uuid per claim.",
    );
    let limit = Argument::Integer(within(
        limit,
        1..=500,
        "checkpoint artifact claim limit must be between 1 and 500",
        "Claim in batches.",
    ));
    let ttl = within(
        ttl,
        1_000..=3_600_000,
        "checkpoint artifact claim TTL must be between 1s and 1h",
        "Give milliseconds.",
    );
    let schema = DataSchema::find(schema);
    session::set_protocol_marker();
    Work::on(schema, &REFERRED, |work| {
        work.run(&RECOVER, &[limit, Argument::Bigint(ttl)]);
        work.answer(&CLAIM, &[Argument::Uuid(claim), limit], rows);
    });
}

/// Ends a claim: the object is gone, or it is to be tried again. False where the claim is not held.
pub fn settle(
    schema: Option<&str>,
    id: Option<&[u8; 16]>,
    claim: Option<&[u8; 16]>,
    deleted: Option<bool>,
    error: Option<&str>,
    retry_after: Option<i64>,
) -> bool {
    const IDS: &str = "checkpoint artifact and claim ids are required";
    const IDS_HINT: &str =
        "Pass both as claim_sandbox_checkpoint_artifacts was given and returned them.";
    let id = required(id, IDS, IDS_HINT);
    let claim = required(claim, IDS, IDS_HINT);
    let deleted = required(
        deleted,
        "checkpoint artifact deletion outcome is required",
        "Say true when the provider's object is gone.",
    );
    let retry_after = within(
        retry_after,
        0..=86_400_000,
        "checkpoint artifact retry delay must be between 0 and 24h",
        "Give milliseconds; less than a second counts as one.",
    );
    let schema = DataSchema::find(schema);
    session::set_protocol_marker();
    Work::on(schema, &ALONE, |work| {
        let settled = work.run(
            &SETTLE,
            &[
                Argument::Uuid(id),
                Argument::Uuid(claim),
                Argument::Boolean(deleted),
                error.map_or(Argument::Null, Argument::Text),
                Argument::Bigint(retry_after),
            ],
        );
        settled == 1
    })
}

/// Forgets artifacts deleted longer ago than the retention, and tells how many.
pub fn prune(schema: Option<&str>, retention: Option<i64>, limit: Option<i32>) -> i32 {
    let retention = within(
        retention,
        86_400_000..=31_536_000_000,
        "checkpoint tombstone retention must be between 1 and 365 days",
        "Give milliseconds.",
    );
    let limit = within(
        limit,
        1..=1_000,
        "checkpoint tombstone prune limit must be between 1 and 1000",
        "Prune in batches.",
    );
    let schema = DataSchema::find(schema);
    session::set_protocol_marker();
    Work::on(schema, &REFERRED, |work| {
        work.run(
            &PRUNE,
            &[Argument::Bigint(retention), Argument::Integer(limit)],
        ) as i32
    })
}

/// Counts the artifacts by state.
pub fn inventory(schema: Option<&str>, rows: &Rows) {
    let schema = DataSchema::find(schema);
    Work::on(schema, &COUNT, |work| work.answer(&INVENTORY, &[], rows));
}
