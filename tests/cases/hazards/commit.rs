//! 30: what becomes of a row between a write and COMMIT.

use anyhow::Result;
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use uuid::Uuid;

use super::{answers, artifact, attached, prove, pty, refer};
use crate::support::*;

pub fn checked_at_commit(db: &Db) -> Result<()> {
    attached(db)?;
    let identity = Some(("55000", "retained_process.identity"));

    // A process that its parent admission does not know.
    let tenant = db.tenant()?;
    let command = Command::new(1);
    let mut app = db.app(&tenant)?;
    commit(&mut app, &[protocol::admit(&tenant, &command)])?;
    let process = command.process;
    let forge = format!(
        "INSERT INTO sandbox_retained_processes (id, account_id, workspace_id, session_id, lease_id, sandbox_group_id,
           parent_admission_id, holder_id, owner_actor_kind, owner_actor_id, lease_epoch, provider_backend,
           provider_instance_id, route_kind, route_epoch, provider_session_id)
         SELECT '{process}', account_id, workspace_id, session_id, lease_id, sandbox_group_id, id, 'forged', actor_kind,
           actor_id, lease_epoch, provider_backend, provider_instance_id, route_kind, route_epoch, 1
         FROM sandbox_workspace_mutation_admissions WHERE id = '{}';",
        command.admission
    );
    let delete = format!("DELETE FROM sandbox_retained_processes WHERE id = '{process}';");
    answers(&mut app, &forge, identity)?;
    answers(&mut app, &(forge.clone() + &delete), identity)?;
    answers(
        &mut app,
        &format!("SAVEPOINT s; {forge} ROLLBACK TO s; SELECT 1"),
        None,
    )?;
    answers(
        &mut app,
        &format!("{forge} SAVEPOINT s; {delete} ROLLBACK TO s"),
        identity,
    )?;

    // Settled, but the holder stays.
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    prove(&mut app, &command)?;
    let settled = |released: bool| {
        let holder = match released {
            true => format!(
                "DELETE FROM sandbox_lease_holders WHERE holder_id = '{}';",
                command.holder()
            ),
            false => String::new(),
        };
        format!(
            "UPDATE sandbox_retained_processes SET state = 'exited', exit_code = 0, settled_at = now() WHERE id = '{0}';
             UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'resolved', settled_at = now() WHERE id = '{1}';
             {holder} DELETE FROM sandbox_retained_processes WHERE id = '{0}'",
            command.process, command.admission
        )
    };
    answers(&mut app, &settled(false), identity)?;
    answers(&mut app, &settled(true), None)?;

    // A process row that a later statement, or the end of a savepoint, makes look right.
    let (tenant, command) = db.legacy()?;
    let mut app = db.app(&tenant)?;
    let process = command.process;
    let become_holder = |holder: &str| {
        format!(
            "UPDATE sandbox_retained_processes SET holder_id = '{holder}' WHERE id = '{process}';"
        )
    };
    let touch = format!(
        "UPDATE sandbox_retained_processes SET reconcile_attempts = reconcile_attempts + 1 WHERE id = '{process}';"
    );
    let (bad, good) = (become_holder("forged"), become_holder(&command.holder()));
    let delete = format!("DELETE FROM sandbox_retained_processes WHERE id = '{process}';");
    app.batch_execute("CREATE TEMP TABLE copy AS SELECT * FROM sandbox_retained_processes")?;
    let insert = "INSERT INTO sandbox_retained_processes SELECT * FROM copy;";
    let immediate = "SET CONSTRAINTS ALL IMMEDIATE;";
    for (steps, expected) in [
        (format!("{bad} SAVEPOINT s; {good} ROLLBACK TO s"), identity),
        (
            format!("{bad} SAVEPOINT s; {good} ROLLBACK TO s; {touch}"),
            identity,
        ),
        (
            format!("{touch} SAVEPOINT s; {bad} {touch} ROLLBACK TO s; {touch}"),
            None,
        ),
        (
            format!("{touch} SAVEPOINT s; {bad} RELEASE s; {touch}"),
            identity,
        ),
        (
            format!("SAVEPOINT s; {bad} SAVEPOINT t; {good} RELEASE t; ROLLBACK TO s; {bad}"),
            identity,
        ),
        // Checked and found well before that was taken back.
        (
            format!("{bad} SAVEPOINT s; {good} {immediate} ROLLBACK TO s"),
            identity,
        ),
        (
            format!("{touch} {bad} SAVEPOINT s; {touch} {good} {immediate} ROLLBACK TO s; {touch}"),
            identity,
        ),
        (
            format!(
                "{bad} SAVEPOINT s; {good} {immediate} ROLLBACK TO s; {touch} {good} {immediate}"
            ),
            None,
        ),
        (format!("{bad} {good}"), None),
        (format!("{bad} {delete} {insert}"), identity),
        (format!("{delete} {insert}"), None),
        (format!("{delete} {insert} {bad}"), identity),
    ] {
        answers(&mut app, &steps, expected)?;
    }

    // A loss that the lease does not know of.
    let lost = |tenant: &Tenant, command: &Command, cold: bool, end: &str| {
        let lease = match cold {
            true => format!(
                r#"UPDATE sandbox_leases SET liveness = 'cold', instance_id = NULL, lease_epoch = lease_epoch + 1, resume_state =
                     '{{"opengeniRecovery": {{"provider": {{"status": "missing", "instanceId": "{}"}},
                        "restore": {{"status": "degraded"}}, "workspace": {{"status": "degraded"}}}}}}' WHERE id = '{}';"#,
                tenant.instance, tenant.lease
            ),
            false => String::new(),
        };
        format!(
            "SELECT set_config('{LOSS}', '{}', true);
             UPDATE sandbox_retained_processes SET state = 'lost', settlement_reason = 'provider_instance_lost', settled_at = now()
               WHERE id = '{}';
             UPDATE sandbox_workspace_mutation_admissions SET provider_outcome = 'rejected', settled_at = now() WHERE id = '{}';
             {lease} DELETE FROM sandbox_lease_holders WHERE holder_id = '{}'; {end}",
            tenant.loss_binding(), command.process, command.admission, command.holder()
        )
    };
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let delete = format!(
        "DELETE FROM sandbox_retained_processes WHERE id = '{}'",
        command.process
    );
    let truth = Some(("55000", "provider_loss.recovery_truth"));
    answers(&mut app, &lost(&tenant, &command, false, ""), truth)?;
    answers(&mut app, &lost(&tenant, &command, false, &delete), truth)?;
    let warmed = format!(
        "UPDATE sandbox_leases SET liveness = 'warm', instance_id = 'sb-next' WHERE id = '{}'",
        tenant.lease
    );
    answers(&mut app, &lost(&tenant, &command, true, &warmed), truth)?;
    answers(&mut app, &lost(&tenant, &command, true, &delete), None)?;

    // A terminal of a command that has ended.
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let open = pty(&command, "open");
    answers(
        &mut app,
        &format!("{open}; DELETE FROM sandbox_pty_sessions"),
        None,
    )?;
    prove(&mut app, &command)?;
    commit(&mut app, &[protocol::settle(&tenant, &command, 0)])?;
    let closed = pty(&command, "closed");
    let rule = Some(("55000", "pty.identity"));
    answers(
        &mut app,
        &format!("{open}; DELETE FROM sandbox_pty_sessions"),
        rule,
    )?;
    answers(
        &mut app,
        &format!("{open}; UPDATE sandbox_pty_sessions SET status = 'closed'"),
        None,
    )?;
    answers(
        &mut app,
        "UPDATE sandbox_pty_sessions SET status = 'open'; SAVEPOINT s;
         UPDATE sandbox_pty_sessions SET status = 'closed'; ROLLBACK TO s",
        rule,
    )?;
    answers(
        &mut app,
        &format!("DELETE FROM sandbox_pty_sessions; {closed}"),
        None,
    )?;

    // A reference to a checkpoint that is none.
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let lease = tenant.lease;
    let [candidate, current] = [(); 2].map(|()| Uuid::new_v4());
    answers(&mut app, &artifact(&tenant, candidate, "candidate"), None)?;
    let bad = refer(&tenant, candidate);
    let rename = format!("UPDATE sandbox_leases SET id = gen_random_uuid() WHERE id = '{lease}';");
    let repair = format!(
        "UPDATE sandbox_leases SET current_checkpoint_artifact_id = NULL WHERE id = '{lease}';"
    );
    app.batch_execute("CREATE TEMP TABLE copied AS SELECT * FROM sandbox_leases")?;
    let anew = format!(
        "DELETE FROM sandbox_leases WHERE id = '{lease}'; INSERT INTO sandbox_leases SELECT * FROM copied;"
    );
    let rule = Some(("23514", "checkpoint_refs.current"));
    for (steps, expected) in [
        (bad.clone(), rule),
        (format!("{bad} {rename}"), rule),
        (format!("{bad} {anew}"), rule),
        (anew.clone(), None),
        (format!("{bad} {repair}"), None),
        (format!("{bad} SAVEPOINT s; {repair} ROLLBACK TO s"), rule),
        (format!("SAVEPOINT s; {bad} ROLLBACK TO s; {repair}"), None),
    ] {
        answers(&mut app, &steps, expected)?;
    }
    // And the other way round: what an artifact says of itself.
    let state = |state: &str| {
        format!(
            "UPDATE sandbox_checkpoint_artifacts SET state = '{state}' WHERE id = '{candidate}';"
        )
    };
    let gone = format!("DELETE FROM sandbox_checkpoint_artifacts WHERE id = '{candidate}';");
    let vanished = Some(("23514", "checkpoint_artifact.vanished"));
    for (steps, expected) in [
        (
            state("current"),
            Some(("23514", "checkpoint_artifact.state")),
        ),
        (state("current") + &gone, vanished),
        (state("current") + &state("candidate"), None),
        (
            format!(
                "{} SAVEPOINT s; {} ROLLBACK TO s",
                state("previous"),
                state("candidate")
            ),
            Some(("23514", "checkpoint_artifact.state")),
        ),
        (
            artifact(&tenant, current, "current") + &refer(&tenant, current),
            None,
        ),
        (gone, None),
    ] {
        answers(&mut app, &steps, expected)?;
    }
    Ok(())
}
