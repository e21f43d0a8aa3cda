//! Random transactions, the same on both sides, compared statement by statement.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::database::{Outcome, Pair, first_value};
use crate::deviations::{self, Scene};
use crate::moves::{Generator, Note, State, Transaction, state_query};
use crate::tenants::{STAGES, TENANTS, Tenant};
use opengeni_guards_harness::random::Random;

/// A tenant starts over after so many transactions, or when it has grown to so many processes.
const LIFETIME: usize = 150;
const CROWDED: usize = 70;
const COMPARE_ROWS_EVERY: usize = 50;
/// Distinct failures that are shrunk and printed; the rest is counted.
const PRINTED: usize = 12;
const SHRINKING: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Tally {
    transactions: usize,
    committed: usize,
    statements: usize,
    accepted: usize,
    refused: BTreeMap<String, usize>,
    deviations: BTreeMap<&'static str, usize>,
}

enum Verdict {
    Same,
    Explained(&'static str),
    Diverged(Divergence),
}

#[derive(Clone, Debug)]
struct Divergence {
    statement: String,
    native: String,
    original: String,
}

impl Divergence {
    /// The same sort of difference, whatever ids it is about.
    fn kind(&self) -> String {
        let shape: String = format!(
            "{} | {} | {:.44}",
            self.native, self.original, self.statement
        )
        .chars()
        .map(|c| if c.is_ascii_digit() { '#' } else { c })
        .collect();
        shape
    }
}

struct Life {
    tenant: Tenant,
    history: Vec<Transaction>,
}

struct Walk {
    pair: Pair,
    tally: Tally,
    poisoned: Vec<String>,
}

/// Walks and prints what was found; the number of distinct failures.
pub fn run(pair: Pair, transactions: usize, seed: u64) -> Result<usize> {
    let mut random = Random::new(seed);
    let mut lives: Vec<Life> = (0..TENANTS)
        .map(|number| Life {
            tenant: Tenant { number },
            history: Vec::new(),
        })
        .collect();
    let poisoned = (0..TENANTS)
        .flat_map(|number| {
            let tenant = Tenant { number };
            STAGES
                .iter()
                .enumerate()
                .filter(|(_, stage)| stage.poisoned)
                .map(move |(n, _)| tenant.id(0x1000 + n))
        })
        .collect();
    let mut walk = Walk {
        pair,
        tally: Tally::default(),
        poisoned,
    };
    for life in &lives {
        walk.pair.admin_both(&life.tenant.fixture())?;
    }
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..transactions {
        if n % 500 == 499 {
            for side in [&mut walk.pair.native, &mut walk.pair.original] {
                side.reconnect()?;
            }
        }
        let which = random.below(TENANTS);
        let life = &mut lives[which];
        let mut state = walk.state(&life.tenant)?;
        if state.is_gone() || state.size() > CROWDED || life.history.len() >= LIFETIME {
            walk.restart(life)?;
            state = walk.state(&life.tenant)?;
        }
        let transaction = Generator {
            random: &mut random,
            tenant: &life.tenant,
            state: &state,
        }
        .transaction();
        let mut verdict = walk.execute(&life.tenant, &transaction, &state.floor(), true)?;
        life.history.push(transaction);
        walk.tally.transactions += 1;
        let due = life.history.len().is_multiple_of(COMPARE_ROWS_EVERY) || n + 1 == transactions;
        if due
            && !matches!(verdict, Verdict::Diverged(_))
            && let Err(error) = walk.same_rows(&life.tenant)
        {
            verdict = Verdict::Diverged(Divergence {
                statement: "rows".into(),
                native: error.to_string(),
                original: String::new(),
            });
        }
        if let Verdict::Diverged(divergence) = verdict {
            let kind = divergence.kind();
            let seen = kinds.entry(kind.clone()).or_insert(0);
            *seen += 1;
            if *seen == 1 && kinds.len() <= PRINTED {
                if kinds.len() == 1 {
                    println!("\nfailures:\n");
                }
                println!(
                    "---- divergence {} at transaction {n}, seed {seed}",
                    kinds.len()
                );
                let (history, divergence) = walk.shrink(life, divergence)?;
                print_replay(&life.tenant, &history, &divergence);
            }
            walk.restart(life)?;
        }
    }
    walk.tally.print();
    for (kind, times) in &kinds {
        println!("divergence x{times}: {kind:.400}");
    }
    Ok(kinds.len())
}

impl Walk {
    fn state(&mut self, tenant: &Tenant) -> Result<State> {
        let json = first_value(
            &mut self.pair.native.admin,
            &state_query(&tenant.workspace()),
        )?;
        Ok(State(serde_json::from_str(&json)?))
    }

    fn restart(&mut self, life: &mut Life) -> Result<()> {
        life.history.clear();
        self.pair.admin_both(&life.tenant.fixture())
    }

    fn same_rows(&mut self, tenant: &Tenant) -> Result<()> {
        self.pair.same_rows(&tenant.account(), &tenant.workspace())
    }

    /// Runs a transaction on both sides. A difference ends it without COMMIT, or gives the original the
    /// native's rows where COMMIT itself differed: both are in step again either way.
    fn execute(
        &mut self,
        tenant: &Tenant,
        transaction: &Transaction,
        floor: &str,
        counted: bool,
    ) -> Result<Verdict> {
        let sql: Vec<&str> = std::iter::once(transaction.begin.as_str())
            .chain(transaction.body.iter().map(|s| s.sql.as_str()))
            .collect();
        let (ours, theirs) = self.pair.both(|side| side.run_all(sql.iter().copied()));
        let differing = (0..sql.len()).find(|i| !ours[*i].agrees(&theirs[*i]));
        if counted {
            self.tally.add(&ours[..differing.unwrap_or(sql.len())]);
        }
        if let Some(at) = differing {
            let verdict = self.judge(tenant, transaction, at, &ours[at], &theirs[at], floor)?;
            self.pair.both(|side| side.run("ROLLBACK"));
            if let (Verdict::Explained(id), true) = (&verdict, counted) {
                *self.tally.deviations.entry(id).or_insert(0) += 1;
            }
            return Ok(verdict);
        }
        let (ours, theirs) = self.pair.both(|side| side.run(transaction.end));
        if counted {
            self.tally.add(std::slice::from_ref(&ours));
        }
        if ours.agrees(&theirs) {
            if counted && transaction.end == "COMMIT" && ours.is_done() {
                self.tally.committed += 1;
            }
            return Ok(Verdict::Same);
        }
        let verdict = self.judge(tenant, transaction, sql.len(), &ours, &theirs, floor)?;
        if let (Verdict::Explained(id), true) = (&verdict, counted) {
            *self.tally.deviations.entry(id).or_insert(0) += 1;
        }
        self.pair.level(&tenant.account(), &tenant.workspace())?;
        Ok(verdict)
    }

    /// `at` counts BEGIN as 0; past the body it is the transaction's end.
    fn judge(
        &mut self,
        tenant: &Tenant,
        transaction: &Transaction,
        at: usize,
        native: &Outcome,
        original: &Outcome,
        floor: &str,
    ) -> Result<Verdict> {
        let current = at.checked_sub(1).and_then(|i| transaction.body.get(i));
        let statement = match (at, current) {
            (0, _) => transaction.begin.as_str(),
            (_, Some(statement)) => statement.sql.as_str(),
            (_, None) => transaction.end,
        };
        let body = &transaction.body[..at.min(transaction.body.len())];
        let committing = at > transaction.body.len();
        let scene = Scene {
            statement,
            note: current.map_or(Note::Plain, |s| s.note),
            body,
            deferred: committing
                || statement.starts_with("SET CONSTRAINTS")
                || body.iter().any(|s| s.sql.starts_with("SET CONSTRAINTS")),
            poisoned: self.poisoned.iter().any(|id| statement.contains(id)),
        };
        if let Some(id) = deviations::explain(&scene, native, original) {
            let consistent = !deviations::needs_consistency(id, native)
                || self.is_consistent(tenant, transaction, at, floor);
            if consistent {
                return Ok(Verdict::Explained(id));
            }
        }
        Ok(Verdict::Diverged(Divergence {
            statement: statement.to_string(),
            native: native.to_string(),
            original: original.to_string(),
        }))
    }

    /// Whether the native side's rows are as the reference wants them at this point of the transaction.
    fn is_consistent(
        &mut self,
        tenant: &Tenant,
        transaction: &Transaction,
        at: usize,
        floor: &str,
    ) -> bool {
        let native = &mut self.pair.native;
        let committing = at > transaction.body.len();
        if !committing {
            // Later statements have run too, and may have failed: back to where it differed.
            native.run("ROLLBACK");
            let body = transaction.body[..at].iter().map(|s| s.sql.as_str());
            native.run_all(std::iter::once(transaction.begin.as_str()).chain(body));
        }
        native.is_consistent(!committing, &tenant.workspace(), floor)
    }

    /// Whether the last of these transactions, from a fresh fixture, still differs in the same way.
    fn replay(
        &mut self,
        tenant: &Tenant,
        all: &[Transaction],
        kind: &str,
    ) -> Result<Option<Divergence>> {
        self.pair.admin_both(&tenant.fixture())?;
        let mut last = Verdict::Same;
        for transaction in all {
            let floor = first_value(
                &mut self.pair.native.admin,
                "SELECT pg_snapshot_xmax(pg_current_snapshot())::text",
            )?;
            last = self.execute(tenant, transaction, &floor, false)?;
        }
        Ok(match last {
            Verdict::Diverged(divergence) if divergence.kind() == kind => Some(divergence),
            _ => None,
        })
    }

    /// Drops transactions, then statements, while the difference persists.
    fn shrink(&mut self, life: &Life, found: Divergence) -> Result<(Vec<Transaction>, Divergence)> {
        let kind = found.kind();
        let started = Instant::now();
        let mut best = life.history.clone();
        let mut divergence = found;
        let mut chunk = best.len() / 2;
        while chunk > 0 && started.elapsed() < SHRINKING {
            let mut from = 0;
            while from + 1 < best.len() && started.elapsed() < SHRINKING {
                let to = (from + chunk).min(best.len() - 1);
                let mut fewer = best.clone();
                fewer.drain(from..to);
                match self.replay(&life.tenant, &fewer, &kind)? {
                    Some(same) => {
                        best = fewer;
                        divergence = same;
                    }
                    None => from = to,
                }
            }
            chunk /= 2;
        }
        for transaction in (0..best.len()).rev() {
            let mut at = 0;
            while at < best[transaction].body.len() && started.elapsed() < SHRINKING * 2 {
                let mut fewer = best.clone();
                fewer[transaction].body.remove(at);
                match self.replay(&life.tenant, &fewer, &kind)? {
                    Some(same) => {
                        best = fewer;
                        divergence = same;
                    }
                    None => at += 1,
                }
            }
        }
        Ok((best, divergence))
    }
}

fn print_replay(tenant: &Tenant, history: &[Transaction], divergence: &Divergence) {
    println!("from the fixture of tenant {}:", tenant.number);
    for transaction in history {
        println!("  {};", transaction.begin);
        for statement in &transaction.body {
            println!("  {};", statement.sql);
        }
        println!("  {};", transaction.end);
    }
    println!("at:       {}", divergence.statement);
    println!("native:   {}", divergence.native);
    println!("original: {}", divergence.original);
}

impl Tally {
    fn add(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            match outcome {
                Outcome::Done(_) => {
                    self.statements += 1;
                    self.accepted += 1;
                }
                Outcome::Refused(refusal) => {
                    self.statements += 1;
                    let why = match refusal.rule() {
                        Some(rule) => rule.to_string(),
                        None => format!("{} (server)", refusal.state),
                    };
                    *self.refused.entry(why).or_insert(0) += 1;
                }
                Outcome::Skipped => {}
            }
        }
    }

    fn print(&self) {
        println!(
            "{} transactions, {} committed on both sides; {} statements, {} accepted, {} refused",
            self.transactions,
            self.committed,
            self.statements,
            self.accepted,
            self.statements - self.accepted
        );
        for (rule, times) in &self.refused {
            println!("  refused {times:6}  {rule}");
        }
        for (deviation, times) in &self.deviations {
            println!("  deviates {times:5}  {deviation}");
        }
    }
}
