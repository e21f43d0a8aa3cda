//! The contract functions of the PL/pgSQL protocol that this release knows, as `attach` may replace them.
//!
//! What is kept is a hash of each: language, rights, volatility, settings and source, the last with its
//! whitespace folded and the data schema that was spliced into it taken out again.

use pgrx::spi::quote_literal;

use super::catalogue::{self, Schema, quote, rows, scalar};
use super::model::{self, Kind, Object};

/// A function as the catalogue has it.
pub struct Source {
    language: String,
    definer: bool,
    volatility: String,
    settings: String,
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
                coalesce(array_to_string(p.proconfig, ','), ''), p.prosrc
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
                body: row.get::<String>(5)?.unwrap_or_default(),
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
    let mut names = vec![schema.name.clone()];
    names.extend(data_schemas().into_iter().filter(|n| *n != schema.name));
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

/// The schemas that hold the protocol's process table.
pub fn data_schemas() -> Vec<String> {
    rows(
        "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE c.relname = 'sandbox_retained_processes' AND c.relkind = 'r' AND c.relpersistence <> 't'
          ORDER BY 1",
        &[],
        |row| row.get::<String>(1),
    )
    .into_iter()
    .flatten()
    .filter(|name| !catalogue::is_reserved(name))
    .collect()
}

/// The same for a caller who names none and learns where there are none.
pub fn every_data_schema() -> Vec<String> {
    let schemas = data_schemas();
    if schemas.is_empty() {
        pgrx::notice!(
            "no schema of this database holds the protocol's tables; opengeni_guards.provision() makes them"
        );
    }
    schemas
}

/// Stands for the quoted name of the data schema.
const SCHEMA: &str = "{schema}";
/// Stands for its name as a literal.
const LITERAL: &str = "{literal}";

impl Source {
    fn canonical(&self, schema: &str) -> String {
        format!(
            "{}|{}|{}|{}|{}",
            self.language,
            if self.definer { "definer" } else { "invoker" },
            self.volatility,
            self.settings,
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
        "1b3e3f3b2c5f750ef78f1a0d84efe3b4d103bf61c0c527e74767c666c2372780",
    ),
    (
        "opengeni_private.reap_sandbox_leases(bigint, bigint, bigint)",
        "fc6938494779b0f2524895192a8f97748667584bcb0829a128aeef86df0fef17",
    ),
    (
        "opengeni_private.claim_terminal_retained_processes(uuid, integer, bigint)",
        "a2d3cbd49c2031a8bf2f9daf2f4d6a6c6a314b7342cdb1539bf0918b12dfd5b0",
    ),
    (
        "opengeni_private.count_active_retained_processes_by_owner_state()",
        "d668634c237217c08b54407e7bbcf45257dc790bbfe1071a5bd867667a636070",
    ),
    (
        "opengeni_private.count_expired_draining_sandbox_leases()",
        "f1d4581db6bef7fd0eee3a6ff4f6b74b24952b428366958b478473bd30e27428",
    ),
    (
        "opengeni_private.claim_sandbox_checkpoint_artifacts(uuid, integer, bigint)",
        "7c58b5c3717bb2fcdcdd7e1b79ae83b6c741f89bc9b17931df6c9d03c9ccabc0",
    ),
    (
        "opengeni_private.settle_sandbox_checkpoint_artifact(uuid, uuid, boolean, text, bigint)",
        "1915be23016796e7dddac85eccd92470987b6a4094739831ab97f4540f3defae",
    ),
    (
        "opengeni_private.prune_deleted_sandbox_checkpoint_artifacts(bigint, integer)",
        "98391f5114cebf6deada308426e50a74912dd4125f498dbd49e15f9e63f8d622",
    ),
    (
        "opengeni_private.list_legacy_modal_checkpoint_slots(integer)",
        "a48c140b6ac71c0d7342b04a9342ae23a2c055e1a9a570463cfed18774920415",
    ),
    (
        "opengeni_private.request_due_sandbox_rotations(bigint, integer)",
        "c838809025a2cdf9019b08855b5f9cd157f686c203df2aeea9efb06cc5c12159",
    ),
    (
        "opengeni_private.sandbox_checkpoint_artifact_inventory()",
        "4ae770b1231f43b81368cc180f970e620e4be86dd2d018dda35ed1b0fc78d553",
    ),
    (
        "opengeni_private.sandbox_rotation_backlog()",
        "d9e5061ac33a86740f1b2f0ac0a8d6411950035a5ee338164e8393918feee953",
    ),
    (
        "opengeni_private.list_live_modal_sandbox_leases()",
        "d200fc27f14c0c21d46f660d9d37cde7bc85bc31bf2b59032d6dd7c4a390c88e",
    ),
    (
        "modal_inventory_read_capability_active()",
        "b495fc985255b942c1023fb2b37229f5db36714f0e56990605fbd01c1a1dcc9d",
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
