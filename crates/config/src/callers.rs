//! `caller`: the rules that identify the caller, in a file and on the command line.

use http::HeaderName;
use semel_tower::{CertificateField, Network};
use serde_json::{Value, json};

use super::{
    CallerPart, CallerRule,
    keys::OnlyTrue,
    read::{
        FromText, FromToml, Located, OneOrMore, TomlField, TomlValue, merge, origin, wrong_type,
    },
    report::DiagnosticReport,
    settings::{default, example, is_empty, settings},
    suggest,
    values::CookieName,
    verified_callers::{self, JwtRule},
};

settings! {
    /// How the caller is identified.
    CallerTable {
        /// Value of a header, in clear. Any client that can send the header can pose as this
        /// caller.
        header: HeaderName = example("X-Merchant-Id");
        /// With `header`: the networks that the header is accepted from. From elsewhere it is
        /// refused with 403. The address is that of the connection, never of a header.
        from: OneOrMore<Network> = example(json!(["10.0.0.0/8"]));
        /// Value of a header that is a credential, hashed.
        credential: HeaderName = example("X-Api-Key");
        /// Value of a cookie, hashed.
        cookie: CookieName = example("session");
        /// A claim of a verified JSON Web Token.
        jwt: JwtRule = example(json!({ "jwks": "https://issuer.example/jwks.json",
            "issuer": "https://issuer.example", "audience": "payments" }));
        /// Name in the client certificate: its "subject", its "san" (the only URI, or else the only
        /// DNS name or mail address) or its "fingerprint". Needs `client_ca` in `gateway.tls`.
        mtls: CertificateField = example("subject");
        /// Several rules combined. Each must find a value, unless it is `optional`.
        all: Vec<Located<CallerPart>> =
            example(json!(["authorization", { "header": "Stripe-Account", "optional": true }]));
    }
}

settings! {
    /// One of several combined caller rules.
    PartTable {
        /// Value of a header, in clear.
        header: HeaderName = example("Stripe-Account");
        /// With `header`: the networks that the header is accepted from.
        from: OneOrMore<Network> = example(json!(["10.0.0.0/8"]));
        /// Value of a header that is a credential, hashed.
        credential: HeaderName = example("X-Api-Key");
        /// Value of a cookie, hashed.
        cookie: CookieName = example("session");
        /// A claim of a verified JSON Web Token.
        jwt: JwtRule = example(json!({ "jwks": "https://issuer.example/jwks.json",
            "issuer": "https://issuer.example", "audience": "payments" }));
        /// Name in the client certificate: "subject", "san" or "fingerprint".
        mtls: CertificateField = example("subject");
        /// true: the credential in `Authorization`, hashed.
        authorization: OnlyTrue = example(true);
        /// true: the host of the request.
        host: OnlyTrue = example(true);
        /// Whether the rule may find nothing. A request without the value is a different caller
        /// from every request with one.
        optional: bool = default(false);
    }
}

/// The rules that are one word.
const WORDS: [&str; 3] = ["authorization", "anonymous", "host"];

const CALLERS: [&str; 6] = ["authorization", "anonymous", "host", "header", "credential", "cookie"];

impl CallerRule {
    /// Reads a rule as the command line has it: `authorization`, `header=X-Merchant-Id`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if WORDS.contains(&text) => Ok(Self::word(text)),
            Some(("header", name)) => Self::header(<HeaderName as FromText>::parse(name)?),
            Some(("credential", name)) => Self::credential(<HeaderName as FromText>::parse(name)?),
            Some(("cookie", name)) => CookieName::parse(name).map(|name| Self::Cookie(name.0)),
            _ => {
                let word = text.split('=').next().unwrap_or_default();
                let hint = match meant_header(text) {
                    Some(kind) => format!("; did you mean `{kind}={text}`?"),
                    None => suggest::hint(word, CALLERS),
                };
                if word == "jwt" || word == "mtls" {
                    return Err(format!("a rule `{word}` is written in a file: see --config"));
                }
                Err(format!(
                    "this must be `authorization`, `anonymous`, `host`, `header=NAME`, \
                     `credential=NAME` or `cookie=NAME`{hint}"
                ))
            }
        }
    }

    /// The rule for one of the [`WORDS`].
    fn word(text: &str) -> Self {
        match text {
            "anonymous" => Self::Anonymous,
            "host" => Self::Host,
            _ => Self::Authorization,
        }
    }

    pub(super) fn header(name: HeaderName) -> Result<Self, String> {
        if name == http::header::HOST {
            return Err("write \"host\" for this, which normalizes the name".to_owned());
        }
        if is_secret(&name) {
            return Err(format!(
                "the header {name} is a secret and would be stored in clear; {}",
                if name == http::header::AUTHORIZATION {
                    "write \"authorization\", which hashes it"
                } else {
                    "use `credential` or `cookie`, which hash it"
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

    /// Whether it hashes a credential, and so needs the secret.
    pub fn hashes(&self) -> bool {
        match self {
            Self::Authorization | Self::CredentialHeader(_) | Self::Cookie(_) => true,
            Self::Header(_)
            | Self::TrustedHeader { .. }
            | Self::Jwt(_)
            | Self::Certificate(_)
            | Self::Host
            | Self::Anonymous => false,
            Self::All(parts) => parts.iter().any(|part| part.rule.hashes()),
        }
    }

    /// Whether it verifies what a request presents.
    pub fn verifies(&self) -> bool {
        match self {
            Self::TrustedHeader { .. } | Self::Jwt(_) | Self::Certificate(_) => true,
            Self::All(parts) => parts.iter().any(|part| part.rule.verifies()),
            Self::Authorization
            | Self::Header(_)
            | Self::CredentialHeader(_)
            | Self::Cookie(_)
            | Self::Host
            | Self::Anonymous => false,
        }
    }

    /// The headers that it reads.
    pub(super) fn headers(&self) -> Vec<HeaderName> {
        match self {
            Self::Authorization | Self::Jwt(_) => vec![http::header::AUTHORIZATION],
            Self::Header(name)
            | Self::TrustedHeader { name, .. }
            | Self::CredentialHeader(name) => {
                vec![name.clone()]
            }
            Self::Cookie(_) => vec![http::header::COOKIE],
            Self::Certificate(_) | Self::Host | Self::Anonymous => Vec::new(),
            Self::All(parts) => parts.iter().flat_map(|part| part.rule.headers()).collect(),
        }
    }

    /// Whether the rule proves the caller: it depends on a secret that only the caller has, or on
    /// a network that only its proxies are in.
    pub(super) fn proves(&self) -> bool {
        match self {
            Self::All(parts) => parts.iter().any(|part| !part.optional && part.rule.proves()),
            Self::TrustedHeader { .. } | Self::Jwt(_) | Self::Certificate(_) => true,
            Self::Authorization
            | Self::Header(_)
            | Self::CredentialHeader(_)
            | Self::Cookie(_)
            | Self::Host
            | Self::Anonymous => self.hashes(),
        }
    }

    /// The rule in a few words, for people.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Authorization => "authorization".to_owned(),
            Self::Header(name) => format!("header {name}"),
            Self::TrustedHeader { name, from } => {
                let from: Vec<String> = from.iter().map(ToString::to_string).collect();
                format!("header {name} from {}", from.join(" or "))
            }
            Self::Jwt(rule) => rule.text(),
            Self::Certificate(field) => format!("client certificate {}", field.as_str()),
            Self::CredentialHeader(name) => format!("credential {name}"),
            Self::Cookie(name) => format!("cookie {name}"),
            Self::Host => "host".to_owned(),
            Self::Anonymous => "anonymous".to_owned(),
            Self::All(parts) => {
                let part = |part: &CallerPart| {
                    let mark = if part.optional { " (optional)" } else { "" };
                    part.rule.text() + mark
                };
                parts.iter().map(part).collect::<Vec<_>>().join(" + ")
            }
        }
    }

    /// What must be found for this rule to find a caller.
    fn needs(&self) -> Vec<CallerRequirement<'_>> {
        match self {
            Self::Authorization => vec![CallerRequirement::Header(&http::header::AUTHORIZATION)],
            Self::Header(name)
            | Self::TrustedHeader { name, .. }
            | Self::CredentialHeader(name) => {
                vec![CallerRequirement::Header(name)]
            }
            Self::Jwt(_) => {
                vec![
                    CallerRequirement::Header(&http::header::AUTHORIZATION),
                    CallerRequirement::Jwt,
                ]
            }
            Self::Certificate(_) => vec![CallerRequirement::Certificate],
            Self::Cookie(name) => vec![CallerRequirement::Cookie(name)],
            Self::Host => vec![CallerRequirement::Host],
            Self::Anonymous => vec![CallerRequirement::NoCredential],
            Self::All(parts) => {
                parts.iter().filter(|part| !part.optional).flat_map(|p| p.rule.needs()).collect()
            }
        }
    }
}

/// What a request must have for a rule.
#[derive(PartialEq, Eq)]
enum CallerRequirement<'a> {
    Header(&'a HeaderName),
    Cookie(&'a str),
    Jwt,
    Certificate,
    Host,
    NoCredential,
}

/// Reports each unreachable rule: an earlier one matches every request that it would match.
pub(super) fn refuse_shadowed(rules: &[Located<CallerRule>], report: &mut DiagnosticReport<'_>) {
    for (index, later) in rules.iter().enumerate() {
        let needs = later.value.needs();
        let shadows = |earlier: &&Located<CallerRule>| {
            earlier.value.needs().iter().all(|need| needs.contains(need))
        };
        let Some(earlier) = rules.iter().take(index).find(shadows) else { continue };
        let message = if earlier.value == later.value {
            "this is already in the list".to_owned()
        } else {
            format!(
                "this rule is unreachable: the earlier `{}` matches every request that it matches; \
                 put this one first",
                earlier.value.text()
            )
        };
        report.add_error(&later.origin, message);
    }
}

/// Reports each rule that reads a header which the gateway removes: the upstream would not see the
/// caller that Semel sees.
pub(super) fn refuse_untrusted(rules: &[Located<CallerRule>], report: &mut DiagnosticReport<'_>) {
    for rule in rules {
        let headers = rule.value.headers();
        if let Some(name) = headers.iter().find(|name| is_forwarded(name.as_str())) {
            let message = format!(
                "the header {name} is removed from every request, because any client can send it; \
                 if a proxy in front overwrites it, set trust_forwarded = true in [gateway]"
            );
            report.add_error(&rule.origin, message);
        }
    }
}

/// Whether a header (in lower case) is one that proxies set to describe the origin or the target of
/// a request. A client could forge it.
pub fn is_forwarded(name: &str) -> bool {
    name == "forwarded"
        || name.starts_with("x-forwarded")
        || name.starts_with("x-original-")
        || matches!(
            name,
            "cf-connecting-ip"
                | "cf-connecting-ipv6"
                | "fastly-client-ip"
                | "true-client-ip"
                | "x-client-ip"
                | "x-cluster-client-ip"
                | "x-real-ip"
                | "x-rewrite-url"
        )
}

/// Whether a header must not be stored in clear.
pub(super) fn is_secret(name: &HeaderName) -> bool {
    semel_tower::Callers::header(name.clone()).is_err()
}

/// The kind of rule for a text that looks like the name of a header: `X-Merchant-Id`.
fn meant_header(text: &str) -> Option<&'static str> {
    let name = HeaderName::try_from(text).ok().filter(|_| text.contains('-'))?;
    Some(if is_secret(&name) { "credential" } else { "header" })
}

/// The message for a word that is not a rule.
fn wrong_word(text: &str, expected: &str) -> String {
    if text.eq_ignore_ascii_case("jwt") {
        return format!(
            "this must be {expected}; a JSON Web Token needs the keys of its issuer: \
             {{ jwt = {{ jwks = \"https://…\", issuer = \"https://…\", audience = \"…\" }} }}"
        );
    }
    match meant_header(text) {
        Some(kind) => format!("this must be {expected}; did you mean {{ {kind} = \"{text}\" }}?"),
        None => format!("this must be {expected}{}", suggest::hint(text, WORDS)),
    }
}

impl FromToml for CallerRule {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        const EXPECTED: &str = "\"authorization\", \"anonymous\", \"host\", { header = … }, \
                                { credential = … }, { cookie = … }, { jwt = … }, { mtls = … } or \
                                { all = [ … ] }";
        match found.get_ref().as_str() {
            Some(word) if WORDS.contains(&word) => return Some(Self::word(word)),
            Some(other) => {
                report.add_error(&origin(found), wrong_word(other, EXPECTED));
                return None;
            }
            None => {}
        }
        if !found.get_ref().is_table() {
            wrong_type(found, EXPECTED, report);
            return None;
        }
        let table = CallerTable::read(found, report)?;
        let written = [
            written_rule(&table.header, |name| verified_callers::header(name.clone(), &table.from)),
            written_rule(&table.credential, |name| Self::credential(name.clone())),
            written_rule(&table.cookie, |name| Ok(Self::Cookie(name.0.clone()))),
            written_rule(&table.jwt, |rule| Ok(Self::Jwt(Box::new(rule.clone())))),
            written_rule(&table.mtls, |field| Ok(Self::Certificate(*field))),
            written_rule(&table.all, |parts| all(parts)),
        ];
        refuse_from(&table.from, &table.header, report)?;
        let names = "`header`, `credential`, `cookie`, `jwt`, `mtls` or `all`";
        only(written, names, found, report)
    }

    fn schema() -> Value {
        let mut table = CallerTable::schema();
        merge(&mut table, json!({ "minProperties": 1, "maxProperties": 2 }));
        json!({ "anyOf": [{ "enum": WORDS }, table] })
    }
}

impl FromToml for CallerPart {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        const EXPECTED: &str = "\"authorization\", \"host\", \"anonymous\", { header = … }, \
                                { credential = … }, { cookie = … }, { jwt = … } or { mtls = … }";
        let required = |rule| Self { rule, optional: false };
        match found.get_ref().as_str() {
            Some(word) if WORDS.contains(&word) => return Some(required(CallerRule::word(word))),
            Some(other) => {
                report.add_error(&origin(found), wrong_word(other, EXPECTED));
                return None;
            }
            None => {}
        }
        if !found.get_ref().is_table() {
            wrong_type(found, EXPECTED, report);
            return None;
        }
        let table = PartTable::read(found, report)?;
        let written = [
            written_rule(&table.header, |name| verified_callers::header(name.clone(), &table.from)),
            written_rule(&table.credential, |name| CallerRule::credential(name.clone())),
            written_rule(&table.cookie, |name| Ok(CallerRule::Cookie(name.0.clone()))),
            written_rule(&table.jwt, |rule| Ok(CallerRule::Jwt(Box::new(rule.clone())))),
            written_rule(&table.mtls, |field| Ok(CallerRule::Certificate(*field))),
            written_rule(&table.authorization, |_| Ok(CallerRule::Authorization)),
            written_rule(&table.host, |_| Ok(CallerRule::Host)),
        ];
        refuse_from(&table.from, &table.header, report)?;
        let names = "`header`, `credential`, `cookie`, `jwt`, `mtls`, `authorization` or `host`";
        let rule = only(written, names, found, report)?;
        let optional = table.optional.value().copied().unwrap_or(false);
        (!table.optional.is_bad()).then_some(Self { rule, optional })
    }

    fn schema() -> Value {
        json!({ "anyOf": [{ "enum": WORDS }, PartTable::schema()] })
    }
}

/// Reports networks without the header that they are for; `None` if they are invalid.
fn refuse_from(
    from: &TomlField<OneOrMore<Network>>,
    header: &TomlField<HeaderName>,
    report: &mut DiagnosticReport<'_>,
) -> Option<()> {
    match from {
        TomlField::Good(at) if header.is_absent() => {
            report.add_error(&at.origin, "`from` belongs to `header`");
            None
        }
        TomlField::Good(_) | TomlField::Absent => Some(()),
        TomlField::Bad => None,
    }
}

/// The rule of a field: `None` if the field is absent, `Some(None)` if it is invalid.
type WrittenRule = Option<Option<Result<CallerRule, String>>>;

fn written_rule<T>(
    written_rule: &TomlField<T>,
    rule: impl FnOnce(&T) -> Result<CallerRule, String>,
) -> WrittenRule {
    match written_rule {
        TomlField::Absent => None,
        TomlField::Bad => Some(None),
        TomlField::Good(at) => Some(Some(rule(&at.value))),
    }
}

/// The one rule that a table says.
fn only(
    written: impl IntoIterator<Item = WrittenRule>,
    names: &str,
    found: &TomlValue<'_>,
    report: &mut DiagnosticReport<'_>,
) -> Option<CallerRule> {
    let mut written = written.into_iter().flatten();
    let rule = match (written.next(), written.next()) {
        (Some(rule), None) => rule?,
        // The table has only unknown names, which have been reported.
        (None, _) if !is_empty(found) => return None,
        _ => Err(format!("write one of {names}")),
    };
    rule.map_err(|message| report.add_error(&origin(found), message)).ok()
}

/// Several rules as one.
fn all(parts: &[Located<CallerPart>]) -> Result<CallerRule, String> {
    let parts: Vec<CallerPart> = parts.iter().map(|part| part.value.clone()).collect();
    if parts.len() < 2 {
        return Err("`all` needs at least two rules".to_owned());
    }
    if parts.iter().all(|part| part.optional) {
        return Err("at least one rule must not be optional: otherwise all clients that send \
                    none of the values would be one caller"
            .to_owned());
    }
    let is_anonymous = |part: &CallerPart| part.rule == CallerRule::Anonymous;
    let is_host = |part: &CallerPart| part.rule == CallerRule::Host;
    if parts.iter().any(is_anonymous) && !parts.iter().all(|p| is_anonymous(p) || is_host(p)) {
        return Err(
            "\"anonymous\" matches only requests without a credential, so combined with these \
                    rules it never matches; only \"host\" can be combined with it"
                .to_owned(),
        );
    }
    for (index, part) in parts.iter().enumerate() {
        let needs = part.rule.needs();
        if parts.iter().take(index).any(|earlier| earlier.rule.needs() == needs) {
            return Err(format!("`{}` is already in the list", part.rule.text()));
        }
    }
    Ok(CallerRule::All(parts))
}
