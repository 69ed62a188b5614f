//! Reads values out of TOML. Reading continues after an error, so that one pass reports all.

use std::{ops::Range, path::PathBuf};

use serde_json::{Value, json};
use toml::{Spanned, de::DeValue};

use super::report::{DiagnosticReport, ValueOrigin};

/// A TOML value with its span.
pub(super) type TomlValue<'a> = Spanned<DeValue<'a>>;

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) origin: ValueOrigin,
}

/// A setting after reading.
#[derive(Clone, Debug, Default)]
pub(super) enum TomlField<T> {
    /// The setting is not present.
    #[default]
    Absent,
    /// The value is invalid, which has been reported.
    Bad,
    /// The value is valid.
    Good(Located<T>),
}

impl<T> TomlField<T> {
    pub(super) fn get(&self) -> Option<&Located<T>> {
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

    /// Whether the setting is present but invalid.
    pub(super) fn is_bad(&self) -> bool {
        matches!(self, Self::Bad)
    }
}

/// A type that can be read from a TOML value.
pub(super) trait FromToml: Sized {
    /// The value; `None` if it is invalid, which has been reported.
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self>;

    /// Its JSON Schema.
    fn schema() -> Value;

    /// Its members, if it is a table that can be set member by member.
    fn members() -> Vec<Setting> {
        Vec::new()
    }
}

/// A value that is written as a string.
pub(super) trait FromText: Sized {
    /// How to write it, with an example.
    const EXPECTED: &'static str;

    /// The value, or an error message. The message never repeats the input: it could be a misplaced
    /// secret, and the report shows the line anyway.
    fn parse(text: &str) -> Result<Self, String>;

    /// Whether the value may be a misplaced secret, so that reports must not show the line.
    const SECRET: bool = false;

    /// What to add to the JSON Schema of a string.
    fn schema() -> Value {
        json!({})
    }
}

impl<T: FromText> FromToml for T {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let Some(text) = found.get_ref().as_str() else {
            wrong_type(found, T::EXPECTED, report);
            return None;
        };
        match T::parse(text) {
            Ok(value) => return Some(value),
            Err(message) if T::SECRET => report.add_secret_error(&origin(found), message),
            Err(message) => report.add_error(&origin(found), message),
        }
        None
    }

    fn schema() -> Value {
        let mut schema = json!({ "type": "string" });
        merge(&mut schema, <T as FromText>::schema());
        schema
    }
}

impl FromToml for bool {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
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

/// A count from 1 to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountUpTo<const MAX: usize>(pub(super) usize);

impl<const MAX: usize> FromToml for CountUpTo<MAX> {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let expected = format!("a number from 1 to {MAX}");
        let count = integer(found, &expected, report)?;
        if !(1..=MAX).contains(&count) {
            report.add_error(&origin(found), format!("this must be {expected}"));
            return None;
        }
        Some(Self(count))
    }

    fn schema() -> Value {
        json!({ "type": "integer", "minimum": 1, "maximum": MAX })
    }
}

/// A number that is not negative.
pub(super) fn integer(
    found: &TomlValue<'_>,
    expected: &str,
    report: &mut DiagnosticReport<'_>,
) -> Option<usize> {
    let Some(integer) = found.get_ref().as_integer() else {
        wrong_type(found, expected, report);
        return None;
    };
    let number = usize::from_str_radix(integer.as_str(), integer.radix()).ok();
    if number.is_none() {
        report
            .add_error(&origin(found), format!("this is too small or too large; write {expected}"));
    }
    number
}

impl FromText for String {
    const EXPECTED: &'static str = "a string";

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("this is empty".to_owned()) } else { Ok(text.to_owned()) }
    }
}

impl FromText for PathBuf {
    const EXPECTED: &'static str = "the path of a file";

    fn parse(text: &str) -> Result<Self, String> {
        <String as FromText>::parse(text).map(Into::into)
    }
}

/// One value, or a list of at least one.
#[derive(Clone, Debug)]
pub(super) struct OneOrMore<T>(pub(super) Vec<Located<T>>);

impl<T: FromToml> FromToml for OneOrMore<T> {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        if !found.get_ref().is_array() {
            return at(found, report).map(|only| Self(vec![only]));
        }
        let all = <Vec<Located<T>>>::read(found, report)?;
        if all.is_empty() {
            report.add_error(&origin(found), "this list is empty");
            return None;
        }
        Some(Self(all))
    }

    fn schema() -> Value {
        let one = T::schema();
        json!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
    }
}

impl<T: FromToml> FromToml for Vec<Located<T>> {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let Some(list) = found.get_ref().as_array() else {
            wrong_type(found, "a list", report);
            return None;
        };
        // All items are read first, so that every error is reported.
        let all: Vec<Option<Located<T>>> = list.iter().map(|item| at(item, report)).collect();
        all.into_iter().collect()
    }

    fn schema() -> Value {
        json!({ "type": "array", "items": T::schema() })
    }
}

/// Reports duplicates in a list.
pub(super) fn refuse_repeats<T: PartialEq>(list: &[Located<T>], report: &mut DiagnosticReport<'_>) {
    for (index, later) in list.iter().enumerate() {
        if list.iter().take(index).any(|earlier| earlier.value == later.value) {
            report.add_error(&later.origin, "this is already in the list");
        }
    }
}

/// Adds the members of one object to another.
pub(super) fn merge(schema: &mut Value, more: Value) {
    if let (Value::Object(schema), Value::Object(more)) = (schema, more) {
        schema.extend(more);
    }
}

/// Reads a value with its origin.
pub(super) fn at<T: FromToml>(
    found: &TomlValue<'_>,
    report: &mut DiagnosticReport<'_>,
) -> Option<Located<T>> {
    T::read(found, report).map(|value| Located { value, origin: origin(found) })
}

pub(super) fn field<T: FromToml>(
    found: &TomlValue<'_>,
    report: &mut DiagnosticReport<'_>,
) -> TomlField<T> {
    at(found, report).map_or(TomlField::Bad, TomlField::Good)
}

pub(super) fn origin(found: &TomlValue<'_>) -> ValueOrigin {
    let span: Range<usize> = found.span();
    ValueOrigin::File(span)
}

/// Reports a value of the wrong type.
pub(super) fn wrong_type(found: &TomlValue<'_>, expected: &str, report: &mut DiagnosticReport<'_>) {
    let is = match found.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a bare number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    report.add_error(&origin(found), format!("this is {is}; write {expected}"));
}

/// The default of a setting that is not set.
#[derive(Clone, Debug)]
pub(super) enum DefaultValue {
    /// This value.
    Default(Value),
    /// None; this is an example.
    Example(Value),
    /// It is a table of its own.
    Section,
}

/// The description of one setting.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// What it means, in lines.
    pub(super) doc: &'static [&'static str],
    pub(super) schema: Value,
    pub(super) shown: DefaultValue,
    pub(super) members: Vec<Self>,
}

impl Setting {
    /// What it means, in lines without the space before each.
    pub(super) fn doc(&self) -> impl Iterator<Item = &'static str> {
        self.doc.iter().map(|line| line.trim())
    }
}
