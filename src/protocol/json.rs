//! How the rules read a JSON document.

use std::borrow::Cow;

/// What `jsonb_typeof` would say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

/// A JSON value as the protocol sees it. Named after what SQL would write.
///
/// Absence is `Option::None` and is SQL's NULL; JSON null is a value of [`Kind::Null`].
pub trait Json: Copy {
    /// `jsonb_typeof(value)`.
    fn kind(self) -> Kind;

    /// `value -> key`: `None` where the value is not an object or has no such key. Keys are bytes in the
    /// database's encoding.
    fn member(self, key: &[u8]) -> Option<Self>;

    /// [`Json::member`] by a key of the protocol's.
    fn get(self, key: &str) -> Option<Self> {
        self.member(key.as_bytes())
    }

    /// `value ? key`: also true of an array or a scalar string that holds the word.
    fn has(self, key: &str) -> bool;

    /// `value #>> '{}'`: `None` for JSON null; the JSON text of a container.
    fn text<'a>(self) -> Option<Cow<'a, [u8]>>
    where
        Self: 'a;

    /// `value = other`, by jsonb's own equality.
    fn same(self, other: Self) -> bool;

    /// Whether this is a number equal to `n`.
    fn is_number(self, n: i64) -> bool;

    /// The value's text cast to `bigint`, or `None` where the server would refuse it.
    fn as_bigint(self) -> Option<i64>;

    /// The value's text cast to `bigint`; a text that does not cast ends the statement with the
    /// server's own error (22P02, 22003).
    fn to_bigint(self) -> Option<i64>;

    /// The value's text cast to `boolean`, or `None` where the server would refuse it.
    fn as_boolean(self) -> Option<bool>;

    /// The value's text cast to `boolean`; a text that does not cast ends the statement with the
    /// server's own error (22P02).
    fn to_boolean(self) -> Option<bool>;

    /// Calls `f` with every key of an object until it answers false; says whether it never did.
    fn every_member(self, f: impl FnMut(&[u8], Self) -> bool) -> bool;

    /// Whether an object has no key outside `known`; false for anything but an object.
    fn only_keys(self, known: &[&str]) -> bool {
        self.kind() == Kind::Object
            && self.every_member(|key, _| known.iter().any(|k| k.as_bytes() == key))
    }

    /// `value ->> key = expected`, with SQL's NULL.
    fn member_is(self, key: &str, expected: &[u8]) -> Option<bool> {
        Some(&*self.get(key)?.text()? == expected)
    }

    /// Whether this is a JSON string of exactly these bytes.
    fn is_string(self, expected: &[u8]) -> bool {
        self.kind() == Kind::String && self.text().is_some_and(|t| &*t == expected)
    }
}

/// `a IS NOT DISTINCT FROM b` for two values that may be SQL NULL.
pub fn same<J: Json>(a: Option<J>, b: Option<J>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => a.same(b),
        _ => false,
    }
}
