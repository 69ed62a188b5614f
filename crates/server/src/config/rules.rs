//! `fingerprint`, `record` and `upstream`: tables with a say of their own.

use std::path::PathBuf;

use semel::core::{
    BodyRule, FingerprintHeader, FingerprintRule, HostRule, QueryRule,
    canonical::{Pointer, Selection},
};
use semel_tower::RecordContent;
use serde_json::{Value, json};

use super::{
    Protocol,
    read::{At, Count, Found, Read, Slot, at, place, refuse_repeats, wrong_type},
    report::Report,
    settings::{Setting, Settings as _, default, example, settings},
    spelling,
    units::{Time, TimeOrZero},
    values::{HostSent, UpstreamUrl},
};

settings! {
    /// What of a request counts when a repeat is compared with the first.
    FingerprintTable {
        /// Only these members of a JSON body, as JSON Pointers.
        only: Vec<At<Pointer>> = example(json!(["/amount", "/currency"]));
        /// All of a JSON body but these members, as JSON Pointers.
        except: Vec<At<Pointer>> = example(json!(["/sent_at"]));
        /// Whether the body counts: "selected" (what the other two select of it, or all), or
        /// "ignore" where the key alone says which operation it is.
        body: BodyRule = default("selected");
        /// Whether the query counts: "whole", or "ignore" where clients put a timestamp there.
        query: QueryRule = default("whole");
        /// Whether the host counts that the request is for: "count", or "ignore" where clients
        /// reach one service under several names. It counts only where the upstream is told it
        /// (`upstream.host` is "client"), and an IP address never does.
        host: HostRule = default("count");
        /// Headers that count. Those that change with each attempt are refused.
        headers: Vec<At<FingerprintHeader>> = example(json!(["Stripe-Account"]));
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
        let body = table.body.value().copied().unwrap_or_default();
        let host = table.host.value().copied().unwrap_or_default();
        let headers = match &table.headers {
            Slot::Bad => return None,
            Slot::Absent => Vec::new(),
            Slot::Good(list) => {
                refuse_repeats(&list.value, report);
                list.value.iter().map(|name| name.value.clone()).collect()
            }
        };
        if let Some(at) = table.body.get()
            && body == BodyRule::Ignore
            && selection != Selection::Whole
        {
            report.note(&at.place, "a body that is ignored has no use for `only` or `except`");
            return None;
        }
        Some(Self(FingerprintRule { host, headers, selection, query, body }))
    }

    fn schema() -> Value {
        FingerprintTable::schema()
    }

    fn members() -> Vec<Setting> {
        FingerprintTable::all()
    }
}

settings! {
    /// How much of an answer is stored.
    RecordTable {
        /// The members of a JSON body that are replaced before it is stored, as JSON Pointers.
        redact: Vec<At<Pointer>> = example(json!(["/card/number"]));
    }
}

/// `record`.
#[derive(Clone, Debug)]
pub(super) struct Record(pub(super) RecordContent);

impl Read for Record {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        const EXPECTED: &str = "\"full\", \"status\" or { redact = [\"/card/number\"] }";
        match found.get_ref().as_str() {
            Some("full") => return Some(Self(RecordContent::Full)),
            Some("status") => return Some(Self(RecordContent::Status)),
            Some(other) => {
                let hint = spelling::hint(other, ["full", "status"]);
                report.note(&place(found), format!("this must be {EXPECTED}{hint}"));
                return None;
            }
            None if !found.get_ref().is_table() => {
                wrong_type(found, EXPECTED, report);
                return None;
            }
            None => {}
        }
        match RecordTable::read(found, report)?.redact {
            Slot::Good(At { value, .. }) if !value.is_empty() => {
                let pointers = value.into_iter().map(|at| at.value).collect();
                Some(Self(RecordContent::Redacted(pointers)))
            }
            Slot::Bad => None,
            Slot::Absent | Slot::Good(_) => {
                let message = "say what is redacted: { redact = [\"/card/number\"] }";
                report.note(&place(found), message);
                None
            }
        }
    }

    fn schema() -> Value {
        json!({ "anyOf": [{ "enum": ["full", "status"] }, RecordTable::schema()] })
    }

    fn members() -> Vec<Setting> {
        RecordTable::all()
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
        ca: PathBuf = example("ca.pem");
        /// Which host it is told: the "client"'s, or the "upstream"'s own.
        host: HostSent = default("client");
        /// How long connecting may take, TLS included.
        connect_timeout: Time = default("5s");
        /// How long it may take to answer.
        timeout: Time = default("1m");
        /// How long a connection may be idle and still be used again. It must be below the
        /// upstream's own keep-alive; what an answer says of that (`Keep-Alive: timeout=5`) makes
        /// it shorter.
        pool_idle: TimeOrZero = default("4s");
        /// How many idle connections each thread keeps.
        pool_max: Count<65_536> = default(1024);
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
