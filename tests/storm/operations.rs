//! What a session of the application does, one transaction per operation.
//!
//! Rows are locked in the application's order: session, process, admission, lease, holder. Two do not begin with
//! the session: the claim, which skips what is locked, and whatever locks a single row.

use anyhow::{Result, bail};
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, Statement, Tenant};
use opengeni_guards_harness::statement;
use postgres::error::SqlState;
use postgres::{Client, IsolationLevel, Transaction};
use serde_json::json;
use uuid::Uuid;

use crate::world::{Lease, World};
use opengeni_guards_harness::random::Random;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    Launch,
    PromotionRetry,
    Claim,
    Output,
    LastOutput,
    Input,
    SettleInput,
    Cancel,
    Receipt,
    Settle,
    Lose,
    Reap,
    Warm,
    WarmingReset,
    ArchiveStart,
    ArchivePublish,
    ArchiveClear,
    Heartbeat,
    HoldAgain,
    ReleaseEarly,
}

impl Kind {
    /// Each with its share of all operations.
    pub const ALL: &'static [(Kind, usize)] = &[
        (Kind::Launch, 9),
        (Kind::PromotionRetry, 5),
        (Kind::Claim, 5),
        (Kind::Output, 5),
        (Kind::LastOutput, 5),
        (Kind::Input, 5),
        (Kind::SettleInput, 6),
        (Kind::Cancel, 2),
        (Kind::Receipt, 5),
        (Kind::Settle, 5),
        (Kind::Lose, 2),
        (Kind::Reap, 5),
        (Kind::Warm, 5),
        (Kind::WarmingReset, 5),
        (Kind::ArchiveStart, 3),
        (Kind::ArchivePublish, 2),
        (Kind::ArchiveClear, 5),
        (Kind::Heartbeat, 4),
        (Kind::HoldAgain, 2),
        (Kind::ReleaseEarly, 2),
    ];

    pub fn any(random: &mut Random) -> Self {
        let mut left = random.below(Self::ALL.iter().map(|(_, share)| share).sum());
        for (kind, share) in Self::ALL {
            match left.checked_sub(*share) {
                None => return *kind,
                Some(rest) => left = rest,
            }
        }
        Kind::Reap
    }
}

pub enum Outcome {
    Done,
    /// No command, or none in a state for this.
    Nothing,
    /// The server said no, with one of the answers that a client has to expect.
    Refused(String),
}

/// What a session may be told; a deadlock or an internal error is not among it.
const EXPECTED: &[SqlState] = &[
    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    SqlState::CHECK_VIOLATION,
    SqlState::T_R_SERIALIZATION_FAILURE,
    SqlState::LOCK_NOT_AVAILABLE,
];

/// A launch whose holder another session took in its name, before there was a process to ask.
const HELD_BEFORE: &str = "sandbox_lease_holders_holder_idx";

/// What a transaction changed besides rows, told to the others once it is committed.
#[derive(Default)]
struct Effect {
    done: bool,
    ended: Vec<Uuid>,
    child: Option<(Uuid, Uuid)>,
}

pub fn run(kind: Kind, world: &World, client: &mut Client, random: &mut Random) -> Result<Outcome> {
    let lease = &world.leases[random.below(world.leases.len())];
    let launched = (kind == Kind::Launch).then(|| world.new_command());
    if let Some(command) = &launched {
        // Known beforehand, so that others meet it half-way.
        if !lease.announce(command.clone()) {
            return Ok(Outcome::Nothing);
        }
        if let Some(outcome) = end(admit(client, lease, command, random))?.1 {
            lease.forget(command.process);
            return Ok(outcome);
        }
    }
    let (effect, refusal) = end(attempt(kind, client, lease, launched.as_ref(), random))?;
    if let Some(refusal) = refusal {
        if let Some(command) = launched {
            lease.forget(command.process);
        }
        return Ok(refusal);
    }
    for process in effect.ended {
        lease.forget(process);
    }
    if let Some((process, child)) = effect.child {
        lease.add_child(process, child);
    }
    match effect.done {
        true => Ok(Outcome::Done),
        false => Ok(Outcome::Nothing),
    }
}

/// What came of a transaction: its effect, or an expected refusal.
fn end(result: Result<Effect, postgres::Error>) -> Result<(Effect, Option<Outcome>)> {
    match result {
        Ok(effect) => Ok((effect, None)),
        Err(error) => match error.as_db_error() {
            Some(refusal)
                if EXPECTED.contains(refusal.code())
                    || refusal.constraint() == Some(HELD_BEFORE) =>
            {
                let rule = refusal.constraint().unwrap_or("");
                let end = format!("{} {rule}", refusal.code().code());
                Ok((Effect::default(), Some(Outcome::Refused(end.trim().into()))))
            }
            Some(failure) => bail!(
                "{} {}: {} {}",
                failure.code().code(),
                failure.message(),
                failure.detail().unwrap_or(""),
                failure.where_().unwrap_or("")
            ),
            None => Err(error.into()),
        },
    }
}

/// A transaction of one of the three isolation levels that knows tenant and protocol.
fn begin<'c>(
    client: &'c mut Client,
    tenant: &Tenant,
    random: &mut Random,
) -> Result<Transaction<'c>, postgres::Error> {
    let level = match random.below(6) {
        0 => IsolationLevel::RepeatableRead,
        1 => IsolationLevel::Serializable,
        _ => IsolationLevel::ReadCommitted,
    };
    let mut transaction = client.build_transaction().isolation_level(level).start()?;
    protocol::protocol_marker().run(&mut transaction)?;
    protocol::tenant_settings(tenant).run(&mut transaction)?;
    Ok(transaction)
}

type Step<T> = Result<T, postgres::Error>;

fn all(transaction: &mut Transaction<'_>, statements: Vec<Statement>) -> Step<u64> {
    let mut touched = 0;
    for statement in statements {
        touched = statement.run(transaction)?;
    }
    Ok(touched)
}

fn lock_session(transaction: &mut Transaction<'_>, tenant: &Tenant) -> Step<()> {
    statement!(
        "SELECT FROM sessions WHERE id = $1 FOR UPDATE",
        tenant.session
    )
    .run(transaction)
    .map(drop)
}

/// Whether the process is there, locked, and active.
fn lock_active(transaction: &mut Transaction<'_>, command: &Command) -> Step<bool> {
    let row = transaction.query_opt(
        "SELECT state = 'active' FROM sandbox_retained_processes WHERE id = $1 FOR UPDATE",
        &[&command.process],
    )?;
    Ok(row.is_some_and(|row| row.get(0)))
}

/// The lease, locked, as the transaction finds it.
fn lock_lease(transaction: &mut Transaction<'_>, lease: &Lease) -> Step<(Tenant, String)> {
    let row = transaction.query_one(
        "SELECT coalesce(instance_id, ''), lease_epoch, liveness FROM sandbox_leases WHERE id = $1 FOR UPDATE",
        &[&lease.tenant.lease],
    )?;
    let tenant = Tenant {
        instance: row.get(0),
        epoch: row.get(1),
        ..lease.tenant.clone()
    };
    Ok((tenant, row.get(2)))
}

/// What the reaper and every release write: who holds the lease.
fn recount(tenant: &Tenant) -> Statement {
    statement!(
        "UPDATE sandbox_leases lease SET refcount = counts.total, updated_at = now()
         FROM (SELECT count(*)::int AS total FROM sandbox_lease_holders WHERE lease_id = $1) AS counts
         WHERE lease.id = $1",
        tenant.lease,
    )
}

/// The admission of a launch, committed before the command is promoted.
fn admit(
    client: &mut Client,
    lease: &Lease,
    command: &Command,
    random: &mut Random,
) -> Step<Effect> {
    let mut transaction = begin(client, &lease.tenant, random)?;
    lock_session(&mut transaction, &lease.tenant)?;
    let (tenant, liveness) = lock_lease(&mut transaction, lease)?;
    if liveness == "warm" {
        all(&mut transaction, protocol::admit(&tenant, command))?;
    }
    transaction.commit()?;
    Ok(Effect::default())
}

/// Promotion and attachment: process, admission, lease, then holders.
fn launch(
    transaction: &mut Transaction<'_>,
    lease: &Lease,
    command: &Command,
    random: &mut Random,
) -> Step<Effect> {
    lock_session(transaction, &lease.tenant)?;
    let instance = transaction.query_opt(
        "SELECT provider_instance_id FROM sandbox_workspace_mutation_admissions WHERE id = $1",
        &[&command.admission],
    )?;
    let Some(instance) = instance else {
        return Ok(Effect {
            ended: vec![command.process],
            ..Effect::default()
        });
    };
    let tenant = Tenant {
        instance: instance.get(0),
        ..lease.tenant.clone()
    };
    let mut statements = protocol::retain(&tenant, command);
    let holders = statements.split_off(2);
    let provider_command = match random.one_in(5) {
        true => command.legacy_provider_command(&tenant),
        false => command.provider_command(&tenant),
    };
    all(transaction, statements)?;
    all(transaction, protocol::attach(command, provider_command))?;
    all(transaction, holders)?;
    Ok(Effect {
        done: true,
        ..Effect::default()
    })
}

fn attempt(
    kind: Kind,
    client: &mut Client,
    lease: &Lease,
    launched: Option<&Command>,
    random: &mut Random,
) -> Step<Effect> {
    let tenant = &lease.tenant;
    let mut transaction = begin(client, tenant, random)?;
    let effect = match (kind, launched) {
        (Kind::Launch, Some(command)) => launch(&mut transaction, lease, command, random)?,
        (Kind::Lose, _) => lose(&mut transaction, lease)?,
        (Kind::Claim, _) => claim(&mut transaction)?,
        (
            Kind::Reap
            | Kind::Warm
            | Kind::WarmingReset
            | Kind::ArchiveStart
            | Kind::ArchivePublish
            | Kind::ArchiveClear
            | Kind::Heartbeat,
            _,
        ) => on_lease(kind, &mut transaction, lease)?,
        _ => match lease.any(random) {
            None => Effect::default(),
            Some(known) => on_command(
                kind,
                &mut transaction,
                tenant,
                &known.command,
                &known.children,
                random,
            )?,
        },
    };
    transaction.commit()?;
    Ok(effect)
}

fn on_lease(kind: Kind, transaction: &mut Transaction<'_>, lease: &Lease) -> Step<Effect> {
    let id = lease.tenant.lease;
    let touched = match kind {
        Kind::Reap => {
            let (tenant, _) = lock_lease(transaction, lease)?;
            statement!(
                "DELETE FROM sandbox_lease_holders WHERE lease_id = $1 AND kind = 'viewer'",
                id,
            )
            .run(transaction)?;
            recount(&tenant).run(transaction)?
        }
        Kind::Warm => {
            let (tenant, liveness) = lock_lease(transaction, lease)?;
            match liveness.as_str() {
                "cold" => all(transaction, protocol::warm(&tenant.successor()))?,
                _ => 0,
            }
        }
        // A warming that nobody finished: cold again, at the next epoch, without its sandbox and its archive's meta.
        Kind::WarmingReset => {
            let (_, liveness) = lock_lease(transaction, lease)?;
            match liveness.as_str() {
                "cold" => statement!(
                    "UPDATE sandbox_leases SET liveness = 'warming', expires_at = now() - interval '1 second' WHERE id = $1",
                    id,
                )
                .run(transaction)?,
                "warming" => statement!(
                    "UPDATE sandbox_leases SET liveness = 'cold', instance_id = NULL, lease_epoch = lease_epoch + 1,
                        resume_state = CASE WHEN archive_generation = workspace_generation THEN resume_state END
                     WHERE id = $1",
                    id,
                )
                .run(transaction)?,
                _ => 0,
            }
        }
        Kind::ArchiveStart => statement!(
            "UPDATE sandbox_leases SET archive_capture_id = gen_random_uuid(), archive_capture_published_at = NULL
             WHERE id = $1 AND archive_capture_id IS NULL",
            id,
        )
        .run(transaction)?,
        Kind::ArchivePublish => statement!(
            "UPDATE sandbox_leases SET archive_capture_published_at = clock_timestamp(), archive_generation = workspace_generation
             WHERE id = $1 AND archive_capture_id IS NOT NULL",
            id,
        )
        .run(transaction)?,
        Kind::ArchiveClear => statement!(
            "UPDATE sandbox_leases SET archive_capture_id = NULL WHERE id = $1 AND archive_capture_id IS NOT NULL",
            id,
        )
        .run(transaction)?,
        Kind::Heartbeat => statement!(
            "WITH mine AS MATERIALIZED (SELECT id FROM sandbox_lease_holders WHERE lease_id = $1 ORDER BY id LIMIT 1 FOR UPDATE)
             UPDATE sandbox_lease_holders holder SET last_heartbeat_at = clock_timestamp() FROM mine WHERE holder.id = mine.id",
            id,
        )
        .run(transaction)?,
        _ => 0,
    };
    Ok(Effect {
        done: touched > 0,
        ..Effect::default()
    })
}

/// As the reconciler claims: what nobody has locked, several at a time, checked before the transaction ends.
fn claim(transaction: &mut Transaction<'_>) -> Step<Effect> {
    let touched = transaction.execute(
        "WITH due AS MATERIALIZED (
           SELECT id FROM sandbox_retained_processes WHERE state = 'active'
           ORDER BY reconcile_after, started_at, id LIMIT 3 FOR UPDATE SKIP LOCKED)
         UPDATE sandbox_retained_processes process
         SET reconcile_after = clock_timestamp(), reconcile_attempts = reconcile_attempts + 1, last_reconcile_outcome = 'claimed'
         FROM due WHERE process.id = due.id",
        &[],
    )?;
    transaction
        .batch_execute("SET CONSTRAINTS sandbox_retained_processes_identity_v2 IMMEDIATE")?;
    Ok(Effect {
        done: touched > 0,
        ..Effect::default()
    })
}

/// The sandbox is gone, and with it every command of its epoch.
fn lose(transaction: &mut Transaction<'_>, lease: &Lease) -> Step<Effect> {
    lock_session(transaction, &lease.tenant)?;
    let mut ended = Vec::new();
    let mut known = lease.all();
    known.sort_by_key(|known| known.command.process);
    for known in known {
        if lock_active(transaction, &known.command)? {
            ended.push(known);
        }
    }
    let row = transaction.query_one(
        "SELECT instance_id, lease_epoch, liveness FROM sandbox_leases WHERE id = $1",
        &[&lease.tenant.lease],
    )?;
    let instance: Option<String> = row.get(0);
    let Some(instance) = instance.filter(|_| row.get::<_, &str>(2) == "warm") else {
        return Ok(Effect::default());
    };
    let tenant = Tenant {
        instance,
        epoch: row.get(1),
        ..lease.tenant.clone()
    };
    protocol::loss_binding(&tenant.loss_binding()).run(transaction)?;
    let mut lost = Vec::new();
    for known in ended {
        let marked = transaction.execute(
            "UPDATE sandbox_retained_processes SET state = 'lost', settlement_reason = 'provider_instance_lost', settled_at = now()
             WHERE id = $1 AND lease_epoch = $2",
            &[&known.command.process, &tenant.epoch],
        )?;
        if marked > 0 {
            lost.push(known.command);
        }
    }
    if lost.is_empty() {
        return Ok(Effect::default());
    }
    for command in &lost {
        protocol::settle_parent(command, "rejected").run(transaction)?;
        transaction.execute(
            "UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'rejected', settled_at = now()
             WHERE actor_kind = 'process' AND actor_id = $1 AND settled_at IS NULL",
            &[&command.process],
        )?;
    }
    // Only the sandbox that was looked at: another session may have lost or replaced it meanwhile.
    let known = transaction.execute(
        "UPDATE sandbox_leases SET liveness = 'cold', instance_id = NULL, lease_epoch = lease_epoch + 1, archive_capture_id = NULL,
            resume_state = $2 WHERE id = $1 AND lease_epoch = $3 AND liveness = 'warm'",
        &[
            &tenant.lease,
            &json!({
                "opengeniRecovery": {
                    "provider": { "status": "missing", "instanceId": tenant.instance },
                    "restore": { "status": "degraded" },
                    "workspace": { "status": "degraded" },
                },
            }),
            &tenant.epoch,
        ],
    )?;
    for command in &lost {
        protocol::release_holder(&tenant, command).run(transaction)?;
    }
    Ok(Effect {
        done: known > 0,
        ended: lost.iter().map(|command| command.process).collect(),
        child: None,
    })
}

fn on_command(
    kind: Kind,
    transaction: &mut Transaction<'_>,
    tenant: &Tenant,
    command: &Command,
    children: &[Uuid],
    random: &mut Random,
) -> Step<Effect> {
    let mut effect = Effect::default();
    let touched = match kind {
        // A retry that finds its work done holds the parent before it comes to the process.
        Kind::PromotionRetry => {
            lock_session(transaction, tenant)?;
            let parent = transaction.execute(
                "SELECT FROM sandbox_workspace_mutation_admissions WHERE id = $1 FOR UPDATE",
                &[&command.admission],
            )?;
            match parent > 0 && lock_active(transaction, command)? {
                true => transaction.execute(
                    "UPDATE sandbox_retained_processes SET last_reconcile_outcome = 'promoted again' WHERE id = $1",
                    &[&command.process],
                )?,
                false => 0,
            }
        }
        Kind::Output | Kind::LastOutput => {
            lock_session(transaction, tenant)?;
            if !lock_active(transaction, command)? {
                return Ok(effect);
            }
            let last = kind == Kind::LastOutput;
            let row = transaction.query_one(
                "SELECT coalesce((provider_command #>> '{streams,stdout,byteOffset}')::bigint, 0), supervision_output_captured,
                    provider_command ? 'supervision'
                 FROM sandbox_retained_processes WHERE id = $1",
                &[&command.process],
            )?;
            let (offset, captured): (i64, bool) = (row.get(0), row.get(1));
            if captured || !row.get::<_, bool>(2) {
                return Ok(effect);
            }
            let cursor = if last { Cursor::end } else { Cursor::at };
            let streams = protocol::streams(&cursor(offset + 1 + random.below(100) as i64), &cursor(0));
            all(transaction, protocol::capture(command, streams, last))?
        }
        Kind::Input => {
            lock_session(transaction, tenant)?;
            if !lock_active(transaction, command)? {
                return Ok(effect);
            }
            let child = Uuid::new_v4();
            all(transaction, protocol::admit_input(tenant, command, child))?;
            effect.child = Some((command.process, child));
            transaction.execute(
                "UPDATE sandbox_retained_processes SET provider_command_input_index = provider_command_input_index + 8 WHERE id = $1",
                &[&command.process],
            )?
        }
        Kind::SettleInput => match children.len() {
            0 => 0,
            count => all(transaction, protocol::settle_input(children[random.below(count)]))?,
        },
        Kind::Cancel => match random.one_in(4) {
            true => transaction.execute(
                "UPDATE sandbox_retained_processes SET cancellation_requested_at = now(), cancellation_reason = 'explicit_stop'
                 WHERE id = $1 AND cancellation_requested_at IS NULL",
                &[&command.process],
            )?,
            false => 0,
        },
        Kind::Receipt => transaction.execute(
            "UPDATE sandbox_retained_processes SET supervision_receipt = $2 WHERE id = $1 AND supervision_receipt IS NULL",
            &[&command.process, &command.receipt(3)],
        )?,
        Kind::Settle => {
            lock_session(transaction, tenant)?;
            if !lock_active(transaction, command)? {
                return Ok(effect);
            }
            let mut statements = protocol::settle(tenant, command, 3);
            let release = statements.split_off(2);
            all(transaction, statements)?;
            recount(tenant).run(transaction)?;
            effect.ended = vec![command.process];
            all(transaction, release)?
        }
        // The next two nobody should do; the guards are there to refuse them.
        Kind::HoldAgain => {
            transaction.execute(
                "SELECT FROM sandbox_retained_processes WHERE id = $1 FOR SHARE",
                &[&command.process],
            )?;
            transaction.execute(
                "SELECT FROM sandbox_leases WHERE id = $1 FOR KEY SHARE",
                &[&tenant.lease],
            )?;
            let kind = if random.one_in(2) { "process" } else { "viewer" };
            statement!(
                "INSERT INTO sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id, subject_id)
                 VALUES ($1, $2, $3, $4, $5, $6)
                 ON CONFLICT (lease_id, kind, holder_id) DO NOTHING",
                tenant.account,
                tenant.workspace,
                tenant.lease,
                kind,
                command.holder(),
                tenant.session,
            )
            .run(transaction)?
        }
        Kind::ReleaseEarly => match random.one_in(2) {
            true => statement!(
                "DELETE FROM sandbox_lease_holders WHERE lease_id = $1 AND kind IN ('process', 'viewer') AND holder_id = $2",
                tenant.lease,
                command.holder(),
            )
            .run(transaction)?,
            false => protocol::settle_parent(command, "resolved").run(transaction)?,
        },
        _ => 0,
    };
    effect.done = touched > 0;
    Ok(effect)
}
