//! `signature`: how a webhook proves who sent it.

use std::{fmt, path::PathBuf, time::Duration};

use http::HeaderName;
use semel::core::canonical::Pointer;
use semel_tower::{
    Algorithm, Encoding, HmacScheme, Signature, SignatureError, TOLERANCE,
    header::{GITHUB_DELIVERY, SVIX_ID, WEBHOOK_ID},
};

use super::{
    KeySource,
    files::Wanted,
    load::Loader,
    read::{At, OneOrMore, Slot},
    report::Place,
    settings::{default, example, settings},
    units::{Time, time_text},
    values::{EnvName, SchemeName, Words as _},
};

settings! {
    /// How a webhook proves who sent it.
    SignatureTable {
        /// Whose scheme it is: "standard-webhooks", "svix", "stripe", "github", or "hmac" for any
        /// other that is HMAC over the body.
        scheme: SchemeName = example("stripe");
        /// The environment variable with the secret, or a list of them: each counts, so that one
        /// can be replaced.
        secret_env: OneOrMore<EnvName> = example("STRIPE_WEBHOOK_SECRET");
        /// A file with the secret, or a list of them. They are read again when the configuration
        /// is.
        secret_file: OneOrMore<PathBuf> = example("stripe.secret");
        /// How far the time of a signature may be from now, in both directions.
        tolerance: Time = default(time_text(TOLERANCE));
        /// For "hmac": the header with the signature.
        header: HeaderName = example("X-Signature");
        /// For "hmac": what stands before the signature.
        prefix: String = example("sha256=");
        /// For "hmac": how the signature is written, "hex" or "base64".
        encoding: Encoding = default("hex");
        /// For "hmac": the hash, "sha256" or "sha512".
        algorithm: Algorithm = default("sha256");
        /// For "hmac": the header with the time, in seconds since 1970. It must be signed too.
        timestamp: HeaderName = example("X-Timestamp");
        /// For "hmac": what is signed, if that is more than the body.
        signed: String = default("{body}");
    }
}

/// How a route verifies what is sent to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureRule {
    /// Whose scheme it is.
    pub scheme: SignatureScheme,
    /// Where the secrets are, at least one.
    pub secrets: Vec<SecretPlace>,
    /// How far the time of a signature may be from now; `None` where the scheme has no time.
    pub tolerance: Option<Duration>,
}

/// Whose scheme a signature follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureScheme {
    /// Standard Webhooks.
    StandardWebhooks,
    /// Svix.
    Svix,
    /// Stripe.
    Stripe,
    /// GitHub.
    GitHub,
    /// Any other that is HMAC.
    Hmac(HmacRule),
}

/// A scheme of a sender's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HmacRule {
    /// The header with the signature.
    pub header: HeaderName,
    /// What stands before the signature; often empty.
    pub prefix: String,
    /// How the signature is written.
    pub encoding: Encoding,
    /// The hash.
    pub algorithm: Algorithm,
    /// The header with the time.
    pub timestamp: Option<HeaderName>,
    /// What is signed.
    pub signed: String,
}

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretPlace {
    /// This environment variable, and what it held when the configuration was made.
    Env(String, WebhookSecret),
    /// This file.
    File(PathBuf),
}

/// The secret of a webhook. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(pub(crate) String);

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

impl SignatureRule {
    /// What verifies with these secrets.
    pub(crate) fn with(&self, secrets: &[impl AsRef<str>]) -> Result<Signature, SignatureError> {
        let signature = self.scheme.with(secrets)?;
        Ok(self.tolerance.into_iter().fold(signature, Signature::tolerance))
    }
}

impl SignatureScheme {
    fn with(&self, secrets: &[impl AsRef<str>]) -> Result<Signature, SignatureError> {
        match self {
            Self::StandardWebhooks => Signature::standard_webhooks(secrets),
            Self::Svix => Signature::svix(secrets),
            Self::Stripe => Signature::stripe(secrets),
            Self::GitHub => Signature::github(secrets),
            Self::Hmac(rule) => Signature::hmac(rule.scheme(), secrets),
        }
    }

    /// Where the scheme has the id of an event, if it says.
    pub(super) fn key(&self) -> Option<KeySource> {
        match self {
            Self::StandardWebhooks => Some(KeySource::Header(WEBHOOK_ID)),
            Self::Svix => Some(KeySource::Header(SVIX_ID)),
            Self::Stripe => Pointer::parse("/id").ok().map(|id| KeySource::Json(vec![id])),
            Self::GitHub => Some(KeySource::Header(GITHUB_DELIVERY)),
            Self::Hmac(_) => None,
        }
    }

    /// Whether a key from there is signed, however it is sent.
    pub(super) fn signs(&self, place: &KeySource) -> bool {
        match place {
            KeySource::Header(_) => {
                matches!(self, Self::StandardWebhooks | Self::Svix)
                    && self.key().as_ref() == Some(place)
            }
            KeySource::Json(_) => true,
            KeySource::CloudEvent => false,
        }
    }

    /// What it is called in a configuration.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::StandardWebhooks => SchemeName::StandardWebhooks,
            Self::Svix => SchemeName::Svix,
            Self::Stripe => SchemeName::Stripe,
            Self::GitHub => SchemeName::GitHub,
            Self::Hmac(_) => SchemeName::Hmac,
        }
        .word()
    }

    /// Whether its signatures have a time.
    fn has_time(&self) -> bool {
        match self {
            Self::StandardWebhooks | Self::Svix | Self::Stripe => true,
            Self::GitHub => false,
            Self::Hmac(rule) => rule.timestamp.is_some(),
        }
    }
}

impl HmacRule {
    fn scheme(&self) -> HmacScheme {
        let scheme = HmacScheme::new(self.header.clone())
            .prefix(&self.prefix)
            .encoding(self.encoding)
            .algorithm(self.algorithm)
            .signed(&self.signed);
        self.timestamp.iter().cloned().fold(scheme, HmacScheme::timestamp)
    }
}

/// What a table means, or nothing if it is wrong and that has been noted.
pub(super) fn rule(loader: &mut Loader<'_, '_>, at: &At<SignatureTable>) -> Option<SignatureRule> {
    let At { value: table, place } = at;
    let scheme = scheme(loader, table, place);
    let secrets = secrets(loader, table, place, scheme.as_ref());
    let scheme = scheme?;
    let tolerance = table.tolerance.value().map_or(TOLERANCE, |time| time.0);
    if let Some(tolerance) = table.tolerance.get()
        && !scheme.has_time()
    {
        let message = if matches!(scheme, SignatureScheme::Hmac(_)) {
            "without `timestamp` there is no time to compare"
        } else {
            "the signatures of this scheme have no time to compare"
        };
        loader.report.note(&tolerance.place, message);
    }
    let tolerance = scheme.has_time().then_some(tolerance);
    Some(SignatureRule { scheme, secrets: secrets?, tolerance })
}

fn scheme(
    loader: &mut Loader<'_, '_>,
    table: &SignatureTable,
    place: &Place,
) -> Option<SignatureScheme> {
    let name = match &table.scheme {
        Slot::Good(name) => name.value,
        Slot::Bad => return None,
        Slot::Absent => {
            let message = "say whose signatures these are, such as scheme = \"stripe\"";
            loader.report.note(place, message);
            return None;
        }
    };
    if name != SchemeName::Hmac {
        refuse_own(loader, table, name);
    }
    match name {
        SchemeName::StandardWebhooks => Some(SignatureScheme::StandardWebhooks),
        SchemeName::Svix => Some(SignatureScheme::Svix),
        SchemeName::Stripe => Some(SignatureScheme::Stripe),
        SchemeName::GitHub => Some(SignatureScheme::GitHub),
        SchemeName::Hmac => hmac(loader, table, place).map(SignatureScheme::Hmac),
    }
}

/// Notes what only the scheme "hmac" leaves open.
fn refuse_own(loader: &mut Loader<'_, '_>, table: &SignatureTable, name: SchemeName) {
    let own = [
        table.header.get().map(|at| ("header", &at.place)),
        table.prefix.get().map(|at| ("prefix", &at.place)),
        table.encoding.get().map(|at| ("encoding", &at.place)),
        table.algorithm.get().map(|at| ("algorithm", &at.place)),
        table.timestamp.get().map(|at| ("timestamp", &at.place)),
        table.signed.get().map(|at| ("signed", &at.place)),
    ];
    for (setting, place) in own.into_iter().flatten() {
        let word = name.word();
        let message = format!("\"{word}\" has its own; `{setting}` is for scheme = \"hmac\" only");
        loader.report.note(place, message);
    }
}

fn hmac(loader: &mut Loader<'_, '_>, table: &SignatureTable, place: &Place) -> Option<HmacRule> {
    let header = match &table.header {
        Slot::Good(header) => header.value.clone(),
        Slot::Bad => return None,
        Slot::Absent => {
            let message = "\"hmac\" needs `header`: the header with the signature";
            loader.report.note(place, message);
            return None;
        }
    };
    let text = |slot: &Slot<String>, usual: &str| {
        slot.value().cloned().unwrap_or_else(|| usual.to_owned())
    };
    let rule = HmacRule {
        header,
        prefix: text(&table.prefix, ""),
        encoding: table.encoding.value().copied().unwrap_or_default(),
        algorithm: table.algorithm.value().copied().unwrap_or_default(),
        timestamp: table.timestamp.value().cloned(),
        signed: text(&table.signed, "{body}"),
    };
    if let Err(error) = rule.scheme().check() {
        let place = table.signed.get().map_or(place, |at| &at.place);
        loader.report.note(place, error.to_string());
        return None;
    }
    Some(rule)
}

/// Where the secrets are. What the environment holds is tried; a file is read when it is needed.
fn secrets(
    loader: &mut Loader<'_, '_>,
    table: &SignatureTable,
    place: &Place,
    scheme: Option<&SignatureScheme>,
) -> Option<Vec<SecretPlace>> {
    let mut secrets = Vec::new();
    for name in table.secret_env.value().into_iter().flat_map(|OneOrMore(names)| names) {
        secrets.push(variable(loader, name, scheme));
    }
    for file in table.secret_file.value().into_iter().flat_map(|OneOrMore(files)| files) {
        let path = loader.seen(&file.value, &file.place, Wanted::File);
        secrets.push(Some(SecretPlace::File(path)));
    }
    if table.secret_env.is_absent() && table.secret_file.is_absent() {
        let message = "a signature is verified with a secret: say where it is, with \
                       secret_env = \"NAME\" or secret_file = \"PATH\"";
        loader.report.note(place, message);
    }
    if secrets.is_empty() { None } else { secrets.into_iter().collect() }
}

fn variable(
    loader: &mut Loader<'_, '_>,
    name: &At<EnvName>,
    scheme: Option<&SignatureScheme>,
) -> Option<SecretPlace> {
    let EnvName(variable) = &name.value;
    let message = match loader.variable(variable).map(|value| value.trim().to_owned()) {
        None => format!("the environment variable {variable} is not set"),
        Some(value) if value.is_empty() => format!("the environment variable {variable} is empty"),
        Some(value) => match scheme.map(|scheme| scheme.with(&[&value])) {
            Some(Err(error)) => format!("what {variable} holds cannot be used: {error}"),
            Some(Ok(_)) | None => {
                return Some(SecretPlace::Env(variable.clone(), WebhookSecret(value)));
            }
        },
    };
    loader.report.note(&name.place, message);
    None
}
