//! enforce_sandbox_recovery_protocol_v2: no write of the six tables without the protocol's marker.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{Command, Tenant};
use opengeni_guards_harness::server::Server;
use postgres::{Client, GenericClient};

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "marker: each of the six tables refuses INSERT, UPDATE and DELETE without it",
            six_tables,
        ),
        case(
            server,
            "marker: nothing but the exact text '1' is the marker",
            exact_value,
        ),
        case(
            server,
            "marker: a setting that ended with its transaction reads as empty, not as set",
            ends_with_transaction,
        ),
        case(
            server,
            "marker: a superuser's session is exempt, also after SET ROLE",
            superuser_session,
        ),
        case(
            server,
            "marker: a superuser who became somebody else by SET SESSION AUTHORIZATION is not exempt",
            session_authorization,
        ),
        case(
            server,
            "marker: a superuser who is one no longer is not exempt any longer",
            demoted,
        ),
        case(
            server,
            "marker: a temp table named like a catalogue exempts nobody (D8)",
            temp_catalogues,
        ),
        case(
            server,
            "marker: a statement that touches no row needs none",
            no_row_no_marker,
        ),
    ]
}

const TABLES: [&str; 6] = [
    "sandbox_leases",
    "sandbox_lease_holders",
    "sandbox_workspace_mutation_admissions",
    "sandbox_retained_processes",
    "sandbox_pty_sessions",
    "sandbox_checkpoint_artifacts",
];

/// A tenant with at least one row in each of the six tables.
fn rows_everywhere(db: &Db) -> Result<(Tenant, Command)> {
    let (tenant, command) = db.legacy()?;
    let mut admin = db.admin()?;
    set(
        &mut admin,
        "opengeni.account_id",
        &tenant.account.to_string(),
    )?;
    set(
        &mut admin,
        "opengeni.workspace_id",
        &tenant.workspace.to_string(),
    )?;
    accepted(
        &mut admin,
        "INSERT INTO sandbox_pty_sessions
           (account_id, workspace_id, session_id, lease_epoch, cols, rows, shell, cwd, status, opened_by, closed_at)
         VALUES ($1, $2, $3, 1, 80, 24, 'bash', '/', 'closed', 'somebody', now())",
        &[&tenant.account, &tenant.workspace, &tenant.session],
    )?;
    accepted(
        &mut admin,
        r#"INSERT INTO sandbox_checkpoint_artifacts
             (account_id, workspace_id, sandbox_group_id, source_lease_id, source_lease_epoch,
              source_instance_id, source_workspace_generation, provenance, provider_backend,
              provider_binding_key, provider_binding, object_kind, object_id,
              archive_base64, archive_sha256, archive_bytes, descriptor, descriptor_revision)
           SELECT $1, $2, $3, $4, 1, 'sb-1', 0, 'native_capture', 'modal',
              key, key::jsonb, 'modal_filesystem_snapshot', 'im-1',
              'aGVsbG8=', digest, 5, jsonb_build_object(
                'version', 2, 'kind', 'provider_snapshot', 'revision', 'r1', 'archiveSha256', digest,
                'archiveBytes', 5, 'snapshotId', 'im-1', 'provider', 'modal_snapshot_filesystem',
                'workspacePersistence', 'snapshot_filesystem'), 'r1'
           FROM (SELECT '{"version":1,"serverUrl":"u","workspaceName":"w","environment":"e"}',
                        encode(sha256('hello'), 'hex')) AS source (key, digest)"#,
        &[
            &tenant.account,
            &tenant.workspace,
            &tenant.group,
            &tenant.lease,
        ],
    )?;
    Ok((tenant, command))
}

fn unmarked(db: &Db, tenant: &Tenant) -> Result<Client> {
    let mut app = db.app(tenant)?;
    app.batch_execute(&format!("RESET {MARKER}"))?;
    Ok(app)
}

fn update(table: &str) -> String {
    format!("UPDATE {table} SET id = id")
}

/// The refusal of this operation on this table, fields and all.
fn without_marker(client: &mut impl GenericClient, sql: &str, op: &str, table: &str) -> Result<()> {
    let refusal = refused(client, sql, &[])?;
    refusal
        .speaks("protocol_v2.marker")
        .with_context(|| sql.to_string())?;
    let message = format!("sandbox recovery protocol v2 marker is required for {op} on {table}");
    ensure!(refusal.message == message, "{refusal:?}");
    ensure!(
        refusal.table.as_deref() == Some(table) && refusal.schema.as_deref() == Some(SCHEMA),
        "{refusal:?}"
    );
    Ok(())
}

fn six_tables(db: &Db) -> Result<()> {
    let (tenant, _) = rows_everywhere(db)?;
    let mut app = unmarked(db, &tenant)?;
    for table in TABLES {
        // A row guard speaks before constraints and policies judge the row.
        let insert = format!("INSERT INTO {table} DEFAULT VALUES");
        without_marker(&mut app, &insert, "INSERT", table)?;
        without_marker(&mut app, &update(table), "UPDATE", table)?;
        without_marker(&mut app, &format!("DELETE FROM {table}"), "DELETE", table)?;
    }
    set(&mut app, MARKER, "1")?;
    for table in TABLES {
        accepted(&mut app, &update(table), &[])?;
    }
    Ok(())
}

fn exact_value(db: &Db) -> Result<()> {
    let (tenant, _) = rows_everywhere(db)?;
    let mut app = unmarked(db, &tenant)?;
    for wrong in ["", "0", "1 ", " 1", "01", "1.0", "true", "on", "2", "11"] {
        set(&mut app, MARKER, wrong)?;
        for table in TABLES {
            without_marker(&mut app, &update(table), "UPDATE", table)
                .with_context(|| format!("marker {wrong:?}"))?;
        }
    }
    set(&mut app, MARKER, "1")?;
    accepted(&mut app, &update("sandbox_leases"), &[])
}

fn ends_with_transaction(db: &Db) -> Result<()> {
    let (tenant, _) = rows_everywhere(db)?;
    let mut app = unmarked(db, &tenant)?;
    let sql = update("sandbox_leases");
    let mut transaction = app.transaction()?;
    transaction.batch_execute(&format!("SET LOCAL {MARKER} = '1'"))?;
    accepted(&mut transaction, &sql, &[])?;
    transaction.commit()?;
    ensure!(
        value::<String>(
            &mut app,
            &format!("SELECT current_setting('{MARKER}')"),
            &[]
        )?
        .is_empty(),
        "the setting outlives its transaction"
    );
    without_marker(&mut app, &sql, "UPDATE", "sandbox_leases")?;

    // A savepoint takes a marker that was set inside it along.
    let mut transaction = app.transaction()?;
    let mut inner = transaction.transaction()?;
    inner.batch_execute(&format!("SET LOCAL {MARKER} = '1'"))?;
    accepted(&mut inner, &sql, &[])?;
    inner.rollback()?;
    without_marker(&mut transaction, &sql, "UPDATE", "sandbox_leases")
}

fn superuser_session(db: &Db) -> Result<()> {
    let (tenant, _) = rows_everywhere(db)?;
    let mut admin = db.admin()?;
    for table in TABLES {
        accepted(&mut admin, &update(table), &[])?;
    }
    set(
        &mut admin,
        "opengeni.account_id",
        &tenant.account.to_string(),
    )?;
    set(
        &mut admin,
        "opengeni.workspace_id",
        &tenant.workspace.to_string(),
    )?;
    admin.batch_execute(&format!("SET ROLE {APP}"))?;
    for table in TABLES {
        accepted(&mut admin, &update(table), &[])?;
    }
    Ok(())
}

fn session_authorization(db: &Db) -> Result<()> {
    let (tenant, _) = rows_everywhere(db)?;
    let mut admin = db.admin()?;
    set(
        &mut admin,
        "opengeni.account_id",
        &tenant.account.to_string(),
    )?;
    set(
        &mut admin,
        "opengeni.workspace_id",
        &tenant.workspace.to_string(),
    )?;
    admin.batch_execute(&format!("SET SESSION AUTHORIZATION {APP}"))?;
    for table in TABLES {
        without_marker(&mut admin, &update(table), "UPDATE", table)?;
    }
    admin.batch_execute("RESET SESSION AUTHORIZATION")?;
    accepted(&mut admin, &update("sandbox_leases"), &[])
}

fn demoted(db: &Db) -> Result<()> {
    let (tenant, _) = rows_everywhere(db)?;
    let role = format!("{}_chief", db.name);
    let mut admin = db.admin()?;
    admin.batch_execute(&format!(
        "CREATE ROLE {role} LOGIN SUPERUSER; GRANT {APP} TO {role}"
    ))?;
    let outcome = (|| {
        let mut chief = db.session(&role)?;
        set(
            &mut chief,
            "opengeni.account_id",
            &tenant.account.to_string(),
        )?;
        set(
            &mut chief,
            "opengeni.workspace_id",
            &tenant.workspace.to_string(),
        )?;
        accepted(&mut chief, &update("sandbox_leases"), &[])?;
        admin.batch_execute(&format!("ALTER ROLE {role} NOSUPERUSER"))?;
        without_marker(
            &mut chief,
            &update("sandbox_leases"),
            "UPDATE",
            "sandbox_leases",
        )?;
        admin.batch_execute(&format!("ALTER ROLE {role} SUPERUSER"))?;
        accepted(&mut chief, &update("sandbox_leases"), &[])
    })();
    // The role outlives the database, whatever came of it.
    admin.batch_execute(&format!("DROP ROLE {role}"))?;
    outcome
}

fn temp_catalogues(db: &Db) -> Result<()> {
    let (tenant, _) = rows_everywhere(db)?;
    let mut app = unmarked(db, &tenant)?;
    for catalogue in ["pg_roles", "pg_authid", "pg_user"] {
        app.batch_execute(&format!(
            "CREATE TEMP TABLE {catalogue} (rolname name, rolsuper boolean, usename name, usesuper boolean);
             INSERT INTO pg_temp.{catalogue} VALUES (session_user, true, session_user, true)"
        ))?;
    }
    for table in TABLES {
        without_marker(&mut app, &update(table), "UPDATE", table)?;
    }
    Ok(())
}

fn no_row_no_marker(db: &Db) -> Result<()> {
    let (tenant, _) = rows_everywhere(db)?;
    let mut app = unmarked(db, &tenant)?;
    for table in TABLES {
        let rows = app.execute(&format!("UPDATE {table} SET id = id WHERE false"), &[])?;
        ensure!(rows == 0, "{rows} rows");
    }
    Ok(())
}
