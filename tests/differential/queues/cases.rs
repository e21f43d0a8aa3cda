//! Named cases: each function on a fleet that has everything it looks at, at every limit of its arguments.

use super::{
    CLAIM, Deviation, Play, Test, Want, agree, call, claim_artifacts, claim_processes, compare,
    counts, prune, reap, rotate, settle, slots, test,
};
use anyhow::{Result, ensure};
use serde_json::Value;

const MATRIX: &str = "CALL fleet.plant('matrix')";
const OWNERS: &str = "CALL fleet.plant('owners')";
const CHECKPOINTS: &str = "CALL fleet.plant('checkpoints')";
const DEADLINES: &str = "CALL fleet.plant('deadlines')";
const SLOTS: &str = "CALL fleet.plant('slots')";
const DRAINING: &str = "CALL fleet.plant('draining')";
const EVERYTHING: &str =
    "CALL fleet.plant('owners', 'checkpoints', 'deadlines', 'slots', 'draining')";
const ONE_OF_EACH: &str = "CALL fleet.lease('a'); CALL fleet.lease('b'); CALL fleet.lease('c', '{}', 1);
    CALL fleet.holder('a', 'viewer', '1 hour'); CALL fleet.holder('b', 'turn', '1 hour'); CALL fleet.holder('a', 'direct')";
const INT_MAX: &str = "2147483647";
const INT_MIN: &str = "'-2147483648'";
const BIG_MAX: &str = "9223372036854775807";
const BIG_MIN: &str = "'-9223372036854775808'";
const SPELLED: &str = "SET LOCAL TimeZone = 'Asia/Kathmandu'; SET LOCAL DateStyle = 'German';
    SET LOCAL IntervalStyle = 'iso_8601'; SET LOCAL extra_float_digits = 0; SET LOCAL bytea_output = 'escape'";

pub fn all() -> Vec<Test> {
    [
        sweeps(),
        processes(),
        leases(),
        artifacts(),
        rotations(),
        arguments(),
        deviations(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn sweeps() -> Vec<Test> {
    let mut tests = Vec::new();
    for (viewer, turn, grace) in [
        ("60000", "120000", "30000"),
        ("60000", "0", "30000"),
        ("60000", "-5", "0"),
        ("0", "0", "0"),
        ("-60000", "60000", "-1000"),
    ] {
        tests.push(agree(
            &format!("reap {viewer} {turn} {grace}"),
            MATRIX,
            "",
            &[reap(viewer, turn, grace)],
        ));
    }
    for extreme in [
        "31536000000000",
        "'-31536000000000'",
        "9007199254740993",
        BIG_MAX,
        BIG_MIN,
    ] {
        for (place, calls) in [
            ("viewer", reap(extreme, "120000", "30000")),
            ("turn", reap("60000", extreme, "30000")),
            ("grace", reap("60000", "120000", extreme)),
        ] {
            tests.push(agree(
                &format!("reap {place} {extreme}"),
                ONE_OF_EACH,
                "",
                &[calls],
            ));
        }
    }
    let twice = reap("60000", "120000", "-1");
    tests.push(agree(
        "reap twice, then look",
        MATRIX,
        SPELLED,
        &[&[twice.clone(), twice][..], &counts()].concat(),
    ));
    tests.push(agree(
        "reap nothing",
        "",
        "",
        &[reap("60000", "120000", "1")],
    ));
    tests.push(agree(
        "reap under processes and artifacts",
        "CALL fleet.plant('owners', 'checkpoints', 'deadlines'); CALL fleet.count();
         UPDATE public.sandbox_leases SET liveness = 'warming', instance_id = NULL, expires_at = now() - interval '1 s'
           WHERE image LIKE 'candidate%' AND current_checkpoint_artifact_id IS NULL
             AND previous_checkpoint_artifact_id IS NULL",
        "",
        &[reap("1000", "1000", "1000")],
    ));
    tests.push(agree(
        "reap keeps checkpoints that are referred to",
        "CALL fleet.lease('a', '{\"liveness\": \"warming\", \"instance_id\": null, \"expires_at\": \"@-1 s\"}');
         CALL fleet.artifact('a1', 'a', '{\"state\": \"current\"}');
         CALL fleet.artifact('a2', 'a', '{\"state\": \"previous\"}');
         CALL fleet.refer('a', 'a1', 'a2')",
        "",
        &[reap("1000", "1000", "1000")],
    ));
    tests.push(agree(
        "reap by the protocol's other value",
        ONE_OF_EACH,
        "SET LOCAL opengeni.sandbox_recovery_protocol_v2 = '0'",
        &[reap("60000", "120000", "30000")],
    ));
    tests
}

fn processes() -> Vec<Test> {
    let count = call("count_active_retained_processes_by_owner_state", &[]);
    let mut tests = vec![
        agree(
            "claim processes one by one",
            OWNERS,
            "",
            &(0..25)
                .map(|n| claim_processes(CLAIM, if n % 5 == 0 { "1" } else { "3" }, "60000"))
                .collect::<Vec<_>>(),
        ),
        agree(
            "claim processes again at once",
            OWNERS,
            "",
            &[
                claim_processes(CLAIM, "100", "0"),
                claim_processes("gen_random_uuid() IS NULL OR NULL", "100", "0"),
                claim_processes("'00000000-0000-4000-8000-00000000c1a2'", "100", "1"),
                claim_processes(CLAIM, "100", "1"),
                count.clone(),
            ],
        ),
        agree(
            "claim no process",
            "",
            "",
            &[claim_processes(CLAIM, "100", "60000")],
        ),
        agree(
            "count processes",
            OWNERS,
            SPELLED,
            std::slice::from_ref(&count),
        ),
        agree("count no process", "", "", &[count]),
    ];
    for (limit, ttl) in [("100", "3600000"), ("100", "0"), ("7", "1"), ("1", "60000")] {
        tests.push(agree(
            &format!("claim processes {limit} {ttl}"),
            OWNERS,
            "",
            &[claim_processes(CLAIM, limit, ttl)],
        ));
    }
    tests
}

fn leases() -> Vec<Test> {
    let mut tests = Vec::new();
    for limit in ["500", "100", "7", "1"] {
        tests.push(agree(&format!("slots {limit}"), SLOTS, "", &[slots(limit)]));
    }
    tests.push(agree("no slots", "", "", &[slots("500")]));
    tests.push(agree(
        "slots, spelled otherwise",
        SLOTS,
        SPELLED,
        &[slots("500")],
    ));
    tests.push(agree("draining by age", DRAINING, "", &counts()));
    tests.push(agree(
        "draining by age, spelled otherwise",
        DRAINING,
        SPELLED,
        &counts(),
    ));
    tests.push(agree("counts of everything", EVERYTHING, "", &counts()));
    tests.push(agree("counts of nothing", "", "", &counts()));
    tests.push(agree("live on Modal", DEADLINES, "", &counts()));
    tests.push(agree(
        "a tenant's settings narrow nothing",
        EVERYTHING,
        "SELECT set_config('opengeni.account_id', md5('account/1'), true),
           set_config('opengeni.workspace_id', md5('workspace/1'), true)",
        &counts(),
    ));
    tests.push(agree(
        "counters in READ ONLY",
        EVERYTHING,
        "SET LOCAL transaction_read_only = on",
        &[&counts()[..4], &[slots("500")]].concat(),
    ));
    tests
}

fn artifacts() -> Vec<Test> {
    let mut tests = Vec::new();
    for (limit, ttl) in [
        ("500", "60000"),
        ("500", "1000"),
        ("500", "3600000"),
        ("5", "60000"),
        ("1", "3600000"),
    ] {
        tests.push(agree(
            &format!("claim artifacts {limit} {ttl}"),
            CHECKPOINTS,
            "",
            &[claim_artifacts(CLAIM, limit, ttl)],
        ));
    }
    tests.push(agree(
        "claim artifacts in turns",
        CHECKPOINTS,
        "",
        &(0..12)
            .map(|n| claim_artifacts(CLAIM, if n % 2 == 0 { "1" } else { "9" }, "60000"))
            .collect::<Vec<_>>(),
    ));
    tests.push(agree(
        "claim no artifact",
        "",
        "",
        &[claim_artifacts(CLAIM, "1", "1000")],
    ));

    let id = |name: &str| format!("fleet.id('artifact', '{name}')");
    let old = "fleet.id('claim', 'old')";
    const CLAIMED: &str = "CALL fleet.lease('a');
        CALL fleet.artifact('deleting', 'a', '{\"state\": \"deleting\", \"last_delete_error\": \"earlier\", \"delete_after\": \"@-1 day\"}');
        CALL fleet.artifact('other', 'a', '{\"state\": \"deleting\"}'); CALL fleet.artifact('failed', 'a', '{\"state\": \"delete_failed\"}');
        CALL fleet.artifact('deleted', 'a', '{\"state\": \"deleted\"}'); CALL fleet.artifact('current', 'a', '{\"state\": \"current\"}')";
    for deleted in ["true", "false"] {
        for (error, retry) in [
            ("NULL", "1000"),
            ("''", "1000"),
            ("repeat('é', 4000)", "1000"),
            ("repeat('é', 4001)", "1000"),
            ("'it broke'", "0"),
            ("'it broke'", "999"),
            ("'it broke'", "1000"),
            ("'it broke'", "1001"),
            ("'it broke'", "86400000"),
        ] {
            tests.push(agree(
                &format!("settle {deleted} {error} {retry}"),
                CLAIMED,
                "",
                &[settle(&id("deleting"), old, deleted, error, retry)],
            ));
        }
        tests.push(agree(
            &format!("settle what is not held, {deleted}"),
            CLAIMED,
            "",
            &[
                settle(&id("deleting"), CLAIM, deleted, "'e'", "1000"),
                settle(&id("failed"), old, deleted, "'e'", "1000"),
                settle(&id("deleted"), old, deleted, "'e'", "1000"),
                settle(&id("current"), old, deleted, "'e'", "1000"),
                settle(&id("none"), old, deleted, "'e'", "1000"),
                settle(&id("deleting"), old, deleted, "'e'", "1000"),
                settle(&id("deleting"), old, deleted, "'e'", "1000"),
                settle(&id("other"), old, "NOT true", "'e'", "1000"),
            ],
        ));
    }
    tests.push(agree(
        "claim, settle, claim again",
        CLAIMED,
        "",
        &[
            claim_artifacts(CLAIM, "500", "60000"),
            settle(&id("failed"), CLAIM, "false", "'first'", "0"),
            settle(&id("other"), CLAIM, "true", "NULL", "0"),
            claim_artifacts(CLAIM, "500", "1000"),
        ],
    ));
    for (retention, limit) in [
        ("86400000", "1000"),
        ("86400001", "1000"),
        ("86400000", "1"),
        ("31536000000", "1000"),
        ("172800000", "3"),
    ] {
        let once = prune(retention, limit);
        tests.push(agree(
            &format!("prune {retention} {limit}"),
            "CALL fleet.plant('checkpoints'); CALL fleet.lease('a', '{}', 1);
             CALL fleet.artifact('a year', 'a', '{\"state\": \"deleted\", \"deleted_at\": \"@-365 days\"}');
             CALL fleet.artifact('and more', 'a', '{\"state\": \"deleted\", \"deleted_at\": \"@-365 days -0.000001 s\"}')",
            "",
            &[once.clone(), once],
        ));
    }
    tests
}

fn rotations() -> Vec<Test> {
    let mut tests = Vec::new();
    for (lead, limit) in [
        ("0", "500"),
        ("1", "500"),
        ("60000", "500"),
        ("86400000", "500"),
        ("60000", "5"),
        ("60000", "1"),
    ] {
        tests.push(agree(
            &format!("rotate {lead} {limit}"),
            DEADLINES,
            "",
            &[&[rotate(lead, limit)][..], &counts()].concat(),
        ));
    }
    tests.push(agree(
        "rotate in turns",
        DEADLINES,
        "",
        &(0..8)
            .map(|n| rotate("86400000", if n % 2 == 0 { "2" } else { "7" }))
            .collect::<Vec<_>>(),
    ));
    tests.push(agree(
        "rotate, then reap",
        DEADLINES,
        "",
        &[
            rotate("60000", "500"),
            reap("1000", "0", "1000"),
            call("sandbox_rotation_backlog", &[]),
        ],
    ));
    tests.push(agree("rotate nothing", "", "", &[rotate("0", "1")]));
    tests
}

/// What is refused on both sides, and at which of several wrong arguments.
fn arguments() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut each = |name: &str, plant: &str, calls: Vec<String>| {
        tests.push(agree(&format!("arguments of {name}"), plant, "", &calls));
    };
    let limits = [
        "0", "-1", "1", "100", "101", "500", "501", "1000", "1001", INT_MAX, INT_MIN,
    ];
    each(
        "claim_terminal_retained_processes",
        "CALL fleet.plant('owners')",
        limits
            .iter()
            .map(|limit| claim_processes(CLAIM, limit, "1000"))
            .chain(
                ["-1", "0", "3600000", "3600001", BIG_MAX, BIG_MIN]
                    .iter()
                    .map(|ttl| claim_processes(CLAIM, "2", ttl)),
            )
            .chain([
                claim_processes(CLAIM, "0", "-1"),
                claim_processes("NULL", "0", "1"),
                claim_processes("NULL", "1", "-1"),
                claim_processes("NULL", "101", "-1"),
            ])
            .collect(),
    );
    let nulls = ["NULL"];
    each(
        "claim_sandbox_checkpoint_artifacts",
        CHECKPOINTS,
        limits
            .iter()
            .chain(&nulls)
            .map(|limit| claim_artifacts(CLAIM, limit, "1000"))
            .chain(
                [
                    "999", "1000", "3600000", "3600001", "0", "-1", "NULL", BIG_MAX, BIG_MIN,
                ]
                .iter()
                .map(|ttl| claim_artifacts(CLAIM, "2", ttl)),
            )
            .chain([
                claim_artifacts("NULL", "1", "1000"),
                claim_artifacts("NULL", "0", "0"),
                claim_artifacts(CLAIM, "0", "0"),
            ])
            .collect(),
    );
    each(
        "settle_sandbox_checkpoint_artifact",
        "",
        vec![
            settle("NULL", CLAIM, "true", "NULL", "0"),
            settle(CLAIM, "NULL", "true", "NULL", "0"),
            settle(CLAIM, CLAIM, "NULL", "NULL", "0"),
            settle(CLAIM, CLAIM, "true", "NULL", "NULL"),
            settle(CLAIM, CLAIM, "true", "NULL", "-1"),
            settle(CLAIM, CLAIM, "true", "NULL", "86400000"),
            settle(CLAIM, CLAIM, "true", "NULL", "86400001"),
            settle(CLAIM, CLAIM, "false", "NULL", BIG_MAX),
            settle(CLAIM, CLAIM, "false", "NULL", BIG_MIN),
            settle("NULL", "NULL", "NULL", "NULL", "NULL"),
            settle(CLAIM, CLAIM, "NULL", "NULL", "NULL"),
        ],
    );
    each(
        "prune_deleted_sandbox_checkpoint_artifacts",
        CHECKPOINTS,
        limits
            .iter()
            .chain(&nulls)
            .map(|limit| prune("86400000", limit))
            .chain(
                [
                    "86399999",
                    "86400000",
                    "31536000000",
                    "31536000001",
                    "0",
                    "-1",
                    "NULL",
                    BIG_MAX,
                    BIG_MIN,
                ]
                .iter()
                .map(|retention| prune(retention, "2")),
            )
            .chain([prune("0", "0"), prune("NULL", "NULL")])
            .collect(),
    );
    each(
        "list_legacy_modal_checkpoint_slots",
        SLOTS,
        limits
            .iter()
            .chain(&nulls)
            .map(|limit| slots(limit))
            .collect(),
    );
    each(
        "request_due_sandbox_rotations",
        DEADLINES,
        limits
            .iter()
            .chain(&nulls)
            .map(|limit| rotate("1", limit))
            .chain(
                ["-1", "0", "86400000", "86400001", "NULL", BIG_MAX, BIG_MIN]
                    .iter()
                    .map(|lead| rotate(lead, "2")),
            )
            .chain([rotate("-1", "0"), rotate("NULL", "NULL")])
            .collect(),
    );
    tests
}

// Deviations --------------------------------------------------------------------------------------------

/// Three due processes, the second with output cursors that are none.
const POISONED: &str = "CALL fleet.lease('a'); CALL fleet.lease('b', '{}', 1);
    CALL fleet.process('first', 'a', NULL, '{\"reconcile_after\": \"@-3 hours\", \"supervised\": true}');
    CALL fleet.process('poisoned', 'b', NULL, '{\"reconcile_after\": \"@-2 hours\", \"streams\":
      {\"stdout\": {\"byteOffset\": \"x\", \"utf8Remainder\": 7, \"eof\": \"maybe\", \"exitCode\": \"x\"}, \"stderr\": null}}');
    CALL fleet.process('last', 'a')";
/// The second has lost the holder that its identity calls for.
const UNHELD: &str = "CALL fleet.lease('a'); CALL fleet.lease('b', '{}', 1);
    CALL fleet.process('first', 'a', NULL, '{\"reconcile_after\": \"@-3 hours\", \"supervised\": true}');
    CALL fleet.process('unheld', 'b', NULL, '{\"reconcile_after\": \"@-2 hours\"}');
    CALL fleet.process('last', 'a');
    DELETE FROM public.sandbox_lease_holders WHERE holder_id = 'b/process/unheld'";
/// Five expired warming leases of three tenants; the reset of two would drop an archive under a supervised command.
const BLOCKED: &str = "CALL fleet.lease('a', '{\"liveness\": \"warming\", \"instance_id\": null, \"expires_at\": \"@-1 hour\",
      \"resume_state\": {\"sessionState\": {\"workspaceArchiveMeta\": {\"revision\": \"1\"}}}, \"refcount\": 5}');
    CALL fleet.lease('b', '{\"liveness\": \"warming\", \"instance_id\": null, \"expires_at\": \"@-1 hour\"}', 1);
    CALL fleet.lease('c', '{\"liveness\": \"warming\", \"instance_id\": null, \"expires_at\": \"@-1 hour\",
      \"resume_state\": {\"sessionState\": {\"workspaceArchive\": \"YQ==\", \"workspaceArchiveRef\": \"r\"}}}', 2);
    CALL fleet.lease('d', '{\"liveness\": \"warming\", \"instance_id\": null, \"expires_at\": \"@-1 hour\",
      \"resume_state\": {\"sessionState\": {\"workspaceArchive\": \"YQ==\"}}}', 2);
    CALL fleet.lease('e', '{\"liveness\": \"warming\", \"expires_at\": \"@-1 hour\"}');
    CALL fleet.lease('f', '{\"liveness\": \"draining\", \"expires_at\": \"@-1 hour\"}', 1);
    CALL fleet.lease('g', '{\"instance_id\": \"sb\"}', 2); CALL fleet.holder('g', 'viewer', '1 hour');
    CALL fleet.process('pa', 'a', NULL, '{\"supervised\": true}'); CALL fleet.process('pc', 'c', NULL, '{\"supervised\": true}');
    CALL fleet.process('pd', 'd', NULL, '{\"supervised\": true}'); CALL fleet.process('pb', 'b')";
const ONE_DUE: &str = "CALL fleet.lease('a'); CALL fleet.process('p', 'a')";
const ONE_WARM: &str = "CALL fleet.lease('a'); CALL fleet.lease('b', '{}', 1); CALL fleet.holder('b', 'viewer', '1 hour')";

fn deviations() -> Vec<Test> {
    const REAP: &str = "sandbox lease reap TTLs and idle grace are required";
    let base = |id, name, plant, calls, native, original| Deviation {
        id,
        name,
        plant,
        prelude: "",
        calls,
        native,
        original,
        remedy: None,
        warnings: &[],
    };
    let refused = Want::Refused;
    let mut tests: Vec<Test> = vec![
        Deviation {
            remedy: Some(("CALL fleet.cure()", "CALL fleet.recover()")),
            ..base(
                "D3",
                "a poisoned row in a claim",
                POISONED,
                vec![claim_processes(CLAIM, "100", "1000")],
                Want::Rows(3),
                refused("22P02", "bigint"),
            )
        },
        Deviation {
            remedy: Some(("CALL fleet.cure()", "CALL fleet.recover()")),
            ..base(
                "D3",
                "a poisoned row at the claim's limit",
                POISONED,
                vec![claim_processes(CLAIM, "2", "1000"), claim_processes(CLAIM, "2", "1000")],
                Want::Rows(1),
                refused("22P02", "bigint"),
            )
        },
        Deviation {
            remedy: Some(("CALL fleet.unblock()", "CALL fleet.recover()")),
            warnings: &["2 of 4 expired warming leases left as they are"],
            ..base(
                "D4",
                "leases whose reset is refused",
                BLOCKED,
                vec![reap("60000", "0", "-1000")],
                Want::Rows(3),
                refused("55000", "Supervised command blocks legacy containment"),
            )
        },
        Deviation {
            remedy: Some((
                "UPDATE public.sandbox_retained_processes SET reconcile_after = reconcile_after + interval '9 years'
                   WHERE holder_id = 'b/process/unheld'",
                "UPDATE public.sandbox_retained_processes SET reconcile_after = reconcile_after - interval '9 years'
                   WHERE holder_id = 'b/process/unheld'",
            )),
            warnings: &["1 of 3 due retained processes left as they are"],
            ..base(
                "D4",
                "a process whose claim is refused",
                UNHELD,
                vec![claim_processes(CLAIM, "100", "1000")],
                Want::Rows(2),
                refused("55000", "retained process does not match its parent admission"),
            )
        },
        Deviation {
            warnings: &["1 of 2 expired warming leases left as they are"],
            ..base(
                "D4",
                "a lease that refers to the wrong checkpoint",
                "CALL fleet.lease('a', '{\"liveness\": \"warming\", \"instance_id\": null, \"expires_at\": \"@-1 s\"}');
                 CALL fleet.lease('b', '{\"liveness\": \"warming\", \"instance_id\": null, \"expires_at\": \"@-1 s\"}');
                 CALL fleet.artifact('a1', 'a', '{\"state\": \"previous\"}');
                 CALL fleet.refer('a', 'a1')",
                vec![reap("1000", "1000", "1000")],
                Want::Rows(0),
                Want::RefusedAtCommit("23514", "current checkpoint artifact does not match"),
            )
        },
        base(
            "D4",
            "an abandoned deletion of what is referred to again",
            "CALL fleet.lease('a'); CALL fleet.artifact('x', 'a', '{\"state\": \"deleting\"}');
             CALL fleet.lease('b'); CALL fleet.artifact('y', 'b'); CALL fleet.refer('a', 'x')",
            vec![claim_artifacts(CLAIM, "1", "1000")],
            Want::Rows(1),
            Want::RefusedAtCommit("23514", "checkpoint artifact"),
        ),
        Deviation {
            prelude: "SET LOCAL transaction_read_only = on",
            ..base(
                "D5",
                "the inventory in READ ONLY",
                DEADLINES,
                vec![call("list_live_modal_sandbox_leases", &[])],
                Want::Rows(159),
                refused("25006", "cannot execute INSERT in a read-only transaction"),
            )
        },
        base(
            "D15",
            "reap without a viewer's TTL",
            ONE_WARM,
            vec![reap("NULL", "1", "1")],
            refused("22023", REAP),
            Want::Rows(0),
        ),
        base(
            "D15",
            "reap without a turn's TTL",
            ONE_WARM,
            vec![reap("1", "NULL", "1")],
            refused("22023", REAP),
            Want::Rows(0),
        ),
        base(
            "D15",
            "reap without grace",
            ONE_WARM,
            vec![reap("1", "1", "NULL")],
            refused("22023", REAP),
            refused("23502", "expires_at"),
        ),
        base(
            "D15",
            "reap without grace where nothing is warm",
            "CALL fleet.lease('a', '{\"liveness\": \"cold\"}')",
            vec![reap("1", "1", "NULL")],
            refused("22023", REAP),
            Want::Rows(0),
        ),
        base(
            "D15",
            "claim processes without limit",
            OWNERS,
            vec![claim_processes(CLAIM, "NULL", "1000")],
            refused("22023", "retained-process reconciliation limit must be between 1 and 100"),
            Want::Rows(18),
        ),
        base(
            "D15",
            "claim processes without TTL",
            ONE_DUE,
            vec![claim_processes(CLAIM, "1", "NULL")],
            refused("22023", "retained-process reconciliation claim TTL is invalid"),
            refused("23502", "reconcile_after"),
        ),
        base(
            "D15",
            "claim no process without TTL",
            "",
            vec![claim_processes(CLAIM, "1", "NULL")],
            refused("22023", "retained-process reconciliation claim TTL is invalid"),
            Want::Rows(0),
        ),
        base(
            "D15",
            "claim processes without id",
            ONE_DUE,
            vec![claim_processes("NULL", "1", "1000")],
            refused("22023", "retained-process reconciliation claim id is required"),
            refused("23514", "reconcile_claim_check"),
        ),
        base(
            "D15",
            "claim no process without id",
            "",
            vec![claim_processes("NULL", "1", "1000")],
            refused("22023", "retained-process reconciliation claim id is required"),
            Want::Rows(0),
        ),
    ]
    .into_iter()
    .map(Deviation::test)
    .collect();
    tests.push(test(
        "D16: a sweep leaves what it does not change",
        idle_sweep,
    ));
    tests.push(test(
        "D16: slots in the order of what was changed last",
        slots_after_sweep,
    ));
    tests
}

/// Of the matrix, the leases that nothing changes keep their row; the original stamps every one.
fn idle_sweep(fleets: &mut super::Fleets) -> Result<()> {
    let calls = [reap("60000", "120000", "30000")];
    let play = Play {
        plant: "CALL fleet.plant('matrix')",
        calls: &calls,
        ..Play::default()
    };
    let (native, original) = fleets.both(|side| side.play(play));
    let (native, original) = (native?, original?);
    let untouched = compare::same(&calls, &native, &original)?;
    let stamped = |seen: &super::Seen| {
        seen.after
            .iter()
            .filter(|(key, row)| {
                key.starts_with("sandbox_leases ")
                    && compare::fields(row).get("updated_at") == Some(&Value::from("00:00:00"))
            })
            .count()
    };
    let leases = original
        .after
        .keys()
        .filter(|key| key.starts_with("sandbox_leases "))
        .count();
    ensure!(
        stamped(&original) == leases,
        "the original left leases alone"
    );
    ensure!(
        untouched > 100 && stamped(&native) + untouched == leases,
        "{untouched} untouched and {} stamped of {leases}",
        stamped(&native)
    );
    Ok(())
}

fn slots_after_sweep(fleets: &mut super::Fleets) -> Result<()> {
    // By id, z comes first; by age, a does.
    let plant = "CALL fleet.lease('a', '{\"updated_at\": \"@-2 days\", \"id\": \"f0000000-0000-4000-8000-000000000000\"}');
        CALL fleet.lease('z', '{\"id\": \"10000000-0000-4000-8000-000000000000\"}');
        UPDATE public.sandbox_leases SET refcount = 1, resume_state = jsonb_build_object('sessionState',
          jsonb_build_object('workspaceArchive', image, 'workspaceArchiveMeta',
            '{\"version\": 2, \"provider\": \"modal_snapshot_filesystem\"}'::jsonb));
        INSERT INTO public.sandbox_lease_holders (account_id, workspace_id, lease_id, kind, holder_id)
          SELECT account_id, workspace_id, id, 'direct', 'd' FROM public.sandbox_leases";
    let calls = [
        reap("60000", "60000", "60000"),
        "SELECT archive_base64 FROM opengeni_private.list_legacy_modal_checkpoint_slots(500)"
            .to_string(),
    ];
    let play = Play {
        plant,
        calls: &calls,
        ..Play::default()
    };
    let (native, original) = fleets.both(|side| side.play(play));
    let rows = |names: [&str; 2]| super::Answer::Rows(names.map(str::to_string).to_vec());
    let (native, original) = (native?, original?);
    ensure!(
        native.answers[1] == rows(["a", "z"]),
        "native: {:?}",
        native.answers[1]
    );
    ensure!(
        original.answers[1] == rows(["z", "a"]),
        "original: {:?}",
        original.answers[1]
    );
    Ok(())
}
