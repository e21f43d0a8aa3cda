//! What holds after any number of transactions in any order.

use anyhow::Result;
use postgres::{Client, IsolationLevel};

use crate::world::World;

/// Each names what is wrong with the rows it returns.
const INVARIANTS: &[(&str, &str)] = &[
    (
        "an active supervised command without its retained parent",
        "SELECT p.id FROM supervised p WHERE p.state = 'active' AND NOT EXISTS (
           SELECT FROM sandbox_workspace_mutation_admissions a
           WHERE a.id = p.parent_admission_id AND a.provider_outcome = 'retained' AND a.settled_at IS NULL)",
    ),
    (
        "an active supervised command without its holder",
        "SELECT p.id FROM supervised p WHERE p.state = 'active' AND NOT EXISTS (
           SELECT FROM sandbox_lease_holders h WHERE h.lease_id = p.lease_id AND h.kind = 'process'
             AND h.holder_id = p.holder_id AND h.subject_id = p.session_id)",
    ),
    (
        "an ended supervised command with an unsettled parent",
        "SELECT p.id FROM supervised p JOIN sandbox_workspace_mutation_admissions a ON a.id = p.parent_admission_id
         WHERE p.state <> 'active' AND (a.settled_at IS NULL OR a.provider_outcome NOT IN ('resolved', 'rejected'))",
    ),
    (
        "an ended supervised command that holds its lease",
        "SELECT p.id FROM supervised p JOIN sandbox_lease_holders h
           ON h.lease_id = p.lease_id AND h.kind = 'process' AND h.holder_id = p.holder_id
         WHERE p.state <> 'active'",
    ),
    (
        "a receipt beside unsettled input",
        "SELECT p.id FROM supervised p JOIN sandbox_workspace_mutation_admissions a
           ON a.actor_kind = 'process' AND a.actor_id = p.id AND a.settled_at IS NULL
         WHERE p.supervision_receipt IS NOT NULL",
    ),
    (
        "input that was never admitted",
        "SELECT p.id FROM supervised p WHERE p.provider_command_input_index > 8 * (
           SELECT count(*) FROM sandbox_workspace_mutation_admissions a WHERE a.actor_kind = 'process' AND a.actor_id = p.id)",
    ),
    (
        "input that is not its command's",
        "SELECT a.id FROM supervised p JOIN sandbox_workspace_mutation_admissions a ON a.actor_kind = 'process' AND a.actor_id = p.id
         WHERE (a.lease_id, a.lease_epoch, a.provider_instance_id, a.holder_id, a.session_id)
           <> (p.lease_id, p.lease_epoch, p.provider_instance_id, p.holder_id, p.session_id)",
    ),
    (
        "captured output that is not complete",
        "SELECT p.id FROM supervised p, unnest(ARRAY['stdout', 'stderr']) AS stream
         WHERE p.supervision_output_captured AND (p.provider_command #> ARRAY['streams', stream]) - 'byteOffset'
           IS DISTINCT FROM '{\"utf8Remainder\": \"\", \"eof\": true, \"exitCode\": 0}'",
    ),
    (
        "an exit without proof",
        "SELECT p.id FROM supervised p WHERE p.state = 'exited' AND (NOT p.supervision_output_captured
           OR p.exit_code IS DISTINCT FROM (p.supervision_receipt ->> 'leaderExitCode')::int)",
    ),
    (
        "a loss that settled successfully, or whose lease never knew",
        "SELECT p.id FROM supervised p JOIN sandbox_leases l ON l.id = p.lease_id
           JOIN sandbox_workspace_mutation_admissions a
             ON a.id = p.parent_admission_id
         WHERE p.state = 'lost' AND (a.provider_outcome <> 'rejected' OR l.lease_epoch <= p.lease_epoch
           OR l.instance_id = p.provider_instance_id OR p.settlement_reason <> 'provider_instance_lost')",
    ),
    (
        "a capture beside an active supervised command",
        "SELECT p.id FROM supervised p JOIN sandbox_leases l ON l.id = p.lease_id
         WHERE p.state = 'active' AND l.archive_capture_id IS NOT NULL",
    ),
    (
        "a command whose identity differs from its parent's",
        "SELECT p.id FROM sandbox_retained_processes p JOIN sandbox_workspace_mutation_admissions a ON a.id = p.parent_admission_id
         WHERE (a.lease_id, a.lease_epoch, a.provider_instance_id, a.session_id, a.actor_id)
           <> (p.lease_id, p.lease_epoch, p.provider_instance_id, p.session_id, p.owner_actor_id)",
    ),
];

/// Looks at what is committed, one consistent state at a time.
pub struct Watch(Client);

impl Watch {
    pub fn new(world: &World) -> Result<Self> {
        let mut admin = world.admin()?;
        admin.batch_execute(
            "CREATE TEMP VIEW supervised AS
               SELECT * FROM sandbox_retained_processes WHERE provider_command ? 'supervision'",
        )?;
        Ok(Self(admin))
    }

    /// The rows that contradict, by what they contradict.
    pub fn violations(&mut self) -> Result<Vec<String>> {
        let mut transaction = self
            .0
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead)
            .start()?;
        let mut found = Vec::new();
        for (name, query) in INVARIANTS {
            let rows = transaction.query(*query, &[])?;
            if !rows.is_empty() {
                let ids: Vec<String> = rows
                    .iter()
                    .take(5)
                    .map(|row| row.get::<_, uuid::Uuid>(0).to_string())
                    .collect();
                found.push(format!("{name}: {} ({})", rows.len(), ids.join(", ")));
            }
        }
        Ok(found)
    }

    /// How many commands there are of each kind and state.
    pub fn describe(&mut self) -> Result<()> {
        let counts = self.0.query(
            "SELECT coalesce(provider_command ? 'supervision', false), state, count(*)
             FROM sandbox_retained_processes GROUP BY 1, 2 ORDER BY 1, 2",
            &[],
        )?;
        for row in counts {
            let (supervised, state, count): (bool, String, i64) =
                (row.get(0), row.get(1), row.get(2));
            let kind = if supervised { "supervised" } else { "legacy" };
            println!("  left: {count} {kind} {state}");
        }
        Ok(())
    }
}
