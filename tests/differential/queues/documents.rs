//! Random resume states: `warming_reset_resume_state_v2` makes the same of each.

use anyhow::{Context, Result, ensure};
use opengeni_guards_harness::random::Random;
use postgres::SimpleQueryMessage;

use super::{Fleets, Test, test};

const DOCUMENTS: usize = 600;
const KEYS: &[&str] = &[
    "backendId",
    "sessionState",
    "opengeniRecovery",
    "workspaceArchive",
    "workspaceArchiveMeta",
    "workspaceArchivePrev",
    "workspaceArchivePrevMeta",
    "workspaceArchiveAt",
    "workspaceArchiveRef",
    "archive",
    "provider",
    "restore",
    "current",
    "previous",
    "revision",
    "status",
    "",
    "other",
];
const SCALARS: &[&str] = &[
    "null",
    "null",
    "true",
    "false",
    "0",
    "-0",
    "1e400",
    "-1e-400",
    "123456789012345678901234567890",
    "1.500",
    "2",
    "\"\"",
    "\" \"",
    "\"YQ==\"",
    "\"null\"",
    "\"é漢\\n\\\"\\\\\"",
    "\"2026-01-01\"",
    "[]",
    "{}",
];

pub fn all() -> Vec<Test> {
    [
        "",
        "SET LOCAL TimeZone = 'Asia/Kathmandu'; SET LOCAL DateStyle = 'German'",
    ]
    .iter()
    .enumerate()
    .map(|(n, prelude)| {
        test(&format!("documents {n}"), move |fleets| {
            resets(fleets, prelude, 20_240_701 + n as u64)
        })
    })
    .collect()
}

fn resets(fleets: &mut Fleets, prelude: &str, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let calls: Vec<String> = (0..DOCUMENTS).map(|_| reset(&mut random)).collect();
    let sql: Vec<String> = calls
        .iter()
        .enumerate()
        .map(|(n, call)| format!("({n}, {call})"))
        .collect();
    let sql = format!(
        "BEGIN; {prelude}; SELECT reset::text FROM (VALUES {}) AS calls (n, reset) ORDER BY n; COMMIT",
        sql.join(",\n")
    );
    let (native, original) = fleets.both(|side| -> Result<Vec<Option<String>>> {
        let messages = side.client.simple_query(&sql).context(side.name)?;
        Ok(messages
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row.get(0).map(str::to_string)),
                _ => None,
            })
            .collect())
    });
    let (native, original) = (native?, original?);
    ensure!(native.len() == DOCUMENTS && original.len() == DOCUMENTS);
    for (call, (ours, theirs)) in calls.iter().zip(native.iter().zip(&original)) {
        ensure!(
            ours == theirs,
            "{call}\n  native   {ours:?}\n  original {theirs:?}"
        );
    }
    let kept = native.iter().flatten().count();
    ensure!(
        kept > DOCUMENTS / 4 && kept < DOCUMENTS * 9 / 10,
        "{kept} of {DOCUMENTS} keep an archive"
    );
    Ok(())
}

fn reset(random: &mut Random) -> String {
    let document = if random.one_in(40) {
        "NULL".to_string()
    } else {
        format!("'{}'", document(random))
    };
    format!(
        "opengeni_private.warming_reset_resume_state_v2({}, {}, {document}::jsonb, {}, {}, {}::timestamptz)",
        random.pick(&["'modal'", "'docker'", "''", "NULL"]),
        random.pick(&["NULL", "NULL", "'modal'", "''"]),
        random.pick(&["3", "3", "0", "NULL", "2147483647"]),
        random.pick(&["3", "3", "2", "0", "NULL", "-1", "2147483647"]),
        random.pick(&[
            "'2026-01-01T00:00:00Z'",
            "'2026-07-01T12:34:56.789012+02'",
            "'infinity'",
            "'-infinity'",
            "'0044-03-15 12:00Z BC'",
            "'12026-01-01Z'",
            "NULL",
        ]),
    )
}

/// A resume state: like a real one in most places, and anything at all in the others.
pub fn document(random: &mut Random) -> String {
    if random.one_in(25) {
        return value(random, 3);
    }
    let meta = |random: &mut Random| match random.below(4) {
        0 => value(random, 2),
        _ => object(
            random,
            &[
                ("revision", 80),
                ("version", 60),
                ("provider", 60),
                ("more", 20),
            ],
            |random, key| match key {
                "version" => random
                    .pick(&["2", "\"2\"", "1", "2.0", "null", "[]"])
                    .to_string(),
                "provider" => random
                    .pick(&[
                        "\"modal_snapshot_filesystem\"",
                        "\"modal_snapshot_directory\"",
                        "\"x\"",
                        "null",
                    ])
                    .to_string(),
                _ => value(random, 1),
            },
        ),
    };
    object(
        random,
        &[
            ("backendId", 50),
            ("sessionState", 95),
            ("opengeniRecovery", 60),
            ("other", 20),
        ],
        |random, key| match (key, random.below(8)) {
            (_, 0) | ("other" | "backendId", _) => value(random, 2),
            ("sessionState", _) => object(
                random,
                &[
                    ("workspaceArchive", 80),
                    ("workspaceArchiveMeta", 75),
                    ("workspaceArchivePrev", 60),
                    ("workspaceArchivePrevMeta", 60),
                    ("workspaceArchiveAt", 50),
                    ("workspaceArchiveRef", 20),
                    ("other", 20),
                ],
                |random, key| match key {
                    "workspaceArchive" | "workspaceArchivePrev" => match random.below(3) {
                        0 => value(random, 1),
                        _ => "\"YQ==\"".to_string(),
                    },
                    "workspaceArchiveMeta" | "workspaceArchivePrevMeta" => meta(random),
                    _ => value(random, 2),
                },
            ),
            _ => object(
                random,
                &[("archive", 70), ("provider", 50), ("restore", 50)],
                |random, _| {
                    object(
                        random,
                        &[("current", 80), ("previous", 40), ("status", 50)],
                        |random, _| meta(random),
                    )
                },
            ),
        },
    )
}

fn object(
    random: &mut Random,
    keys: &[(&str, usize)],
    value: impl Fn(&mut Random, &str) -> String,
) -> String {
    let mut fields = Vec::new();
    for (key, percent) in keys {
        if random.percent(*percent) {
            fields.push(format!("\"{key}\": {}", value(random, key)));
        }
    }
    format!("{{{}}}", fields.join(", "))
}

fn value(random: &mut Random, depth: usize) -> String {
    match random.below(if depth == 0 { 4 } else { 7 }) {
        0..4 => random.pick(SCALARS).to_string(),
        4 => {
            let items: Vec<String> = (0..random.below(3))
                .map(|_| value(random, depth - 1))
                .collect();
            format!("[{}]", items.join(", "))
        }
        _ => {
            let fields: Vec<String> = (0..random.below(4))
                .map(|_| format!("\"{}\": {}", random.pick(KEYS), value(random, depth - 1)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}
