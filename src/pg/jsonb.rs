//! Binary jsonb, read in place.
//!
//! The layout is the server's on-disk format: a header word (flags and count), one entry word per key and
//! value (type, and length or end offset), then the data, with numbers and containers aligned to four
//! bytes. Reading is bounds-checked byte access; whatever needs the server's own judgement (numerics,
//! order of unequal images, casts) is asked of the server's functions.

use std::borrow::Cow;
use std::ffi::{CStr, CString};

use pgrx::{PgTryBuilder, pg_sys};

use super::value;
use crate::protocol::json::{Json, Kind};

const COUNT_MASK: u32 = 0x0FFF_FFFF;
const FLAG_SCALAR: u32 = 0x1000_0000;
const FLAG_OBJECT: u32 = 0x2000_0000;

const ENTRY_LENGTH_MASK: u32 = 0x0FFF_FFFF;
const ENTRY_TYPE_MASK: u32 = 0x7000_0000;
const ENTRY_HAS_OFFSET: u32 = 0x8000_0000;
const ENTRY_STRING: u32 = 0x0000_0000;
const ENTRY_NUMERIC: u32 = 0x1000_0000;
const ENTRY_FALSE: u32 = 0x2000_0000;
const ENTRY_TRUE: u32 = 0x3000_0000;
const ENTRY_CONTAINER: u32 = 0x5000_0000;

/// A whole jsonb value.
#[derive(Clone, Copy)]
pub struct Document<'a> {
    datum: pg_sys::Datum,
    container: Container<'a>,
}

impl<'a> Document<'a> {
    /// # Safety
    /// `datum` is a non-NULL jsonb that outlives `'a`.
    pub unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        Document {
            datum,
            // SAFETY: by contract.
            container: Container(unsafe { value::payload(datum) }),
        }
    }

    /// `text::jsonb`; malformed text ends the statement with the server's error (22P02).
    pub fn parse(text: &CStr) -> Document<'static> {
        let jsonb = value::cast_or_raise(value::Cast::Jsonb, text);
        // SAFETY: a fresh jsonb in the current memory context, which outlives the trigger call.
        unsafe { Document::from_datum(pg_sys::Datum::from(jsonb)) }
    }

    pub fn root(&self) -> Value<'a> {
        if self.container.header() & FLAG_SCALAR != 0 {
            self.container.entry(0, 0).unwrap_or(Value::Null)
        } else {
            Value::Container(self.container)
        }
    }

    /// `self = other`.
    pub fn same(&self, other: &Document) -> bool {
        self.container.same(other.container, COMPARE_DEPTH)
    }

    /// `self - key` for its error: nothing can be deleted from a scalar (22023).
    pub fn deletable(&self, key: &str) {
        if self.container.header() & FLAG_SCALAR != 0 {
            self.same_without(self, key);
        }
    }

    /// `(self - key) = (other - key)`, by the server's operators: for documents that are not objects.
    pub fn same_without(&self, other: &Document, key: &str) -> bool {
        // SAFETY: jsonb_delete takes a jsonb and a text; both datums are live.
        let without = |document: &Document| unsafe {
            Document::from_datum(value::call(
                pg_sys::jsonb_delete,
                std::ptr::null_mut(),
                pg_sys::InvalidOid,
                &[document.datum, value::text_datum(key.as_bytes())],
            ))
        };
        without(self).same(&without(other))
    }
}

/// An object or an array in its stored form.
#[derive(Clone, Copy)]
pub struct Container<'a>(&'a [u8]);

impl<'a> Container<'a> {
    fn word(self, index: usize) -> u32 {
        self.0
            .get(4 * index..4 * index + 4)
            .and_then(|b| b.try_into().ok())
            .map_or(0, u32::from_ne_bytes)
    }

    fn header(self) -> u32 {
        self.word(0)
    }

    fn count(self) -> usize {
        (self.header() & COUNT_MASK) as usize
    }

    fn is_object(self) -> bool {
        self.header() & FLAG_OBJECT != 0
    }

    /// How many entry words there are: an object has one per key and one per value.
    fn entries(self) -> usize {
        self.count() << usize::from(self.is_object())
    }

    /// Where the data of entry `index` starts, and how long it is.
    fn extent(self, index: usize) -> (usize, usize) {
        let mut start = 0;
        for i in (0..index).rev() {
            let entry = self.word(1 + i);
            start += (entry & ENTRY_LENGTH_MASK) as usize;
            if entry & ENTRY_HAS_OFFSET != 0 {
                break;
            }
        }
        let entry = self.word(1 + index);
        let length = (entry & ENTRY_LENGTH_MASK) as usize;
        if entry & ENTRY_HAS_OFFSET != 0 {
            (start, length.saturating_sub(start))
        } else {
            (start, length)
        }
    }

    /// Entry `index` as a value; `first` is the number of entries before the data it belongs to.
    fn entry(self, first: usize, index: usize) -> Option<Value<'a>> {
        self.entries_from(first + index).next()
    }

    /// The entries from `index` on, as values.
    fn entries_from(self, index: usize) -> Entries<'a> {
        let data = self.0.get(4 * (1 + self.entries())..);
        Entries {
            container: self,
            data: data.unwrap_or_default(),
            index,
            start: self.extent(index).0,
        }
    }

    fn key(self, index: usize) -> Option<&'a [u8]> {
        match self.entry(0, index)? {
            Value::String(key) => Some(key),
            _ => None,
        }
    }

    /// An object's keys and values, in the order in which they are stored.
    fn members(self) -> impl Iterator<Item = (&'a [u8], Value<'a>)> {
        let count = self.count();
        self.entries_from(0)
            .take(count)
            .zip(self.entries_from(count))
            .filter_map(|(key, value)| match key {
                Value::String(key) => Some((key, value)),
                _ => None,
            })
    }

    /// Keys are unique and sorted by length, then by bytes. The protocol's objects have a handful, so that
    /// walking them beats halving, which has to add up offsets anew at every step.
    fn find(self, key: &[u8]) -> Option<Value<'a>> {
        const FEW: usize = 12;
        let count = self.count();
        if count > FEW {
            return self.search(key);
        }
        for (index, found) in self.entries_from(0).take(count).enumerate() {
            let Value::String(found) = found else {
                return None;
            };
            match found.len().cmp(&key.len()) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal if found == key => return self.entry(count, index),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => return None,
            }
        }
        None
    }

    fn search(self, key: &[u8]) -> Option<Value<'a>> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            let found = self.key(middle)?;
            match found.len().cmp(&key.len()).then_with(|| found.cmp(key)) {
                std::cmp::Ordering::Equal => return self.entry(self.count(), middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// `=`: by image first; numbers may still be equal where images differ.
    fn same(self, other: Container, depth: u32) -> bool {
        if self.0 == other.0 {
            return true;
        }
        if self.header() != other.header() {
            return false;
        }
        // The server's comparison does not recurse; ours does, a little.
        if depth == 0 {
            return self.compares_equal(other);
        }
        // Keys come first and are compared as the strings they are.
        self.entries_from(0)
            .zip(other.entries_from(0))
            .all(|(a, b)| a.same_to(b, depth - 1))
    }

    /// `=` by the server's comparison.
    fn compares_equal(self, other: Container) -> bool {
        let (a, b) = (Aligned::new(self.0), Aligned::new(other.0));
        // SAFETY: both are whole containers in aligned memory.
        unsafe { pg_sys::compareJsonbContainers(a.container(), b.container()) == 0 }
    }
}

/// A walk over a container's entries that carries the offset along.
struct Entries<'a> {
    container: Container<'a>,
    data: &'a [u8],
    index: usize,
    start: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        if self.index >= self.container.entries() {
            return None;
        }
        let entry = self.container.word(1 + self.index);
        let length = (entry & ENTRY_LENGTH_MASK) as usize;
        let start = self.start;
        let end = if entry & ENTRY_HAS_OFFSET != 0 {
            length
        } else {
            start + length
        };
        self.index += 1;
        self.start = end;
        match entry & ENTRY_TYPE_MASK {
            ENTRY_STRING => self.data.get(start..end).map(Value::String),
            ENTRY_FALSE => Some(Value::Boolean(false)),
            ENTRY_TRUE => Some(Value::Boolean(true)),
            kind @ (ENTRY_NUMERIC | ENTRY_CONTAINER) => {
                let aligned = self.data.get(start.next_multiple_of(4)..end)?;
                Some(if kind == ENTRY_NUMERIC {
                    Value::Number(Number(aligned))
                } else {
                    Value::Container(Container(aligned))
                })
            }
            _ => Some(Value::Null),
        }
    }
}

/// How deep our own comparison goes before it leaves the rest to the server's.
const COMPARE_DEPTH: u32 = 8;

/// A copy in aligned memory of the server's, as its functions want it. Whatever is as large as a document
/// is allocated there: a failure is an ERROR then, and ends with the row's memory context.
struct Aligned(*mut u8);

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        // SAFETY: palloc returns that many bytes, aligned for any type.
        unsafe {
            let copy = pg_sys::palloc(bytes.len().max(1)).cast::<u8>();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
            Aligned(copy)
        }
    }

    fn container(&self) -> *mut pg_sys::JsonbContainer {
        self.0.cast()
    }

    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.0)
    }
}

/// A `numeric` in its stored form, varlena header included.
#[derive(Clone, Copy)]
pub struct Number<'a>(&'a [u8]);

impl Number<'_> {
    /// The value as an integer and the number of decimals it is written with; `None` where it is not
    /// an integer or does not fit.
    fn integer(self) -> Option<(i64, u16)> {
        const BASE: i128 = 10_000;
        // A number inside a document keeps the header it was made with: one byte or four.
        let header = if cfg!(target_endian = "little") && self.0.first()? & 1 == 1 {
            1
        } else {
            4
        };
        let body = self.0.get(header..)?;
        let word = |i: usize| {
            body.get(2 * i..2 * i + 2)
                .and_then(|b| b.try_into().ok())
                .map(u16::from_ne_bytes)
        };
        let head = word(0)?;
        let (negative, decimals, weight, first) = match head & 0xC000 {
            0xC000 => return None,
            0x8000 => {
                let weight = (head & 0x3F) as i32 - if head & 0x40 != 0 { 64 } else { 0 };
                (head & 0x2000 != 0, (head & 0x1F80) >> 7, weight, 1)
            }
            sign => (sign == 0x4000, head & 0x3FFF, i32::from(word(1)? as i16), 2),
        };
        let digits = body.len() / 2 - first;
        if digits == 0 {
            return Some((0, decimals));
        }
        // Digits after the point are never stored as trailing zeros.
        if !(0..=4).contains(&weight) || digits as i32 > weight + 1 {
            return None;
        }
        let mut value: i128 = 0;
        for i in 0..=weight as usize {
            let digit = if i < digits { word(first + i)? } else { 0 };
            value = value * BASE + i128::from(digit);
        }
        Some((
            i64::try_from(if negative { -value } else { value }).ok()?,
            decimals,
        ))
    }

    /// As `numeric_out` writes it.
    fn text<'a>(self) -> &'a [u8] {
        let copy = Aligned::new(self.0);
        // SAFETY: numeric_out takes a numeric and returns a palloc'd C string.
        unsafe {
            value::cstr_bytes(
                value::call(
                    pg_sys::numeric_out,
                    std::ptr::null_mut(),
                    pg_sys::InvalidOid,
                    &[copy.datum()],
                )
                .cast_mut_ptr(),
            )
        }
    }

    fn same(self, other: Number) -> bool {
        if self.0 == other.0 {
            return true;
        }
        if let (Some((a, _)), Some((b, _))) = (self.integer(), other.integer()) {
            return a == b;
        }
        let (a, b) = (Aligned::new(self.0), Aligned::new(other.0));
        // SAFETY: numeric_eq takes two numerics.
        unsafe {
            value::call(
                pg_sys::numeric_eq,
                std::ptr::null_mut(),
                pg_sys::InvalidOid,
                &[a.datum(), b.datum()],
            )
            .value()
                != 0
        }
    }
}

/// A value inside a document.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    Null,
    Boolean(bool),
    Number(Number<'a>),
    String(&'a [u8]),
    Container(Container<'a>),
}

impl Value<'_> {
    /// A number that is written as an integer and fits.
    fn integer(self) -> Option<i64> {
        match self {
            Value::Number(number) => match number.integer()? {
                (value, 0) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// [`Json::text`] in memory of the server's, so that nothing of ours is alive when a cast of it raises.
    fn plain_text<'a>(self) -> Option<&'a CStr> {
        Some(value::palloc_cstring(&self.text()?))
    }

    fn same_to(self, other: Value<'_>, depth: u32) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Boolean(a), Value::Boolean(b)) => a == b,
            (Value::Number(a), Value::Number(b)) => a.same(b),
            (Value::String(a), Value::String(b)) => a == b,
            (Value::Container(a), Value::Container(b)) => a.same(b, depth),
            _ => false,
        }
    }
}

impl Json for Value<'_> {
    fn kind(self) -> Kind {
        match self {
            Value::Null => Kind::Null,
            Value::Boolean(_) => Kind::Boolean,
            Value::Number(_) => Kind::Number,
            Value::String(_) => Kind::String,
            Value::Container(c) if c.is_object() => Kind::Object,
            Value::Container(_) => Kind::Array,
        }
    }

    fn member(self, key: &[u8]) -> Option<Self> {
        match self {
            Value::Container(c) if c.is_object() => c.find(key),
            _ => None,
        }
    }

    fn has(self, key: &str) -> bool {
        match self {
            Value::Container(c) if c.is_object() => c.find(key.as_bytes()).is_some(),
            Value::Container(c) => (0..c.count()).any(|i| c.key(i) == Some(key.as_bytes())),
            Value::String(text) => text == key.as_bytes(),
            _ => false,
        }
    }

    fn text<'a>(self) -> Option<Cow<'a, [u8]>>
    where
        Self: 'a,
    {
        Some(match self {
            Value::Null => return None,
            Value::Boolean(true) => Cow::Borrowed(&b"true"[..]),
            Value::Boolean(false) => Cow::Borrowed(&b"false"[..]),
            Value::Number(number) => match number.integer() {
                Some((value, 0)) => Cow::Owned(value.to_string().into_bytes()),
                _ => Cow::Borrowed(number.text()),
            },
            Value::String(text) => Cow::Borrowed(text),
            Value::Container(c) => {
                let copy = Aligned::new(c.0);
                // SAFETY: a whole container in aligned memory; the result is a palloc'd C string.
                Cow::Borrowed(unsafe {
                    value::cstr_bytes(pg_sys::JsonbToCString(
                        std::ptr::null_mut(),
                        copy.container(),
                        c.0.len() as i32,
                    ))
                })
            }
        })
    }

    fn same(self, other: Self) -> bool {
        self.same_to(other, COMPARE_DEPTH)
    }

    fn is_number(self, n: i64) -> bool {
        matches!(self, Value::Number(number) if number.integer().is_some_and(|(v, _)| v == n))
    }

    fn as_bigint(self) -> Option<i64> {
        self.integer()
            .or_else(|| quietly(cast_bigint, &self.text()?))
    }

    fn to_bigint(self) -> Option<i64> {
        self.integer()
            .or_else(|| Some(value::cast_or_raise(value::Cast::Bigint, self.plain_text()?) as i64))
    }

    fn as_boolean(self) -> Option<bool> {
        match self {
            Value::Boolean(value) => Some(value),
            _ => quietly(cast_boolean, &self.text()?),
        }
    }

    fn to_boolean(self) -> Option<bool> {
        match self {
            Value::Boolean(value) => Some(value),
            _ => Some(value::cast_or_raise(value::Cast::Boolean, self.plain_text()?) != 0),
        }
    }

    fn every_member(self, mut f: impl FnMut(&[u8], Self) -> bool) -> bool {
        let Value::Container(c) = self else {
            return true;
        };
        !c.is_object() || c.members().all(|(key, value)| f(key, value))
    }
}

fn cast_bigint(text: &CStr) -> i64 {
    // SAFETY: int8in takes a C string.
    unsafe { cast(pg_sys::int8in, text).value() as i64 }
}

fn cast_boolean(text: &CStr) -> bool {
    // SAFETY: boolin takes a C string.
    unsafe { cast(pg_sys::boolin, text).value() != 0 }
}

/// # Safety
/// `input` is an input function of one argument.
unsafe fn cast(
    input: unsafe fn(pg_sys::FunctionCallInfo) -> pg_sys::Datum,
    text: &CStr,
) -> pg_sys::Datum {
    let argument = [pg_sys::Datum::from(text.as_ptr())];
    // SAFETY: by contract.
    unsafe { value::call(input, std::ptr::null_mut(), pg_sys::InvalidOid, &argument) }
}

/// What an input function makes of a text, or `None` where it raises. It takes no lock, opens nothing and
/// changes nothing, so that its error can be dropped without a subtransaction. A text much longer than any
/// number is not worth asking about, and its error would carry it along.
fn quietly<T>(cast: fn(&CStr) -> T, text: &[u8]) -> Option<T> {
    const LONGEST: usize = 512;
    if text.len() > LONGEST {
        return None;
    }
    let text = CString::new(text).ok()?;
    PgTryBuilder::new(|| Some(cast(&text)))
        .catch_when(
            pgrx::PgSqlErrorCode::ERRCODE_INVALID_TEXT_REPRESENTATION,
            |_| None,
        )
        .catch_when(
            pgrx::PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
            |_| None,
        )
        .execute()
}
