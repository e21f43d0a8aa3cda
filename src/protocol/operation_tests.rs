//! Properties of the retained-command decisions: which documents are commands, which pages follow which cursor.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::contract::{self, MAX_SAFE, Protocol};
use super::fence::{Change, Fenced};
use super::input::{self, Reserved};
use super::output::{self, Flaw, PAGE_BOUND};
use super::receipt;

fn cursor(offset: i64, remainder: &str, eof: bool, exit_code: Option<i32>) -> Value {
    json!({"byteOffset": offset, "utf8Remainder": remainder, "eof": eof, "exitCode": exit_code})
}

fn router(stdout: Value, stderr: Value) -> Value {
    json!({
        "kind": "modal-router-v1", "sandboxId": "sb", "taskId": "ta", "execId": "ex",
        "streams": {"stdout": stdout, "stderr": stderr},
    })
}

fn start() -> Value {
    cursor(0, "", false, None)
}

fn control(stdout: i64, exit_code: Option<i32>) -> Value {
    let batch = |index: i64, code: Option<i32>| json!({"batchIndex": index, "utf8Remainder": "", "exitCode": code});
    json!({
        "kind": "modal-control-v1", "sandboxId": "sb", "taskId": "ta", "execId": "ex",
        "streams": {"stdout": batch(stdout, exit_code), "stderr": batch(0, None)},
    })
}

#[test]
fn a_command_has_exactly_the_published_members() {
    assert_eq!(
        contract::parse(&router(start(), start())),
        Ok(Protocol::Router)
    );
    assert_eq!(contract::parse(&control(3, Some(1))), Ok(Protocol::Control));
    let wrong = |path: &[&str], value: Value| {
        let mut command = router(start(), start());
        let mut at = &mut command;
        for key in path {
            at = &mut at[*key];
        }
        *at = value;
        assert!(contract::parse(&command).is_err(), "{command}");
    };
    wrong(&["kind"], json!("modal-router-v2"));
    wrong(&["kind"], json!(1));
    wrong(&["sandboxId"], json!(""));
    wrong(&["taskId"], json!("x".repeat(201)));
    wrong(&["execId"], json!(7));
    wrong(&["pty"], json!("true"));
    wrong(&["other"], json!(1));
    wrong(&["supervision"], Value::Null);
    wrong(&["supervision"], json!({"protocol": "native-subreaper-v1"}));
    wrong(&["streams"], json!([]));
    wrong(&["streams", "third"], start());
    wrong(&["streams", "stdout"], Value::Null);
    wrong(&["streams", "stdout", "byteOffset"], json!(-1));
    wrong(&["streams", "stdout", "byteOffset"], json!(MAX_SAFE + 1));
    wrong(&["streams", "stdout", "byteOffset"], json!("0"));
    wrong(&["streams", "stdout", "byteOffset"], json!(0.5));
    wrong(&["streams", "stdout", "utf8Remainder"], json!("a b"));
    wrong(&["streams", "stdout", "utf8Remainder"], json!("AAAAAAAAA"));
    wrong(&["streams", "stdout", "utf8Remainder"], json!("===="));
    wrong(&["streams", "stdout", "eof"], json!("true"));
    // Whoever knows the exit code has read to the end.
    wrong(&["streams", "stdout", "exitCode"], json!(0));
    wrong(&["streams", "stdout", "batchIndex"], json!(0));
}

#[test]
fn each_flaw_of_a_page_has_its_name() {
    let page = |before: Value, after: Value, bytes: usize| {
        output::advance(
            &router(before, start()),
            &router(after, start()),
            [bytes, 0],
        )
        .map_err(|(flaw, _)| flaw)
    };
    let end = |offset, code| cursor(offset, "", true, code);
    assert_eq!(page(start(), cursor(5, "4g==", false, None), 4), Ok(()));
    assert_eq!(
        page(cursor(5, "", false, None), start(), 0),
        Err(Flaw::Regress)
    );
    assert_eq!(
        page(end(5, None), cursor(5, "", false, None), 0),
        Err(Flaw::Regress)
    );
    assert_eq!(page(end(5, None), end(6, None), 1), Err(Flaw::Regress));
    assert_eq!(
        page(end(5, Some(0)), end(5, Some(1)), 0),
        Err(Flaw::Regress)
    );
    assert_eq!(page(end(5, None), end(5, Some(0)), 0), Ok(()));
    assert_eq!(page(start(), start(), 1), Err(Flaw::NoAdvance));
    assert_eq!(
        page(start(), cursor(0, "4g==", false, None), 0),
        Err(Flaw::NoAdvance)
    );
    assert_eq!(page(start(), start(), 0), Ok(()));
    // The first end of file may flush what is pending without reading on.
    assert_eq!(
        page(cursor(5, "4g==", false, None), end(5, None), 3),
        Ok(())
    );
    assert_eq!(page(end(5, None), end(5, Some(0)), 3), Err(Flaw::NoAdvance));
    assert_eq!(
        page(start(), cursor(5, "4g==", true, None), 4),
        Err(Flaw::Remainder)
    );
    assert_eq!(
        page(start(), cursor(9, "", false, None), PAGE_BOUND),
        Ok(())
    );
    assert_eq!(
        page(start(), cursor(9, "", false, None), PAGE_BOUND + 1),
        Err(Flaw::Bound)
    );
    let mut other = router(start(), start());
    other["execId"] = json!("another");
    let moved = output::advance(&router(start(), start()), &other, [0, 0]);
    assert_eq!(moved.map_err(|(flaw, _)| flaw), Err(Flaw::Execution));
}

#[test]
fn pty_given_as_false_is_pty_not_given() {
    let (plain, mut given) = (router(start(), start()), router(start(), start()));
    given["pty"] = json!(false);
    assert_eq!(contract::other_execution(&plain, &given), 0);
    given["pty"] = json!(true);
    assert_ne!(contract::other_execution(&plain, &given), 0);
}

#[test]
fn acknowledgements_only_move_on() {
    let of = |recorded: Value, next: Value| output::acknowledge(&recorded, &next).ok();
    assert_eq!(of(control(2, None), control(3, None)), Some([true, false]));
    assert_eq!(of(control(3, None), control(2, None)), Some([false, false]));
    assert_eq!(of(control(3, None), control(3, None)), Some([false, false]));
    assert_eq!(of(control(3, None), control(3, Some(0))), None);
    assert_eq!(of(control(3, Some(0)), control(4, Some(0))), None);
    assert_eq!(
        of(control(3, Some(0)), control(2, None)),
        Some([false, false])
    );
}

#[test]
fn receipts_have_the_published_shape() {
    let good = json!({
        "protocol": "native-subreaper-v1", "invocationId": uuid::Uuid::new_v4().to_string(),
        "receiptId": uuid::Uuid::new_v4().to_string(), "leaderExitCode": -1,
    });
    assert_eq!(receipt::well_formed(&good), Ok(()));
    for (key, value) in [
        ("protocol", json!("other")),
        ("invocationId", json!("x")),
        ("receiptId", Value::Null),
        ("leaderExitCode", json!("0")),
        ("leaderExitCode", json!(1_i64 << 40)),
        ("other", json!(1)),
    ] {
        let mut bad = good.clone();
        bad[key] = value;
        assert!(receipt::well_formed(&bad).is_err(), "{bad}");
    }
    assert!(receipt::well_formed(&json!([])).is_err());
}

proptest! {
    /// Every reservation is above the last, never past the largest exact integer.
    #[test]
    fn reservations_do_not_overlap(
        protocol in prop_oneof![Just(Protocol::Control), Just(Protocol::Router)],
        index in 0..=MAX_SAFE,
        length in prop::option::of(any::<i64>()),
    ) {
        match input::reserve(protocol, index, length) {
            Ok(Reserved { index: next, answer }) => {
                prop_assert!(next > index && next <= MAX_SAFE);
                match protocol {
                    Protocol::Control => prop_assert_eq!((next, answer), (index + 1, next)),
                    Protocol::Router => prop_assert_eq!((Some(next - index), answer), (length, index)),
                }
            }
            Err(input::Flaw::Length) => prop_assert!(
                protocol == Protocol::Router && !length.is_some_and(|n| (1..=MAX_SAFE).contains(&n))
            ),
            Err(input::Flaw::Exhausted) => {
                let step = if protocol == Protocol::Router { length.unwrap_or(0) } else { 1 };
                prop_assert!(index > MAX_SAFE - step);
            }
        }
    }

    /// Two readers of one stream, in any order, each from the cursor that it saw last: what is captured is the
    /// stream, each byte once and in order, however characters are split.
    #[test]
    fn two_readers_store_each_byte_once(
        text in "\\PC{0,40}",
        turns in prop::collection::vec((0..2usize, 1..6usize), 0..80),
    ) {
        let bytes = text.as_bytes();
        let mut recorded = (0, false);
        let mut seen = [recorded; 2];
        let mut captured = String::new();
        let document = |(offset, eof): (usize, bool)| {
            let pending = &bytes[..offset];
            let whole = std::str::from_utf8(pending).map_or_else(|e| e.valid_up_to(), str::len);
            let remainder = if eof { String::new() } else { base64(&pending[whole..]) };
            (whole, router(cursor(offset as i64, &remainder, eof, None), start()))
        };
        // In the end each reads on until nothing is left.
        let rest = std::iter::repeat_n([(0, 5), (1, 5)], 2 * bytes.len() + 4).flatten();
        for (reader, size) in turns.into_iter().chain(rest) {
            let from = seen[reader];
            let end = (from.0 + size).min(bytes.len());
            let next = (end, from.1 || from.0 == bytes.len());
            let ((start, before), (stop, after)) = (document(from), document(next));
            let page = &text[start..stop];
            prop_assert_eq!(contract::parse(&after), Ok(Protocol::Router));
            prop_assert_eq!(output::advance(&before, &after, [page.len(), 0]), Ok(()));
            if document(recorded).1 == before {
                captured.push_str(page);
                recorded = next;
            }
            seen[reader] = recorded;
        }
        prop_assert_eq!(captured, text);
        prop_assert!(recorded.1);
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let word = bytes
        .iter()
        .fold(0_u32, |word, b| word << 8 | u32::from(*b))
        << (8 * (3 - bytes.len()));
    let digits = (0..4).map(|i| DIGITS[(word >> (18 - 6 * i) & 63) as usize] as char);
    match bytes.len() {
        0 => String::new(),
        n => digits
            .take(n + 1)
            .chain(std::iter::repeat_n('=', 3 - n))
            .collect(),
    }
}

const ENROLLMENT: &str = "BEGIN
  IF p_scope = 'organization' THEN
    PERFORM 1;
  ELSIF p_scope = 'user' THEN
    SELECT membership.* INTO STRICT owner_membership
    FROM organization_memberships membership
    WHERE membership.account_id = p_account_id AND membership.subject_id = caller_subject
      AND membership.status = 'active' AND membership.revoked_at IS NULL FOR SHARE;
  END IF;
END";
const WORKSPACE: &str = "BEGIN
  PERFORM 1 FROM workspaces workspace
  WHERE workspace.account_id = account_id_value AND workspace.id = workspace_id_value;
  IF NOT FOUND THEN
    RETURN '[]';
  END IF;
END";

#[test]
fn a_fence_is_put_in_once() {
    for (fenced, body, call) in [
        (
            Fenced::Enrollment,
            ENROLLMENT,
            "enrollment_membership_fence(p_account_id)",
        ),
        (
            Fenced::Workspace,
            WORKSPACE,
            "workspace_membership_fence(account_id_value)",
        ),
    ] {
        let Change::Body(once) = fenced.install(body) else {
            panic!("{fenced:?}")
        };
        assert!(once.contains(call), "{once}");
        assert!(!once.contains("FOR SHARE"), "{once}");
        assert_eq!(fenced.install(&once), Change::Present, "{once}");
        // What lies around it stays as it was.
        let line = format!("PERFORM opengeni_guards.{call};\n");
        let indent = once[once.find(&line).unwrap_or(0) + line.len()..].len();
        let kept = once[..once.len() - indent]
            .trim_end_matches(&line)
            .trim_end()
            .len();
        assert_eq!(once[..kept], body[..kept]);
        // Layout, comments and case do not matter, words do.
        let folded = body
            .to_lowercase()
            .replace('\n', " /* x /* y */ */ -- z\n\t");
        assert!(
            matches!(fenced.install(&folded), Change::Body(_)),
            "{folded}"
        );
        let other = body
            .replace("account_id_value", "account_id")
            .replace("'active'", "'Active'");
        assert_eq!(fenced.install(&other), Change::Drift);
        assert_eq!(fenced.install(&format!("{body}\n{body}")), Change::Drift);
        assert_eq!(fenced.install(&format!("{once}\n{body}")), Change::Drift);
        assert_eq!(fenced.install(&format!("{once}\n{once}")), Change::Drift);
        assert_eq!(
            fenced.install(&format!("-- {}", body.replace('\n', " "))),
            Change::Drift
        );
        assert_eq!(
            fenced.install(&format!("x := $q$ {body} $q$;")),
            Change::Drift
        );
        assert_eq!(fenced.install(""), Change::Drift);
    }
}

/// The application's own migration writes the fence out.
#[test]
fn a_fence_written_out_is_a_fence() {
    let inlined = |account: &str, what: &str| {
        format!(
            "IF NOT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(
      'organization-membership:' || {account}::text, 0
    )) THEN
      RAISE EXCEPTION '{what} membership is changing; retry the transaction'
        USING ERRCODE = '55P03';
    END IF;\n"
        )
    };
    let enrollment = ENROLLMENT
        .replace(
            "    SELECT",
            &format!("{}    SELECT", inlined("p_account_id", "enrollment")),
        )
        .replace(" FOR SHARE", "");
    assert_eq!(Fenced::Enrollment.install(&enrollment), Change::Present);
    let workspace = WORKSPACE.replace(
        "  PERFORM 1",
        &format!("{}  PERFORM 1", inlined("account_id_value", "workspace")),
    );
    assert_eq!(Fenced::Workspace.install(&workspace), Change::Present);
}

proptest! {
    /// Whatever a body holds, it is read to its end.
    #[test]
    fn any_body_is_read(body in "[a-z'\"$*/ \\-\\n\\\\Eé]{0,80}") {
        prop_assert_eq!(Fenced::Enrollment.install(&body), Change::Drift);
        prop_assert_eq!(Fenced::Workspace.install(&body), Change::Drift);
    }
}
