//! `caller`: who sent a request, in a file and on the command line.

use http::HeaderName;
use serde_json::{Value, json};

use super::{
    CallerPart, CallerRule,
    keys::Yes,
    read::{At, Found, Read, Slot, Text, merge, place, wrong_type},
    report::Report,
    settings::{default, example, is_empty, settings},
    spelling,
    values::CookieName,
};

settings! {
    /// Who the caller is.
    CallerTable {
        /// The value of a header in clear. Whoever can send it can be this caller.
        header: HeaderName = example("X-Merchant-Id");
        /// The value of a header that is a credential, hashed.
        credential: HeaderName = example("X-Api-Key");
        /// The value of a cookie, hashed.
        cookie: CookieName = example("session");
        /// Several rules together. Each must be found, unless it is `optional`.
        all: Vec<At<CallerPart>> =
            example(json!(["authorization", { "header": "Stripe-Account", "optional": true }]));
    }
}

settings! {
    /// One of several rules that name a caller together.
    PartTable {
        /// The value of a header in clear.
        header: HeaderName = example("Stripe-Account");
        /// The value of a header that is a credential, hashed.
        credential: HeaderName = example("X-Api-Key");
        /// The value of a cookie, hashed.
        cookie: CookieName = example("session");
        /// true: the credential in `Authorization`, hashed.
        authorization: Yes = example(true);
        /// true: the host that the request is for.
        host: Yes = example(true);
        /// Whether a request without it has a caller nevertheless: another one than any that has
        /// it.
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
            Some(("header", name)) => Self::header(<HeaderName as Text>::parse(name)?),
            Some(("credential", name)) => Self::credential(<HeaderName as Text>::parse(name)?),
            Some(("cookie", name)) => CookieName::parse(name).map(|name| Self::Cookie(name.0)),
            _ => {
                let word = text.split('=').next().unwrap_or_default();
                let hint = match meant_header(text) {
                    Some(kind) => format!("; did you mean `{kind}={text}`?"),
                    None => spelling::hint(word, CALLERS),
                };
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

    fn header(name: HeaderName) -> Result<Self, String> {
        if name == http::header::HOST {
            return Err("write \"host\" for this, which knows one spelling of each".to_owned());
        }
        if is_secret(&name) {
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

    /// Whether it hashes a credential, and so needs the secret.
    pub(crate) fn hashes(&self) -> bool {
        match self {
            Self::Authorization | Self::CredentialHeader(_) | Self::Cookie(_) => true,
            Self::Header(_) | Self::Host | Self::Anonymous => false,
            Self::All(parts) => parts.iter().any(|part| part.rule.hashes()),
        }
    }

    /// Whether it rests on a secret of the caller's, so that nobody else can be this caller.
    pub(super) fn proves(&self) -> bool {
        if let Self::All(parts) = self {
            return parts.iter().any(|part| !part.optional && part.rule.proves());
        }
        self.hashes()
    }

    /// The rule in a few words, for people.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Authorization => "authorization".to_owned(),
            Self::Header(name) => format!("header {name}"),
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
    fn needs(&self) -> Vec<Need<'_>> {
        match self {
            Self::Authorization => vec![Need::Header(&http::header::AUTHORIZATION)],
            Self::Header(name) | Self::CredentialHeader(name) => vec![Need::Header(name)],
            Self::Cookie(name) => vec![Need::Cookie(name)],
            Self::Host => vec![Need::Host],
            Self::Anonymous => vec![Need::NoCredential],
            Self::All(parts) => {
                parts.iter().filter(|part| !part.optional).flat_map(|p| p.rule.needs()).collect()
            }
        }
    }
}

/// What a request must have for a rule.
#[derive(PartialEq, Eq)]
enum Need<'a> {
    Header(&'a HeaderName),
    Cookie(&'a str),
    Host,
    NoCredential,
}

/// Notes each rule that is never asked: whatever it needs, an earlier one has found before.
pub(super) fn refuse_shadowed(rules: &[At<CallerRule>], report: &mut Report<'_>) {
    for (index, later) in rules.iter().enumerate() {
        let needs = later.value.needs();
        let shadows = |earlier: &&At<CallerRule>| {
            earlier.value.needs().iter().all(|need| needs.contains(need))
        };
        let Some(earlier) = rules.iter().take(index).find(shadows) else { continue };
        let message = if earlier.value == later.value {
            "this stands in the list already".to_owned()
        } else {
            format!(
                "this rule is never asked: the earlier `{}` finds a caller wherever it would; put \
                 this one first",
                earlier.value.text()
            )
        };
        report.note(&later.place, message);
    }
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

/// What to say of a word that is no rule.
fn wrong_word(text: &str, expected: &str) -> String {
    if text.eq_ignore_ascii_case("jwt") {
        return format!(
            "this must be {expected}; a JSON Web Token is issued anew while its owner stays the \
             same, so let what verifies it set a header, and name that: \
             {{ header = \"X-User-Id\" }}"
        );
    }
    match meant_header(text) {
        Some(kind) => format!("this must be {expected}; did you mean {{ {kind} = \"{text}\" }}?"),
        None => format!("this must be {expected}{}", spelling::hint(text, WORDS)),
    }
}

impl Read for CallerRule {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        const EXPECTED: &str = "\"authorization\", \"anonymous\", \"host\", { header = … }, \
                                { credential = … }, { cookie = … } or { all = [ … ] }";
        match found.get_ref().as_str() {
            Some(word) if WORDS.contains(&word) => return Some(Self::word(word)),
            Some(other) => {
                report.note(&place(found), wrong_word(other, EXPECTED));
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
            slot(&table.header, |name| Self::header(name.clone())),
            slot(&table.credential, |name| Self::credential(name.clone())),
            slot(&table.cookie, |name| Ok(Self::Cookie(name.0.clone()))),
            slot(&table.all, |parts| all(parts)),
        ];
        only(written, "`header`, `credential`, `cookie` or `all`", found, report)
    }

    fn schema() -> Value {
        let mut table = CallerTable::schema();
        merge(&mut table, json!({ "minProperties": 1, "maxProperties": 1 }));
        json!({ "anyOf": [{ "enum": WORDS }, table] })
    }
}

impl Read for CallerPart {
    fn read(found: &Found<'_>, report: &mut Report<'_>) -> Option<Self> {
        const EXPECTED: &str = "\"authorization\", \"host\", \"anonymous\", { header = … }, \
                                { credential = … } or { cookie = … }";
        let required = |rule| Self { rule, optional: false };
        match found.get_ref().as_str() {
            Some(word) if WORDS.contains(&word) => return Some(required(CallerRule::word(word))),
            Some(other) => {
                report.note(&place(found), wrong_word(other, EXPECTED));
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
            slot(&table.header, |name| CallerRule::header(name.clone())),
            slot(&table.credential, |name| CallerRule::credential(name.clone())),
            slot(&table.cookie, |name| Ok(CallerRule::Cookie(name.0.clone()))),
            slot(&table.authorization, |_| Ok(CallerRule::Authorization)),
            slot(&table.host, |_| Ok(CallerRule::Host)),
        ];
        let names = "`header`, `credential`, `cookie`, `authorization` or `host`";
        let rule = only(written, names, found, report)?;
        let optional = table.optional.value().copied().unwrap_or(false);
        (!table.optional.is_bad()).then_some(Self { rule, optional })
    }

    fn schema() -> Value {
        json!({ "anyOf": [{ "enum": WORDS }, PartTable::schema()] })
    }
}

/// A rule that was written in a slot, `None` if that is bad; nothing if there is none.
type Written = Option<Option<Result<CallerRule, String>>>;

fn slot<T>(slot: &Slot<T>, rule: impl FnOnce(&T) -> Result<CallerRule, String>) -> Written {
    match slot {
        Slot::Absent => None,
        Slot::Bad => Some(None),
        Slot::Good(at) => Some(Some(rule(&at.value))),
    }
}

/// The one rule that a table says.
fn only(
    written: impl IntoIterator<Item = Written>,
    names: &str,
    found: &Found<'_>,
    report: &mut Report<'_>,
) -> Option<CallerRule> {
    let mut written = written.into_iter().flatten();
    let rule = match (written.next(), written.next()) {
        (Some(rule), None) => rule?,
        // Only names that are unknown: that has been noted.
        (None, _) if !is_empty(found) => return None,
        _ => Err(format!("write one of {names}")),
    };
    rule.map_err(|message| report.note(&place(found), message)).ok()
}

/// Several rules as one.
fn all(parts: &[At<CallerPart>]) -> Result<CallerRule, String> {
    let parts: Vec<CallerPart> = parts.iter().map(|part| part.value.clone()).collect();
    if parts.len() < 2 {
        return Err("`all` joins at least two rules".to_owned());
    }
    if parts.iter().all(|part| part.optional) {
        return Err("at least one part must not be optional: all who send none of them would be \
                    one caller"
            .to_owned());
    }
    let is_anonymous = |part: &CallerPart| part.rule == CallerRule::Anonymous;
    let is_host = |part: &CallerPart| part.rule == CallerRule::Host;
    if parts.iter().any(is_anonymous) && !parts.iter().all(|p| is_anonymous(p) || is_host(p)) {
        return Err(
            "\"anonymous\" is who sends nothing of the kind, so together with these it is \
                    never found; only \"host\" may stand beside it"
                .to_owned(),
        );
    }
    for (index, part) in parts.iter().enumerate() {
        let needs = part.rule.needs();
        if parts.iter().take(index).any(|earlier| earlier.rule.needs() == needs) {
            return Err(format!("`{}` stands in the list already", part.rule.text()));
        }
    }
    Ok(CallerRule::All(parts))
}
