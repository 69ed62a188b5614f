//! `key`: where the key of a request is, in every way that people write it.

use http::{HeaderName, header};
use semel::core::canonical::Pointer;
use serde_json::{Value, json};

use super::{
    KeySource, Required,
    read::{At, Found, Read, Slot, Text, place, wrong_type},
    report::{Place, Report},
    settings::{Setting, Settings as _, default, example, is_empty, settings},
};

settings! {
    /// Where the key of a request is.
    KeyTable {
        /// A header; for gRPC, metadata.
        header: KeyHeader = default("Idempotency-Key");
        /// A place in a JSON body, as a JSON Pointer. Under such a key only a success is kept.
        json: Pointer = example("/id");
        /// Several places, asked in this order: names of headers, `{ header = … }`, `{ json = … }`.
        any: Vec<At<KeyPlace>> = example(json!(["Idempotency-Key", { "json": "/id" }]));
        /// Whether there must be a key: false, true, or "warn" (the step before true).
        required: Required = default(false);
    }
}

/// `key`: the places, and whether there must be a key. What is not said is inherited.
#[derive(Clone, Debug)]
pub(super) struct KeyRule {
    pub(super) places: Option<Vec<KeySource>>,
    pub(super) required: Option<Required>,
}

impl Read for KeyRule {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        let places = |places| Self { places: Some(places), required: None };
        if found.get_ref().is_array() {
            return list_of_places(found, report).map(places);
        }
        if found.get_ref().is_str() {
            return KeyPlace::read(found, report).map(|place| places(vec![place.0]));
        }
        if !found.get_ref().is_table() {
            wrong_type(found, "the name of a header, a table or a list", report);
            return None;
        }
        let table = KeyTable::read(found, report)?;
        let places = match (&table.header, &table.json, &table.any) {
            (Slot::Good(header), Slot::Absent, Slot::Absent) => {
                Some(vec![KeySource::Header(header.value.0.clone())])
            }
            (Slot::Absent, Slot::Good(json), Slot::Absent) => {
                Some(vec![KeySource::Json(json.value.clone())])
            }
            (Slot::Absent, Slot::Absent, Slot::Good(any)) => {
                Some(sources(&any.value, &any.place, report)?)
            }
            (Slot::Absent, Slot::Absent, Slot::Absent) => None,
            (Slot::Bad, ..) | (_, Slot::Bad, _) | (.., Slot::Bad) => return None,
            _ => {
                let message = "write one of `header`, `json` or `any`, not several";
                report.note(&place(found), message);
                return None;
            }
        };
        Some(Self { places, required: table.required.value().copied() })
    }

    fn schema() -> Value {
        let list = <Vec<At<KeyPlace>>>::schema();
        json!({ "anyOf": [{ "type": "string" }, list, KeyTable::schema()] })
    }

    fn members() -> Vec<Setting> {
        KeyTable::all()
    }
}

fn list_of_places(found: &Found<'_>, report: &mut Report<'_>) -> Option<Vec<KeySource>> {
    let places = <Vec<At<KeyPlace>>>::read(found, report)?;
    sources(&places, &place(found), report)
}

fn sources(
    places: &[At<KeyPlace>],
    whole: &Place,
    report: &mut Report<'_>,
) -> Option<Vec<KeySource>> {
    if places.is_empty() {
        report.note(whole, "this list is empty");
        return None;
    }
    Some(places.iter().map(|place| place.value.0.clone()).collect())
}

/// One place in a list of them.
#[derive(Clone, Debug)]
pub(super) struct KeyPlace(KeySource);

impl Read for KeyPlace {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        if !found.get_ref().is_table() {
            return KeyHeader::read(found, report).map(|name| Self(KeySource::Header(name.0)));
        }
        let table = KeyTable::read(found, report)?;
        if !table.required.is_absent() {
            let message = "one `required` holds for all: { any = [ … ], required = true }";
            report.note(&place(found), message);
            return None;
        }
        match (&table.header, &table.json, &table.any) {
            (Slot::Good(name), Slot::Absent, Slot::Absent) => {
                Some(Self(KeySource::Header(name.value.0.clone())))
            }
            (Slot::Absent, Slot::Good(json), Slot::Absent) => {
                Some(Self(KeySource::Json(json.value.clone())))
            }
            (Slot::Bad, ..) | (_, Slot::Bad, _) | (.., Slot::Bad) => None,
            // Only names that are unknown: that has been noted.
            (Slot::Absent, Slot::Absent, Slot::Absent) if !is_empty(found) => None,
            _ => {
                report.note(&place(found), "write { header = … } or { json = … }");
                None
            }
        }
    }

    fn schema() -> Value {
        let text = json!({ "type": "string" });
        let one = |name: &str| {
            let properties = json!({ name: text });
            json!({ "type": "object", "properties": properties, "required": [name],
                    "additionalProperties": false })
        };
        json!({ "anyOf": [text, one("header"), one("json")] })
    }
}

/// The name of a header that may hold a key.
#[derive(Clone, Debug)]
pub(super) struct KeyHeader(HeaderName);

impl Text for KeyHeader {
    const EXPECTED: &'static str = "the name of a header";

    fn parse(text: &str) -> Result<Self, String> {
        match <HeaderName as Text>::parse(text)? {
            header::AUTHORIZATION | header::PROXY_AUTHORIZATION | header::COOKIE => {
                Err("this header carries a secret, and a key is stored in clear".to_owned())
            }
            name => Ok(Self(name)),
        }
    }
}
