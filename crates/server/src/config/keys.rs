//! `key`: where the key of a request is, in every way that people write it.

use http::{HeaderName, header};
use semel::core::canonical::Pointer;
use serde_json::{Value, json};

use super::{
    KeySource, Required,
    read::{At, Found, OneOrMore, Read, Slot, Text, place, refuse_repeats, wrong_type},
    report::{Place, Report},
    settings::{Setting, Settings as _, default, example, is_empty, settings},
};

settings! {
    /// Where the key of a request is.
    KeyTable {
        /// A header; for gRPC, metadata.
        header: KeyHeader = default("Idempotency-Key");
        /// A place in a JSON body, as a JSON Pointer, or a list of places whose values are the key
        /// together: strings of any text, numbers, true and false.
        json: OneOrMore<Pointer> = example("/id");
        /// true: the source and the id of a CloudEvent, together.
        cloudevents: Yes = example(true);
        /// Several places, asked in this order: names of headers, `{ header = … }`,
        /// `{ json = … }`, `{ cloudevents = true }`.
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
        table.refuse_repeats(report);
        let places = match (&table.places()?[..], &table.any) {
            (_, Slot::Bad) => return None,
            ([], Slot::Absent) => None,
            ([], Slot::Good(any)) => Some(sources(&any.value, &any.place, report)?),
            ([only], Slot::Absent) => Some(vec![only.clone()]),
            _ => {
                let message = "write one of `header`, `json`, `cloudevents` or `any`, not several";
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

impl KeyTable {
    /// Every single place that it names, or nothing if one is wrong and that has been noted.
    fn places(&self) -> Option<Vec<KeySource>> {
        if self.header.is_bad() || self.json.is_bad() || self.cloudevents.is_bad() {
            return None;
        }
        let header = self.header.value().map(|name| KeySource::Header(name.0.clone()));
        let pointers = |OneOrMore(list): &OneOrMore<Pointer>| {
            KeySource::Json(list.iter().map(|pointer| pointer.value.clone()).collect())
        };
        let json = self.json.value().map(pointers);
        let event = self.cloudevents.value().map(|_| KeySource::CloudEvent);
        Some(header.into_iter().chain(json).chain(event).collect())
    }

    fn refuse_repeats(&self, report: &mut Report<'_>) {
        if let Some(OneOrMore(pointers)) = self.json.value() {
            refuse_repeats(pointers, report);
        }
    }
}

/// `true`, where nothing else makes sense.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yes;

impl Read for Yes {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        let yes = bool::read(found, report)?;
        if !yes {
            report.note(&place(found), "write true, or leave it out");
        }
        yes.then_some(Self)
    }

    fn schema() -> Value {
        json!({ "const": true })
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
    refuse_repeats(places, report);
    Some(places.iter().map(|place| place.value.0.clone()).collect())
}

/// One place in a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPlace(KeySource);

impl Read for KeyPlace {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        if !found.get_ref().is_table() {
            return KeyHeader::read(found, report).map(|name| Self(KeySource::Header(name.0)));
        }
        let table = KeyTable::read(found, report)?;
        table.refuse_repeats(report);
        if !table.required.is_absent() {
            let message = "one `required` holds for all: { any = [ … ], required = true }";
            report.note(&place(found), message);
            return None;
        }
        match (&table.places()?[..], &table.any) {
            ([only], Slot::Absent) => Some(Self(only.clone())),
            (_, Slot::Bad) => None,
            // Only names that are unknown: that has been noted.
            ([], Slot::Absent) if !is_empty(found) => None,
            _ => {
                let message = "write { header = … }, { json = … } or { cloudevents = true }";
                report.note(&place(found), message);
                None
            }
        }
    }

    fn schema() -> Value {
        let text = json!({ "type": "string" });
        let one = |name: &str, schema: &Value| {
            let properties = json!({ name: schema });
            json!({ "type": "object", "properties": properties, "required": [name],
                    "additionalProperties": false })
        };
        let event = one("cloudevents", &Yes::schema());
        let members = one("json", &<OneOrMore<Pointer>>::schema());
        json!({ "anyOf": [text, one("header", &text), members, event] })
    }
}

/// The name of a header that may hold a key.
#[derive(Clone, Debug)]
pub(super) struct KeyHeader(HeaderName);

impl Text for KeyHeader {
    const EXPECTED: &'static str = "the name of a header";

    fn parse(text: &str) -> Result<Self, String> {
        let name = <HeaderName as Text>::parse(text)?;
        if carries_secret(name.as_str()) {
            return Err("this header carries a secret, and a key is stored in clear".to_owned());
        }
        if !names_operation(&name) {
            return Err("this header is about the message or its way, so it cannot tell one \
                        operation from another"
                .to_owned());
        }
        Ok(Self(name))
    }
}

/// Whether a header proves who sent a request. For a layer whatever is called a key or a token may
/// do so; here one of that name may be what it is asked for.
fn carries_secret(name: &str) -> bool {
    let is_secret = |name: &str| {
        HeaderName::try_from(name).is_ok_and(|name| semel_tower::Callers::header(name).is_err())
    };
    let parts: Vec<&str> = name.split('-').filter(|part| *part != "key").collect();
    let opens = ["access", "api", "auth", "functions", "private", "subscription"];
    let opens = parts.iter().any(|part| opens.contains(part)) && is_secret(name);
    // What Amazon calls the key of an operation.
    opens || (is_secret(&parts.join("-")) && !name.ends_with("client-token"))
}

/// Whether a header may name an operation.
fn names_operation(name: &HeaderName) -> bool {
    use semel_tower::header::{IDEMPOTENCY_ATTEMPT, IDEMPOTENCY_FENCE};

    let text = name.as_str();
    let about_way = text.starts_with("x-forwarded-") || text.starts_with("accept");
    let others = [
        IDEMPOTENCY_ATTEMPT,
        IDEMPOTENCY_FENCE,
        header::CONTENT_ENCODING,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::EXPECT,
        header::FORWARDED,
        header::HOST,
        header::ORIGIN,
        header::REFERER,
        header::TRAILER,
        header::USER_AGENT,
        header::VIA,
    ];
    semel_tower::may_be_kept(name) && !about_way && !others.contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_names_an_operation_is_told_from_others() {
        for name in [
            "Idempotency-Key",
            "X-Idempotency-Token",
            "X-Key",
            "Order-Key",
            "PayPal-Request-Id",
            "X-Request-Id",
            "X-Amz-Client-Token",
        ] {
            assert!(KeyHeader::parse(name).is_ok(), "{name}");
        }
        for name in [
            "Authorization",
            "Proxy-Authorization",
            "Cookie",
            "X-Api-Key",
            "X-Access-Key",
            "X-Auth-Token",
            "X-Secret-Key",
            "Content-Length",
            "Connection",
            "Date",
            "Host",
            "Idempotency-Fence",
            "X-Forwarded-For",
        ] {
            assert!(KeyHeader::parse(name).is_err(), "{name}");
        }
    }
}
