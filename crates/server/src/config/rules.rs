//! Values with more than one way to write them: where the key is, who the caller is, the upstream.

use http::HeaderName;
use semel::core::{
    FingerprintRule, QueryRule,
    canonical::{Pointer, Selection},
};
use serde_json::{Value, json};

use super::{
    CallerRule, KeySource, Protocol, Required,
    read::{
        At, Count, Found, Read, Setting, Settings as _, Slot, Text, at, default, example, place,
        settings, wrong_type,
    },
    report::{Place, Report},
    spelling,
    units::{Time, TimeOrZero},
    values::{CookieName, HostSent, UpstreamUrl},
};

settings! {
    /// Where the key of a request is.
    KeyTable {
        /// A header; for gRPC, metadata.
        header: HeaderName = default("Idempotency-Key");
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
        let written = table.written();
        let places = match (&table.header, &table.json, &table.any) {
            (Slot::Good(header), Slot::Absent, Slot::Absent) => {
                Some(vec![KeySource::Header(header.value.clone())])
            }
            (Slot::Absent, Slot::Good(json), Slot::Absent) => {
                Some(vec![KeySource::Json(json.value.clone())])
            }
            (Slot::Absent, Slot::Absent, Slot::Good(any)) => {
                sources(&any.value, &any.place, report)
            }
            (Slot::Absent, Slot::Absent, Slot::Absent) => None,
            _ if written.iter().filter(|name| **name != "required").count() > 1 => {
                let message = "write one of `header`, `json` or `any`, not several";
                report.note(&place(found), message);
                return None;
            }
            _ => return None,
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
            return HeaderName::read(found, report).map(|name| Self(KeySource::Header(name)));
        }
        let table = KeyTable::read(found, report)?;
        if !table.required.is_absent() {
            let message = "one `required` holds for all: { any = [ … ], required = true }";
            report.note(&place(found), message);
            return None;
        }
        match (&table.header, &table.json, &table.any) {
            (Slot::Good(name), Slot::Absent, Slot::Absent) => {
                Some(Self(KeySource::Header(name.value.clone())))
            }
            (Slot::Absent, Slot::Good(json), Slot::Absent) => {
                Some(Self(KeySource::Json(json.value.clone())))
            }
            (Slot::Bad, ..) | (_, Slot::Bad, _) | (.., Slot::Bad) => None,
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

settings! {
    /// Who the caller is.
    CallerTable {
        /// The value of a header in clear. Whoever can send it can be this caller.
        header: HeaderName = example("X-Merchant-Id");
        /// The value of a header that is a credential, hashed.
        credential: HeaderName = example("X-Api-Key");
        /// The value of a cookie, hashed.
        cookie: CookieName = example("session");
    }
}

const CALLERS: [&str; 5] = ["authorization", "anonymous", "header", "credential", "cookie"];

impl CallerRule {
    /// Reads a rule as the command line has it: `authorization`, `header=X-Merchant-Id`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "authorization" => Ok(Self::Authorization),
            None if text == "anonymous" => Ok(Self::Anonymous),
            Some(("header", name)) => Self::header(<HeaderName as Text>::parse(name)?),
            Some(("credential", name)) => Self::credential(<HeaderName as Text>::parse(name)?),
            Some(("cookie", name)) => CookieName::parse(name).map(|name| Self::Cookie(name.0)),
            _ => {
                let word = text.split('=').next().unwrap_or_default();
                let hint = spelling::hint(word, CALLERS);
                Err(format!(
                    "this must be `authorization`, `anonymous`, `header=NAME`, `credential=NAME` \
                     or `cookie=NAME`{hint}"
                ))
            }
        }
    }

    fn header(name: HeaderName) -> Result<Self, String> {
        if semel_tower::Callers::header(name.clone()).is_err() {
            return Err(format!(
                "the header {name} carries a secret, which would be stored in clear; {}",
                if name == http::header::AUTHORIZATION {
                    "write \"authorization\", which hashes it"
                } else {
                    "take `credential` or `cookie`, which hash it"
                }
            ));
        }
        Ok(Self::Header(name))
    }

    fn credential(name: HeaderName) -> Result<Self, String> {
        match name {
            http::header::AUTHORIZATION => Err("write \"authorization\" for this".to_owned()),
            http::header::COOKIE => Err("name the cookie: `cookie`".to_owned()),
            name => Ok(Self::CredentialHeader(name)),
        }
    }
}

impl Read for CallerRule {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        const EXPECTED: &str = "\"authorization\", \"anonymous\", { header = … }, \
                                { credential = … } or { cookie = … }";
        match found.get_ref().as_str() {
            Some("authorization") => return Some(Self::Authorization),
            Some("anonymous") => return Some(Self::Anonymous),
            Some(other) => {
                let hint = spelling::hint(other, ["authorization", "anonymous"]);
                report.note(&place(found), format!("this must be {EXPECTED}{hint}"));
                return None;
            }
            None => {}
        }
        if !found.get_ref().is_table() {
            wrong_type(found, EXPECTED, report);
            return None;
        }
        let table = CallerTable::read(found, report)?;
        let rule = match (&table.header, &table.credential, &table.cookie) {
            (Slot::Good(name), Slot::Absent, Slot::Absent) => Self::header(name.value.clone()),
            (Slot::Absent, Slot::Good(name), Slot::Absent) => Self::credential(name.value.clone()),
            (Slot::Absent, Slot::Absent, Slot::Good(name)) => {
                Ok(Self::Cookie(name.value.0.clone()))
            }
            (Slot::Bad, ..) | (_, Slot::Bad, _) | (.., Slot::Bad) => return None,
            _ => Err("write one of `header`, `credential` or `cookie`".to_owned()),
        };
        rule.map_err(|message| report.note(&place(found), message)).ok()
    }

    fn schema() -> Value {
        let mut table = CallerTable::schema();
        super::read::merge(&mut table, json!({ "minProperties": 1, "maxProperties": 1 }));
        json!({ "anyOf": [{ "enum": ["authorization", "anonymous"] }, table] })
    }
}

settings! {
    /// What of a request counts when a repeat is compared with the first.
    FingerprintTable {
        /// Only these members of a JSON body, as JSON Pointers.
        only: Vec<At<Pointer>> = example(json!(["/amount", "/currency"]));
        /// All of a JSON body but these members, as JSON Pointers.
        except: Vec<At<Pointer>> = example(json!(["/sent_at"]));
        /// Whether the query counts: "whole", or "ignore" where clients put a timestamp there.
        query: QueryRule = default("whole");
    }
}

/// `fingerprint`.
#[derive(Clone, Debug)]
pub(super) struct Fingerprint(pub(super) FingerprintRule);

impl Read for Fingerprint {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        let table = FingerprintTable::read(found, report)?;
        let pointers = |list: &[At<Pointer>]| list.iter().map(|at| at.value.clone()).collect();
        let selection = match (&table.only, &table.except) {
            (Slot::Absent, Slot::Absent) => Selection::Whole,
            (Slot::Good(only), Slot::Absent) if only.value.is_empty() => {
                report
                    .note(&only.place, "this list is empty: every request would equal every other");
                return None;
            }
            (Slot::Good(only), Slot::Absent) => Selection::Only(pointers(&only.value)),
            (Slot::Absent, Slot::Good(except)) => Selection::Except(pointers(&except.value)),
            (Slot::Bad, _) | (_, Slot::Bad) => return None,
            (Slot::Good(_), Slot::Good(_)) => {
                report.note(&place(found), "write `only` or `except`, not both");
                return None;
            }
        };
        let query = table.query.value().copied().unwrap_or_default();
        Some(Self(FingerprintRule { selection, query }))
    }

    fn schema() -> Value {
        FingerprintTable::schema()
    }

    fn members() -> Vec<Setting> {
        FingerprintTable::all()
    }
}

settings! {
    /// Where requests go.
    UpstreamTable {
        /// http:// or https://, host and port, and what is put before every path.
        url: UpstreamUrl = example("http://127.0.0.1:3000");
        /// Which HTTP it speaks: "auto" (HTTP/1.1; over TLS, HTTP/2 where both can), "http1", or
        /// "http2" (without TLS by prior knowledge; gRPC needs it).
        protocol: Protocol = default("auto");
        /// A PEM file with the certificates to trust instead of the machine's own.
        ca: std::path::PathBuf = example("ca.pem");
        /// Which host it is told: the "client"'s, or the "upstream"'s own.
        host: HostSent = default("client");
        /// How long connecting may take, TLS included.
        connect_timeout: Time = default("5s");
        /// How long it may take to answer.
        timeout: Time = default("1m");
        /// How long a connection may be idle and still be used again.
        pool_idle: TimeOrZero = default("4s");
        /// How many idle connections each thread keeps.
        pool_max: Count = default(1024);
    }
}

/// `upstream`: a URL, or a table.
#[derive(Clone, Debug, Default)]
pub(super) struct UpstreamRule(pub(super) UpstreamTable);

impl Read for UpstreamRule {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        if found.get_ref().is_table() {
            return UpstreamTable::read(found, report).map(Self);
        }
        let url = at(found, report)?;
        Some(Self(UpstreamTable { url: Slot::Good(url), ..UpstreamTable::default() }))
    }

    fn schema() -> Value {
        json!({ "anyOf": [{ "type": "string" }, UpstreamTable::schema()] })
    }

    fn members() -> Vec<Setting> {
        UpstreamTable::all()
    }
}
