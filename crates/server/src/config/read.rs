//! Reading values out of TOML, so that every mistake is found in one pass and none stops it.

use std::{ops::Range, path::PathBuf};

use serde_json::{Value, json};
use toml::{Spanned, de::DeValue};

use super::{
    report::{Place, Report},
    settings::Setting,
};

/// A value as TOML has it, with its place.
pub(super) type Found<'a> = Spanned<DeValue<'a>>;

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// What became of a setting.
#[derive(Clone, Debug, Default)]
pub(super) enum Slot<T> {
    /// It was not written.
    #[default]
    Absent,
    /// It was written and is wrong; that has been noted.
    Bad,
    /// It was written.
    Good(At<T>),
}

impl<T> Slot<T> {
    pub(super) fn get(&self) -> Option<&At<T>> {
        match self {
            Self::Good(at) => Some(at),
            Self::Absent | Self::Bad => None,
        }
    }

    pub(super) fn value(&self) -> Option<&T> {
        self.get().map(|at| &at.value)
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Whether nothing can be told from what was written.
    pub(super) fn is_bad(&self) -> bool {
        matches!(self, Self::Bad)
    }
}

/// What can stand on the right of an equals sign.
pub(super) trait Read: Sized {
    /// The value, or nothing if it is wrong and that has been noted.
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self>;

    /// Its JSON Schema.
    fn schema() -> Value;

    /// What can be said of it member by member, if it is a table that people write in pieces.
    fn members() -> Vec<Setting> {
        Vec::new()
    }
}

/// A value that is written as a string.
pub(super) trait Text: Sized {
    /// How to write it, with an example.
    const EXPECTED: &'static str;

    /// The value, or a sentence that says what is wrong. The sentence never repeats what was
    /// written: that could be a secret in the wrong place, and the report shows the line anyway.
    fn parse(text: &str) -> Result<Self, String>;

    /// Whether a secret may stand here by mistake, so that the line must not be shown.
    const SECRET: bool = false;

    /// What to add to the JSON Schema of a string.
    fn schema() -> Value {
        json!({})
    }
}

impl<T: Text> Read for T {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        let Some(text) = found.get_ref().as_str() else {
            wrong_type(found, T::EXPECTED, report);
            return None;
        };
        match T::parse(text) {
            Ok(value) => return Some(value),
            Err(message) if T::SECRET => report.note_secret(&place(found), message),
            Err(message) => report.note(&place(found), message),
        }
        None
    }

    fn schema() -> Value {
        let mut schema = json!({ "type": "string" });
        merge(&mut schema, <T as Text>::schema());
        schema
    }
}

impl Read for bool {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        let value = found.get_ref().as_bool();
        if value.is_none() {
            wrong_type(found, "true or false", report);
        }
        value
    }

    fn schema() -> Value {
        json!({ "type": "boolean" })
    }
}

/// A number of things: at least one, and not so many that only a slip explains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count<const MAX: usize>(pub(super) usize);

impl<const MAX: usize> Read for Count<MAX> {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        let expected = format!("a number from 1 to {MAX}");
        let count = integer(found, &expected, report)?;
        if !(1..=MAX).contains(&count) {
            report.note(&place(found), format!("this must be {expected}"));
            return None;
        }
        Some(Self(count))
    }

    fn schema() -> Value {
        json!({ "type": "integer", "minimum": 1, "maximum": MAX })
    }
}

/// A number that is not negative.
pub(super) fn integer(found: &Found<'_>, expected: &str, report: &mut Report<'_>) -> Option<usize> {
    let Some(integer) = found.get_ref().as_integer() else {
        wrong_type(found, expected, report);
        return None;
    };
    let number = usize::from_str_radix(integer.as_str(), integer.radix()).ok();
    if number.is_none() {
        report.note(&place(found), format!("this is too small or too large; write {expected}"));
    }
    number
}

impl Text for String {
    const EXPECTED: &'static str = "a string";

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("this is empty".to_owned()) } else { Ok(text.to_owned()) }
    }
}

impl Text for PathBuf {
    const EXPECTED: &'static str = "the path of a file";

    fn parse(text: &str) -> Result<Self, String> {
        <String as Text>::parse(text).map(Into::into)
    }
}

/// One value, or a list of at least one.
#[derive(Clone, Debug)]
pub(super) struct OneOrMore<T>(pub(super) Vec<At<T>>);

impl<T: Read> Read for OneOrMore<T> {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        if !found.get_ref().is_array() {
            return at(found, report).map(|only| Self(vec![only]));
        }
        let all = <Vec<At<T>>>::read(found, report)?;
        if all.is_empty() {
            report.note(&place(found), "this list is empty");
            return None;
        }
        Some(Self(all))
    }

    fn schema() -> Value {
        let one = T::schema();
        json!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
    }
}

impl<T: Read> Read for Vec<At<T>> {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        let Some(list) = found.get_ref().as_array() else {
            wrong_type(found, "a list", report);
            return None;
        };
        // Each is read before any is missed, so that each mistake is noted.
        let all: Vec<Option<At<T>>> = list.iter().map(|item| at(item, report)).collect();
        all.into_iter().collect()
    }

    fn schema() -> Value {
        json!({ "type": "array", "items": T::schema() })
    }
}

/// Notes what stands in a list that is asked in its order and has stood there before.
pub(super) fn refuse_repeats<T: PartialEq>(list: &[At<T>], report: &mut Report<'_>) {
    for (index, later) in list.iter().enumerate() {
        if list.iter().take(index).any(|earlier| earlier.value == later.value) {
            report.note(&later.place, "this stands in the list already");
        }
    }
}

/// Adds the members of one object to another.
pub(super) fn merge(schema: &mut Value, more: Value) {
    if let (Value::Object(schema), Value::Object(more)) = (schema, more) {
        schema.extend(more);
    }
}

/// Reads a value with its place.
pub(super) fn at<T: Read>(found: &Found<'_>, report: &mut Report<'_>) -> Option<At<T>> {
    T::read(found, report).map(|value| At { value, place: place(found) })
}

pub(super) fn slot<T: Read>(found: &Found<'_>, report: &mut Report<'_>) -> Slot<T> {
    at(found, report).map_or(Slot::Bad, Slot::Good)
}

pub(super) fn place(found: &Found<'_>) -> Place {
    let span: Range<usize> = found.span();
    Place::File(span)
}

/// Notes that a value is of another type.
pub(super) fn wrong_type(found: &Found<'_>, expected: &str, report: &mut Report<'_>) {
    let is = match found.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a bare number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    report.note(&place(found), format!("this is {is}; write {expected}"));
}
