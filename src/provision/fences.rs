//! `install_membership_fences`: puts the membership fences into the application's functions.

use std::ffi::CStr;

use pgrx::{PgSqlErrorCode, pg_sys};

use super::catalogue::{self, Schema, quote, rows};
use super::create::Line;
use super::locks::{self, Deadline};
use crate::pg::error::{self, Failure, Place};
use crate::pg::identity;
use crate::pg::value::palloc_cstring;
use crate::protocol::fence::{Change, Fenced};
use crate::protocol::refusal::{Refusal, Rule};

/// A function of the application that is to be fenced.
struct Found {
    fenced: Fenced,
    owner: pg_sys::Oid,
    /// As the server would write it out.
    definition: String,
    body: String,
}

/// A function and the body that it gets, unless it has it.
type Planned = (Found, Option<String>);

/// The schema's name and the function that is not the expected one.
type Drifted = (&'static CStr, Fenced);

/// Fences both functions or neither: what stands there already stays, anything but the expected body is refused.
/// Each is replaced as its owner; owner, privileges and settings stay.
pub fn install(data_schema: Option<&str>) -> Vec<Line> {
    match try_install(data_schema) {
        Ok(lines) => lines,
        Err((schema, fenced)) => drift(schema, fenced),
    }
}

/// The refusal of what has drifted jumps, so that it is raised where nothing of ours is alive.
fn try_install(data_schema: Option<&str>) -> Result<Vec<Line>, Drifted> {
    let schema = Schema::find(data_schema);
    let path = format!("{}, pg_temp", quote(&schema.name));
    let mut changes = planned(&schema)?;
    if changes.iter().any(|(_, body)| body.is_some()) {
        locks::take_turn(Deadline::of_a_turn());
        changes = planned(&schema)?;
    }
    let lines = changes
        .into_iter()
        .map(|(found, body)| {
            let action = match body {
                None => "present",
                Some(body) => {
                    replace(&path, &found, &body);
                    "fenced"
                }
            };
            Line {
                object: format!(
                    "function {}.{}",
                    quote(&schema.name),
                    found.fenced.signature()
                ),
                action,
                note: None,
            }
        })
        .collect();
    Ok(lines)
}

/// Both functions, and what is to stand there instead. A caller who may not put it there is refused.
fn planned(schema: &Schema) -> Result<Vec<Planned>, Drifted> {
    let mut changes = Vec::new();
    for fenced in [Fenced::Enrollment, Fenced::Workspace] {
        let found = find(schema, fenced);
        let change = found
            .as_ref()
            .map_or(Change::Drift, |f| fenced.install(&f.body));
        match (change, found) {
            (Change::Present, Some(found)) => changes.push((found, None)),
            (Change::Body(body), Some(found)) => changes.push((found, Some(body))),
            _ => return Err((palloc_cstring(schema.name.as_bytes()), fenced)),
        }
    }
    for (found, body) in &changes {
        let may = identity::has_privileges_of(identity::current_user(), found.owner);
        if body.is_some() && !may {
            Failure::new(
                PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("must be owner of function {}", found.fenced.signature()),
            )
            .detail("Nothing has been changed.")
            .hint(format!(
                "Call this as {} or as a superuser.",
                catalogue::role_name(found.owner)
            ))
            .raise();
        }
    }
    Ok(changes)
}

fn find(schema: &Schema, fenced: Fenced) -> Option<Found> {
    rows(
        "SELECT p.proowner, pg_get_functiondef(p.oid), p.prosrc
           FROM pg_proc p
          WHERE p.pronamespace = $1 AND p.prokind = 'f'
            AND concat(p.proname, '(', oidvectortypes(p.proargtypes), ')') = $2",
        &[schema.oid.into(), fenced.signature().into()],
        |row| {
            Ok(Found {
                fenced,
                owner: row.get::<pg_sys::Oid>(1)?.unwrap_or(pg_sys::InvalidOid),
                definition: row.get::<String>(2)?.unwrap_or_default(),
                body: row.get::<String>(3)?.unwrap_or_default(),
            })
        },
    )
    .into_iter()
    .next()
}

/// The body is the last thing in a definition, between its quotes.
fn replace(path: &str, found: &Found, body: &str) {
    let Some(at) = found.definition.rfind(&found.body) else {
        Failure::new(
            PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
            format!(
                "the definition of {} does not hold its body",
                found.fenced.signature()
            ),
        )
        .raise()
    };
    let (head, tail) = (
        &found.definition[..at],
        &found.definition[at + found.body.len()..],
    );
    identity::as_role(found.owner, path, || {
        catalogue::execute(&format!("{head}{body}{tail}"));
    });
}

/// Ends with the refusal of a function that is not there or is not the expected one.
fn drift(schema: &CStr, fenced: Fenced) -> ! {
    let names: &'static [&'static str] = match fenced {
        Fenced::Enrollment => &["finalize_scoped_enrollment"],
        Fenced::Workspace => &["prepare_workspace_membership_removal_settlements"],
    };
    let place = Place {
        schema: schema.as_ptr(),
        table: std::ptr::null(),
        operation: fenced.title(),
        attribute: std::ptr::null(),
    };
    error::refuse(Refusal::new(Rule::FenceDrift, names, 1), place)
}
