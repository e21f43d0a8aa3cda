//! Random fleets under random sequences of calls, a few in each transaction, compared after each.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use opengeni_guards_harness::random::Random;
use postgres::SimpleQueryMessage;

use super::documents::document;
use super::side::{Answer, Play, Seen, Side};
use super::{
    Fleets, Test, claim_artifacts, claim_processes, compare, counts, prune, reap, rotate, settle,
    slots, test,
};

const LEASES: usize = 160;
const PROCESSES: usize = 70;
const TURNS: usize = 40;
const ARTIFACTS: usize = 60;
const REFERENCES: usize = 20;
/// Transactions, and calls in each.
const STEPS: usize = 10;
const CALLS: usize = 4;

pub fn all() -> Vec<Test> {
    vec![
        test("a random fleet", |fleets| walk(fleets, false, 20_240_801)),
        test(
            "a random fleet, some of it poisoned or blocked (D3, D4)",
            |fleets| walk(fleets, true, 20_240_802),
        ),
    ]
}

#[derive(Default)]
struct Tally {
    /// By function, how many calls there were and how many came to something.
    answers: BTreeMap<String, (usize, usize)>,
    committed: usize,
    deviations: BTreeMap<&'static str, usize>,
}

fn walk(fleets: &mut Fleets, troubled: bool, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let plant = fleet(&mut random, troubled);
    let mut tally = Tally::default();
    let (native, original) = fleets.both(|side| -> Result<Seen> {
        let seen = side.begin(Play {
            plant: &plant,
            ..Play::default()
        })?;
        side.end("COMMIT")?;
        Ok(seen)
    });
    compare::same(&[], &native?, &original?)?;
    for n in 0..STEPS {
        step(fleets, &mut random, &mut tally).with_context(|| format!("step {n}, seed {seed}"))?;
    }
    for side in [&mut fleets.native, &mut fleets.original] {
        side.client.batch_execute("CALL fleet.clear()")?;
    }
    tally.check(troubled)
}

fn step(fleets: &mut Fleets, random: &mut Random, tally: &mut Tally) -> Result<()> {
    let later = random.pick(&[
        "0",
        "1 s",
        "20 s",
        "1 minute",
        "10 minutes",
        "16 minutes",
        "2 hours",
    ]);
    let mut plant = format!("CALL fleet.go('{later}')");
    for _ in 0..random.below(4) {
        plant += ";\n";
        plant += &stir(random);
    }
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        calls.push(next(&mut fleets.native, random)?);
    }
    let play = Play {
        plant: &plant,
        calls: &calls,
        ..Play::default()
    };
    let (native, original) = fleets.both(|side| side.begin(play));
    let (native, mut original) = (native?, original?);
    let refused = refused(&calls, &native, &original)?;
    ensure!(
        native.warnings.len() == refused.iter().filter(|id| **id == "D4").count(),
        "warnings: {:?}",
        native.warnings
    );
    if !refused.is_empty() {
        // Once more without what it is refused for.
        fleets.original.end("ROLLBACK")?;
        original = fleets.original.begin(Play {
            remedy: Some((
                "CALL fleet.cure(); CALL fleet.unblock()",
                "CALL fleet.recover()",
            )),
            ..play
        })?;
    }
    for id in refused {
        *tally.deviations.entry(id).or_insert(0) += 1;
    }
    let untouched = compare::same(&calls, &native, &original)
        .with_context(|| format!("{later} later, after\n{plant}"))?;
    if untouched > 0 {
        *tally.deviations.entry("D16").or_insert(0) += 1;
    }
    // What the checks at COMMIT refuse, both refuse.
    let end = match native.deferred {
        Some(_) => "ROLLBACK",
        None => "COMMIT",
    };
    let (ours, theirs) = fleets.both(|side| side.end(end));
    ours.and(theirs)?;
    tally.committed += usize::from(end == "COMMIT");
    for (call, answer) in calls.iter().zip(&native.answers) {
        let name = call.split(['.', '(']).nth(1).unwrap_or_default();
        let (times, full) = tally.answers.entry(name.to_string()).or_insert((0, 0));
        *times += 1;
        *full += usize::from(answer.is_something());
    }
    Ok(())
}

/// The deviations for which the original alone refuses calls.
fn refused(calls: &[String], native: &Seen, original: &Seen) -> Result<Vec<&'static str>> {
    let mut found = Vec::new();
    let both = native.answers.iter().zip(&original.answers);
    for (call, pair) in calls.iter().zip(both) {
        let (Answer::Rows(_), Answer::Refused(refusal)) = pair else {
            continue;
        };
        let sweeps = call.contains("reap_sandbox_leases");
        let claims = call.contains("claim_terminal_retained_processes");
        found.push(match (refusal.state.as_str(), refusal.message.as_str()) {
            ("22P02", _) if claims => "D3",
            ("55000", m) if sweeps && m.starts_with("Supervised command blocks legacy") => "D4",
            (state, message) => bail!("{call}: the original refuses: {state} {message}"),
        });
    }
    Ok(found)
}

fn next(native: &mut Side, random: &mut Random) -> Result<String> {
    let claim = format!("'{}'", random.uuid());
    Ok(match random.below(16) {
        0..4 => reap(
            random.pick(&["60000", "60000", "1000", "0", "600000"]),
            random.pick(&["60000", "0", "600000", "-1"]),
            random.pick(&["30000", "0", "-1000", "600000"]),
        ),
        4..7 => claim_processes(
            &claim,
            random.pick(&["1", "5", "20", "100"]),
            random.pick(&["0", "1000", "60000", "3600000"]),
        ),
        7..9 => claim_artifacts(
            &claim,
            random.pick(&["1", "5", "50", "500"]),
            random.pick(&["1000", "60000", "3600000"]),
        ),
        9 | 10 => {
            let messages = native.client.simple_query(
                "SELECT id, delete_claim_id FROM public.sandbox_checkpoint_artifacts
                 WHERE delete_claim_id IS NOT NULL ORDER BY id",
            )?;
            let claimed: Vec<[String; 2]> = messages
                .iter()
                .filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => {
                        Some([0, 1].map(|n| format!("'{}'", row.get(n).unwrap_or_default())))
                    }
                    _ => None,
                })
                .collect();
            match claimed.get(random.below(claimed.len())) {
                Some([id, held]) => settle(
                    id,
                    if random.one_in(6) { &claim } else { held },
                    random.pick(&["true", "false"]),
                    random.pick(&["NULL", "'it broke'", "repeat('x', 5000)"]),
                    random.pick(&["0", "1000", "600000"]),
                ),
                None => settle(&claim, &claim, "true", "NULL", "0"),
            }
        }
        11 => prune("86400000", random.pick(&["1", "1000"])),
        12 => slots(random.pick(&["1", "20", "500"])),
        13 | 14 => rotate(
            random.pick(&["0", "60000", "3600000", "86400000"]),
            random.pick(&["1", "10", "500"]),
        ),
        _ => {
            let counts = counts();
            counts[random.below(counts.len())].clone()
        }
    })
}

/// What happens to a part of the fleet meanwhile; which part, its ids say.
fn stir(random: &mut Random) -> String {
    let salt = random.below(1000);
    let some = |id: &str, part: usize| {
        format!("('x' || left(md5({id}::text || '{salt}'), 4))::bit(16)::integer % 100 < {part}")
    };
    match random.below(9) {
        0 => format!(
            "UPDATE public.sandbox_lease_holders SET last_heartbeat_at = now() WHERE {}",
            some("id", 30)
        ),
        1 => format!(
            "INSERT INTO public.sandbox_lease_holders
                 (id, account_id, workspace_id, lease_id, kind, holder_id, last_heartbeat_at, created_at)
               SELECT fleet.id('holder', id::text || '{salt}'), account_id, workspace_id, id, kind, '{salt}',
                 now() - interval '30 s', now()
               FROM public.sandbox_leases, unnest('{{viewer,direct,turn}}'::text[]) AS kind WHERE {}
               ON CONFLICT DO NOTHING",
            some("id::text || kind", 5)
        ),
        2 => format!(
            "UPDATE public.sandbox_leases SET liveness = 'warm', instance_id = 'sb-{salt}', refcount = {0},
               expires_at = now() + interval '1 hour', provider_created_at = now() - interval '1 day',
               provider_deadline_at = now() + interval '{salt} s', rotation_requested_at = NULL, rotation_reason = NULL
             WHERE liveness IN ('cold', 'draining') AND {1}",
            random.below(3),
            some("id", 25)
        ),
        3 => format!(
            "UPDATE public.sandbox_leases SET liveness = 'warming', instance_id = {},
               expires_at = now() + interval '{salt} s' WHERE liveness IN ('cold', 'draining') AND {}",
            random.pick(&["NULL", "NULL", "'sb'"]),
            some("id", 15)
        ),
        4 => format!(
            "UPDATE public.session_turn_attempts SET state = 'closed', outcome = 'failed', closed_at = now()
             WHERE state <> 'closed' AND {}",
            some("id", 20)
        ),
        5 => format!(
            "UPDATE public.sandbox_checkpoint_artifacts a SET state = 'delete_pending', delete_after = now()
             WHERE state = 'candidate' AND {}",
            some("id", 30)
        ),
        6 => format!(
            "UPDATE public.sandbox_checkpoint_artifacts a SET deleted_at = now() - interval '2 days'
             WHERE state = 'deleted' AND {}",
            some("id", 50)
        ),
        7 => format!(
            "UPDATE public.sandbox_retained_processes SET reconcile_after = now() - interval '{salt} ms'
             WHERE state = 'active' AND {}",
            some("id", 20)
        ),
        _ => format!(
            "DELETE FROM public.sandbox_lease_holders WHERE kind <> 'process' AND {}",
            some("id", 10)
        ),
    }
}

fn fleet(random: &mut Random, troubled: bool) -> String {
    let mut sql = vec!["INSERT INTO fleet.clock VALUES (now())".to_string()];
    for n in 0..TURNS {
        let tenant = random.below(3);
        let status = random.pick(&[
            "queued",
            "running",
            "completed",
            "failed",
            "cancelled",
            "recovering",
        ]);
        if !random.one_in(8) {
            sql.push(format!("CALL fleet.turn('t{n}', '{status}', {tenant})"));
        }
        match random.below(5) {
            0 => {}
            1 | 2 => sql.push(format!(
                "CALL fleet.attempt('t{n}', 'running', NULL, {tenant})"
            )),
            _ => sql.push(format!(
                "CALL fleet.attempt('t{n}', 'closed', 'failed', {tenant})"
            )),
        }
    }
    for n in 0..LEASES {
        sql.push(lease(random, n));
        for holder in 0..random.below(4) {
            sql.push(format!(
                "CALL fleet.holder('l{n}', '{}', '{}', '{holder}')",
                random.pick(&["viewer", "direct", "turn", "process"]),
                random.pick(&["0", "1 s", "59 s", "61 s", "10 minutes", "2 hours"]),
            ));
        }
    }
    for n in 0..ARTIFACTS {
        let state = random.pick(&[
            "candidate",
            "current",
            "previous",
            "delete_pending",
            "deleting",
            "delete_failed",
            "deleted",
        ]);
        let time = random.pick(&[
            "@-1 minute",
            "@-16 minutes",
            "@-2 hours",
            "@-3 days",
            "@1 minute",
        ]);
        let column = match state {
            "deleting" => "delete_claimed_at",
            "deleted" => "deleted_at",
            _ => "delete_after",
        };
        sql.push(format!(
            "CALL fleet.artifact('a{n}', 'l{}', '{{\"state\": \"{state}\", \"{column}\": \"{time}\", \"created_at\": \"{}\"}}')",
            random.below(LEASES),
            random.pick(&["@-1 minute", "@-15 minutes", "@-1 hour", "@-2 days"]),
        ));
    }
    for n in 0..REFERENCES {
        let lease = n * 7;
        sql.push(format!(
            "CALL fleet.artifact('c{n}', 'l{lease}', '{{\"state\": \"current\"}}');
             CALL fleet.artifact('p{n}', 'l{lease}', '{{\"state\": \"previous\"}}');
             CALL fleet.refer('l{lease}', 'c{n}', {}); UPDATE public.sandbox_leases SET backend = 'modal' WHERE image = 'l{lease}'",
            if n % 3 == 0 { "NULL".to_string() } else { format!("'p{n}'") },
        ));
    }
    for n in 0..PROCESSES {
        let owner = match random.below(3) {
            0 => "NULL".to_string(),
            _ => format!("'t{}'", random.below(TURNS)),
        };
        let poisoned = troubled && random.one_in(15);
        let mut fields = format!(
            "\"reconcile_after\": \"{}\", \"started_at\": \"{}\", \"state\": \"{}\"",
            random.pick(&["@-2 hours", "@-1 minute", "@0", "@1 minute", "@1 hour"]),
            random.pick(&["@-3 hours", "@-3 hours", "@-4 hours"]),
            random.pick(&["active", "active", "active", "active", "exited", "lost"]),
        );
        if poisoned {
            fields += ", \"streams\": {\"stdout\": {\"byteOffset\": \"x\"}}";
        } else if troubled && !random.one_in(3) {
            fields += ", \"supervised\": true";
        }
        let lease = match (random.one_in(3), troubled) {
            (true, true) => (n % 8) * 11 + 3,
            _ => random.below(LEASES),
        };
        let name = if poisoned { "poisoned" } else { "p" };
        sql.push(format!(
            "CALL fleet.process('{name}{n}', 'l{lease}', {owner}, '{{{fields}}}')"
        ));
    }
    for n in 0..if troubled { 3 } else { 0 } {
        // Reset, it would lose what its archive is called.
        sql.push(format!(
            "CALL fleet.lease('b{n}', '{{\"liveness\": \"warming\", \"instance_id\": null, \"expires_at\": \"@-{n} hours\",
               \"resume_state\": {{\"sessionState\": {{\"workspaceArchiveRef\": {n}}}}}}}', {n});
             CALL fleet.process('b{n}', 'b{n}', NULL, '{{\"supervised\": true}}')"
        ));
    }
    sql.push("CALL fleet.count()".to_string());
    sql.push(
        "UPDATE public.sandbox_leases SET refcount = refcount + 1, turn_holders = length(md5(image || 'x')) % 3
         WHERE left(md5(image), 1) < '4'"
            .to_string(),
    );
    sql.join(";\n")
}

fn lease(random: &mut Random, n: usize) -> String {
    let live = random.pick(&["cold", "warming", "warming", "warm", "warm", "draining"]);
    let mut fields = format!(
        "\"liveness\": \"{live}\", \"expires_at\": \"{}\", \"backend\": \"{}\", \"archive_generation\": {}",
        random.pick(&[
            "@-2 days",
            "@-1 hour",
            "@-1 minute",
            "@0",
            "@1 minute",
            "@1 hour"
        ]),
        random.pick(&["modal", "modal", "docker"]),
        random.pick(&["null", "3", "4"]),
    );
    if random.one_in(3) {
        fields += ", \"instance_id\": null";
    }
    if random.one_in(2) {
        fields += &format!(", \"resume_state\": {}", document(random));
    }
    if random.one_in(2) {
        fields += &format!(
            ", \"provider_created_at\": \"@-3 days\", \"provider_deadline_at\": \"{}\"",
            random.pick(&["@-1 hour", "@0", "@1 minute", "@2 hours", "@2 days"])
        );
    }
    if random.one_in(8) {
        fields += ", \"rotation_requested_at\": \"@-1 minute\", \"rotation_reason\": \"operator\"";
    }
    format!("CALL fleet.lease('l{n}', '{{{fields}}}', {})", n % 3)
}

impl Tally {
    /// A walk in which nothing happened shows nothing.
    fn check(&self, troubled: bool) -> Result<()> {
        println!(
            "{} transactions, {} committed; {:?}",
            STEPS, self.committed, self.deviations
        );
        for (name, (times, full)) in &self.answers {
            println!("  {times:3} {name}, {full} with something");
        }
        ensure!(
            self.committed > STEPS * 3 / 4,
            "only {} transactions committed",
            self.committed
        );
        for name in [
            "reap_sandbox_leases",
            "claim_terminal_retained_processes",
            "claim_sandbox_checkpoint_artifacts",
            "settle_sandbox_checkpoint_artifact",
            "request_due_sandbox_rotations",
        ] {
            let full = self.answers.get(name).map_or(0, |times| times.1);
            ensure!(full > 0, "{name} came to something {full} times");
        }
        let wanted: &[&str] = if troubled {
            &["D3", "D4", "D16"]
        } else {
            &["D16"]
        };
        for id in wanted {
            ensure!(self.deviations.contains_key(id), "{id} does not show");
        }
        Ok(())
    }
}
