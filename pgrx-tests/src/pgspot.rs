//! pgspot, Timescale's checker of extension scripts, on all SQL that the extension brings or creates: its own scripts, and
//! dumps of what `provision` and `attach` make.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::extension;
use crate::fleet;
use crate::outcome::{Counts, Outcome};
use crate::setup::Setup;
use crate::tree::{Tree, pg_config};
use crate::workspace::EXTENSION;

/// The checker and all it depends on.
const PACKAGES: [(&str, &str); 2] = [("pgspot", "0.9.4"), ("pglast", "7.21")];
const PROGRAM: &str = include_str!("run_pgspot.py");

/// What pgspot says of a place in a script.
struct Finding {
    code: String,
    title: String,
    context: String,
}

/// What it says rightly and what does no harm here.
struct Allowed {
    scripts: &'static [&'static str],
    code: &'static str,
    /// How the finding's context begins.
    of: &'static str,
    because: &'static str,
}

/// A function whose names are bound when it is created, so that no search_path of a caller's leads elsewhere.
const fn bound(
    scripts: &'static [&'static str],
    of: &'static str,
    because: &'static str,
) -> Allowed {
    Allowed {
        scripts,
        code: "PS005 of a bound body",
        of,
        because,
    }
}

/// The scripts that create what came with 0.2.0, and the calls that create what uses it.
const NEW: &[&str] = &["install", "opengeni_guards--0.1.0--0.2.0"];
const CALLS: &[&str] = &["provision", "attach"];

const ALLOWED: &[Allowed] = &[
    Allowed {
        scripts: &["install", "opengeni_guards--0.1.0"],
        code: "PS010",
        of: "opengeni_guards",
        because: "pgrx writes IF NOT EXISTS; from 15 on an extension's script refuses a schema that is not its own",
    },
    bound(
        NEW,
        "opengeni_guards.warming_reset_resume_state_v2(",
        INVOKER,
    ),
    bound(
        NEW,
        "opengeni_guards.without_retired_session_create_metadata(",
        INVOKER,
    ),
    bound(
        NEW,
        "opengeni_guards.has_retired_session_create_selection(",
        INVOKER,
    ),
    bound(
        CALLS,
        "opengeni_private.warming_reset_resume_state_v2(",
        INVOKER,
    ),
    bound(
        &["provision"],
        "opengeni_private.current_account_id(",
        POLICY,
    ),
    bound(
        &["provision"],
        "opengeni_private.current_workspace_id(",
        POLICY,
    ),
    bound(
        &["provision"],
        "opengeni_private.workspace_rls_visible(",
        POLICY,
    ),
    bound(
        CALLS,
        "opengeni.modal_inventory_read_capability_active(",
        POLICY,
    ),
];

const INVOKER: &str = "it runs as its caller and calls only what it is bound to";
const POLICY: &str =
    "the same, and policies ask it for every row: without a SET clause it is inlined";

/// What pgspot has to find, or it finds nothing at all.
const BAD: (&str, &[&str]) = (
    "CREATE SCHEMA bad;
     CREATE SCHEMA IF NOT EXISTS worse;
     CREATE OR REPLACE FUNCTION public.replaced() RETURNS int LANGUAGE c AS 'bad';
     CREATE FUNCTION bad.definer() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1';
     CREATE FUNCTION bad.elsewhere() RETURNS int LANGUAGE sql SECURITY DEFINER SET search_path = public AS 'SELECT 1';
     CREATE FUNCTION bad.returned() RETURNS int LANGUAGE sql RETURN 1 + 2;
     CREATE FUNCTION bad.atomic() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 3 - 4; SELECT 5; END;
     CREATE FUNCTION bad.text() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 6 * 7; END $$;",
    &[
        "PS010 worse",
        "PS002 public.replaced()",
        "PS003 bad.definer()",
        "PS004 bad.elsewhere()",
        "PS005 of a bound body bad.returned()",
        "PS001 of a bound body '+' in 1 + 2",
        "PS005 of a bound body bad.atomic()",
        "PS001 of a bound body '-' in 3 - 4",
        "PS005 bad.text()",
        "PS001 '*' in 6 * 7",
    ],
);

pub fn run(setup: &Setup) -> Result<Counts> {
    let Some(checker) = Checker::get(setup)? else {
        return Ok(Counts::of(Outcome::Skipped));
    };
    let found = checker.findings("bad", BAD.0)?;
    let mut counts = outcome("what is bad is found", &difference(&found, BAD.1));

    // The one that the tier before has built.
    let trees = setup.trees.values().next_back();
    let tree = &trees.context("no PostgreSQL at hand")?.release;
    extension::install(setup, tree)?;
    let cluster = Cluster::start(setup, tree, "pgspot")?;
    let server = &cluster.server;
    let mut scripts = own_scripts(setup, tree, server)?;
    scripts.push(("provision".to_owned(), provisioned(server)?));
    match fleet::find_oracle() {
        Some(oracle) => scripts.extend(attached(server, &oracle)?),
        None => {
            println!(
                "  {} attach, shadow: no originals at hand",
                Outcome::Skipped
            );
            counts += Counts::of(Outcome::Skipped);
        }
    }
    for (name, sql) in scripts {
        let found = checker.findings(&name, &format!("{PATH}{sql}"))?;
        counts += outcome(&name, &judge(&name, &found, ALLOWED));
    }
    Ok(counts)
}

/// pgspot in the work directory.
struct Checker {
    packages: PathBuf,
    scripts: PathBuf,
}

impl Checker {
    /// `None` where it cannot be fetched, with the reason on the screen.
    fn get(setup: &Setup) -> Result<Option<Checker>> {
        let packages = setup.workspace.dir("tools")?.join("pgspot");
        let checker = Checker {
            packages,
            scripts: setup.workspace.dir("pgspot")?,
        };
        if !checker.works() {
            if let Err(reason) = checker.fetch(setup) {
                println!("  {} pgspot cannot be had: {reason:#}", Outcome::Skipped);
                return Ok(None);
            }
            ensure!(checker.works(), "pgspot was fetched and does not work");
        }
        fs::write(checker.program(), PROGRAM)?;
        Ok(Some(checker))
    }

    fn program(&self) -> PathBuf {
        self.scripts.join("run_pgspot.py")
    }

    fn python(&self) -> Command {
        let mut command = Command::new("python3");
        command.env("PYTHONPATH", &self.packages);
        command
    }

    fn works(&self) -> bool {
        let probe = "import importlib.metadata as m, pgspot, pglast; print(m.version('pgspot'), m.version('pglast'))";
        let versions = PACKAGES.map(|(_, version)| version).join(" ");
        self.python()
            .args(["-c", probe])
            .output()
            .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == versions)
    }

    fn fetch(&self, setup: &Setup) -> Result<()> {
        let scratch = tempfile::tempdir_in(&setup.workspace.work)?;
        let fetched = scratch.path().join("packages");
        let output = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-deps"])
            .args(["--only-binary=:all:", "--disable-pip-version-check"])
            .arg("--target")
            .arg(&fetched)
            .args(PACKAGES.map(|(name, version)| format!("{name}=={version}")))
            .output()
            .context("no python3")?;
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim().lines().last().unwrap_or("pip failed");
        ensure!(output.status.success(), "{}", last.to_owned());
        if self.packages.exists() {
            fs::remove_dir_all(&self.packages)?;
        }
        Ok(fs::rename(&fetched, &self.packages)?)
    }

    fn findings(&self, name: &str, sql: &str) -> Result<Vec<Finding>> {
        let script = self.scripts.join(format!("{name}.sql"));
        fs::write(&script, sql)?;
        let output = self.python().arg(self.program()).arg(&script).output()?;
        ensure!(
            output.status.success(),
            "pgspot stumbled over {}:\n{}",
            script.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        let lines = String::from_utf8(output.stdout)?;
        lines
            .lines()
            .map(|line| {
                let finding: Value = serde_json::from_str(line)?;
                let field = |name| {
                    let text = finding[name].as_str();
                    text.map(str::to_owned).context("not a finding")
                };
                Ok(Finding {
                    code: field("code")?,
                    title: field("title")?,
                    context: field("context")?,
                })
            })
            .collect()
    }
}

/// A line on the screen, and what is wrong below it.
fn outcome(name: &str, wrong: &[String]) -> Counts {
    let outcome = match wrong {
        [] => Outcome::Passed,
        _ => Outcome::Failed,
    };
    println!("  {outcome} {name}");
    for line in wrong {
        println!("       {line}");
    }
    Counts::of(outcome)
}

/// Findings that nothing allows, and what is allowed and not found.
fn judge(script: &str, found: &[Finding], allowed: &[Allowed]) -> Vec<String> {
    let allowed: Vec<&Allowed> = allowed
        .iter()
        .filter(|entry| entry.scripts.contains(&script))
        .collect();
    let meant = |finding: &Finding, entry: &Allowed| {
        finding.code == entry.code && finding.context.starts_with(entry.of)
    };
    let unknown = found
        .iter()
        .filter(|finding| !allowed.iter().any(|entry| meant(finding, entry)))
        .map(
            |Finding {
                 code,
                 title,
                 context,
             }| format!("{code}, {title}: {context}"),
        );
    let unused = allowed
        .iter()
        .filter(|entry| !found.iter().any(|finding| meant(finding, entry)))
        .map(|entry| {
            let Allowed {
                code, of, because, ..
            } = entry;
            format!("not found any more: {code}: {of} (allowed, for {because})")
        });
    unknown.chain(unused).collect()
}

fn difference(found: &[Finding], expected: &[&str]) -> Vec<String> {
    let found: Vec<String> = found
        .iter()
        .map(|finding| format!("{} {}", finding.code, finding.context))
        .collect();
    let missing = expected
        .iter()
        .filter(|line| !found.iter().any(|finding| finding == *line))
        .map(|line| format!("not found: {line}"));
    let more = found
        .iter()
        .filter(|finding| !expected.contains(&finding.as_str()))
        .map(|line| format!("not expected: {line}"));
    missing.chain(more).collect()
}

/// Under which the scripts' statements run: CREATE EXTENSION sets it so, by the schema in the control file, and the names in
/// a dump are qualified unless they are the server's.
const PATH: &str = "SET search_path = pg_catalog, pg_temp;\n";

/// The scripts of the extension itself.
fn own_scripts(setup: &Setup, tree: &Tree, server: &Server) -> Result<Vec<(String, String)>> {
    let root = &setup.workspace.root;
    let control = fs::read_to_string(root.join(format!("{EXTENSION}.control")))?;
    ensure!(
        control.lines().any(|line| line == "schema = pg_catalog"),
        "the scripts run elsewhere than in pg_catalog"
    );
    let version: String = server
        .connect(SUPERUSER, "postgres")?
        .query_one(
            "SELECT default_version FROM pg_available_extensions WHERE name = $1",
            &[&EXTENSION],
        )?
        .get(0);
    let shared = pg_config(&tree.pg_config_path(), "--sharedir")?;
    let install = format!("{shared}/extension/{EXTENSION}--{version}.sql");
    let mut scripts = vec![("install".to_owned(), fs::read_to_string(install)?)];
    for entry in fs::read_dir(root.join("sql"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if name.starts_with(&format!("{EXTENSION}--")) {
            scripts.push((name.into_owned(), fs::read_to_string(&path)?));
        }
    }
    Ok(scripts)
}

fn create_database(server: &Server, name: &str) -> Result<()> {
    let mut admin = server.connect(SUPERUSER, "postgres")?;
    for role in [OWNER, APPLICATION] {
        let known = admin.query_opt("SELECT FROM pg_roles WHERE rolname = $1", &[&role])?;
        if known.is_none() {
            admin.batch_execute(&format!("CREATE ROLE {role} LOGIN"))?;
        }
    }
    admin.batch_execute(&format!("CREATE DATABASE {name} OWNER {OWNER}"))?;
    Ok(())
}

const OWNER: &str = "og_pgspot_owner";
const APPLICATION: &str = "og_pgspot_app";
const SCHEMA: &str = "opengeni";

fn provisioned(server: &Server) -> Result<String> {
    const DATABASE: &str = "og_pgspot_provisioned";
    create_database(server, DATABASE)?;
    server
        .connect(SUPERUSER, DATABASE)?
        .batch_execute(&format!(
            "CREATE EXTENSION {EXTENSION}; CREATE SCHEMA {SCHEMA} AUTHORIZATION {OWNER}"
        ))?;
    server.connect(OWNER, DATABASE)?.batch_execute(&format!(
        "SELECT {EXTENSION}.provision('{SCHEMA}'); SELECT {EXTENSION}.grant_usage('{APPLICATION}', '{SCHEMA}')"
    ))?;
    dump(server, DATABASE)
}

/// What `attach` makes of the PL/pgSQL originals, to enforce and to watch.
fn attached(server: &Server, oracle: &Path) -> Result<Vec<(String, String)>> {
    let mut scripts = Vec::new();
    for (name, mode) in [("attach", "enforce"), ("shadow", "shadow")] {
        let database = format!("og_pgspot_{name}");
        let settings = [("ORACLE_OWNER", OWNER), ("ORACLE_SCHEMA", SCHEMA)];
        fleet::build(server, oracle, &database, &settings)?;
        let before = dump(server, &database)?;
        server
            .connect(SUPERUSER, &database)?
            .batch_execute(&format!(
                "SET {EXTENSION}.bind_on_create = off; CREATE EXTENSION {EXTENSION}"
            ))?;
        server.connect(OWNER, &database)?.batch_execute(&format!(
            "SELECT {EXTENSION}.attach('{SCHEMA}', mode => '{mode}')"
        ))?;
        let made = added(&before, &dump(server, &database)?);
        ensure!(made.contains("CREATE TRIGGER"), "{name} made nothing");
        scripts.push((name.to_owned(), made));
    }
    Ok(scripts)
}

fn dump(server: &Server, database: &str) -> Result<String> {
    const UNSET: &str = "SELECT pg_catalog.set_config('search_path', '', false);\n";
    let output = server
        .program("pg_dump")
        .args(["--schema-only", database])
        .output()
        .context("cannot run pg_dump")?;
    ensure!(
        output.status.success(),
        "pg_dump failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let script = String::from_utf8(output.stdout)?;
    ensure!(script.contains(UNSET), "a dump of another kind");
    Ok(script.replace(UNSET, ""))
}

/// The objects of a dump that another does not have, or has otherwise.
fn added(before: &str, after: &str) -> String {
    const OBJECT: &str = "\n--\n-- Name: ";
    let known: Vec<&str> = before.split(OBJECT).collect();
    let mut script = String::new();
    // The first part is no object, but what the dump sets for all.
    for object in after.split(OBJECT).skip(1) {
        if !known.contains(&object) {
            script = script + OBJECT + object;
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_allowed_is_wrong_and_so_is_what_is_allowed_for_nothing() {
        let list = [Allowed {
            scripts: &["one"],
            code: "PS010",
            of: "a",
            because: "it is a test",
        }];
        let judged = |script: &str, found: &[(&str, &str)]| {
            let found: Vec<Finding> = found
                .iter()
                .map(|(code, context)| Finding {
                    code: code.to_string(),
                    title: String::new(),
                    context: context.to_string(),
                })
                .collect();
            judge(script, &found, &list).len()
        };
        assert_eq!(judged("one", &[("PS010", "a")]), 0);
        assert_eq!(judged("one", &[]), 1);
        assert_eq!(judged("two", &[("PS010", "a")]), 1);
        assert_eq!(judged("one", &[("PS011", "a")]), 2);
        assert_eq!(judged("one", &[("PS010", "a"), ("PS010", "b")]), 1);
    }

    #[test]
    fn of_a_dump_what_is_new_or_changed() {
        let before = "SET x;\n\n--\n-- Name: a; one\n--\n\nA;\n\n--\n-- Name: b; two\n--\n\nB;\n";
        let after = before.replace("B;", "C;");
        assert_eq!(added(before, before), "");
        assert_eq!(
            added(before, &after),
            "\n--\n-- Name: b; two\n--\n\nC;\n".to_owned()
        );
    }
}
