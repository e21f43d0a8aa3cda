//! From one release to the next: what is updated equals what is new, a library serves the SQL of every release
//! before it, and no script runs with a library older than itself.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, streams};
use opengeni_guards_harness::server::Server;
use postgres::Client;

use crate::attach::switch;
use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    let bare: [(&str, Body); 5] = [
        ("a released script stays as it was released", frozen),
        (
            "updated equals new, whatever default privileges say",
            updated_equals_new,
        ),
        (
            "the library serves every function of every release",
            old_functions,
        ),
        (
            "a schema in use under an older release, and after its update",
            in_use,
        ),
        (
            "a script that is newer than the library changes nothing",
            older_library,
        ),
    ];
    let bare = bare
        .into_iter()
        .map(|(name, body)| bare_case(server, &format!("upgrade: {name}"), body));
    bare.chain([original_case(
        server,
        "upgrade: the originals are attached after the update as by a new installation",
        attached_after,
    )])
    .collect()
}

/// The extension's scripts in this checkout.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql")
}

/// Releases, with the checksums of their scripts.
fn released() -> Result<Vec<(String, String)>> {
    let list = fs::read_to_string(scripts().join("released.sha256"))?;
    let pairs = list.lines().filter_map(|line| line.split_once("  "));
    let pairs: Vec<_> = pairs
        .map(|(sum, file)| (file.to_owned(), sum.to_owned()))
        .collect();
    ensure!(!pairs.is_empty(), "nothing has been released");
    Ok(pairs)
}

/// A full script's version.
fn version_of(file: &str) -> Option<&str> {
    let version = file
        .strip_prefix("opengeni_guards--")?
        .strip_suffix(".sql")?;
    (!version.contains("--")).then_some(version)
}

/// An update script's versions, from and to.
fn step_of(file: &str) -> Option<(&str, &str)> {
    file.strip_prefix("opengeni_guards--")?
        .strip_suffix(".sql")?
        .split_once("--")
}

/// The extension's scripts in this checkout, by name.
fn files() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(scripts())? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name.starts_with("opengeni_guards--"));
    names.sort();
    Ok(names)
}

/// Where the server looks for scripts.
fn extension_directory(db: &Db) -> Result<PathBuf> {
    let share: String = value(
        &mut db.admin()?,
        "SELECT setting FROM pg_config WHERE name = 'SHAREDIR'",
        &[],
    )?;
    Ok(Path::new(&share).join("extension"))
}

/// The releases before this one, their scripts put beside this one's, as on a server that had them.
fn earlier(db: &Db) -> Result<Vec<String>> {
    let directory = extension_directory(db)?;
    let mut versions = Vec::new();
    for (file, _) in released()? {
        if let Some(version) = version_of(&file) {
            fs::copy(scripts().join(&file), directory.join(&file))
                .with_context(|| format!("cannot install {file}"))?;
            versions.push(version.to_owned());
        }
    }
    let current = current(db)?;
    versions.retain(|version| *version != current);
    ensure!(!versions.is_empty(), "there is no earlier release");
    Ok(versions)
}

fn current(db: &Db) -> Result<String> {
    value(
        &mut db.admin()?,
        "SELECT default_version FROM pg_available_extensions WHERE name = 'opengeni_guards'",
        &[],
    )
}

fn version(db: &Db) -> Result<Option<String>> {
    let found = lines(
        &mut db.admin()?,
        "SELECT extversion FROM pg_extension WHERE extname = 'opengeni_guards'",
        &[],
    )?;
    Ok(found.into_iter().next())
}

fn create(db: &Db, version: &str) -> Result<()> {
    db.admin()?
        .batch_execute(&format!(
            "SET opengeni_guards.bind_on_create = off;
             CREATE EXTENSION opengeni_guards VERSION '{version}'"
        ))
        .with_context(|| format!("CREATE EXTENSION VERSION '{version}'"))
}

fn update(db: &Db) -> Result<()> {
    db.admin()?
        .batch_execute("ALTER EXTENSION opengeni_guards UPDATE")
        .context("ALTER EXTENSION UPDATE")
}

fn frozen(db: &Db) -> Result<()> {
    let released = released()?;
    let is_released = |version: &str| {
        let full = format!("opengeni_guards--{version}.sql");
        released.iter().any(|(file, _)| *file == full)
    };
    let mut admin = db.admin()?;
    for (file, sum) in &released {
        let script = fs::read(scripts().join(file)).with_context(|| file.clone())?;
        let found: String = value(&mut admin, "SELECT encode(sha256($1), 'hex')", &[&script])?;
        ensure!(found == *sum, "{file} is not what was released: {found}");
    }
    let current = current(db)?;
    let files = files()?;
    for file in &files {
        let listed = released.iter().any(|(name, _)| name == file);
        let of_release = match (version_of(file), step_of(file)) {
            (Some(_), _) => true,
            (None, Some((_, to))) => is_released(to),
            _ => false,
        };
        ensure!(
            listed == of_release,
            "{file} and released.sha256 do not agree"
        );
    }
    // Every release can be left for this one.
    let leads = |version: &str| {
        let mut reached = vec![version.to_owned()];
        let mut next = 0;
        while next < reached.len() {
            let from = reached[next].clone();
            for (of, to) in files.iter().filter_map(|file| step_of(file)) {
                if of == from && !reached.iter().any(|known| known == to) {
                    reached.push(to.to_owned());
                }
            }
            next += 1;
        }
        reached.contains(&current)
    };
    for version in released.iter().filter_map(|(file, _)| version_of(file)) {
        ensure!(leads(version), "no way from {version} to {current}");
    }
    Ok(())
}

/// Members of the extension and all that is known of them, besides what [`definitions`] says.
fn members(client: &mut Client) -> Result<Vec<String>> {
    client.batch_execute("SET search_path = ''")?;
    let found = lines(
        client,
        "WITH member AS (
           SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
            WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'opengeni_guards'
         )
         SELECT concat_ws(' | ', pg_describe_object(m.classid, m.objid, 0),
           obj_description(m.objid, m.classid::regclass::name),
           CASE WHEN m.classid = 'pg_proc'::regclass THEN pg_get_functiondef(m.objid) END,
           ARRAY(SELECT unnest(i.initprivs)::text ORDER BY 1)::text, i.privtype,
           ARRAY(SELECT pg_describe_object(o.refclassid, o.refobjid, o.refobjsubid) || o.deptype::text
                   FROM pg_depend o WHERE o.classid = m.classid AND o.objid = m.objid ORDER BY 1)::text)
         FROM member m LEFT JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = m.objid
         ORDER BY 1",
        &[],
    )?;
    ensure!(found.len() > 20, "{found:#?}");
    Ok(found)
}

fn updated_equals_new(db: &Db) -> Result<()> {
    let hostile = format!(
        "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {STRANGER};
         ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {STRANGER}"
    );
    for from in earlier(db)? {
        for privileges in ["", &hostile] {
            let (old, new) = (Db::empty(&db.server)?, Db::empty(&db.server)?);
            for db in [&old, &new] {
                db.admin()?.batch_execute(privileges)?;
            }
            create(&old, &from)?;
            ensure!(version(&old)?.as_deref() == Some(from.as_str()));
            // What is not the script's own keeps its privileges.
            let mut admin = old.admin()?;
            admin.batch_execute(
                "CREATE FUNCTION opengeni_guards.closed() RETURNS int LANGUAGE sql RETURN 1;
                 REVOKE ALL ON FUNCTION opengeni_guards.closed() FROM PUBLIC",
            )?;
            update(&old)?;
            let opened: bool = value(
                &mut admin,
                "SELECT has_function_privilege($1, 'opengeni_guards.closed()', 'EXECUTE')",
                &[&APP],
            )?;
            ensure!(!opened, "the update opened a function that is not its own");
            admin.batch_execute("DROP FUNCTION opengeni_guards.closed()")?;
            create(&new, &current(db)?)?;
            ensure!(version(&old)? == version(&new)?);
            same(&members(&mut new.admin()?)?, &members(&mut old.admin()?)?)?;
            same(
                &definitions(&mut new.admin()?)?,
                &definitions(&mut old.admin()?)?,
            )?;
        }
    }
    Ok(())
}

/// Each function is found in the library and takes NULLs as this release does: with a result or a refusal.
fn old_functions(db: &Db) -> Result<()> {
    for from in earlier(db)? {
        let old = Db::empty(&db.server)?;
        create(&old, &from)?;
        let mut admin = old.admin()?;
        let calls = lines(
            &mut admin,
            "SELECT format('SELECT * FROM %s(%s)', p.oid::regproc,
               (SELECT string_agg(format('NULL::%s', format_type(t.type, NULL)), ', ' ORDER BY t.n)
                  FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS t (type, n)))
               FROM pg_proc p
              WHERE p.pronamespace = 'opengeni_guards'::regnamespace AND p.prorettype <> 'trigger'::regtype
              ORDER BY 1",
            &[],
        )?;
        ensure!(calls.len() >= 5, "{calls:#?}");
        for call in calls {
            if let Err(error) = admin.batch_execute(&call) {
                Refusal::of(&error)?.has_state("22023").context(call)?;
            }
        }
        // A trigger function called by hand says so; one that is not in the library is 42883.
        let triggers = lines(
            &mut admin,
            "SELECT p.oid::regproc::text FROM pg_proc p
              WHERE p.pronamespace = 'opengeni_guards'::regnamespace AND p.prorettype = 'trigger'::regtype",
            &[],
        )?;
        ensure!(triggers.len() >= 15, "{triggers:#?}");
        for function in triggers {
            admin.batch_execute(&format!(
                "CREATE TEMP TABLE t (id int);
                 CREATE TRIGGER t BEFORE INSERT ON t EXECUTE FUNCTION {function}()"
            ))?;
            let refusal = refused(&mut admin, "INSERT INTO t VALUES (1)", &[])?;
            ensure!(
                ["0A000", "39P01", "42P01"].contains(&refusal.sqlstate.as_str())
                    || function.contains("truncate"),
                "{function}: {refusal:?}"
            );
            admin.batch_execute("DROP TABLE t")?;
        }
    }
    Ok(())
}

const LEFT: &str = "SELECT object || ': ' || note FROM opengeni_guards.provision('opengeni') WHERE action = 'left'";

fn in_use(db: &Db) -> Result<()> {
    for from in earlier(db)? {
        let old = Db::empty(&db.server)?;
        old.admin()?.batch_execute(&format!(
            "CREATE SCHEMA {SCHEMA} AUTHORIZATION {OWNER}; SET opengeni_guards.bind_on_create = off;
             CREATE EXTENSION opengeni_guards VERSION '{from}'"
        ))?;
        let mut owner = old.owner()?;
        for left in lines(&mut owner, LEFT, &[])? {
            ensure!(
                left.contains("ALTER EXTENSION opengeni_guards UPDATE")
                    || left.starts_with("policy modal_inventory_owner_read"),
                "{left}"
            );
        }
        grant_usage(&mut owner, APP, SCHEMA)?;
        let outdated = lines(
            &mut owner,
            "SELECT detail FROM opengeni_guards.status('opengeni') WHERE state = 'outdated'",
            &[],
        )?;
        ensure!(
            outdated.len() == 1 && outdated[0].contains(&format!("version {from},")),
            "{outdated:?}"
        );

        let tenant = old.tenant()?;
        let (before, after) = (Command::new(1), Command::new(2));
        let mut app = old.app(&tenant)?;
        let delete = "DELETE FROM sandbox_retained_processes WHERE id = $1";
        commit(&mut app, &[protocol::launch(&tenant, &before)])?;
        refused(&mut app, delete, &[&before.process])?
            .speaks("supervised_command.delete_unsettled")?;
        update(&old)?;

        // The same session goes on, with the same guards.
        refused(&mut app, delete, &[&before.process])?
            .speaks("supervised_command.delete_unsettled")?;
        commit(&mut app, &[protocol::launch(&tenant, &after)])?;
        for command in [&before, &after] {
            let ends = streams(&Cursor::end(20), &Cursor::end(20));
            commit(
                &mut app,
                &[
                    protocol::record_receipt(command, command.receipt(0)),
                    protocol::capture(command, ends, true),
                    protocol::settle(&tenant, command, 0),
                ],
            )?;
        }
        let left = lines(&mut owner, LEFT, &[])?;
        ensure!(left.is_empty(), "{left:#?}");
        grant_usage(&mut owner, APP, SCHEMA)?;
        let new = Db::provisioned(&db.server)?;
        same(
            &definitions(&mut new.admin()?)?,
            &definitions(&mut old.admin()?)?,
        )?;
        let odd = lines(
            &mut owner,
            "SELECT concat_ws(' ', object, state) FROM opengeni_guards.status('opengeni')
              WHERE state NOT IN ('native', 'present')",
            &[],
        )?;
        ensure!(odd.is_empty(), "{odd:#?}");
        app.batch_execute(
            "SELECT * FROM opengeni_private.reap_sandbox_leases(60000, 60000, 60000)",
        )?;
    }
    Ok(())
}

/// What every script begins with, for a version in the place of the current one.
fn check_for(version: &str, current: &str) -> Result<String> {
    let start = fs::read_to_string(scripts().join("start.sql"))?;
    let end = start
        .find("$library$;")
        .context("start.sql does not look at the library")?;
    let check = &start[..end + "$library$;".len()];
    ensure!(check.contains(current), "start.sql is not of {current}");
    Ok(check
        .replace(current, version)
        .replace(&current.replace('.', ","), &version.replace('.', ",")))
}

/// A script in the server's directory, for as long as this lives.
struct Script(PathBuf);

impl Drop for Script {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn older_library(db: &Db) -> Result<()> {
    let current = current(db)?;
    for file in files()? {
        if let Some((_, to)) = step_of(&file) {
            let script = fs::read_to_string(scripts().join(&file))?;
            ensure!(
                script.contains(&check_for(to, &current)?),
                "{file} runs with any library"
            );
        }
    }
    let directory = extension_directory(db)?;
    let new = fs::read_to_string(directory.join(format!("opengeni_guards--{current}.sql")))?;
    ensure!(
        new.contains(&check_for(&current, &current)?),
        "{current} runs with any library"
    );

    let checks = [
        check_for("999.0.0", &current)?,
        // The first release's library says nothing of its version.
        check_for(&current, &current)?
            .replace("opengeni_guards.library_version", "opengeni_guards.nothing"),
    ];
    for check in checks {
        let script = Script(directory.join(format!("opengeni_guards--{current}--999.0.0.sql")));
        fs::write(
            &script.0,
            format!(
                "{check}\nCREATE FUNCTION opengeni_guards.newer() RETURNS int LANGUAGE sql RETURN 1;\n"
            ),
        )?;
        let mut admin = db.admin()?;
        let refusal = refused(
            &mut admin,
            "CREATE EXTENSION opengeni_guards VERSION '999.0.0'",
            &[],
        )?;
        refusal.has_state("55000")?;
        ensure!(version(db)?.is_none());
        admin.batch_execute("CREATE EXTENSION opengeni_guards")?;
        let before = snapshot(&mut admin)?;
        let refusal = refused(
            &mut admin,
            "ALTER EXTENSION opengeni_guards UPDATE TO '999.0.0'",
            &[],
        )?;
        refusal.has_state("55000")?;
        ensure!(
            refusal
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("reconnect")),
            "{refusal:?}"
        );
        same(&before, &snapshot(&mut admin)?)?;
        ensure!(version(db)?.as_ref() == Some(&current));
        // A script of this release runs.
        fs::write(&script.0, check_for(&current, &current)?)?;
        admin.batch_execute(
            "ALTER EXTENSION opengeni_guards UPDATE TO '999.0.0'; DROP EXTENSION opengeni_guards",
        )?;
        let library: String = value(
            &mut admin,
            "SELECT current_setting('opengeni_guards.library_version')",
            &[],
        )?;
        ensure!(library == current, "library {library}, script {current}");
        refused(
            &mut admin,
            "SET opengeni_guards.library_version = '999.0.0'",
            &[],
        )?
        .has_state("55P02")?;
    }
    Ok(())
}

fn attached_after(db: &Db) -> Result<()> {
    for from in earlier(db)? {
        let (old, new) = (Db::original(&db.server)?, Db::original(&db.server)?);
        create(&old, &from)?;
        update(&old)?;
        create(&new, &current(db)?)?;
        let before = definitions(&mut old.admin()?)?;
        let mut found = Vec::new();
        for db in [&old, &new] {
            switch(&mut db.owner()?, "attach('opengeni')")?;
            ensure!(value::<bool>(
                &mut db.owner()?,
                "SELECT opengeni_guards.ready('opengeni')",
                &[]
            )?);
            found.push(definitions(&mut db.admin()?)?);
        }
        same(&found[1], &found[0])?;
        switch(&mut old.owner()?, "detach('opengeni')")?;
        same(&before, &definitions(&mut old.admin()?)?)?;
    }
    Ok(())
}
