//! `signature`: verification of webhooks.

use std::{fmt, path::PathBuf, time::Duration};

use http::HeaderName;
use semel::core::canonical::Pointer;
use semel_tower::{
    Encoding, HmacAlgorithm, HmacScheme, Signature, SignatureError, TOLERANCE,
    header::{GITHUB_DELIVERY, SVIX_ID, WEBHOOK_ID},
};

use super::{
    KeyLocation,
    files::FileCheck,
    loader::Loader,
    read::{Located, OneOrMore, TomlField},
    report::ValueOrigin,
    settings::{default, example, settings},
    units::{PositiveDuration, time_text},
    values::{EnvName, Keyword as _, SchemeName},
};

settings! {
    /// Webhook signature to verify.
    SignatureTable {
        /// Signature scheme: "standard-webhooks", "svix", "stripe", "github", or "hmac" for any
        /// other HMAC over the body.
        scheme: SchemeName = example("stripe");
        /// Environment variable that holds the secret, or a list of them. Any of the secrets is
        /// accepted, so that one can be rotated.
        secret_env: OneOrMore<EnvName> = example("STRIPE_WEBHOOK_SECRET");
        /// File that holds the secret, or a list of files. They are read again on a reload.
        secret_file: OneOrMore<PathBuf> = example("stripe.secret");
        /// Maximum difference between the time of a signature and now, in both directions.
        tolerance: PositiveDuration = default(time_text(TOLERANCE));
        /// For "hmac": the header with the signature.
        header: HeaderName = example("X-Signature");
        /// For "hmac": the text before the signature.
        prefix: String = example("sha256=");
        /// For "hmac": encoding of the signature, "hex" or "base64".
        encoding: Encoding = default("hex");
        /// For "hmac": hash algorithm, "sha256" or "sha512".
        algorithm: HmacAlgorithm = default("sha256");
        /// For "hmac": the header with the time, in seconds since 1970. It must be signed too.
        timestamp: HeaderName = example("X-Timestamp");
        /// For "hmac": the signed text, if it is more than the body.
        signed: String = default("{body}");
    }
}

/// Signature verification of a route for webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureRule {
    /// The signature scheme.
    pub scheme: SignatureScheme,
    /// Sources of the secrets, at least one.
    pub secrets: Vec<WebhookSecretSource>,
    /// Maximum age of a signature, in both directions; `None` if the scheme has no timestamp.
    pub tolerance: Option<Duration>,
}

/// A signature scheme.
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
    /// Any other HMAC scheme.
    Hmac(HmacRule),
}

/// The parameters of a custom HMAC scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HmacRule {
    /// The header with the signature.
    pub header: HeaderName,
    /// The text before the signature; often empty.
    pub prefix: String,
    /// The encoding of the signature.
    pub encoding: Encoding,
    /// The hash algorithm.
    pub algorithm: HmacAlgorithm,
    /// The header with the timestamp.
    pub timestamp: Option<HeaderName>,
    /// Template of the signed text.
    pub signed: String,
}

/// The source of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookSecretSource {
    /// An environment variable, and its value when the configuration was loaded.
    Env(String, WebhookSecret),
    /// A file.
    File(PathBuf),
}

/// The secret of a webhook. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(pub String);

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

impl SignatureRule {
    /// Builds a verifier with these secrets.
    pub fn with(&self, secrets: &[impl AsRef<str>]) -> Result<Signature, SignatureError> {
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

    /// The source of the event id, if the scheme defines it.
    pub(super) fn key(&self) -> Option<KeyLocation> {
        match self {
            Self::StandardWebhooks => Some(KeyLocation::Header(WEBHOOK_ID)),
            Self::Svix => Some(KeyLocation::Header(SVIX_ID)),
            Self::Stripe => Pointer::parse("/id").ok().map(|id| KeyLocation::Json(vec![id])),
            Self::GitHub => Some(KeyLocation::Header(GITHUB_DELIVERY)),
            Self::Hmac(_) => None,
        }
    }

    /// Whether a key from this source is always signed.
    pub(super) fn signs(&self, source: &KeyLocation) -> bool {
        match source {
            KeyLocation::Header(_) => {
                matches!(self, Self::StandardWebhooks | Self::Svix)
                    && self.key().as_ref() == Some(source)
            }
            KeyLocation::Json(_) => true,
            KeyLocation::CloudEvent => false,
        }
    }

    /// The name of the scheme in a configuration.
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

    /// Whether its signatures have a timestamp.
    fn has_timestamp(&self) -> bool {
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

/// Builds the rule of a table. Reports errors; `None` if there is one.
pub(super) fn rule(
    loader: &mut Loader<'_, '_>,
    at: &Located<SignatureTable>,
) -> Option<SignatureRule> {
    let Located { value: table, origin } = at;
    let scheme = scheme(loader, table, origin);
    let secrets = secrets(loader, table, origin, scheme.as_ref());
    let scheme = scheme?;
    let tolerance = table.tolerance.value().map_or(TOLERANCE, |time| time.0);
    if let Some(tolerance) = table.tolerance.get()
        && !scheme.has_timestamp()
    {
        let message = if matches!(scheme, SignatureScheme::Hmac(_)) {
            "`tolerance` needs `timestamp`"
        } else {
            "the signatures of this scheme have no timestamp"
        };
        loader.report.add_error(&tolerance.origin, message);
    }
    let tolerance = scheme.has_timestamp().then_some(tolerance);
    Some(SignatureRule { scheme, secrets: secrets?, tolerance })
}

fn scheme(
    loader: &mut Loader<'_, '_>,
    table: &SignatureTable,
    origin: &ValueOrigin,
) -> Option<SignatureScheme> {
    let name = match &table.scheme {
        TomlField::Good(name) => name.value,
        TomlField::Bad => return None,
        TomlField::Absent => {
            let message = "a signature needs a scheme, such as scheme = \"stripe\"";
            loader.report.add_error(origin, message);
            return None;
        }
    };
    if name != SchemeName::Hmac {
        refuse_hmac_settings(loader, table, name);
    }
    match name {
        SchemeName::StandardWebhooks => Some(SignatureScheme::StandardWebhooks),
        SchemeName::Svix => Some(SignatureScheme::Svix),
        SchemeName::Stripe => Some(SignatureScheme::Stripe),
        SchemeName::GitHub => Some(SignatureScheme::GitHub),
        SchemeName::Hmac => hmac(loader, table, origin).map(SignatureScheme::Hmac),
    }
}

/// Reports settings that only the scheme "hmac" supports.
fn refuse_hmac_settings(loader: &mut Loader<'_, '_>, table: &SignatureTable, name: SchemeName) {
    let hmac_only = [
        table.header.get().map(|at| ("header", &at.origin)),
        table.prefix.get().map(|at| ("prefix", &at.origin)),
        table.encoding.get().map(|at| ("encoding", &at.origin)),
        table.algorithm.get().map(|at| ("algorithm", &at.origin)),
        table.timestamp.get().map(|at| ("timestamp", &at.origin)),
        table.signed.get().map(|at| ("signed", &at.origin)),
    ];
    for (setting, origin) in hmac_only.into_iter().flatten() {
        let word = name.word();
        let message =
            format!("scheme = \"{word}\" defines this; `{setting}` is for scheme = \"hmac\" only");
        loader.report.add_error(origin, message);
    }
}

fn hmac(
    loader: &mut Loader<'_, '_>,
    table: &SignatureTable,
    origin: &ValueOrigin,
) -> Option<HmacRule> {
    let header = match &table.header {
        TomlField::Good(header) => header.value.clone(),
        TomlField::Bad => return None,
        TomlField::Absent => {
            let message = "\"hmac\" needs `header`: the header with the signature";
            loader.report.add_error(origin, message);
            return None;
        }
    };
    let text = |field: &TomlField<String>, default: &str| {
        field.value().cloned().unwrap_or_else(|| default.to_owned())
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
        let origin = table.signed.get().map_or(origin, |at| &at.origin);
        loader.report.add_error(origin, error.to_string());
        return None;
    }
    Some(rule)
}

/// The sources of the secrets. Variables are checked now, files when they are used.
fn secrets(
    loader: &mut Loader<'_, '_>,
    table: &SignatureTable,
    origin: &ValueOrigin,
    scheme: Option<&SignatureScheme>,
) -> Option<Vec<WebhookSecretSource>> {
    let mut secrets = Vec::new();
    for name in table.secret_env.value().into_iter().flat_map(|OneOrMore(names)| names) {
        secrets.push(variable(loader, name, scheme));
    }
    for file in table.secret_file.value().into_iter().flat_map(|OneOrMore(files)| files) {
        let path = loader.checked_path(&file.value, &file.origin, FileCheck::File);
        secrets.push(Some(WebhookSecretSource::File(path)));
    }
    if table.secret_env.is_absent() && table.secret_file.is_absent() {
        let message = "a signature needs a secret: set secret_env = \"NAME\" or \
                       secret_file = \"PATH\"";
        loader.report.add_error(origin, message);
    }
    if secrets.is_empty() { None } else { secrets.into_iter().collect() }
}

fn variable(
    loader: &mut Loader<'_, '_>,
    name: &Located<EnvName>,
    scheme: Option<&SignatureScheme>,
) -> Option<WebhookSecretSource> {
    let EnvName(variable) = &name.value;
    let message = match loader.variable(variable).map(|value| value.trim().to_owned()) {
        None => format!("the environment variable {variable} is not set"),
        Some(value) if value.is_empty() => format!("the environment variable {variable} is empty"),
        Some(value) => match scheme.map(|scheme| scheme.with(&[&value])) {
            Some(Err(error)) => format!("the value of {variable} is invalid: {error}"),
            Some(Ok(_)) | None => {
                return Some(WebhookSecretSource::Env(variable.clone(), WebhookSecret(value)));
            }
        },
    };
    loader.report.add_error(&name.origin, message);
    None
}
