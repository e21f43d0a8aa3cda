//! The supervision receipt: the supervisor's word, bound to one invocation.

use super::chain::Chain;
use super::json::{Json, Kind};
use super::shape;

/// The members of a failed check, by bit.
pub const PATHS: &[&str] = &[
    "supervision_receipt",
    "supervision_receipt.protocol",
    "supervision_receipt.invocationId",
    "supervision_receipt.receiptId",
    "supervision_receipt.leaderExitCode",
    "supervision_receipt.*",
];

const KEYS: &[&str] = &["protocol", "invocationId", "receiptId", "leaderExitCode"];

/// Whether `receipt` is bound to the invocation of `descriptor`; otherwise the offending [`PATHS`].
pub fn validate<J: Json>(receipt: J, descriptor: J) -> Result<(), u64> {
    let bound = |key: &str| {
        let expected = descriptor.get(key)?.text()?;
        receipt.member_is(key, &expected)
    };
    let exit_code = receipt.get("leaderExitCode");
    Chain::new()
        .and(0, || Some(receipt.kind() == Kind::Object))
        .and(1, || bound("protocol"))
        .and(2, || bound("invocationId"))
        .and(3, || {
            Some(shape::is_uuid(&receipt.get("receiptId")?.text()?))
        })
        .and(4, || Some(exit_code?.kind() == Kind::Number))
        .and(4, || Some(shape::parse_int4(&exit_code?.text()?).is_some()))
        .and(5, || Some(receipt.only_keys(KEYS)))
        .verdict()
}

/// Whether `receipt` has the published shape, whatever invocation it names; otherwise the offending [`PATHS`].
pub fn well_formed<J: Json>(receipt: J) -> Result<(), u64> {
    let string = |key: &str, shape: fn(&[u8]) -> bool| {
        let value = receipt.get(key)?;
        Some(value.kind() == Kind::String && shape(&value.text()?))
    };
    let exit_code = receipt.get("leaderExitCode");
    Chain::new()
        .and(0, || Some(receipt.kind() == Kind::Object))
        .and(1, || {
            string("protocol", |text| text == b"native-subreaper-v1")
        })
        .and(2, || string("invocationId", shape::is_uuid))
        .and(3, || string("receiptId", shape::is_uuid))
        .and(4, || Some(exit_code?.kind() == Kind::Number))
        .and(4, || Some(shape::parse_int4(&exit_code?.text()?).is_some()))
        .and(5, || Some(receipt.only_keys(KEYS)))
        .verdict()
}

/// `(receipt ->> 'leaderExitCode')::integer` of a receipt that passed [`validate`].
pub fn leader_exit_code<J: Json>(receipt: J) -> Option<i32> {
    shape::parse_int4(&receipt.get("leaderExitCode")?.text()?)
}
