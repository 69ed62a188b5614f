//! `key`: the source of the idempotency key, in all its forms.

use http::{HeaderName, header};
use semel::core::canonical::Pointer;
use serde_json::{Value, json};

use super::{
    KeyLocation, Required,
    read::{
        FromText, FromToml, Located, OneOrMore, TomlField, TomlValue, origin, refuse_repeats,
        wrong_type,
    },
    report::{DiagnosticReport, ValueOrigin},
    settings::{Setting, SettingsTable as _, default, example, is_empty, settings},
};

settings! {
    /// Source of the idempotency key.
    KeyTable {
        /// A header; for gRPC, metadata.
        header: KeyHeader = default("Idempotency-Key");
        /// A member of a JSON body, as a JSON Pointer, or a list of members whose values are
        /// combined: strings, numbers, true and false.
        json: OneOrMore<Pointer> = example("/id");
        /// true: the source and the id of a CloudEvent, combined.
        cloudevents: OnlyTrue = example(true);
        /// Several sources, tried in this order: names of headers, `{ header = … }`,
        /// `{ json = … }`, `{ cloudevents = true }`.
        any: Vec<Located<KeySourceSetting>> =
            example(json!(["Idempotency-Key", { "json": "/id" }]));
        /// Whether a request needs a key: false, true, or "warn" (the step before true).
        required: Required = default(false);
        /// Whether keys are issued by the gateway: "accepted" beside those of clients, or
        /// "required" alone. See `issued_keys`.
        token: IssuedKeyUse = example("required");
    }
}

/// `key`: the sources, and whether a key is required. What is `None` is inherited.
#[derive(Clone, Debug)]
pub(super) struct KeySetting {
    pub(super) sources: Option<Vec<KeyLocation>>,
    pub(super) required: Option<Required>,
    pub(super) token: Option<Located<IssuedKeyUse>>,
}

/// Whether keys are issued by the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuedKeyUse {
    /// Keys of clients are accepted as well.
    Accepted,
    /// No other key is accepted.
    Required,
}

impl FromToml for KeySetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let setting = |sources| Self { sources: Some(sources), required: None, token: None };
        if found.get_ref().is_array() {
            return list_of_sources(found, report).map(setting);
        }
        if found.get_ref().is_str() {
            return KeySourceSetting::read(found, report).map(|source| setting(vec![source.0]));
        }
        if !found.get_ref().is_table() {
            wrong_type(found, "the name of a header, a table or a list", report);
            return None;
        }
        let table = KeyTable::read(found, report)?;
        table.refuse_repeats(report);
        let sources = match (&table.sources()?[..], &table.any) {
            (_, TomlField::Bad) => return None,
            ([], TomlField::Absent) => None,
            ([], TomlField::Good(any)) => Some(sources(&any.value, &any.origin, report)?),
            ([only], TomlField::Absent) => Some(vec![only.clone()]),
            _ => {
                let message = "write only one of `header`, `json`, `cloudevents` and `any`";
                report.add_error(&origin(found), message);
                return None;
            }
        };
        let (required, token) = (table.required.value().copied(), table.token.get().cloned());
        let requires_token = token.as_ref().is_some_and(|at| at.value == IssuedKeyUse::Required);
        if requires_token && required.is_some_and(|required| required != Required::Yes) {
            let message = "`token = \"required\"` means that every request needs a key; remove \
                           `required`";
            report.add_error(&origin(found), message);
            return None;
        }
        let required = if requires_token { Some(Required::Yes) } else { required };
        Some(Self { sources, required, token })
    }

    fn schema() -> Value {
        let list = <Vec<Located<KeySourceSetting>>>::schema();
        json!({ "anyOf": [{ "type": "string" }, list, KeyTable::schema()] })
    }

    fn members() -> Vec<Setting> {
        KeyTable::all()
    }
}

impl KeyTable {
    /// Every source that the table names; `None` if one is invalid, which has been reported.
    fn sources(&self) -> Option<Vec<KeyLocation>> {
        if self.header.is_bad() || self.json.is_bad() || self.cloudevents.is_bad() {
            return None;
        }
        let header = self.header.value().map(|name| KeyLocation::Header(name.0.clone()));
        let pointers = |OneOrMore(list): &OneOrMore<Pointer>| {
            KeyLocation::Json(list.iter().map(|pointer| pointer.value.clone()).collect())
        };
        let json = self.json.value().map(pointers);
        let event = self.cloudevents.value().map(|_| KeyLocation::CloudEvent);
        Some(header.into_iter().chain(json).chain(event).collect())
    }

    fn refuse_repeats(&self, report: &mut DiagnosticReport<'_>) {
        if let Some(OneOrMore(pointers)) = self.json.value() {
            refuse_repeats(pointers, report);
        }
    }
}

/// A flag that can only be `true`.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlyTrue;

impl FromToml for OnlyTrue {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let yes = bool::read(found, report)?;
        if !yes {
            report.add_error(&origin(found), "write true, or leave it out");
        }
        yes.then_some(Self)
    }

    fn schema() -> Value {
        json!({ "const": true })
    }
}

fn list_of_sources(
    found: &TomlValue<'_>,
    report: &mut DiagnosticReport<'_>,
) -> Option<Vec<KeyLocation>> {
    let settings = <Vec<Located<KeySourceSetting>>>::read(found, report)?;
    sources(&settings, &origin(found), report)
}

fn sources(
    settings: &[Located<KeySourceSetting>],
    whole: &ValueOrigin,
    report: &mut DiagnosticReport<'_>,
) -> Option<Vec<KeyLocation>> {
    if settings.is_empty() {
        report.add_error(whole, "this list is empty");
        return None;
    }
    refuse_repeats(settings, report);
    Some(settings.iter().map(|setting| setting.value.0.clone()).collect())
}

/// One source in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeySourceSetting(KeyLocation);

impl FromToml for KeySourceSetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        if !found.get_ref().is_table() {
            return KeyHeader::read(found, report).map(|name| Self(KeyLocation::Header(name.0)));
        }
        let table = KeyTable::read(found, report)?;
        table.refuse_repeats(report);
        if !table.required.is_absent() || !table.token.is_absent() {
            let message = "`required` and `token` apply to all sources: \
                           { any = [ … ], required = true }";
            report.add_error(&origin(found), message);
            return None;
        }
        match (&table.sources()?[..], &table.any) {
            ([only], TomlField::Absent) => Some(Self(only.clone())),
            (_, TomlField::Bad) => None,
            // The table has only unknown names, which have been reported.
            ([], TomlField::Absent) if !is_empty(found) => None,
            _ => {
                let message = "write { header = … }, { json = … } or { cloudevents = true }";
                report.add_error(&origin(found), message);
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
        let event = one("cloudevents", &OnlyTrue::schema());
        let members = one("json", &<OneOrMore<Pointer>>::schema());
        json!({ "anyOf": [text, one("header", &text), members, event] })
    }
}

/// The name of a header that may hold a key.
#[derive(Clone, Debug)]
pub(super) struct KeyHeader(HeaderName);

impl FromText for KeyHeader {
    const EXPECTED: &'static str = "the name of a header";

    fn parse(text: &str) -> Result<Self, String> {
        let name = <HeaderName as FromText>::parse(text)?;
        if carries_secret(name.as_str()) {
            return Err("this header is a secret, and keys are stored in clear".to_owned());
        }
        if !names_operation(&name) {
            return Err(
                "this header describes the message or its routing, so it cannot identify an \
                        operation"
                    .to_owned(),
            );
        }
        Ok(Self(name))
    }
}

/// Whether a header is a credential. The layer treats every header named key or token as one; here
/// such a header may be the idempotency key itself.
fn carries_secret(name: &str) -> bool {
    let is_secret = |name: &str| {
        HeaderName::try_from(name).is_ok_and(|name| semel_tower::Callers::header(name).is_err())
    };
    let parts: Vec<&str> = name.split('-').filter(|part| *part != "key").collect();
    let opens = ["access", "api", "auth", "functions", "private", "subscription"];
    let opens = parts.iter().any(|part| opens.contains(part)) && is_secret(name);
    // Amazon's name for an idempotency key.
    opens || (is_secret(&parts.join("-")) && !name.ends_with("client-token"))
}

/// Whether a header can identify an operation.
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
    fn only_a_header_that_can_name_an_operation_holds_a_key() {
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
