//! Output evidence: what must never vanish (D11), and rows that were already broken (D3).

use anyhow::{Context, Result, bail};
use libtest_mimic::Trial;
use opengeni_guards_harness::demo::protocol::{self, Command, Cursor, streams};
use opengeni_guards_harness::server::Server;
use postgres::{Client, GenericClient};
use serde_json::{Value, json};

use crate::support::*;

pub fn trials(server: &Server) -> Vec<Trial> {
    vec![
        case(
            server,
            "evidence: streams, a stream or an offset that was there cannot vanish (D11)",
            nothing_vanishes,
        ),
        case(
            server,
            "evidence: the end of a stream, and its exit code, are final",
            ends_are_final,
        ),
        case(
            server,
            "evidence: a changed cursor has to be well-formed",
            changed_cursors,
        ),
        case(
            server,
            "evidence: an attached cursor has to be well-formed, an absent one is legal",
            attached_cursors,
        ),
        case(
            server,
            "evidence: a row with malformed streams can be touched and cancelled (D3)",
            poisoned_rows_are_touched,
        ),
        case(
            server,
            "evidence: a row with malformed streams can be lost with its provider (D3)",
            poisoned_rows_are_lost,
        ),
        case(
            server,
            "evidence: a row with malformed streams can be repaired and settled (D3)",
            poisoned_rows_are_repaired,
        ),
        case(
            server,
            "evidence: a malformed member sets no floor, its well-formed neighbour does (D3)",
            floors_beside_malformed_members,
        ),
        case(
            server,
            "evidence: the capture setting names exactly this process",
            setting_names_process,
        ),
    ]
}

const MOVE: &str = "UPDATE sandbox_retained_processes SET provider_command = $2 WHERE id = $1";

/// A command whose streams are at this place, planted past the guard.
fn at(db: &Db, place: Option<Value>) -> Result<(Client, Command, Value)> {
    let (tenant, command) = db.supervised()?;
    let mut whole = command.provider_command(&tenant);
    put(&mut whole, place);
    db.plant(MOVE, &[&command.process, &whole])?;
    let mut app = db.app(&tenant)?;
    set(&mut app, CAPTURE, &command.process.to_string())?;
    Ok((app, command, whole))
}

fn put(whole: &mut Value, place: Option<Value>) {
    match place {
        Some(place) => whole["streams"] = place,
        None => {
            if let Some(members) = whole.as_object_mut() {
                members.remove("streams");
            }
        }
    }
}

/// Moves the streams to `place`, judged by the guard and taken back.
fn moved(
    client: &mut impl GenericClient,
    command: &Command,
    whole: &Value,
    place: Option<Value>,
) -> Result<Option<Refusal>> {
    let mut next = whole.clone();
    put(&mut next, place);
    let mut attempt = client.transaction()?;
    let outcome = attempt.execute(MOVE, &[&command.process, &next]);
    attempt.rollback()?;
    outcome.err().map(|error| Refusal::of(&error)).transpose()
}

fn passes(app: &mut Client, command: &Command, whole: &Value, place: Value) -> Result<()> {
    match moved(app, command, whole, Some(place.clone()))? {
        None => Ok(()),
        Some(refusal) => bail!("{place} refused: {refusal:?}"),
    }
}

fn fails(
    app: &mut Client,
    command: &Command,
    whole: &Value,
    place: Option<Value>,
    rule: &str,
) -> Result<()> {
    match moved(app, command, whole, place.clone())? {
        None => bail!("{place:?} accepted, should have been {rule}"),
        Some(refusal) => refusal.speaks(rule).with_context(|| format!("{place:?}")),
    }
}

const REGRESS: &str = "supervised_command.output_regress";
const CURSOR: &str = "supervised_command.stream_cursor";

fn cursor(offset: i64, eof: bool, exit_code: Option<i32>) -> Value {
    Cursor {
        eof,
        exit_code,
        ..Cursor::at(offset)
    }
    .json()
}

fn pair(stdout: Value, stderr: Value) -> Value {
    json!({ "stdout": stdout, "stderr": stderr })
}

/// The value without one member.
fn without(mut value: Value, member: &str) -> Value {
    if let Some(members) = value.as_object_mut() {
        members.remove(member);
    }
    value
}

/// The value with one member replaced.
fn with(mut value: Value, member: &str, replacement: Value) -> Value {
    value[member] = replacement;
    value
}

fn nothing_vanishes(db: &Db) -> Result<()> {
    let there = pair(cursor(9, false, None), cursor(5, false, None));
    let (mut app, command, whole) = at(db, Some(there.clone()))?;
    let mut gone = vec![None];
    for no_object in [json!(null), json!([]), json!("x"), json!(7), json!(true)] {
        gone.push(Some(no_object.clone()));
        for stream in ["stdout", "stderr"] {
            gone.push(Some(with(there.clone(), stream, no_object.clone())));
        }
    }
    gone.push(Some(json!({})));
    for stream in ["stdout", "stderr"] {
        gone.push(Some(without(there.clone(), stream)));
        let place = there[stream].clone();
        gone.push(Some(with(there.clone(), stream, json!({}))));
        gone.push(Some(with(
            there.clone(),
            stream,
            without(place.clone(), "byteOffset"),
        )));
        gone.push(Some(with(
            there.clone(),
            stream,
            with(place, "byteOffset", Value::Null),
        )));
    }
    for place in gone {
        fails(&mut app, &command, &whole, place, REGRESS)?;
    }
    // Both streams moving on, or one of them, is what is left.
    passes(
        &mut app,
        &command,
        &whole,
        pair(cursor(10, false, None), cursor(6, false, None)),
    )?;
    passes(
        &mut app,
        &command,
        &whole,
        with(there, "stderr", cursor(6, false, None)),
    )
}

fn ends_are_final(db: &Db) -> Result<()> {
    let open = cursor(9, false, None);
    let ended = cursor(9, true, None);
    // At its end without an exit code: only the exit code may come.
    let (mut app, command, whole) = at(db, Some(pair(ended.clone(), open.clone())))?;
    passes(
        &mut app,
        &command,
        &whole,
        pair(cursor(9, true, Some(3)), open.clone()),
    )?;
    for place in [
        cursor(10, true, None),
        cursor(9, false, None),
        with(ended.clone(), "utf8Remainder", json!("4g==")),
        with(ended.clone(), "more", json!(1)),
        with(ended, "eof", json!("true")),
    ] {
        fails(
            &mut app,
            &command,
            &whole,
            Some(pair(place, open.clone())),
            REGRESS,
        )?;
    }
    // With an exit code nothing may change any more, end or not.
    for eof in [true, false] {
        let done = cursor(9, eof, Some(0));
        let (mut app, command, whole) = at(db, Some(pair(open.clone(), done.clone())))?;
        for place in [
            cursor(10, eof, Some(0)),
            cursor(9, eof, Some(1)),
            cursor(9, eof, None),
            without(done.clone(), "exitCode"),
            with(done.clone(), "more", json!(1)),
        ] {
            fails(
                &mut app,
                &command,
                &whole,
                Some(pair(open.clone(), place)),
                REGRESS,
            )?;
        }
        passes(
            &mut app,
            &command,
            &whole,
            pair(cursor(10, false, None), done),
        )?;
    }
    Ok(())
}

/// Cursors that no writer of the protocol writes.
fn malformed() -> Vec<Value> {
    let place = cursor(20, false, None);
    let mut places = Vec::new();
    for (member, values) in [
        (
            "byteOffset",
            vec![
                json!("abc"),
                json!(20.5),
                json!("1e3"),
                json!(true),
                json!([20]),
            ],
        ),
        ("utf8Remainder", vec![json!(null), json!(5), json!(["x"])]),
        (
            "eof",
            vec![json!(null), json!("true"), json!("maybe"), json!(0)],
        ),
        (
            "exitCode",
            vec![json!("0"), json!(1.5), json!(true), json!([0])],
        ),
    ] {
        for value in values {
            places.push(with(place.clone(), member, value));
        }
    }
    places.push(without(place.clone(), "utf8Remainder"));
    places.push(without(place, "eof"));
    places
}

fn changed_cursors(db: &Db) -> Result<()> {
    let start = cursor(0, false, None);
    let (mut app, command, whole) = at(db, Some(pair(start.clone(), start.clone())))?;
    for place in malformed() {
        for streams in [
            pair(place.clone(), start.clone()),
            pair(start.clone(), place.clone()),
        ] {
            if place["byteOffset"] == 20 {
                fails(&mut app, &command, &whole, Some(streams), CURSOR)?;
            } else {
                // Compared with the old offset first, as in the original: the cast fails.
                moved(&mut app, &command, &whole, Some(streams))?
                    .with_context(|| format!("{place} accepted"))?
                    .has_state("22P02")?;
            }
        }
    }
    passes(
        &mut app,
        &command,
        &whole,
        pair(cursor(20, false, Some(-1)), start.clone()),
    )?;
    passes(
        &mut app,
        &command,
        &whole,
        pair(
            start.clone(),
            with(cursor(20, false, None), "more", json!(1)),
        ),
    )?;

    // Nothing to compare with: the cursor itself is judged.
    let poison = with(start.clone(), "byteOffset", json!("no offset"));
    let (mut app, command, whole) = at(db, Some(pair(poison, start.clone())))?;
    for place in malformed() {
        fails(
            &mut app,
            &command,
            &whole,
            Some(pair(place, start.clone())),
            CURSOR,
        )?;
    }
    let (mut app, command, whole) = at(db, None)?;
    for place in malformed() {
        fails(
            &mut app,
            &command,
            &whole,
            Some(pair(place, start.clone())),
            CURSOR,
        )?;
    }
    passes(&mut app, &command, &whole, pair(start.clone(), start))
}

fn attached_cursors(db: &Db) -> Result<()> {
    let start = cursor(0, false, None);
    let tenant = db.tenant()?;
    let mut app = db.app(&tenant)?;
    let mut attach = |place: Option<Value>| -> Result<Option<Refusal>> {
        let command = Command::new(1);
        let mut attempt = app.transaction()?;
        run(&mut attempt, &protocol::admit(&tenant, &command))?;
        run(&mut attempt, &protocol::retain(&tenant, &command))?;
        moved(
            &mut attempt,
            &command,
            &command.provider_command(&tenant),
            place,
        )
    };
    let mut refused = vec![json!([]), json!("x"), json!(null), json!(7)];
    refused.push(pair(cursor(-1, false, None), start.clone()));
    for place in malformed() {
        refused.push(pair(start.clone(), place));
    }
    refused.push(pair(json!("x"), start.clone()));
    for place in refused {
        attach(Some(place.clone()))?
            .with_context(|| format!("{place} accepted"))?
            .speaks(CURSOR)
            .with_context(|| place.to_string())?;
    }
    // Terminal streams at once are legal as well.
    let done = cursor(9, true, Some(0));
    for place in [
        None,
        Some(json!({})),
        Some(json!({ "stdout": start.clone() })),
        Some(pair(done.clone(), done)),
        Some(pair(start.clone(), start)),
    ] {
        let refusal = attach(place.clone())?;
        anyhow::ensure!(refusal.is_none(), "{place:?}: {refusal:?}");
    }
    Ok(())
}

/// Streams as old or foreign writers left them; the original answers any later write with 22P02 or 22003.
fn poisons() -> Vec<Value> {
    let fine = cursor(7, false, None);
    vec![
        pair(with(fine.clone(), "byteOffset", json!("abc")), fine.clone()),
        pair(fine.clone(), with(fine.clone(), "byteOffset", json!(1.5))),
        pair(
            with(fine.clone(), "byteOffset", json!("99999999999999999999")),
            fine.clone(),
        ),
        pair(with(fine.clone(), "eof", json!("maybe")), fine.clone()),
        pair(fine.clone(), with(fine.clone(), "eof", json!(7))),
        pair(with(fine.clone(), "exitCode", json!("soon")), fine.clone()),
        pair(json!([1, 2]), fine.clone()),
        pair(json!("nothing"), json!(null)),
        json!({ "stdout": fine }),
        json!([]),
        json!("streams"),
        json!(null),
    ]
}

fn poisoned_rows_are_touched(db: &Db) -> Result<()> {
    for poison in poisons() {
        let (mut app, command, _) = at(db, Some(poison.clone()))?;
        app.batch_execute(&format!("RESET {CAPTURE}"))?;
        for sql in [
            "UPDATE sandbox_retained_processes
               SET reconcile_attempts = 1, reconcile_claim_id = gen_random_uuid(), reconcile_claimed_at = now()
             WHERE id = $1",
            "UPDATE sandbox_retained_processes SET provider_command = provider_command WHERE id = $1",
            "UPDATE sandbox_retained_processes
               SET cancellation_requested_at = now(), cancellation_reason = 'explicit_stop' WHERE id = $1",
        ] {
            accepted(&mut app, sql, &[&command.process]).with_context(|| poison.to_string())?;
        }
        // It is evidence like any other.
        refused(
            &mut app,
            "DELETE FROM sandbox_retained_processes WHERE id = $1",
            &[&command.process],
        )?
        .speaks("supervised_command.delete_unsettled")?;
    }
    Ok(())
}

fn poisoned_rows_are_lost(db: &Db) -> Result<()> {
    for poison in poisons() {
        let (tenant, command) = db.supervised()?;
        let mut whole = command.provider_command(&tenant);
        put(&mut whole, Some(poison.clone()));
        db.plant(MOVE, &[&command.process, &whole])?;
        commit(
            &mut db.app(&tenant)?,
            &[protocol::lose_provider(&tenant, &command)],
        )
        .with_context(|| poison.to_string())?;
    }
    Ok(())
}

fn poisoned_rows_are_repaired(db: &Db) -> Result<()> {
    for poison in poisons() {
        let (tenant, command) = db.supervised()?;
        let mut whole = command.provider_command(&tenant);
        put(&mut whole, Some(poison.clone()));
        db.plant(MOVE, &[&command.process, &whole])?;
        let mut app = db.app(&tenant)?;
        let context = || poison.to_string();
        // A repair is a capture: outside the protocol it is refused like any other.
        let ends = || streams(&Cursor::end(20), &Cursor::end(20));
        step_refused(
            &mut app,
            &[protocol::uncovered_capture(&command, ends(), false)],
        )?
        .speaks("supervised_command.capture_protocol")
        .with_context(context)?;
        commit(
            &mut app,
            &[protocol::record_receipt(&command, command.receipt(0))],
        )
        .with_context(context)?;
        commit(&mut app, &[protocol::capture(&command, ends(), true)]).with_context(context)?;
        commit(&mut app, &[protocol::settle(&tenant, &command, 0)]).with_context(context)?;
    }
    Ok(())
}

fn floors_beside_malformed_members(db: &Db) -> Result<()> {
    let fine = cursor(7, false, None);
    // An offset of the wrong type sets no floor for itself; the other stream's floor stands.
    let poison = pair(with(fine.clone(), "byteOffset", json!("abc")), fine.clone());
    let (mut app, command, whole) = at(db, Some(poison))?;
    passes(
        &mut app,
        &command,
        &whole,
        pair(cursor(0, false, None), fine.clone()),
    )?;
    let back = pair(cursor(0, false, None), cursor(6, false, None));
    fails(&mut app, &command, &whole, Some(back), REGRESS)?;

    // An end of the wrong type does not close the stream; its offset still counts.
    let poison = pair(with(fine.clone(), "eof", json!("maybe")), fine.clone());
    let (mut app, command, whole) = at(db, Some(poison))?;
    passes(
        &mut app,
        &command,
        &whole,
        pair(cursor(8, false, None), fine.clone()),
    )?;
    let back = pair(cursor(6, false, None), fine.clone());
    fails(&mut app, &command, &whole, Some(back), REGRESS)?;

    // The word "true" is an end written wrongly: writing it right is a repair, anything else is not.
    let poison = pair(with(fine.clone(), "eof", json!("true")), fine.clone());
    let (mut app, command, whole) = at(db, Some(poison))?;
    passes(
        &mut app,
        &command,
        &whole,
        pair(cursor(7, true, None), fine.clone()),
    )?;
    Ok(())
}

fn setting_names_process(db: &Db) -> Result<()> {
    let (tenant, command) = db.supervised()?;
    let mut app = db.app(&tenant)?;
    let own = command.process.to_string();
    let next = || streams(&Cursor::at(1), &Cursor::START);
    for wrong in [
        String::new(),
        own.to_uppercase(),
        own.replace('-', ""),
        format!("{own} "),
        format!("{{{own}}}"),
        Command::new(1).process.to_string(),
        "1".to_string(),
    ] {
        set(&mut app, CAPTURE, &wrong)?;
        step_refused(
            &mut app,
            &[protocol::uncovered_capture(&command, next(), false)],
        )?
        .speaks("supervised_command.capture_protocol")
        .with_context(|| format!("{wrong:?}"))?;
    }
    set(&mut app, CAPTURE, &own)?;
    commit(
        &mut app,
        &[vec![protocol::uncovered_capture(&command, next(), false)]],
    )
}
