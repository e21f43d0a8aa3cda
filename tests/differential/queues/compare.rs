//! Whether two sides saw the same.

use std::fmt::Write;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::side::{Answer, Rows, Seen};
use crate::database::{Outcome, Refusal};

const SHOWN: usize = 8;
/// So much of a value is shown.
const LEGIBLE: usize = 300;
const NOW: &str = "00:00:00";

/// Whether the reference says in which order a call's rows come.
fn is_ordered(call: &str) -> bool {
    [
        "claim_terminal_retained_processes",
        "list_legacy_modal_checkpoint_slots",
        "sandbox_checkpoint_artifact_inventory",
    ]
    .iter()
    .any(|name| call.contains(name))
}

/// The same answers, settings, checks and rows; `updated_at` of a lease that a sweep leaves as it was may stay (D16).
/// How often it did, or everything that differs.
pub fn same(calls: &[String], native: &Seen, original: &Seen) -> Result<usize> {
    let mut found = String::new();
    if native.before != original.before {
        let differences = differences(&native.before, &original.before, &native.before, false);
        bail!("planted differently:{}", differences.0);
    }
    let both = native.answers.iter().zip(&original.answers);
    for (call, (ours, theirs)) in calls.iter().zip(both) {
        compare_answers(call, ours, theirs, &mut found);
    }
    if native.markers != original.markers {
        let _ = write!(
            found,
            "\n  the marker after each call: native {:?}, original {:?}",
            native.markers, original.markers
        );
    }
    let outcome = |refusal: &Option<Refusal>| match refusal {
        Some(refusal) => Outcome::Refused(Box::new(refusal.clone())),
        None => Outcome::Done(0),
    };
    let (ours, theirs) = (outcome(&native.deferred), outcome(&original.deferred));
    if !ours.agrees(&theirs) {
        let _ = write!(found, "\n  at COMMIT: native {ours}\n    original {theirs}");
    }
    let sweeps = calls
        .iter()
        .any(|call| call.contains("reap_sandbox_leases"));
    let (lines, untouched) = differences(&native.after, &original.after, &native.before, sweeps);
    found += &lines;
    if found.is_empty() {
        return Ok(untouched);
    }
    bail!("they differ after {}{found}", calls.join("; "))
}

fn compare_answers(call: &str, ours: &Answer, theirs: &Answer, found: &mut String) {
    let text = |answer: &Answer| match answer {
        Answer::Rows(rows) => format!("{} rows", rows.len()),
        Answer::Refused(refusal) => Outcome::Refused(Box::new(refusal.clone())).to_string(),
    };
    match (ours, theirs) {
        (Answer::Rows(ours), Answer::Rows(theirs)) => {
            let (mut ours, mut theirs) = (ours.clone(), theirs.clone());
            if !is_ordered(call) {
                ours.sort();
                theirs.sort();
            }
            if ours == theirs {
                return;
            }
            let _ = write!(
                found,
                "\n  {call}: native {} rows, original {}",
                ours.len(),
                theirs.len()
            );
            let at = (0..ours.len().max(theirs.len()))
                .find(|n| ours.get(*n) != theirs.get(*n))
                .unwrap_or(0);
            let line = |rows: &[String]| rows.get(at).cloned().unwrap_or("nothing".into());
            let _ = write!(
                found,
                "\n    row {at}: native {}\n      original {}",
                line(&ours),
                line(&theirs)
            );
        }
        (Answer::Refused(a), Answer::Refused(b)) => {
            let (a, b) = (
                Outcome::Refused(Box::new(a.clone())),
                Outcome::Refused(Box::new(b.clone())),
            );
            if !a.agrees(&b) {
                let _ = write!(found, "\n  {call}: native {a}\n    original {b}");
            }
        }
        _ => {
            let _ = write!(
                found,
                "\n  {call}: native {}\n    original {}",
                text(ours),
                text(theirs)
            );
        }
    }
}

/// Where rows differ, column by column, and how many leases show D16.
fn differences(native: &Rows, original: &Rows, before: &Rows, sweeps: bool) -> (String, usize) {
    let mut found = Vec::new();
    let mut untouched = 0;
    let only_theirs = original.keys().filter(|key| !native.contains_key(*key));
    for key in native.keys().chain(only_theirs) {
        match (native.get(key), original.get(key)) {
            (Some(ours), Some(theirs)) if ours != theirs => {
                let left = before.get(key) == Some(ours);
                let (ours, theirs) = (fields(ours), fields(theirs));
                if sweeps && left && key.starts_with("sandbox_leases ") && stamped(&ours, &theirs) {
                    untouched += 1;
                } else {
                    let was = before.get(key).map(|row| fields(row));
                    let name = label(&ours);
                    found.push(format!("\n  {key}{name}{}", columns(&ours, &theirs, was)));
                }
            }
            (Some(row), None) => {
                found.push(format!("\n  {key}{}: only native", label(&fields(row))))
            }
            (None, Some(row)) => {
                found.push(format!("\n  {key}{}: only original", label(&fields(row))))
            }
            _ => {}
        }
    }
    let more = found.len().saturating_sub(SHOWN);
    let mut lines: String = found.into_iter().take(SHOWN).collect();
    if more > 0 {
        let _ = write!(lines, "\n  and {more} more rows");
    }
    (lines, untouched)
}

/// Whether all that the original did to a row was to stamp it.
fn stamped(ours: &Map<String, Value>, theirs: &Map<String, Value>) -> bool {
    let mut theirs = theirs.clone();
    let own = ours.get("updated_at").cloned().unwrap_or_default();
    let stamp = theirs.insert("updated_at".into(), own);
    stamp == Some(NOW.into()) && *ours == theirs
}

fn short(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "nothing".to_string(), Value::to_string);
    match text.char_indices().nth(LEGIBLE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

pub fn fields(row: &str) -> Map<String, Value> {
    serde_json::from_str(row).unwrap_or_default()
}

/// What the row is called in the fleet.
fn label(row: &Map<String, Value>) -> String {
    ["image", "holder_id", "object_id"]
        .iter()
        .find_map(|column| row.get(*column)?.as_str())
        .map_or_else(String::new, |name| format!(" ({name})"))
}

fn columns(
    ours: &Map<String, Value>,
    theirs: &Map<String, Value>,
    before: Option<Map<String, Value>>,
) -> String {
    ours.iter()
        .filter(|(column, value)| theirs.get(*column) != Some(value))
        .map(|(column, value)| {
            let was = before.as_ref().and_then(|row| row.get(column));
            format!(
                "\n    {column}: native {}, original {}, was {}",
                short(Some(value)),
                short(theirs.get(column)),
                short(was)
            )
        })
        .collect()
}

/// Whether nothing has changed.
pub fn unchanged(seen: &Seen) -> bool {
    seen.before == seen.after
}
