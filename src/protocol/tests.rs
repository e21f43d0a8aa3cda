//! Properties of the decisions, with documents read by `serde_json` and shapes checked against the
//! published patterns.

use std::borrow::Cow;

use proptest::prelude::*;
use regex::bytes::Regex;
use serde_json::{Value, json};

use super::json::{Json, Kind};
use super::loss::{self, Expected};
use super::refusal::Rule;
use super::{cancellation, command, descriptor, receipt, shape, streams};

impl Json for &Value {
    fn kind(self) -> Kind {
        match self {
            Value::Null => Kind::Null,
            Value::Bool(_) => Kind::Boolean,
            Value::Number(_) => Kind::Number,
            Value::String(_) => Kind::String,
            Value::Array(_) => Kind::Array,
            Value::Object(_) => Kind::Object,
        }
    }

    fn member(self, key: &[u8]) -> Option<Self> {
        self.as_object()?.get(std::str::from_utf8(key).ok()?)
    }

    fn has(self, key: &str) -> bool {
        match self {
            Value::Object(members) => members.contains_key(key),
            Value::Array(items) => items.iter().any(|item| item == key),
            Value::String(text) => text == key,
            _ => false,
        }
    }

    fn text<'a>(self) -> Option<Cow<'a, [u8]>>
    where
        Self: 'a,
    {
        Some(match self {
            Value::Null => return None,
            Value::String(text) => Cow::Borrowed(text.as_bytes()),
            other => Cow::Owned(other.to_string().into_bytes()),
        })
    }

    fn same(self, other: Self) -> bool {
        self == other
    }

    fn is_number(self, n: i64) -> bool {
        self.as_i64() == Some(n)
    }

    fn as_bigint(self) -> Option<i64> {
        std::str::from_utf8(&self.text()?).ok()?.trim().parse().ok()
    }

    fn to_bigint(self) -> Option<i64> {
        self.text()?;
        Some(self.as_bigint().expect("the server would raise 22P02"))
    }

    fn as_boolean(self) -> Option<bool> {
        match &*self.text()? {
            b"true" | b"t" | b"on" | b"yes" | b"1" => Some(true),
            b"false" | b"f" | b"off" | b"no" | b"0" => Some(false),
            _ => None,
        }
    }

    fn to_boolean(self) -> Option<bool> {
        self.text()?;
        Some(self.as_boolean().expect("the server would raise 22P02"))
    }

    fn every_member(self, mut f: impl FnMut(&[u8], Self) -> bool) -> bool {
        self.as_object()
            .is_none_or(|members| members.iter().all(|(k, v)| f(k.as_bytes(), v)))
    }
}

/// Any JSON value of a few levels.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9-]{0,40}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,3}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn a_descriptor() -> Value {
    json!({
        "protocol": "native-subreaper-v1",
        "invocationId": uuid::Uuid::new_v4().to_string(),
        "nonce": "0f".repeat(32),
        "controlPath": format!("/tmp/opengeni-supervision/{}.sock", uuid::Uuid::new_v4()),
    })
}

fn a_command(descriptor: &Value) -> Value {
    json!({"kind": "modal-router-v1", "supervision": descriptor})
}

fn a_receipt(descriptor: &Value, exit_code: i32) -> Value {
    json!({
        "protocol": descriptor["protocol"],
        "invocationId": descriptor["invocationId"],
        "receiptId": uuid::Uuid::new_v4().to_string(),
        "leaderExitCode": exit_code,
    })
}

fn a_cursor(offset: i64, remainder: &str, eof: bool, exit_code: Option<i32>) -> Value {
    json!({"byteOffset": offset, "utf8Remainder": remainder, "eof": eof, "exitCode": exit_code})
}

fn both(cursor: &Value) -> Value {
    json!({"stdout": cursor, "stderr": cursor})
}

proptest! {
    #[test]
    fn hand_written_shapes_agree_with_the_patterns(
        text in prop_oneof![
            "[0-9a-fA-F-]{34,38}",
            "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
            "[0-9a-f]{63,65}",
            "[0-9a-fA-F]{64}",
            "/tmp/opengeni-supervision/[a-f0-9-]{35,37}\\.sock",
            "/tmp/opengeni-supervision/[a-z0-9-]{36}.sock\n?",
            "-?[0-9]{0,12}[.e]?[0-9]?",
            any::<String>(),
        ]
    ) {
        let is = |pattern: &str| Regex::new(pattern).unwrap().is_match(text.as_bytes());
        let text = text.as_bytes();
        let uuid = r"\A[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z";
        prop_assert_eq!(shape::is_uuid(text), is(uuid));
        prop_assert_eq!(shape::is_nonce(text), is(r"\A[0-9a-f]{64}\z"));
        let path = r"\A/tmp/opengeni-supervision/[a-f0-9-]{36}\.sock\z";
        prop_assert_eq!(shape::is_control_path(text), is(path));
        prop_assert_eq!(shape::is_integer(text), is(r"\A-?[0-9]+\z"));
    }

    #[test]
    fn int4_is_parsed_within_its_range(n in any::<i64>(), near in -3i64..=3) {
        for n in [n, i64::from(i32::MAX) + near, i64::from(i32::MIN) + near] {
            prop_assert_eq!(shape::parse_int4(n.to_string().as_bytes()), i32::try_from(n).ok());
        }
    }

    #[test]
    fn long_numbers_neither_overflow_nor_pass(digits in "-?[1-9][0-9]{10,400}") {
        prop_assert_eq!(shape::parse_int4(digits.as_bytes()), None);
    }

    #[test]
    fn uuids_are_written_as_the_uuid_crate_writes_them(bytes in any::<[u8; 16]>()) {
        let expected = uuid::Uuid::from_bytes(bytes).to_string();
        prop_assert_eq!(&shape::uuid_text(&bytes)[..], expected.as_bytes());
    }

    #[test]
    fn no_document_makes_a_decision_panic(a in any_json(), b in any_json()) {
        let _ = command::supervised(Some(&a));
        let _ = command::same_without_streams(&a, &b);
        let _ = descriptor::validate(&a, &b);
        let _ = receipt::validate(&a, &b);
        let _ = streams::well_formed(Some(&a));
        let _ = streams::complete(Some(&a));
        let _ = streams::pristine(Some(&a));
        let _ = streams::regress(Some(&both(&a)), None);
        let _ = loss::binds(Some(&a), &[("b", Expected::Json(&b))]);
    }

    #[test]
    fn any_other_member_spoils_a_descriptor(key in "[a-zA-Z]{1,12}", value in any_json()) {
        let descriptor = a_descriptor();
        prop_assume!(descriptor.get(&key) != Some(&value));
        let command = a_command(&descriptor);
        prop_assert_eq!(descriptor::validate(&command, &descriptor), Ok(()));
        let mut spoilt = descriptor.clone();
        spoilt[&key] = value;
        let known = descriptor.get(&key).is_some();
        // Another value of a known member may be as good as the first.
        prop_assert!(known || descriptor::validate(&command, &spoilt).is_err());
    }

    #[test]
    fn a_receipt_is_bound_to_its_invocation(exit_code in any::<i32>()) {
        let (mine, other) = (a_descriptor(), a_descriptor());
        let receipt = a_receipt(&mine, exit_code);
        prop_assert_eq!(receipt::validate(&receipt, &mine), Ok(()));
        prop_assert_eq!(receipt::leader_exit_code(&receipt), Some(exit_code));
        prop_assert_eq!(receipt::validate(&receipt, &other), Err(1 << 2));
    }

    #[test]
    fn cursors_move_forward_only(
        was in 0i64..1000, is in 0i64..1000, eof in any::<bool>(), exited in any::<bool>(),
    ) {
        let old = a_cursor(was, "", eof, exited.then_some(0));
        let new = a_cursor(is, "", eof, exited.then_some(0));
        let accepted = streams::regress(Some(&both(&old)), Some(&both(&new))).is_ok();
        prop_assert_eq!(accepted, if eof || exited { is == was } else { is >= was });
    }

    #[test]
    fn what_does_not_change_does_not_regress(document in any_json()) {
        let cursors = both(&document);
        // A floor that does not cast is the server's error, in the reference as here.
        prop_assert_eq!(streams::regress(Some(&cursors), Some(&cursors)), Ok(()));
    }

    #[test]
    fn streams_never_vanish(offset in 0i64..1000, eof in any::<bool>()) {
        let old = both(&a_cursor(offset, "", eof, None));
        let mut headless = old.clone();
        headless["stderr"].as_object_mut().unwrap().remove("byteOffset");
        for new in [None, Some(json!(null)), Some(json!([])), Some(json!({})),
                    Some(json!({"stdout": old["stdout"]})),
                    Some(json!({"stdout": old["stdout"], "stderr": null})), Some(headless)] {
            prop_assert!(streams::regress(Some(&old), new.as_ref()).is_err(), "{:?}", new);
        }
    }

    #[test]
    fn a_poisoned_member_sets_no_floor(offset in 0i64..1000, poison in any_json()) {
        let good = a_cursor(offset, "", false, None);
        let mut bad = good.clone();
        bad["byteOffset"] = poison;
        prop_assume!((&bad["byteOffset"]).as_bigint().is_none());
        prop_assert_eq!(streams::regress(Some(&both(&bad)), Some(&both(&good))), Ok(()));
        prop_assert!(streams::well_formed(Some(&both(&bad))).is_err());
        prop_assert_eq!(streams::well_formed(Some(&both(&good))), Ok(()));
    }

    #[test]
    fn a_binding_names_every_member_and_no_other(extra in "[a-z]{1,8}", n in any::<i64>()) {
        let expected = [("processId", Expected::String(b"p")), ("lostEpoch", Expected::Number(n))];
        let exact = json!({"processId": "p", "lostEpoch": n});
        prop_assert!(loss::binds(Some(&exact), &expected));
        prop_assert!(!loss::binds::<&Value>(None, &[]));
        let mut wide = exact.clone();
        wide[&extra] = json!(1);
        prop_assert!(!loss::binds(Some(&wide), &expected));
        let wrong = json!({"processId": "p", "lostEpoch": n.wrapping_add(1)});
        prop_assert!(!loss::binds(Some(&wrong), &expected));
        let narrow = json!({"processId": "p"});
        prop_assert!(!loss::binds(Some(&narrow), &expected));
    }

    #[test]
    fn commands_are_compared_without_their_streams(a in any_json(), b in any_json(), c in any_json()) {
        let mut left = json!({"kind": a.clone(), "streams": b});
        let right = json!({"kind": a, "streams": c});
        prop_assert_eq!(command::same_without_streams(&left, &right), Some(true));
        left["more"] = json!(1);
        prop_assert_eq!(command::same_without_streams(&left, &right), Some(false));
        prop_assert_eq!(command::same_without_streams(&json!([]), &right), None);
    }
}

#[test]
fn an_end_of_file_written_as_text_can_be_repaired_and_not_taken_back() {
    let mut old = a_cursor(5, "", true, None);
    old["eof"] = json!("true");
    let repaired = a_cursor(5, "", true, None);
    assert_eq!(
        streams::regress(Some(&both(&old)), Some(&both(&repaired))),
        Ok(())
    );
    let reopened = a_cursor(5, "", false, None);
    assert!(streams::regress(Some(&both(&old)), Some(&both(&reopened))).is_err());
    let moved = a_cursor(6, "", true, None);
    assert!(streams::regress(Some(&both(&old)), Some(&both(&moved))).is_err());
}

#[test]
fn completeness_wants_both_streams_at_their_end() {
    let done = a_cursor(5, "", true, Some(0));
    assert_eq!(streams::complete(Some(&both(&done))), Ok(()));
    assert!(streams::complete::<&Value>(None).is_err());
    for open in [
        a_cursor(5, "", false, Some(0)),
        a_cursor(5, "w", true, Some(0)),
        a_cursor(5, "", true, Some(1)),
        a_cursor(5, "", true, None),
    ] {
        let streams = json!({"stdout": done, "stderr": open});
        assert!(streams::complete(Some(&streams)).is_err(), "{open}");
    }
}

#[test]
fn pristine_means_untouched() {
    let zero = a_cursor(0, "", false, None);
    assert!(streams::pristine(Some(&both(&zero))));
    assert!(!streams::pristine::<&Value>(None));
    for touched in [
        a_cursor(1, "", false, None),
        a_cursor(0, "w", false, None),
        a_cursor(0, "", true, None),
        a_cursor(0, "", false, Some(0)),
        json!({"byteOffset": 0, "utf8Remainder": "", "eof": false}),
        json!(null),
    ] {
        let streams = json!({"stdout": zero, "stderr": touched});
        assert!(!streams::pristine(Some(&streams)), "{touched}");
    }
}

#[test]
fn cancellation_has_time_and_reason_together() {
    use cancellation::validate;
    assert_eq!(validate(false, None), Ok(()));
    assert_eq!(validate(true, Some(b"explicit_stop")), Ok(()));
    assert_eq!(validate(true, Some(b"provider_deadline")), Ok(()));
    assert_eq!(validate(true, None), Err(2));
    assert_eq!(validate(false, Some(b"explicit_stop")), Err(1));
    assert_eq!(validate(true, Some(b"because")), Err(2));
    assert_eq!(validate(false, Some(b"because")), Err(3));
}

#[test]
fn and_chains_stop_at_false_and_go_on_at_null() {
    use super::chain::Chain;
    let mut asked = 0;
    let after_null = Chain::new().and(0, || None).and(1, || {
        asked += 1;
        Some(true)
    });
    assert_eq!(after_null.verdict(), Err(1));
    let after_false = Chain::new().and(0, || Some(false)).and(1, || {
        asked += 1;
        None
    });
    assert_eq!(after_false.verdict(), Err(1));
    assert_eq!(asked, 1);
}

#[test]
fn the_catalogue_has_one_entry_per_rule() {
    let mut ids: Vec<_> = Rule::ALL.iter().map(|rule| rule.entry().id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), Rule::ALL.len());
    for rule in Rule::ALL {
        let entry = rule.entry();
        assert_eq!(entry.sqlstate.len(), 5, "{}", entry.id);
        assert!(
            !entry.message.is_empty() && entry.hint.ends_with('.'),
            "{}",
            entry.id
        );
    }
}
