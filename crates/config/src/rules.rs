//! `fingerprint`, `record` and `upstream`.

use std::path::PathBuf;

use semel::core::{
    BodyRule, FingerprintHeader, FingerprintRule, HostRule, QueryRule,
    canonical::{Pointer, Selection},
};
use semel_tower::RecordContent;
use serde_json::{Value, json};

use super::{
    Protocol,
    read::{
        CountUpTo, FromToml, Located, TomlField, TomlValue, at, origin, refuse_repeats, wrong_type,
    },
    report::DiagnosticReport,
    settings::{Setting, SettingsTable as _, default, example, settings},
    suggest,
    units::{AnyDuration, PositiveDuration},
    values::{ForwardedHost, UpstreamUrl},
};

settings! {
    /// Parts of a request that must be equal in a retry.
    FingerprintTable {
        /// Compare only these members of a JSON body, as JSON Pointers.
        only: Vec<Located<Pointer>> = example(json!(["/amount", "/currency"]));
        /// Compare all members of a JSON body except these, as JSON Pointers.
        except: Vec<Located<Pointer>> = example(json!(["/sent_at"]));
        /// Whether the body is compared: "selected" (the members that `only` or `except` select, or
        /// all), or "ignore" if the key alone identifies the operation.
        body: BodyRule = default("selected");
        /// Whether the query is compared: "whole", or "ignore" if clients put a timestamp there.
        query: QueryRule = default("whole");
        /// Whether the host is compared: "count", or "ignore" if clients reach one service under
        /// several names. It is compared only if the upstream receives it (`upstream.host` is
        /// "client"); an IP address never is.
        host: HostRule = default("count");
        /// Headers to compare. Headers that change with each attempt are refused.
        headers: Vec<Located<FingerprintHeader>> = example(json!(["Stripe-Account"]));
    }
}

/// `fingerprint`.
#[derive(Clone, Debug)]
pub(super) struct FingerprintSetting(pub(super) FingerprintRule);

impl FromToml for FingerprintSetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let table = FingerprintTable::read(found, report)?;
        let pointers = |list: &[Located<Pointer>]| list.iter().map(|at| at.value.clone()).collect();
        let selection = match (&table.only, &table.except) {
            (TomlField::Absent, TomlField::Absent) => Selection::Whole,
            (TomlField::Good(only), TomlField::Absent) if only.value.is_empty() => {
                report
                    .add_error(&only.origin, "this list is empty, so all requests would be equal");
                return None;
            }
            (TomlField::Good(only), TomlField::Absent) => Selection::Only(pointers(&only.value)),
            (TomlField::Absent, TomlField::Good(except)) => {
                Selection::Except(pointers(&except.value))
            }
            (TomlField::Bad, _) | (_, TomlField::Bad) => return None,
            (TomlField::Good(_), TomlField::Good(_)) => {
                report.add_error(&origin(found), "write `only` or `except`, not both");
                return None;
            }
        };
        let query = table.query.value().copied().unwrap_or_default();
        let body = table.body.value().copied().unwrap_or_default();
        let host = table.host.value().copied().unwrap_or_default();
        let headers = match &table.headers {
            TomlField::Bad => return None,
            TomlField::Absent => Vec::new(),
            TomlField::Good(list) => {
                refuse_repeats(&list.value, report);
                list.value.iter().map(|name| name.value.clone()).collect()
            }
        };
        if let Some(at) = table.body.get()
            && body == BodyRule::Ignore
            && selection != Selection::Whole
        {
            report
                .add_error(&at.origin, "`only` and `except` have no effect with body = \"ignore\"");
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
    /// How much of a response is stored.
    RecordTable {
        /// Members of a JSON body to replace before it is stored, as JSON Pointers.
        redact: Vec<Located<Pointer>> = example(json!(["/card/number"]));
    }
}

/// `record`.
#[derive(Clone, Debug)]
pub(super) struct RecordSetting(pub(super) RecordContent);

impl FromToml for RecordSetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        const EXPECTED: &str = "\"full\", \"status\" or { redact = [\"/card/number\"] }";
        match found.get_ref().as_str() {
            Some("full") => return Some(Self(RecordContent::Full)),
            Some("status") => return Some(Self(RecordContent::Status)),
            Some(other) => {
                let hint = suggest::hint(other, ["full", "status"]);
                report.add_error(&origin(found), format!("this must be {EXPECTED}{hint}"));
                return None;
            }
            None if !found.get_ref().is_table() => {
                wrong_type(found, EXPECTED, report);
                return None;
            }
            None => {}
        }
        match RecordTable::read(found, report)?.redact {
            TomlField::Good(Located { value, .. }) if !value.is_empty() => {
                let pointers = value.into_iter().map(|at| at.value).collect();
                Some(Self(RecordContent::Redacted(pointers)))
            }
            TomlField::Bad => None,
            TomlField::Absent | TomlField::Good(_) => {
                let message = "list the members to redact: { redact = [\"/card/number\"] }";
                report.add_error(&origin(found), message);
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
    /// The upstream that receives the requests.
    UpstreamTable {
        /// http:// or https://, host and port, and an optional prefix for every path.
        url: UpstreamUrl = example("http://127.0.0.1:3000");
        /// HTTP version of the upstream: "auto" (HTTP/1.1; over TLS, HTTP/2 if both sides support
        /// it), "http1", or "http2" (without TLS by prior knowledge; gRPC needs it).
        protocol: Protocol = default("auto");
        /// PEM file with the CA certificates to trust instead of those of the system.
        ca: PathBuf = example("ca.pem");
        /// Host header sent to the upstream: the "client"'s, or the "upstream"'s own.
        host: ForwardedHost = default("client");
        /// Connect timeout, TLS handshake included.
        connect_timeout: PositiveDuration = default("5s");
        /// Response timeout.
        timeout: PositiveDuration = default("1m");
        /// Idle timeout of pooled connections. It must be shorter than the upstream's own
        /// keep-alive timeout; a `Keep-Alive: timeout=5` header in a response shortens it.
        pool_idle: AnyDuration = default("4s");
        /// Maximum number of idle connections per worker thread.
        pool_max: CountUpTo<65_536> = default(1024);
    }
}

/// `upstream`: a URL, or a table.
#[derive(Clone, Debug, Default)]
pub(super) struct UpstreamRule(pub(super) UpstreamTable);

impl FromToml for UpstreamRule {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        if found.get_ref().is_table() {
            return UpstreamTable::read(found, report).map(Self);
        }
        let url = at(found, report)?;
        Some(Self(UpstreamTable { url: TomlField::Good(url), ..UpstreamTable::default() }))
    }

    fn schema() -> Value {
        json!({ "anyOf": [{ "type": "string" }, UpstreamTable::schema()] })
    }

    fn members() -> Vec<Setting> {
        UpstreamTable::all()
    }
}
