//! `cors`: what pages of other origins may do on a route.

use std::time::Duration;

use http::HeaderName;
use semel_tower::{AllowedOrigin, Cors};
use serde_json::{Value, json};

use super::{
    read::{FromText, FromToml, Located, TomlField, TomlValue, origin, refuse_repeats},
    report::DiagnosticReport,
    settings::{default, example, settings},
    units::{AnyDuration, time_text},
};

settings! {
    /// What pages of other origins may do.
    CorsTable {
        /// Origins whose pages may send requests, as browsers send them in `Origin`, or `["*"]` for
        /// every origin.
        origins: Vec<Located<OriginText>> = example(json!(["https://shop.example"]));
        /// Request headers that a page may set besides `Content-Type`, `Authorization` and those
        /// that the route reads for its key, callers, fingerprint and deadlines.
        headers: Vec<Located<HeaderName>> = default(json!([]));
        /// Response headers that a page may read besides those of Semel.
        expose: Vec<Located<HeaderName>> = default(json!([]));
        /// Whether a browser sends its cookies and client certificates. Every listed origin can
        /// then act for each user who visits it.
        credentials: bool = default(false);
        /// How long a browser may remember a preflight, at most 1d.
        max_age: AnyDuration = default("10m");
    }
}

/// A longer time is a mistake: browsers remember a preflight for a day at most.
const MAX_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The time unless it is set.
const MAX_AGE_DEFAULT: Duration = Duration::from_secs(10 * 60);

/// An origin, or `None` for `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OriginText(Option<AllowedOrigin>);

impl FromText for OriginText {
    const EXPECTED: &'static str = "an origin: \"https://shop.example\"";

    fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self(None));
        }
        text.parse().map(|origin| Self(Some(origin))).map_err(|error| error.to_string())
    }
}

/// `cors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsSetting {
    /// The allowed origins; empty for all.
    pub origins: Vec<AllowedOrigin>,
    /// Further request headers that a page may set.
    pub headers: Vec<HeaderName>,
    /// Further response headers that a page may read.
    pub expose: Vec<HeaderName>,
    /// Whether browsers send their cookies and client certificates.
    pub credentials: bool,
    /// How long a browser may remember a preflight.
    pub max_age: Duration,
}

impl CorsSetting {
    /// The rule of the layer.
    pub fn rule(&self) -> Cors {
        let origins = self.origins.iter().cloned();
        let cors = match (self.origins.is_empty(), self.credentials) {
            (true, _) => Cors::any_origin(),
            (false, false) => Cors::new(origins),
            (false, true) => Cors::with_credentials(origins),
        };
        cors.allow_headers(self.headers.iter().cloned())
            .expose_headers(self.expose.iter().cloned())
            .max_age(self.max_age)
    }

    /// The table as it is written.
    pub(super) fn to_json(&self) -> Value {
        let names = |names: &[HeaderName]| -> Value {
            names.iter().map(|name| name.as_str()).collect::<Vec<_>>().into()
        };
        let mut origins: Vec<String> = self.origins.iter().map(ToString::to_string).collect();
        if origins.is_empty() {
            origins.push("*".to_owned());
        }
        json!({
            "origins": origins,
            "headers": names(&self.headers),
            "expose": names(&self.expose),
            "credentials": self.credentials,
            "max_age": time_text(self.max_age),
        })
    }
}

impl FromToml for CorsSetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let table = CorsTable::read(found, report)?;
        let TomlField::Good(list) = &table.origins else {
            if table.origins.is_absent() {
                let message = "write the origins: cors = { origins = [\"https://shop.example\"] }";
                report.add_error(&origin(found), message);
            }
            return None;
        };
        refuse_repeats(&list.value, report);
        let any = list.value.iter().find(|origin| origin.value.0.is_none());
        let credentials = table.credentials.value().copied().unwrap_or_default();
        let mistake = match any {
            _ if list.value.is_empty() => {
                Some((&list.origin, "this list is empty, so no page could send requests"))
            }
            Some(any) if list.value.len() > 1 => {
                Some((&any.origin, "\"*\" allows every origin; write it alone, or leave it out"))
            }
            Some(any) if credentials => Some((
                &any.origin,
                "with `credentials` any page could act for its visitors; list the origins",
            )),
            _ => None,
        };
        if let Some((origin, message)) = mistake {
            report.add_error(origin, message);
            return None;
        }
        let max_age = table.max_age.value().map_or(MAX_AGE_DEFAULT, |time| time.0);
        if max_age > MAX_AGE_MAX {
            report.add_error(&origin(found), "`max_age` is at most 1d");
            return None;
        }
        let bad = [table.headers.is_bad(), table.expose.is_bad(), table.max_age.is_bad()];
        if bad.contains(&true) || table.credentials.is_bad() {
            return None;
        }
        let origins = list.value.iter().filter_map(|origin| origin.value.0.clone()).collect();
        let (headers, expose) = (names(&table.headers), names(&table.expose));
        Some(Self { origins, headers, expose, credentials, max_age })
    }

    fn schema() -> Value {
        CorsTable::schema()
    }
}

fn names(list: &TomlField<Vec<Located<HeaderName>>>) -> Vec<HeaderName> {
    list.value().into_iter().flatten().map(|name| name.value.clone()).collect()
}
