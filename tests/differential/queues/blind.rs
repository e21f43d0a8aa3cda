//! D9: under an owner whom row-level security binds, the originals see an empty fleet. The natives, called by the
//! application through the owner's functions, see what the originals of a superuser see.

use anyhow::{Result, ensure};

use super::side::{Play, at_once};
use super::{
    CLAIM, Fleets, Test, call, claim_artifacts, claim_processes, compare, counts, prune, reap,
    rotate, settle, slots, test,
};

const TENANT: &str = "SELECT set_config('opengeni.account_id', md5('account/1'), true),
    set_config('opengeni.workspace_id', md5('workspace/1'), true)";

pub fn all() -> Vec<Test> {
    let held = settle(
        "fleet.id('artifact', 'deleting -3 days -5 days no')",
        "fleet.id('claim', 'old')",
        "true",
        "NULL",
        "0",
    );
    let mut calls = counts();
    calls.extend([
        slots("500"),
        reap("60000", "120000", "30000"),
        claim_processes(CLAIM, "100", "1000"),
        claim_artifacts(CLAIM, "500", "60000"),
        prune("86400000", "1000"),
        rotate("60000", "500"),
        held,
    ]);
    let mut tests = Vec::new();
    for sql in calls {
        let name = sql.split(['.', '(']).nth(1).unwrap_or_default().to_string();
        // Its policy lets the owner read, on either side.
        let gated = sql.contains("list_live_modal_sandbox_leases");
        let plant = match name.as_str() {
            "reap_sandbox_leases" => "CALL fleet.plant('matrix')",
            "list_legacy_modal_checkpoint_slots" => "CALL fleet.plant('slots')",
            "count_expired_draining_sandbox_leases" => "CALL fleet.plant('draining')",
            name if name.contains("artifact") => "CALL fleet.plant('checkpoints')",
            name if name.contains("process") => "CALL fleet.plant('owners')",
            _ => "CALL fleet.plant('deadlines')",
        };
        tests.push(test(
            &format!("D9: {name} of a bound owner"),
            move |fleets| sees_the_fleet(fleets, plant, &sql, gated),
        ));
    }
    tests.push(test(
        "D9: a tenant's settings let the original see that tenant",
        sees_one_tenant,
    ));
    tests
}

fn sees_the_fleet(fleets: &mut Fleets, plant: &str, sql: &str, gated: bool) -> Result<()> {
    let calls = [sql.to_string()];
    let play = Play {
        plant,
        calls: &calls,
        ..Play::default()
    };
    let (native, blind) = at_once(
        &mut fleets.bound_native,
        &mut fleets.bound_original,
        |side| side.play(play),
    );
    let (native, blind) = (native?, blind?);
    let seeing = fleets.original.play(play)?;
    ensure!(seeing.answers[0].is_something(), "nothing to see");
    compare::same(&calls, &native, &seeing)?;
    if gated {
        compare::same(&calls, &native, &blind)?;
        return Ok(());
    }
    ensure!(
        !blind.answers[0].is_something() && compare::unchanged(&blind),
        "D9 no longer shows: {:?}",
        blind.answers[0]
    );
    Ok(())
}

/// With a tenant set, the original of a bound owner sees that tenant's rows; so does the native called directly by
/// the application, and the native of the owner sees all.
fn sees_one_tenant(fleets: &mut Fleets) -> Result<()> {
    for (plant, sql, direct) in [
        (
            "CALL fleet.plant('checkpoints')",
            call("sandbox_checkpoint_artifact_inventory", &[]),
            "SELECT * FROM opengeni_guards.sandbox_checkpoint_artifact_inventory('public')",
        ),
        (
            "CALL fleet.plant('owners')",
            claim_processes(CLAIM, "100", "1000"),
            "SELECT * FROM opengeni_guards.claim_terminal_retained_processes('public',
               '00000000-0000-4000-8000-00000000c1a1', 100, 1000)",
        ),
        (
            "CALL fleet.plant('deadlines')",
            rotate("60000", "500"),
            "SELECT opengeni_guards.request_due_sandbox_rotations('public', 60000, 500)",
        ),
    ] {
        let calls = [sql];
        let direct = [direct.to_string()];
        let play = Play {
            plant,
            prelude: TENANT,
            calls: &calls,
            ..Play::default()
        };
        let (native, narrow) = at_once(
            &mut fleets.bound_native,
            &mut fleets.bound_original,
            |side| side.play(play),
        );
        let (native, narrow) = (native?, narrow?);
        compare::same(&calls, &native, &fleets.original.play(play)?)?;
        ensure!(
            narrow.answers[0].is_something() && native.answers != narrow.answers,
            "D9 no longer shows: {:?}",
            narrow.answers[0]
        );
        let direct = fleets.bound_native.play(Play {
            calls: &direct,
            ..play
        })?;
        compare::same(&calls, &direct, &narrow)?;
    }
    Ok(())
}
