//! The contract functions of the PL/pgSQL protocol that this release knows, as `attach` may replace them.
//!
//! What is kept is a hash of each: language, rights, volatility, settings, arguments, result and source, the last with
//! its whitespace folded and the data schema that was spliced into it taken out again.

use pgrx::spi::quote_literal;

use super::catalogue::{self, Schema, quote, rows, scalar};
use super::model::{self, Kind, Object};

/// A function as the catalogue has it.
pub struct Source {
    language: String,
    definer: bool,
    /// Only a superuser can put such a one back.
    leakproof: bool,
    volatility: String,
    settings: String,
    /// With names and defaults: what differs in them cannot be replaced.
    arguments: String,
    result: String,
    body: String,
}

/// Which data schema an original works on.
#[derive(Debug, PartialEq, Eq)]
pub enum Serves {
    /// The one that its source names.
    Named(String),
    /// Whichever the caller's search_path leads to.
    Caller,
}

/// What a function of the catalogue consists of, by its signature.
pub fn source(signature: &str) -> Option<Source> {
    rows(
        "SELECT l.lanname::text, p.prosecdef, p.provolatile::text,
                coalesce(array_to_string(p.proconfig, ','), ''), pg_get_function_arguments(p.oid),
                pg_get_function_result(p.oid), p.prosrc, p.proleakproof
           FROM pg_proc p
           JOIN pg_namespace n ON n.oid = p.pronamespace
           JOIN pg_language l ON l.oid = p.prolang
          WHERE p.proname = substring($1, '([a-z0-9_]+)[(][^(]*$')::name
            AND concat(n.nspname, '.', p.proname, '(', oidvectortypes(p.proargtypes), ')') = $1",
        &[signature.into()],
        |row| {
            Ok(Source {
                language: row.get::<String>(1)?.unwrap_or_default(),
                definer: row.get::<bool>(2)? == Some(true),
                volatility: row.get::<String>(3)?.unwrap_or_default(),
                settings: row.get::<String>(4)?.unwrap_or_default(),
                arguments: row.get::<String>(5)?.unwrap_or_default(),
                result: row.get::<String>(6)?.unwrap_or_default(),
                body: row.get::<String>(7)?.unwrap_or_default(),
                leakproof: row.get::<bool>(8)? == Some(true),
            })
        },
    )
    .into_iter()
    .next()
}

/// Whether a source is a known original of this contract function, and which schema it works on. This
/// schema is tried first, then the others that hold the protocol's tables.
pub fn recognise(schema: &Schema, function: &Object, source: &Source) -> Option<Serves> {
    let known = KNOWN
        .iter()
        .filter(|(signature, _)| *signature == function.name);
    let known: Vec<&str> = known.map(|(_, hash)| *hash).collect();
    if source.leakproof {
        return None;
    }
    let mut names = vec![schema.name.clone()];
    names.extend(
        catalogue::data_schemas()
            .into_iter()
            .filter(|n| *n != schema.name),
    );
    for name in names {
        let text = source.canonical(&name);
        let hash = scalar::<String>(
            "SELECT encode(sha256(convert_to($1, 'UTF8')), 'hex')",
            &[text.as_str().into()],
        );
        if hash.is_some_and(|hash| known.contains(&hash.as_str())) {
            return Some(match text.contains(SCHEMA) || text.contains(LITERAL) {
                true => Serves::Named(name),
                false => Serves::Caller,
            });
        }
    }
    None
}

/// Stands for the quoted name of the data schema.
const SCHEMA: &str = "{schema}";
/// Stands for its name as a literal.
const LITERAL: &str = "{literal}";

impl Source {
    fn canonical(&self, schema: &str) -> String {
        format!(
            "{}|{}|{}|{}|{}|{}|{}",
            self.language,
            if self.definer { "definer" } else { "invoker" },
            self.volatility,
            self.settings,
            self.arguments,
            self.result,
            without_schema(&fold(&self.body), &quote(schema), schema)
        )
    }
}

fn fold(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A function's definition, for a data schema that has another name since.
pub fn moved(definition: &str, was: &str, is: &str) -> String {
    if was == is {
        return definition.to_owned();
    }
    renamed(
        definition,
        (&quote(was), was),
        (&quote(is), &quote_literal(is)),
    )
}

/// From a quoted and a plain name to a quoted one and a literal. The body is quoted anew; it keeps the old name where
/// the new one would end a string in it.
fn renamed(definition: &str, was: (&str, &str), is: (&str, &str)) -> String {
    let parts = definition.split_once("\nAS $").and_then(|(head, rest)| {
        let (tag, rest) = rest.split_once('$')?;
        let (body, tail) = rest.rsplit_once(&format!("${tag}$"))?;
        Some((head, body, tail))
    });
    let Some((head, body, tail)) = parts else {
        return definition.to_owned();
    };
    let named = |name: &str| format!(" FUNCTION {name}.");
    let head = head.replacen(&named(was.0), &named(is.0), 1);
    let body = match is.0.trim_matches('"').contains(['\'', '"', '\\', '$']) {
        true => body.to_owned(),
        false => spliced(body, was, is),
    };
    let mut tag = "$function".to_owned();
    while body.contains(&tag) {
        tag.push('x');
    }
    format!("{head}\nAS {tag}${body}{tag}${tail}")
}

/// Takes a schema's name out of a folded source.
fn without_schema(body: &str, quoted: &str, name: &str) -> String {
    spliced(body, (quoted, name), (SCHEMA, LITERAL))
}

/// Puts something else in the place of a schema's name: where it qualifies a table or a constraint of the
/// protocol, and where it is the literal that the inventory's capability is bound to.
fn spliced(
    body: &str,
    (quoted, name): (&str, &str),
    (qualifies, literally): (&str, &str),
) -> String {
    let qualifier = format!("{quoted}.");
    let mut text = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.find(&qualifier) {
        let (before, after) = (&rest[..at], &rest[at + qualifier.len()..]);
        let begins = !before.ends_with(|c: char| is_part_of_a_name(c) || c == '.' || c == '"');
        let word = after.split(|c: char| !is_part_of_a_name(c)).next();
        text.push_str(before);
        match begins && word.is_some_and(is_the_protocols) {
            true => text.push_str(qualifies),
            false => text.push_str(quoted),
        }
        text.push('.');
        rest = after;
    }
    text.push_str(rest);
    let literal = format!("'{}'", name.replace('\'', "''"));
    for context in ["data_schema = ", "pg_current_xact_id(), "] {
        text = text.replace(
            &format!("{context}{literal}"),
            &format!("{context}{literally}"),
        );
    }
    text
}

fn is_part_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn is_the_protocols(word: &str) -> bool {
    model::objects(Kind::Table)
        .chain(model::objects(Kind::Trigger))
        .any(|object| object.name == word)
}

/// Signature and hash; a function may have several.
const KNOWN: &[(&str, &str)] = &[
    (
        "opengeni_private.warming_reset_resume_state_v2(text, text, jsonb, integer, integer, timestamp with time zone)",
        "6c55b770c979be1782e9a8fb8111320b15ba2f7e2c9ce35f21ccbe0578dd8fa8",
    ),
    (
        "opengeni_private.reap_sandbox_leases(bigint, bigint, bigint)",
        "bb181f54459c3c28473c9500b40d5b5ea40f2ffd43eaf60a0cbba14a1185e41b",
    ),
    (
        "opengeni_private.claim_terminal_retained_processes(uuid, integer, bigint)",
        "1d755fa5a1621c0e3edb91ec39e62ab228589bb4781244cef468fd2cf7e0495a",
    ),
    (
        "opengeni_private.count_active_retained_processes_by_owner_state()",
        "ae258e1c739599ad871a8dd64088f0cf64206654596c1d8817929587b48806cf",
    ),
    (
        "opengeni_private.count_expired_draining_sandbox_leases()",
        "5b00f4f58dcc3345669a97b791eab6d93ae68084694d2df8fa2d5d4eff176308",
    ),
    (
        "opengeni_private.claim_sandbox_checkpoint_artifacts(uuid, integer, bigint)",
        "119570efa866343a29bca6f8500f4eda135fa7f9dd71e5c3210dbea1b03c1d72",
    ),
    (
        "opengeni_private.settle_sandbox_checkpoint_artifact(uuid, uuid, boolean, text, bigint)",
        "abd158b4331a2ea983ba3969daab878255918ae96688a17249cfbc9d1d7b18b5",
    ),
    (
        "opengeni_private.prune_deleted_sandbox_checkpoint_artifacts(bigint, integer)",
        "539256c71cdce1ac73a8a32c7a1283ee789b066a9e33d2ab889f58d2860bc408",
    ),
    (
        "opengeni_private.list_legacy_modal_checkpoint_slots(integer)",
        "7e44057283d9a4e43dd6c803e548206457c82283684d04aadd848d4ec18542e2",
    ),
    (
        "opengeni_private.request_due_sandbox_rotations(bigint, integer)",
        "9b6fcdf227f628d80989a694776dee4a21f435bc7dd31d358abacae60c8f6d7a",
    ),
    (
        "opengeni_private.sandbox_checkpoint_artifact_inventory()",
        "905f7865ddec033af0b291d634c1c3bc9192e8b25b9ebbfb13b5da70a07f49fa",
    ),
    (
        "opengeni_private.sandbox_rotation_backlog()",
        "170af2caff4d288fdf8492a0290ed088781c0aa2a3fa0605791e1f15200235d5",
    ),
    (
        "opengeni_private.list_live_modal_sandbox_leases()",
        "4428b260d34dcba0c5e2928980d6924aff187546735ddb29f31804eea6b5f637",
    ),
    (
        "modal_inventory_read_capability_active()",
        "319bc5b0953a9b00a9210deb51617f8a715fcbebaa6e027a4744dbf37dd1de54",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spliced_schema_is_taken_out() {
        let source = |s: &str, l: &str| {
            fold(&format!(
                "SELECT *\n  FROM {s}.sandbox_leases lease,\n {s}.sessions WHERE data_schema = {l}
                 AND lease.sandbox_group_id = x.{s}.sessions AND public.digest(y) <> 'lease'"
            ))
        };
        let taken =
            |s: &str, quoted: &str| without_schema(&source(quoted, &format!("'{s}'")), quoted, s);
        let plain = taken("opengeni", "opengeni");
        assert!(plain.contains("FROM {schema}.sandbox_leases lease, {schema}.sessions"));
        assert!(plain.contains("data_schema = {literal} AND lease.sandbox_group_id"));
        assert!(plain.contains("x.opengeni.sessions AND public.digest(y) <> 'lease'"));
        let of = |text: String, s: &str| text.replace(&format!("x.{s}."), "x.opengeni.");
        assert_eq!(of(taken("lease", "lease"), "lease"), plain);
        assert_eq!(of(taken("public", "public"), "public"), plain);
        assert_eq!(of(taken("My App", "\"My App\""), "\"My App\""), plain);
    }

    #[test]
    fn a_definition_follows_its_schema() {
        let definition = |head: &str, body: &str, literal: &str, tag: &str| {
            format!(
                "CREATE OR REPLACE FUNCTION {head}.f()\n LANGUAGE sql\nAS ${tag}$\n  SELECT FROM {body}.sandbox_leases, old.f
                   WHERE data_schema = {literal}${tag}$\n"
            )
        };
        let kept = definition("old", "old", "'old'", "function");
        let to = |name: &str, literal: &str| renamed(&kept, ("old", "old"), (name, literal));
        let plain = |name: &str| definition(name, name, "'new'", "function");
        assert_eq!(to("new", "'new'"), plain("new"));
        assert_eq!(to("\"New one\"", "'new'"), plain("\"New one\""));
        // Names that would end a string, or the body itself.
        for name in ["\"it's\"", "\"a\"\"b\"", "\"$function$;DROP\"", "\"a\\b\""] {
            assert_eq!(
                to(name, "'x'"),
                definition(name, "old", "'old'", "function")
            );
        }
        let tagged = definition("old", "old", "'$function$'", "other");
        assert_eq!(
            renamed(&tagged, ("old", "old"), ("new", "'new'")),
            definition("new", "new", "'$function$'", "functionx")
        );
    }

    #[test]
    fn every_contract_function_has_a_known_original() {
        for function in model::objects(Kind::Contract) {
            assert!(
                KNOWN
                    .iter()
                    .any(|(signature, _)| *signature == function.name),
                "{}",
                function.name
            );
        }
    }
}
