//! Values as Postgres compares and casts them, not as a JSON library would.

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Tenant};
use opengeni_guards_harness::server::Server;
use postgres::Client;
use serde_json::{Value, json};

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "values: a difference in a number is seen exactly where jsonb sees one",
            numbers_of_the_identity,
        ),
        case(
            server,
            "values: a command nested thousands deep is compared like any other",
            deep_nesting,
        ),
        case(
            server,
            "values: a command with hundreds of members, or a very long one, is read like any other",
            crowded_commands,
        ),
        case(
            server,
            "values: of duplicate keys the last one counts, as in jsonb",
            duplicate_keys,
        ),
        case(
            server,
            "values: JSON null is a value, SQL NULL is none",
            json_null,
        ),
        case(
            server,
            "values: an array or a string that holds the word is supervised, and has no descriptor",
            arrays_and_scalars,
        ),
        case(
            server,
            "values: a byte offset is read by the server's bigint input",
            byte_offsets,
        ),
        case(
            server,
            "values: 1 and 1.0 are the same output position",
            equal_positions,
        ),
        case(
            server,
            "values: pty is read by the server's boolean input",
            pty_words,
        ),
        case(
            server,
            "values: descriptors are checked to the letter",
            descriptor_letters,
        ),
        case(
            server,
            "values: leaderExitCode is an integer within int4, however the number is written",
            exit_codes,
        ),
        case(
            server,
            "values: a binding that reads as empty is none, a malformed one is 22P02",
            bindings,
        ),
        case(
            server,
            "values: bindings are compared as jsonb, whatever their key order and spacing",
            binding_equality,
        ),
    ]
}

const ATTACH: &str =
    "UPDATE sandbox_retained_processes SET provider_command = $2::text::jsonb WHERE id = $1";

/// The command's text with one more member.
fn with_member(command: &Value, member: &str) -> String {
    let text = command.to_string();
    format!("{},{member}}}", text.strip_suffix('}').unwrap_or(&text))
}

/// Retains `command` and attaches this text in one transaction; `Err` is the refusal of the attachment.
fn attach_text(
    client: &mut Client,
    tenant: &Tenant,
    command: &Command,
    text: &str,
) -> Result<std::result::Result<(), Refusal>> {
    let mut transaction = client.transaction()?;
    run(&mut transaction, &protocol::admit(tenant, command))?;
    run(&mut transaction, &protocol::retain(tenant, command))?;
    match transaction.execute(ATTACH, &[&command.process, &text]) {
        Ok(_) => {
            transaction.commit()?;
            Ok(Ok(()))
        }
        Err(error) => Ok(Err(Refusal::of(&error)?)),
    }
}

fn attached(client: &mut Client, tenant: &Tenant, command: &Command, text: &str) -> Result<()> {
    match attach_text(client, tenant, command, text)? {
        Ok(()) => Ok(()),
        Err(refusal) => bail!("refused: {refusal:?}\n{text}"),
    }
}

fn not_attached(
    client: &mut Client,
    tenant: &Tenant,
    command: &Command,
    text: &str,
) -> Result<Refusal> {
    match attach_text(client, tenant, command, text)? {
        Ok(()) => bail!("accepted: {text}"),
        Err(refusal) => Ok(refusal),
    }
}

fn numbers_of_the_identity(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let digits = "123456789012345678901234567890";
    let other_digits = "123456789012345678901234567891";
    let pairs = [
        ("1", "1.0", true),
        ("1", "1e0", true),
        ("100", "1e2", true),
        ("0.1", "0.10000000000000000555", false),
        (digits, digits, true),
        (digits, other_digits, false),
        ("1e400", "1e400", true),
        ("1e400", "1.0000000001e400", false),
        ("-0", "0", true),
        ("1e-400", "0", false),
        ("9007199254740993", "9007199254740992", false),
        (r#""1""#, "1", false),
        ("true", r#""true""#, false),
        (r#""\u00e9""#, r#""é""#, true),
        ("\"\u{e9}\"", "\"e\u{301}\"", false),
        (r#"{"a":1,"b":2}"#, r#"{ "b" : 2, "a" : 1.00 }"#, true),
        ("[1,2]", "[2,1]", false),
        ("[]", "{}", false),
    ];
    for (number, (before, after, equal)) in pairs.into_iter().enumerate() {
        let command = Command::new(i32::try_from(number)? + 1);
        let plain = command.provider_command(&tenant);
        let first = with_member(&plain, &format!(r#""extra": {before}"#));
        let second = with_member(&plain, &format!(r#""extra": {after}"#));
        attached(&mut app, &tenant, &command, &first)?;
        let context = || format!("{before} to {after}");
        if equal {
            accepted(&mut app, ATTACH, &[&command.process, &second]).with_context(context)?;
        } else {
            refused(&mut app, ATTACH, &[&command.process, &second])
                .and_then(|refusal| refusal.speaks("supervised_command.identity"))
                .with_context(context)?;
        }
    }
    Ok(())
}

fn deep_nesting(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let command = Command::new(1);
    let depth = 6000;
    let nested = |open: &str, close: &str, leaf: &str| {
        with_member(
            &command.provider_command(&tenant),
            &format!(
                r#""extra": {}{leaf}{}"#,
                open.repeat(depth),
                close.repeat(depth)
            ),
        )
    };
    attached(&mut app, &tenant, &command, &nested("[", "]", "1"))?;
    accepted(
        &mut app,
        ATTACH,
        &[&command.process, &nested("[", "]", "1.0")],
    )?;
    for other in [nested("[", "]", "2"), nested(r#"{"a":"#, "}", "1")] {
        refused(&mut app, ATTACH, &[&command.process, &other])?
            .speaks("supervised_command.identity")?;
    }
    // As the descriptor itself it is merely wrong.
    let command = Command::new(2);
    let mut broken = command.legacy_provider_command(&tenant);
    broken["kind"] = json!("modal-router-v1");
    let text = with_member(
        &broken,
        &format!(
            r#""supervision": {}{}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        ),
    );
    not_attached(&mut app, &tenant, &command, &text)?.speaks("supervised_command.descriptor")
}

fn crowded_commands(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    // Names around the protocol's own in length and order, values of every kind and alignment.
    let mut crowd = serde_json::Map::new();
    for number in 0..300_u32 {
        let name = match number % 6 {
            0 => format!("k{number}"),
            1 => format!("supervisio{number}"),
            2 => format!("supervision{number}"),
            3 => format!("stream{number}"),
            4 => "s".repeat(number as usize / 6 + 1),
            _ => format!("ü{number}"),
        };
        let value = match number % 7 {
            0 => json!(number),
            1 => json!("x".repeat(number as usize % 5)),
            2 => Value::Null,
            3 => json!([number, "a", { "supervision": number }]),
            4 => json!({ "streams": { "stdout": { "byteOffset": number } }, "eof": true }),
            5 => json!(number % 2 == 0),
            _ => json!(f64::from(number) / 8.0),
        };
        crowd.insert(name, value);
    }
    let long = lines(
        &mut app,
        "SELECT string_agg(sha256(n::text::bytea)::text, '') FROM generate_series(1, 2000) n",
        &[],
    )?;
    for (number, (member, value)) in [
        ("crowd", Value::Null),
        ("nested", Value::Object(crowd.clone())),
        ("long", json!(long)),
    ]
    .into_iter()
    .enumerate()
    {
        let command = Command::new(i32::try_from(number)? + 1);
        let mut whole = command.provider_command(&tenant);
        whole[member] = value;
        if member == "crowd" {
            let members = whole.as_object_mut().context("an object")?;
            crowd.iter().for_each(|(name, value)| {
                members.insert(name.clone(), value.clone());
            });
        }
        attached(&mut app, &tenant, &command, &whole.to_string())?;
        accepted(&mut app, ATTACH, &[&command.process, &whole.to_string()])?;

        // One change anywhere is seen, and the streams beside it still move.
        let text = whole.to_string();
        for (before, after) in [
            (r#""ta-"#, r#""tb-"#),
            ("299", "298"),
            ("ü5", "ü4"),
            ("7", "8"),
        ] {
            let changed = text.replacen(before, after, 1);
            if changed != text && changed.contains(&command.nonce) {
                refused(&mut app, ATTACH, &[&command.process, &changed])
                    .and_then(|refusal| refusal.speaks("supervised_command.identity"))
                    .with_context(|| format!("{member}: {before} to {after}"))?;
            }
        }
        refused(&mut app, MOVE, &[&command.process, &stream_text("5")])?
            .speaks("supervised_command.capture_protocol")?;
        set(&mut app, CAPTURE, &command.process.to_string())?;
        accepted(&mut app, MOVE, &[&command.process, &stream_text("5")])?;
        refused(&mut app, MOVE, &[&command.process, &stream_text("4")])?
            .speaks("supervised_command.output_regress")?;
        set(&mut app, CAPTURE, "")?;
    }
    Ok(())
}

fn duplicate_keys(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let good = Command::new(1);
    let text = good
        .provider_command(&tenant)
        .to_string()
        .replace(r#""nonce":"#, r#""nonce":"too short","nonce":"#);
    attached(&mut app, &tenant, &good, &text)?;

    let bad = Command::new(2);
    let plain = bad.provider_command(&tenant).to_string();
    let nonce = format!(r#""nonce":"{}""#, bad.nonce);
    let text = plain.replace(&nonce, &format!(r#"{nonce},"nonce":"too short""#));
    ensure!(text != plain, "the nonce was not found");
    not_attached(&mut app, &tenant, &bad, &text)?.speaks("supervised_command.descriptor")
}

fn json_null(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    // A descriptor that is JSON null is there, and is no object.
    let command = Command::new(1);
    let mut null_descriptor = command.provider_command(&tenant);
    null_descriptor["supervision"] = Value::Null;
    not_attached(&mut app, &tenant, &command, &null_descriptor.to_string())?
        .speaks("supervised_command.descriptor")?;

    // A receipt that is JSON null is there too.
    let set_null =
        "UPDATE sandbox_retained_processes SET supervision_receipt = 'null' WHERE id = $1";
    let (supervised_tenant, supervised) = db.supervised()?;
    refused(
        &mut db.app(&supervised_tenant)?,
        set_null,
        &[&supervised.process],
    )?
    .speaks("supervised_command.receipt")?;
    let (tenant, legacy) = db.legacy()?;
    let mut app = db.app(&tenant)?;
    refused(&mut app, set_null, &[&legacy.process])?.speaks("supervised_command.legacy_proof")?;

    // A command that is JSON null has no supervision; the table's own CHECK refuses it.
    let refusal = refused(&mut app, ATTACH, &[&legacy.process, &"null"])?;
    refusal.has_state("23514")?;
    ensure!(
        refusal.rule.as_deref() == Some("sandbox_retained_processes_provider_command_chk"),
        "{refusal:?}"
    );

    // Once recorded, JSON null is a receipt like any other: it cannot be replaced.
    db.plant(set_null, &[&supervised.process])?;
    let mut app = db.app(&supervised_tenant)?;
    step_refused(
        &mut app,
        &protocol::record_receipt(&supervised, supervised.receipt(0)),
    )?
    .speaks("supervised_command.proof_immutable")?;
    step_refused(&mut app, &protocol::advance_input(&supervised, 1))?
        .speaks("supervised_command.stdin_closed")
}

fn arrays_and_scalars(db: &Db) -> Result<()> {
    let (tenant, command) = db.legacy()?;
    let mut app = db.app(&tenant)?;
    let touch = "UPDATE sandbox_retained_processes SET reconcile_attempts = 1 WHERE id = $1";
    let delete = "DELETE FROM sandbox_retained_processes WHERE id = $1";

    // From a client's hand the table's CHECK stops them, not the guard: there is no descriptor in them.
    for shape in [r#"["supervision"]"#, r#""supervision""#, "7", "true"] {
        let refusal = refused(&mut app, ATTACH, &[&command.process, &shape])?;
        refusal.has_state("23514")?;
        ensure!(
            refusal.rule.as_deref() == Some("sandbox_retained_processes_provider_command_chk"),
            "{shape}: {refusal:?}"
        );
    }

    db.owner()?.batch_execute(
        "ALTER TABLE sandbox_retained_processes DROP CONSTRAINT sandbox_retained_processes_provider_command_chk",
    )?;
    db.plant(ATTACH, &[&command.process, &r#"["supervision", "x"]"#])?;
    accepted(&mut app, touch, &[&command.process])?;
    refused(&mut app, delete, &[&command.process])?
        .speaks("supervised_command.delete_unsettled")?;
    refused(&mut app, ATTACH, &[&command.process, &r#"["supervision"]"#])?
        .speaks("supervised_command.identity")?;
    let whole = command.provider_command(&tenant).to_string();
    refused(&mut app, ATTACH, &[&command.process, &whole])?
        .speaks("supervised_command.identity")?;
    // Without a descriptor there is no proof to ask for, in the original as here.
    commit(&mut app, &[protocol::settle(&tenant, &command, 0)])?;
    refused(
        &mut app,
        "UPDATE sandbox_retained_processes SET exit_code = 1 WHERE id = $1",
        &[&command.process],
    )?
    .speaks("supervised_command.terminal")?;

    let (tenant, command) = db.legacy()?;
    let mut app = db.app(&tenant)?;
    db.plant(ATTACH, &[&command.process, &r#""supervision""#])?;
    refused(&mut app, delete, &[&command.process])?
        .speaks("supervised_command.delete_unsettled")?;
    // An array that does not hold the word, or holds it deeper, is not supervised.
    for shape in [
        r#"["supervisor"]"#,
        r#"[["supervision"]]"#,
        r#"[{"supervision":1}]"#,
        "1",
    ] {
        db.plant(ATTACH, &[&command.process, &shape])?;
        let mut trial = app.transaction()?;
        accepted(&mut trial, delete, &[&command.process]).with_context(|| shape.to_string())?;
        trial.rollback()?;
    }
    Ok(())
}

fn stream_text(byte_offset: &str) -> String {
    format!(
        r#"{{"stdout": {{"byteOffset": {byte_offset}, "utf8Remainder": "", "eof": false, "exitCode": null}},
             "stderr": {{"byteOffset": 0, "utf8Remainder": "", "eof": false, "exitCode": null}}}}"#
    )
}

const MOVE: &str = "UPDATE sandbox_retained_processes
     SET provider_command = jsonb_set(provider_command, '{streams}', $2::text::jsonb) WHERE id = $1";

fn byte_offsets(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    set(&mut app, CAPTURE, &command.process.to_string())?;
    let mut advance = |offset: &str| -> Result<Option<Refusal>> {
        let mut attempt = app.transaction()?;
        match attempt.execute(MOVE, &[&command.process, &stream_text(offset)]) {
            Ok(_) => {
                attempt.commit()?;
                Ok(None)
            }
            Err(error) => Ok(Some(Refusal::of(&error)?)),
        }
    };
    // Accepted in this order, each the floor of the next.
    for offset in [
        "1",
        r#"" 12 ""#,
        r#""+12""#,
        r#""0013""#,
        "14",
        "9223372036854775800",
    ] {
        let refusal = advance(offset)?;
        ensure!(refusal.is_none(), "{offset}: {refusal:?}");
    }
    for offset in ["9223372036854775799", r#"" 14 ""#, "-1", r#""-1""#] {
        advance(offset)?
            .with_context(|| format!("{offset} accepted"))?
            .speaks("supervised_command.output_regress")?;
    }
    // Not a bigint as text: compared with a floor, it is the server's cast that fails, as in the original.
    let cast = |refusal: Option<Refusal>, offset: &str, state: &str| {
        refusal
            .with_context(|| format!("{offset} accepted"))?
            .has_state(state)
            .with_context(|| offset.to_string())
    };
    for (offset, state) in [
        ("9223372036854775808", "22003"),
        (r#""abc""#, "22P02"),
        (r#""""#, "22P02"),
        ("9223372036854775801.0", "22P02"),
        ("1e30", "22003"),
        ("true", "22P02"),
        ("[1]", "22P02"),
        (r#"{"at": 1}"#, "22P02"),
    ] {
        cast(advance(offset)?, offset, state)?;
    }
    // The input function is the running server's: from 16 on it reads hexadecimal and underscores.
    for offset in [r#""0x7FFFFFFFFFFFFFFA""#, r#""9_223_372_036_854_775_803""#] {
        let refusal = advance(offset)?;
        if db.server.major >= 16 {
            ensure!(refusal.is_none(), "{offset}: {refusal:?}");
        } else {
            cast(refusal, offset, "22P02")?;
        }
    }
    Ok(())
}

fn equal_positions(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    set(&mut app, CAPTURE, &command.process.to_string())?;
    accepted(&mut app, MOVE, &[&command.process, &stream_text("1")])?;
    // Equal as jsonb: nothing moves, so no capture protocol is asked for.
    app.batch_execute(&format!("RESET {CAPTURE}"))?;
    accepted(&mut app, MOVE, &[&command.process, &stream_text("1.0")])?;
    refused(&mut app, MOVE, &[&command.process, &stream_text("2")])?
        .speaks("supervised_command.capture_protocol")?;
    // What is stored now is 1.0, which bigint does not read; the row can be handled all the same (D3).
    set(&mut app, CAPTURE, &command.process.to_string())?;
    accepted(&mut app, MOVE, &[&command.process, &stream_text("2")])
}

fn pty_words(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let mut number = 0;
    let mut attempt = |word: &str| -> Result<std::result::Result<(), Refusal>> {
        number += 1;
        let command = Command::new(number);
        let text = with_member(
            &command.provider_command(&tenant),
            &format!(r#""pty": {word}"#),
        );
        attach_text(&mut app, &tenant, &command, &text)
    };
    for word in [
        "false",
        "null",
        r#""off""#,
        r#"" no ""#,
        r#""F""#,
        r#""0""#,
        "0",
    ] {
        let outcome = attempt(word)?;
        ensure!(outcome.is_ok(), "pty {word}: {outcome:?}");
    }
    for word in ["true", r#""on""#, r#""yes""#, "1"] {
        match attempt(word)? {
            Ok(()) => bail!("pty {word} accepted"),
            Err(refusal) => refusal.speaks("supervised_command.descriptor")?,
        }
    }
    for word in [r#""maybe""#, r#""""#, "2", "[]"] {
        match attempt(word)? {
            Ok(()) => bail!("pty {word} accepted"),
            Err(refusal) => refusal.has_state("22P02")?,
        }
    }
    Ok(())
}

fn descriptor_letters(db: &Db) -> Result<()> {
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let mut number = 0;
    let mut attempt = |change: &dyn Fn(&mut Value)| -> Result<std::result::Result<(), Refusal>> {
        number += 1;
        let command = Command::new(number);
        let mut changed = command.provider_command(&tenant);
        change(&mut changed);
        attach_text(&mut app, &tenant, &command, &changed.to_string())
    };

    let digits = "1".repeat(64);
    type Change<'a> = &'a dyn Fn(&mut Value);
    let legal: [(&str, Change<'_>); 5] = [
        ("as it is", &|_| {}),
        ("upper-case invocation", &|command| {
            let upper = command["supervision"]["invocationId"]
                .as_str()
                .map(str::to_uppercase);
            command["supervision"]["invocationId"] = json!(upper);
        }),
        ("any hexadecimal and hyphens in the path", &|command| {
            let path = format!("/tmp/opengeni-supervision/{}.sock", "-".repeat(36));
            command["supervision"]["controlPath"] = json!(path);
        }),
        ("no streams yet", &|command| {
            if let Some(members) = command.as_object_mut() {
                members.remove("streams");
            }
        }),
        ("digits only", &|command| {
            command["supervision"]["nonce"] = json!(digits);
        }),
    ];
    for (what, change) in legal {
        let outcome = attempt(change)?;
        ensure!(outcome.is_ok(), "{what}: {outcome:?}");
    }

    let upper_nonce = "A".repeat(64);
    let line_nonce = format!("{}\n", "a".repeat(64));
    let illegal: [(&str, &str, Value); 22] = [
        ("kind", "/kind", json!("modal-control-v1")),
        ("descriptor array", "/supervision", json!(["protocol"])),
        (
            "descriptor string",
            "/supervision",
            json!("native-subreaper-v1"),
        ),
        ("empty descriptor", "/supervision", json!({})),
        (
            "protocol",
            "/supervision/protocol",
            json!("native-subreaper-v2"),
        ),
        (
            "protocol case",
            "/supervision/protocol",
            json!("Native-subreaper-v1"),
        ),
        ("protocol null", "/supervision/protocol", Value::Null),
        ("no UUID", "/supervision/invocationId", json!("x")),
        (
            "UUID in braces",
            "/supervision/invocationId",
            json!("{8b2b0e5c-0000-4000-8000-000000000000}"),
        ),
        (
            "UUID without hyphens",
            "/supervision/invocationId",
            json!("8b2b0e5c000040008000000000000000"),
        ),
        (
            "UUID and newline",
            "/supervision/invocationId",
            json!("8b2b0e5c-0000-4000-8000-000000000000\n"),
        ),
        (
            "full-width digit",
            "/supervision/invocationId",
            json!("８b2b0e5c-0000-4000-8000-000000000000"),
        ),
        ("nonce of 63", "/supervision/nonce", json!("a".repeat(63))),
        ("nonce of 65", "/supervision/nonce", json!("a".repeat(65))),
        ("upper-case nonce", "/supervision/nonce", json!(upper_nonce)),
        ("nonce and newline", "/supervision/nonce", json!(line_nonce)),
        ("nonce null", "/supervision/nonce", Value::Null),
        ("short number as nonce", "/supervision/nonce", json!(7)),
        (
            "path elsewhere",
            "/supervision/controlPath",
            json!(format!("/tmp/other/{}.sock", "a".repeat(36))),
        ),
        (
            "path of 35",
            "/supervision/controlPath",
            json!(format!("/tmp/opengeni-supervision/{}.sock", "a".repeat(35))),
        ),
        (
            "path up",
            "/supervision/controlPath",
            json!(format!(
                "/tmp/opengeni-supervision/../{}.sock",
                "a".repeat(33)
            )),
        ),
        (
            "dot is a dot",
            "/supervision/controlPath",
            json!(format!("/tmp/opengeni-supervision/{}xsock", "a".repeat(36))),
        ),
    ];
    for (what, pointer, replacement) in &illegal {
        let outcome = attempt(&|command| {
            if let Some(place) = command.pointer_mut(pointer) {
                *place = replacement.clone();
            }
        })?;
        match outcome {
            Ok(()) => bail!("{what} accepted"),
            Err(refusal) => refusal
                .speaks("supervised_command.descriptor")
                .with_context(|| what.to_string())?,
        }
    }
    for member in ["protocol", "invocationId", "nonce", "controlPath"] {
        match attempt(&|command| {
            if let Some(members) = command["supervision"].as_object_mut() {
                members.remove(member);
            }
        })? {
            Ok(()) => bail!("accepted without {member}"),
            Err(refusal) => refusal.speaks("supervised_command.descriptor")?,
        }
    }
    match attempt(&|command| command["supervision"]["more"] = Value::Null)? {
        Ok(()) => bail!("another key accepted"),
        Err(refusal) => refusal.speaks("supervised_command.descriptor")?,
    }

    // 64 digits that are a JSON number match the text pattern, as in the original.
    let command = Command::new(1000);
    let text = command
        .provider_command(&tenant)
        .to_string()
        .replace(&format!(r#""{}""#, command.nonce), &digits);
    attached(&mut app, &tenant, &command, &text)
}

fn exit_codes(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let record =
        "UPDATE sandbox_retained_processes SET supervision_receipt = $2::text::jsonb WHERE id = $1";
    let receipt = |code: &str| {
        let text = command.receipt(123_456).to_string();
        text.replace("123456", code)
    };
    for code in [
        "2147483648",
        "-2147483649",
        "7.0",
        "7.5",
        "1e10",
        "1e400",
        r#""7""#,
        "null",
        "true",
        "[7]",
        "99999999999999999999999999999999",
    ] {
        refused(&mut app, record, &[&command.process, &receipt(code)])?
            .speaks("supervised_command.receipt")
            .with_context(|| code.to_string())?;
    }
    for code in ["0", "-1", "2147483647", "-2147483648", "7e1", "-0"] {
        let mut trial = app.transaction()?;
        accepted(&mut trial, record, &[&command.process, &receipt(code)])?;
        trial.rollback()?;
    }

    // 70 and 7e1 are one receipt: recording it again in the other writing changes nothing.
    let first = command.receipt(70).to_string();
    accepted(&mut app, record, &[&command.process, &first])?;
    let rewritten = first.replace(r#""leaderExitCode":70"#, r#""leaderExitCode":7e1"#);
    ensure!(rewritten != first, "the exit code was not found");
    accepted(&mut app, record, &[&command.process, &rewritten])?;
    // 70.0 is equal too, so the proof does not change; as a receipt it is not written as an integer.
    let fraction = first.replace(r#""leaderExitCode":70"#, r#""leaderExitCode":70.0"#);
    refused(&mut app, record, &[&command.process, &fraction])?
        .speaks("supervised_command.receipt")?;
    let other = first.replace(r#""leaderExitCode":70"#, r#""leaderExitCode":71"#);
    refused(&mut app, record, &[&command.process, &other])?
        .speaks("supervised_command.proof_immutable")
}

const LOST: &str = "UPDATE sandbox_retained_processes
     SET state = 'lost', settled_at = now(), settlement_reason = $2 WHERE id = $1";

fn bindings(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    for (setting, reason, rule) in [
        (
            LOSS,
            "provider_instance_lost",
            "supervised_command.typed_loss",
        ),
        (
            REJECTION,
            "provider_start_rejected",
            "supervised_command.launch_rejection",
        ),
    ] {
        refused(&mut app, LOST, &[&command.process, &reason])?.speaks(rule)?;
        for (binding, expected) in [
            ("", Some(rule)),
            ("null", Some(rule)),
            ("{}", Some(rule)),
            ("[]", Some(rule)),
            ("{", None),
            (" ", None),
            ("{\"a\": tru}", None),
        ] {
            let mut session = db.app(&tenant)?;
            set(&mut session, setting, binding)?;
            let refusal = refused(&mut session, LOST, &[&command.process, &reason])?;
            match expected {
                Some(rule) => refusal.speaks(rule),
                None => refusal.has_state("22P02"),
            }
            .with_context(|| format!("{setting} = {binding:?}"))?;
        }
    }

    // A malformed binding speaks before the reason is judged, and is not read where no loss is.
    set(&mut app, LOSS, "{")?;
    refused(&mut app, LOST, &[&command.process, &"something else"])?.has_state("22P02")?;
    accepted(
        &mut app,
        "UPDATE sandbox_retained_processes SET reconcile_attempts = 1 WHERE id = $1",
        &[&command.process],
    )?;

    // Set for one transaction, it reads as empty in the next.
    app.batch_execute(&format!("RESET {LOSS}"))?;
    let mut transaction = app.transaction()?;
    protocol::loss_binding(&tenant.loss_binding()).run(&mut transaction)?;
    transaction.commit()?;
    refused(
        &mut app,
        LOST,
        &[&command.process, &"provider_instance_lost"],
    )?
    .speaks("supervised_command.typed_loss")
}

fn binding_equality(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let exact = tenant.loss_binding();
    let epoch = format!(r#""lostEpoch":{}"#, tenant.epoch);
    let respelled = exact
        .to_string()
        .replace(&epoch, &format!(r#"  "lostEpoch" : {}.0 "#, tenant.epoch));
    ensure!(respelled.contains(".0"), "the epoch was not found");
    set(&mut app, LOSS, &respelled)?;
    let mut trial = app.transaction()?;
    accepted(
        &mut trial,
        LOST,
        &[&command.process, &"provider_instance_lost"],
    )?;
    trial.rollback()?;

    let mut missing = exact.clone();
    missing
        .as_object_mut()
        .context("an object")?
        .remove("lostBackend");
    let mut more = exact.clone();
    more["note"] = json!("x");
    let mut text_epoch = exact.clone();
    text_epoch["lostEpoch"] = json!(tenant.epoch.to_string());
    let mut upper = exact.clone();
    upper["leaseId"] = json!(tenant.lease.to_string().to_uppercase());
    let mut null_instance = exact;
    null_instance["lostInstanceId"] = Value::Null;
    for other in [missing, more, text_epoch, upper, null_instance] {
        set(&mut app, LOSS, &other.to_string())?;
        refused(
            &mut app,
            LOST,
            &[&command.process, &"provider_instance_lost"],
        )?
        .speaks("supervised_command.typed_loss")
        .with_context(|| other.to_string())?;
    }
    Ok(())
}
