//! `capture`: values of a request that its record keeps.

use http::HeaderName;
use semel::core::canonical::Pointer;
use semel_tower::CaptureSource;
use serde_json::{Value, json};

use super::{
    callers::is_secret,
    read::{FromText, FromToml, TomlField, TomlValue, origin, wrong_type},
    report::DiagnosticReport,
    settings::{example, settings},
};

/// Maximum number of captured values.
const CAPTURES_MAX: usize = 8;

/// Maximum length of a name.
const NAME_BYTES_MAX: usize = 32;

settings! {
    /// Source of a captured value outside the body.
    SourceTable {
        /// A header.
        header: HeaderName = example("X-Order-Id");
    }
}

/// `capture`: names in their order, and where the value of each stands.
#[derive(Clone, Debug)]
pub(super) struct Captures(pub(super) Vec<(String, CaptureSource)>);

impl FromToml for Captures {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let Some(table) = found.get_ref().as_table() else {
            wrong_type(found, "a table of names: { order = \"/order_id\" }", report);
            return None;
        };
        let mut captures = Vec::new();
        let mut good = true;
        for (name, value) in table {
            if !is_name(name.get_ref()) {
                let message = format!(
                    "the name of a captured value has 1 to {NAME_BYTES_MAX} lower-case letters, \
                     digits \
                     and underscores, and begins with a letter"
                );
                report.add_error(&super::report::ValueOrigin::File(name.span()), message);
                good = false;
            }
            match source(value, report) {
                Some(source) => captures.push((name.get_ref().to_string(), source)),
                None => good = false,
            }
        }
        if captures.len() > CAPTURES_MAX {
            report.add_error(&origin(found), format!("at most {CAPTURES_MAX} values are captured"));
            good = false;
        }
        captures.sort_by(|(one, _), (other, _)| one.cmp(other));
        good.then_some(Self(captures))
    }

    fn schema() -> Value {
        let header = SourceTable::schema();
        json!({
            "type": "object",
            "propertyNames": { "pattern": format!("^[a-z][a-z0-9_]{{0,{}}}$", NAME_BYTES_MAX - 1) },
            "maxProperties": CAPTURES_MAX,
            "additionalProperties": { "anyOf": [{ "type": "string" }, header] },
        })
    }
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(plain)
}

fn source(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<CaptureSource> {
    if let Some(text) = found.get_ref().as_str() {
        let pointer = <Pointer as FromText>::parse(text);
        return pointer
            .map_err(|message| report.add_error(&origin(found), message))
            .ok()
            .map(CaptureSource::Json);
    }
    if !found.get_ref().is_table() {
        wrong_type(found, "a JSON Pointer such as \"/order_id\", or { header = … }", report);
        return None;
    }
    let table = SourceTable::read(found, report)?;
    match &table.header {
        TomlField::Good(name) if is_secret(&name.value) => {
            let message = "this header is a secret, and captured values are stored in clear";
            report.add_error(&name.origin, message);
            None
        }
        TomlField::Good(name) => Some(CaptureSource::Header(name.value.clone())),
        TomlField::Bad => None,
        TomlField::Absent => {
            report.add_error(&origin(found), "write { header = … }");
            None
        }
    }
}
