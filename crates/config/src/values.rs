//! Settings whose value is a keyword or a string.

use std::net::SocketAddr;

use http::{HeaderName, header};
use semel::core::{
    BodyRule, Caller, CallerError, FingerprintHeader, HostRule, OnStoreDown, OnUnknown, QueryRule,
    Scope, canonical::Pointer, fingerprint::FingerprintHeaderError,
};
use semel_tower::{Encoding, HmacAlgorithm, LookupPath};
use serde_json::{Value, json};

use super::{
    AboutSource, IssuedKeyUse, Match, Mode, OnUnmatched, Protocol, Upstream,
    read::{FromText, FromToml, Located, TomlValue, integer, origin, wrong_type},
    report::DiagnosticReport,
    suggest,
};

/// A choice between words.
pub(super) trait Keyword: Copy + PartialEq + 'static {
    /// Each word and what it means.
    const WORDS: &'static [(&'static str, Self)];

    /// The word for this.
    fn keyword(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

fn parse_word<T: Keyword>(text: &str) -> Result<T, String> {
    if let Some((_, value)) = T::WORDS.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
    let hint = suggest::hint(text, words.iter().copied());
    Err(format!("this must be {}{hint}", suggest::listed(&words)))
}

macro_rules! words {
    ($kind:ty { $($word:literal => $value:expr),+ $(,)? }) => {
        impl Keyword for $kind {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, $value)),+];
        }

        impl FromText for $kind {
            const EXPECTED: &'static str = concat!("one of", $(" \"", $word, "\""),+);

            fn parse(text: &str) -> Result<Self, String> {
                parse_word(text)
            }

            fn schema() -> Value {
                json!({ "enum": [$($word),+] })
            }
        }
    };
}

words!(OnUnknown { "hold" => Self::Hold, "rerun" => Self::Rerun, "fail" => Self::Fail });
/// What a token of the API allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApiRole {
    /// Claims and what ends them.
    App,
    /// Reading records without their answers, and metrics.
    Viewer,
    /// Reading and changing records.
    Operator,
    /// Metrics.
    Metrics,
}

words!(ApiRole {
    "app" => Self::App,
    "viewer" => Self::Viewer,
    "operator" => Self::Operator,
    "metrics" => Self::Metrics,
});
/// Whether a client must have a certificate, where there is a CA for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// A connection without one is accepted.
    #[default]
    Optional,
    /// A connection without one is refused in the handshake.
    Required,
}

words!(ClientAuth { "optional" => Self::Optional, "required" => Self::Required });
words!(IssuedKeyUse { "accepted" => Self::Accepted, "required" => Self::Required });
words!(OnStoreDown { "reject" => Self::Reject, "pass" => Self::Pass });
words!(OnUnmatched { "pass" => Self::Pass, "refuse" => Self::Refuse });
words!(Protocol { "auto" => Self::Auto, "http1" => Self::Http1, "http2" => Self::Http2 });
words!(BodyRule { "selected" => Self::Selected, "ignore" => Self::Ignore });
words!(AboutSource { "request" => Self::Request, "route" => Self::Route });
words!(HostRule { "compare" => Self::Compare, "ignore" => Self::Ignore });
words!(Mode { "guard" => Self::Guard, "observe" => Self::Observe });
words!(QueryRule { "whole" => Self::Whole, "ignore" => Self::Ignore });

/// The `Host` header that an upstream gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardedHost {
    /// The one that the client asked for.
    Client,
    /// The upstream's own.
    Upstream,
}

words!(ForwardedHost { "client" => Self::Client, "upstream" => Self::Upstream });

/// Whose scheme a signature follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SchemeName {
    StandardWebhooks,
    Svix,
    Stripe,
    GitHub,
    Hmac,
}

words!(SchemeName {
    "standard-webhooks" => Self::StandardWebhooks,
    "svix" => Self::Svix,
    "stripe" => Self::Stripe,
    "github" => Self::GitHub,
    "hmac" => Self::Hmac,
});
words!(Encoding { "hex" => Self::Hex, "base64" => Self::Base64 });
words!(HmacAlgorithm { "sha256" => Self::Sha256, "sha512" => Self::Sha512 });

impl FromText for SocketAddr {
    const EXPECTED: &'static str = "an address with its port: \"127.0.0.1:8080\"";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            let port = text.rsplit(':').next().filter(|port| port.parse::<u16>().is_ok());
            let likely = match (text.split(':').next().unwrap_or_default(), port) {
                ("" | "*", Some(port)) => Some(format!("0.0.0.0:{port}")),
                ("localhost", Some(port)) => Some(format!("127.0.0.1:{port}")),
                (alone, Some(port)) if alone == port => Some(format!("127.0.0.1:{port}")),
                _ => None,
            };
            let hint = likely.map(|likely| format!("; did you mean `{likely}`?"));
            format!("this is not an IP address with a port{}", hint.unwrap_or_default())
        })
    }
}

/// Where operators are served, if at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiListen {
    Off,
    On(SocketAddr),
}

impl FromText for ApiListen {
    const EXPECTED: &'static str = "an address with its port, or \"off\"";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            text => <SocketAddr as FromText>::parse(text).map(Self::On),
        }
    }
}

/// The URL of an upstream.
#[derive(Clone, Debug)]
pub(super) struct UpstreamUrl(pub(super) Upstream);

impl FromText for UpstreamUrl {
    const EXPECTED: &'static str = "a URL: \"http://127.0.0.1:3000\"";

    fn parse(text: &str) -> Result<Self, String> {
        Upstream::at(text).map(Self)
    }
}

/// The address of a page.
#[derive(Clone, Debug)]
pub(super) struct PageUrl(pub(super) String);

impl FromText for PageUrl {
    const EXPECTED: &'static str = "a URL: \"https://example.com/retries\"";

    fn parse(text: &str) -> Result<Self, String> {
        let uri = text.parse::<http::Uri>().ok();
        match uri.as_ref().and_then(http::Uri::scheme_str) {
            Some("http" | "https") => Ok(Self(text.to_owned())),
            _ => Err("this is not the URL of a page; write https://…".to_owned()),
        }
    }
}

/// The name of an environment variable.
#[derive(Clone, Debug)]
pub(super) struct EnvName(pub(super) String);

impl FromText for EnvName {
    const EXPECTED: &'static str = "the name of an environment variable";
    const SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        if text.is_empty() || !text.bytes().all(plain) {
            return Err("this is not the name of an environment variable; write its name in \
                        capitals, never the secret itself"
                .to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    fn schema() -> Value {
        json!({ "pattern": "^[A-Z0-9_]+$" })
    }
}

/// The name of a token of the API.
#[derive(Clone, Debug)]
pub(super) struct TokenName(pub(super) String);

impl FromText for TokenName {
    const EXPECTED: &'static str = "the name of a token: \"billing\"";

    fn parse(text: &str) -> Result<Self, String> {
        match Scope::new(text) {
            Ok(name) if !name.is_observed() => Ok(Self(text.to_owned())),
            _ => {
                Err("a name is 1 to 64 of a-z, 0-9, `.`, `_` and `-`, beginning with a letter or \
                      a digit"
                    .to_owned())
            }
        }
    }

    fn schema() -> Value {
        json!({ "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$" })
    }
}

/// The caller of a claim, by the name that a token or the claim gives it. No route can produce it.
///
/// # Errors
///
/// If the name is empty, too long, or has control characters.
pub fn app_caller(name: &str) -> Result<Caller, CallerError> {
    Caller::new(name).and_then(|_| Caller::new(&format!("app:{name}")))
}

/// The caller of the claims of a token.
#[derive(Clone, Debug)]
pub(super) enum CallerSetting {
    /// Always this one.
    Named(String),
    /// The one that the claim names.
    Any,
}

impl FromText for CallerSetting {
    const EXPECTED: &'static str = "the name of a caller, or \"*\"";

    fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        app_caller(text).map(|_| Self::Named(text.to_owned())).map_err(|error| error.to_string())
    }
}

/// The id of a store, as `semel doctor` prints it.
#[derive(Clone, Debug)]
pub(super) struct StoreIdDigits(pub(super) String);

impl FromText for StoreIdDigits {
    const EXPECTED: &'static str = "the id of a store: 32 hexadecimal digits";

    fn parse(text: &str) -> Result<Self, String> {
        let digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(digit) {
            return Err("this is not the id of a store: `semel doctor` prints it, 32 hexadecimal \
                        digits"
                .to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    fn schema() -> Value {
        json!({ "pattern": "^[0-9a-f]{32}$" })
    }
}

impl FromText for HeaderName {
    const EXPECTED: &'static str = "the name of a header";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "this cannot be the name of a header".to_owned())
    }
}

impl FromText for FingerprintHeader {
    const EXPECTED: &'static str = "the name of a header";

    fn parse(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| {
            if error == FingerprintHeaderError::Host {
                return "the host is compared by default; see `fingerprint.host`".to_owned();
            }
            error.to_string()
        })
    }
}

/// The name of a header of an answer that may be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeptHeader(pub(super) HeaderName);

/// A path with one segment `{key}`, and perhaps `{scope}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LookupText(String);

impl LookupText {
    /// The path for a scope. It was checked when it was read.
    pub(super) fn of(&self, scope: &Scope) -> Option<LookupPath> {
        self.0.replace("{scope}", scope.as_str()).parse().ok()
    }
}

impl FromText for LookupText {
    const EXPECTED: &'static str = "a path: \"/idempotency/{key}\"";

    fn parse(text: &str) -> Result<Self, String> {
        let path: Result<LookupPath, _> = text.replace("{scope}", "s").parse();
        path.map(|_| Self(text.to_owned())).map_err(|error| error.to_string())
    }
}

impl FromText for KeptHeader {
    const EXPECTED: &'static str = "the name of a header";

    fn parse(text: &str) -> Result<Self, String> {
        match <HeaderName as FromText>::parse(text)? {
            header::CONTENT_LENGTH | header::TRAILER => {
                Err("this header is computed from the body; leave it out".to_owned())
            }
            name if semel_tower::may_be_kept(&name) => Ok(Self(name)),
            _ => Err(
                "this header is specific to one connection, one client or one point in time, so \
                      it is never stored"
                    .to_owned(),
            ),
        }
    }
}

/// The name of a cookie.
#[derive(Clone, Debug)]
pub(super) struct CookieName(pub(super) String);

impl FromText for CookieName {
    const EXPECTED: &'static str = "the name of a cookie";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?={}".contains(&byte);
        if text.is_empty() || !text.bytes().all(plain) {
            return Err("this cannot be the name of a cookie".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromText for Pointer {
    const EXPECTED: &'static str = "a JSON Pointer: \"/id\"";

    fn parse(text: &str) -> Result<Self, String> {
        let pointer = Self::parse(text).map_err(|error| error.to_string())?;
        if pointer.is_whole() {
            return Err("this names the whole body; name a member of it: \"/id\"".to_owned());
        }
        Ok(pointer)
    }
}

impl FromText for Scope {
    const EXPECTED: &'static str = "the name of a scope: \"payments\"";

    fn parse(text: &str) -> Result<Self, String> {
        match Self::new(text) {
            Ok(scope) if scope.is_observed() => {
                Err("`~observed` is added by Semel; write mode = \"observe\"".to_owned())
            }
            scope => scope.map_err(|error| error.to_string()),
        }
    }

    fn schema() -> Value {
        json!({ "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$" })
    }
}

impl FromText for Match {
    const EXPECTED: &'static str = "what to match: \"POST /v1/payments/**\"";

    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

/// A status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub(super) u16);

impl FromToml for Status {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let status = integer(found, "a status from 200 to 599", report)?;
        match u16::try_from(status) {
            Ok(status @ 200..=599) => Some(Self(status)),
            _ => {
                report.add_error(&origin(found), "an answer's status is from 200 to 599");
                None
            }
        }
    }

    fn schema() -> Value {
        json!({ "type": "integer", "minimum": 200, "maximum": 599 })
    }
}

impl FromToml for semel::core::Keep {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        const EXPECTED: &str = "\"deterministic\", \"success\", \"all\" or a list of statuses";
        if found.get_ref().is_array() {
            let statuses = <Vec<Located<Status>>>::read(found, report)?;
            return Some(Self::Statuses(status_set(&statuses)));
        }
        match found.get_ref().as_str() {
            Some("deterministic") => Some(Self::Deterministic),
            Some("success") => Some(Self::Success),
            Some("all") => Some(Self::All),
            Some(other) => {
                let hint = suggest::hint(other, ["deterministic", "success", "all"]);
                report.add_error(&origin(found), format!("this must be {EXPECTED}{hint}"));
                None
            }
            None => {
                wrong_type(found, EXPECTED, report);
                None
            }
        }
    }

    fn schema() -> Value {
        let statuses = <Vec<Located<Status>>>::schema();
        json!({ "anyOf": [{ "enum": ["deterministic", "success", "all"] }, statuses] })
    }
}

/// A list of statuses in which the default list may stand, or the word for that alone.
#[derive(Clone, Debug)]
pub(super) enum Statuses {
    /// What the setting means if it is not written.
    Default,
    /// These.
    List(Vec<Located<StatusItem>>),
}

/// An item of such a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusItem {
    /// All statuses of the default list.
    Default,
    /// This one.
    Status(u16),
}

impl FromToml for StatusItem {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        match found.get_ref().as_str() {
            Some("default") => Some(Self::Default),
            Some(_) => {
                report.add_error(&origin(found), "this must be a status, or \"default\"");
                None
            }
            None => Status::read(found, report).map(|status| Self::Status(status.0)),
        }
    }

    fn schema() -> Value {
        json!({ "anyOf": [{ "enum": ["default"] }, Status::schema()] })
    }
}

impl FromToml for Statuses {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        const EXPECTED: &str = "a list of statuses, or \"default\"";
        if found.get_ref().is_array() {
            return <Vec<Located<StatusItem>>>::read(found, report).map(Self::List);
        }
        match found.get_ref().as_str() {
            Some("default") => return Some(Self::Default),
            Some(_) => report.add_error(&origin(found), format!("this must be {EXPECTED}")),
            None => wrong_type(found, EXPECTED, report),
        }
        None
    }

    fn schema() -> Value {
        let list = <Vec<Located<StatusItem>>>::schema();
        json!({ "anyOf": [{ "enum": ["default"] }, list] })
    }
}

fn status_set(statuses: &[Located<Status>]) -> semel::core::StatusSet {
    semel::core::StatusSet::new(statuses.iter().map(|status| status.value.0))
}

impl FromToml for super::Required {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        match (found.get_ref().as_bool(), found.get_ref().as_str()) {
            (Some(true), _) => Some(Self::Yes),
            (Some(false), _) => Some(Self::No),
            (_, Some("warn")) => Some(Self::Warn),
            _ => {
                report.add_error(&origin(found), "this must be true, false or \"warn\"");
                None
            }
        }
    }

    fn schema() -> Value {
        json!({ "enum": [true, false, "warn"] })
    }
}
