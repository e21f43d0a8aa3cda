//! How a database stood, written down in the cluster itself for after the upgrade.

use anyhow::{Context, Result, ensure};
use opengeni_guards_harness::server::{SUPERUSER, Server};
use postgres::Client;

use crate::life::Life;
use crate::support::*;

/// Of the originals, before the extension came.
const ORIGINAL: &str = "original";

/// Makes the table, in a database that holds nothing else.
pub fn prepare(server: &Server) -> Result<()> {
    server.connect(SUPERUSER, "postgres")?.batch_execute(
        "CREATE TABLE og_upgrade_facts (database text, fact text, lines text[], PRIMARY KEY (database, fact))",
    )?;
    Ok(())
}

fn remember(db: &Db, database: &str, fact: &str, lines: &[String]) -> Result<()> {
    db.server.connect(SUPERUSER, "postgres")?.execute(
        "INSERT INTO og_upgrade_facts VALUES ($1, $2, $3)
         ON CONFLICT (database, fact) DO UPDATE SET lines = EXCLUDED.lines",
        &[&database, &fact, &lines],
    )?;
    Ok(())
}

fn recall(db: &Db, database: &str, fact: &str) -> Result<Vec<String>> {
    value(
        &mut db.server.connect(SUPERUSER, "postgres")?,
        "SELECT lines FROM og_upgrade_facts WHERE database = $1 AND fact = $2",
        &[&database, &fact],
    )
}

type Fact = fn(&Db) -> Result<Vec<String>>;

const FACTS: [(&str, Fact); 4] = [
    ("definitions", all_definitions),
    ("extension", extension),
    ("rows", rows),
    ("status", status),
];

pub fn write_down(db: &Db, scene: &str) -> Result<()> {
    for (name, fact) in FACTS {
        remember(db, scene, name, &fact(db)?)?;
    }
    Ok(())
}

pub fn unchanged(db: &Db, _: &Life) -> Result<()> {
    let scene = db.name.trim_start_matches("og_upgrade_");
    for (name, fact) in FACTS {
        same(&recall(db, scene, name)?, &fact(db)?).context(name)?;
    }
    Ok(())
}

pub fn write_down_original(db: &Db) -> Result<()> {
    remember(db, ORIGINAL, "definitions", &all_definitions(db)?)
}

/// After detach nothing but the extension itself and its ledger is left.
pub fn original_again(db: &Db) -> Result<()> {
    let mut now = all_definitions(db)?;
    now.retain(|line| !line.contains("opengeni_guards"));
    same(&recall(db, ORIGINAL, "definitions")?, &now)
}

/// Every object, in words that no major has to itself.
fn all_definitions(db: &Db) -> Result<Vec<String>> {
    let mut admin = db.admin()?;
    let mut all = definitions(&mut admin)?;
    all.extend(lines(
        &mut admin,
        "SELECT concat_ws(' ', 'body', p.oid::regprocedure, pg_get_function_sqlbody(p.oid))
           FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
          WHERE nspname LIKE 'opengeni%' AND prosqlbody IS NOT NULL",
        &[],
    )?);
    // Since 18 NOT NULL is a constraint with a name.
    all.retain(|line| !(line.starts_with("constraint ") && line.contains(" NOT NULL ")));
    Ok(all
        .iter()
        .map(|line| {
            // Expressions are read back with other parentheses; MAINTAIN is an owner's privilege since 17.
            line.replace(['(', ')'], "")
                .replace("arwdDxtm/", "arwdDxt/")
        })
        .collect())
}

/// What belongs to the extension, and what it was installed with: of functions only what is not the server's default,
/// for pg_upgrade records no more.
fn extension(db: &Db) -> Result<Vec<String>> {
    lines(
        &mut db.admin()?,
        "SELECT concat_ws(' ', 'extension', extname, extversion, extowner::regrole, extnamespace::regnamespace,
                  extrelocatable, extconfig)
           FROM pg_extension WHERE extname = 'opengeni_guards'
         UNION ALL
         SELECT concat_ws(' ', deptype, pg_describe_object(classid, objid, objsubid))
           FROM pg_depend JOIN pg_extension e ON refclassid = 'pg_extension'::regclass AND refobjid = e.oid
          WHERE extname = 'opengeni_guards'
         UNION ALL
         SELECT concat_ws(' ', 'initially', pg_describe_object(i.classoid, i.objoid, i.objsubid), i.privtype,
                  ARRAY(SELECT unnest(i.initprivs)::text ORDER BY 1))
           FROM pg_init_privs i JOIN pg_depend d ON (d.classid, d.objid) = (i.classoid, i.objoid)
           JOIN pg_extension e ON refclassid = 'pg_extension'::regclass AND refobjid = e.oid
           LEFT JOIN pg_proc p ON i.classoid = 'pg_proc'::regclass AND p.oid = i.objoid
          WHERE extname = 'opengeni_guards'
            AND NOT COALESCE(acldefault('f', proowner) @> i.initprivs AND i.initprivs @> acldefault('f', proowner), false)",
        &[],
    )
}

/// The rows of every table and where every sequence stands.
fn rows(db: &Db) -> Result<Vec<String>> {
    let mut admin = db.admin()?;
    let row = |kind: &str| match kind {
        "r" => "to_jsonb(t)::text",
        _ => "last_value || ' ' || is_called",
    };
    let tables = admin.query(
        "SELECT c.oid::regclass::text, relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
          WHERE relkind IN ('r', 'S') AND nspname IN ('opengeni', 'opengeni_private', 'opengeni_guards')",
        &[],
    )?;
    let mut all = Vec::new();
    for table in tables {
        let (name, kind): (String, String) = (table.get(0), table.get(1));
        let sql = format!("SELECT '{name} ' || {} FROM {name} t", row(&kind));
        all.extend(lines(&mut admin, &sql, &[])?);
    }
    ensure!(all.len() > 10, "hardly any rows: {all:?}");
    Ok(all)
}

fn status(db: &Db) -> Result<Vec<String>> {
    let mut owner: Client = db.owner()?;
    let all = lines(
        &mut owner,
        "SELECT concat_ws(' ', object, state, detail) FROM opengeni_guards.status()",
        &[],
    )?;
    let mut harm = all.clone();
    harm.retain(|line| line.contains("retention id in the future") || line.contains("poisoned"));
    ensure!(harm.is_empty(), "{harm:#?}");
    Ok(all)
}
