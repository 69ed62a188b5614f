//! Caller rules that verify: JSON Web Tokens, client certificates, headers from listed networks.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use http::HeaderName;
use semel::core::canonical::Pointer;
use semel_tower::{CertificateField, Jwks, Network, check_jwks_url};
use serde_json::{Map, Value, json};

use super::{
    CallerRule,
    files::FileCheck,
    loader::Loader,
    read::{FromText, FromToml, Located, OneOrMore, TomlField, TomlValue, origin},
    report::{DiagnosticReport, ValueOrigin},
    settings::{default, example, settings},
    units::{BoundedDuration, time_text},
    values::EnvName,
};

settings! {
    /// JSON Web Tokens whose signature, expiry, issuer and audience are verified.
    JwtTable {
        /// Key set of the issuer (JWKS): an `https://` URL, fetched in the background, or a file,
        /// read again when it changes. The keys decide which of RS256, PS256, ES256 and EdDSA are
        /// accepted.
        jwks: String = example("https://issuer.example/.well-known/jwks.json");
        /// Instead of `jwks`: environment variable that holds the shared secret for HS256, at least
        /// 32 bytes.
        secret_env: EnvName = example("JWT_SECRET");
        /// Instead of `jwks`: file that holds that secret.
        secret_file: PathBuf = example("jwt.secret");
        /// The issuer, exactly as `iss` in its tokens.
        issuer: String = example("https://issuer.example");
        /// Audience, or a list of audiences. A token must be for one of them.
        audience: OneOrMore<String> = example("payments");
        /// Claim that names the caller, as a JSON Pointer: a text or a whole number.
        claim: Pointer = default("/sub");
        /// Maximum difference between the clocks of the issuer and of this machine: 0s to 1h.
        leeway: LeewayDuration = default("60s");
    }
}

type LeewayDuration = BoundedDuration<0, 3_600_000>;

/// How tokens are verified, and which claim names the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtRule {
    /// The keys of the issuer.
    pub keys: JwtKeySource,
    /// The issuer.
    pub issuer: String,
    /// The audiences, at least one.
    pub audiences: Vec<String>,
    /// The claim that names the caller.
    pub claim: Pointer,
    /// How far clocks may differ.
    pub leeway: Duration,
}

/// Where the keys are that verify tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwtKeySource {
    /// A key set at this URL.
    Url(String),
    /// A key set in this file.
    File(PathBuf),
    /// A secret in this environment variable, and its value when the configuration was built.
    SecretEnv(String, JwtSecret),
    /// A secret in this file.
    SecretFile(PathBuf),
}

/// The secret of an issuer. It is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct JwtSecret(pub String);

impl fmt::Debug for JwtSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JwtSecret(…)")
    }
}

impl FromToml for JwtRule {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let table = JwtTable::read(found, report)?;
        let place = origin(found);
        let keys = key_source(&table, &place, report);
        let mut require = |missing: bool, name: &str, why: &str| {
            if missing {
                report.add_error(&place, format!("a jwt rule needs `{name}`: {why}"));
            }
        };
        require(table.issuer.is_absent(), "issuer", "the `iss` of the tokens");
        let why = "a token for another service must not work here";
        require(table.audience.is_absent(), "audience", why);
        if table.claim.is_bad() || table.leeway.is_bad() {
            return None;
        }
        let OneOrMore(audiences) = table.audience.value()?;
        Some(Self {
            keys: keys?,
            issuer: table.issuer.value()?.clone(),
            audiences: audiences.iter().map(|audience| audience.value.clone()).collect(),
            claim: match table.claim.value() {
                Some(claim) => claim.clone(),
                None => Pointer::parse("/sub").ok()?,
            },
            leeway: table.leeway.value().map_or(Duration::from_secs(60), |leeway| leeway.0),
        })
    }

    fn schema() -> Value {
        JwtTable::schema()
    }
}

fn key_source(
    table: &JwtTable,
    place: &ValueOrigin,
    report: &mut DiagnosticReport<'_>,
) -> Option<JwtKeySource> {
    let written =
        [&table.jwks.is_absent(), &table.secret_env.is_absent(), &table.secret_file.is_absent()];
    if written.iter().filter(|absent| !**absent).count() != 1 {
        let message = "a jwt rule needs one of `jwks`, `secret_env` and `secret_file`";
        report.add_error(place, message);
        return None;
    }
    if let TomlField::Good(jwks) = &table.jwks {
        if !jwks.value.contains("://") {
            return Some(JwtKeySource::File(jwks.value.as_str().into()));
        }
        if let Err(error) = check_jwks_url(&jwks.value) {
            report.add_error(&jwks.origin, error.to_string());
            return None;
        }
        return Some(JwtKeySource::Url(jwks.value.clone()));
    }
    if let Some(EnvName(name)) = table.secret_env.value() {
        return Some(JwtKeySource::SecretEnv(name.clone(), JwtSecret::default()));
    }
    table.secret_file.value().cloned().map(JwtKeySource::SecretFile)
}

impl JwtRule {
    /// Resolves paths and the environment variable, and reports what is missing.
    fn resolve(&mut self, loader: &mut Loader<'_, '_>, origin: &ValueOrigin) {
        match &mut self.keys {
            JwtKeySource::Url(_) => {}
            JwtKeySource::File(path) | JwtKeySource::SecretFile(path) => {
                *path = loader.checked_path(path, origin, FileCheck::File);
            }
            JwtKeySource::SecretEnv(name, value) => {
                let found = loader.variable(name).map(|value| value.trim().to_owned());
                let checked = match &found {
                    None => Err(format!("the environment variable {name} is not set")),
                    Some(secret) => Jwks::secret(secret.as_bytes())
                        .map(drop)
                        .map_err(|error| format!("the value of {name} is invalid: {error}")),
                };
                match checked {
                    Ok(()) => *value = JwtSecret(found.unwrap_or_default()),
                    Err(message) => loader.report.add_error(origin, message),
                }
            }
        }
    }

    /// The rule as TOML has it. Secrets are printed as their location only.
    pub(super) fn to_json(&self, absolute: impl Fn(&Path) -> String) -> Value {
        let mut table = Map::new();
        let (name, keys) = match &self.keys {
            JwtKeySource::Url(url) => ("jwks", url.clone()),
            JwtKeySource::File(path) => ("jwks", absolute(path)),
            JwtKeySource::SecretEnv(name, _) => ("secret_env", name.clone()),
            JwtKeySource::SecretFile(path) => ("secret_file", absolute(path)),
        };
        table.insert(name.to_owned(), keys.into());
        table.insert("issuer".to_owned(), self.issuer.as_str().into());
        table.insert("audience".to_owned(), self.audiences.clone().into());
        table.insert("claim".to_owned(), self.claim.as_str().into());
        table.insert("leeway".to_owned(), time_text(self.leeway).into());
        Value::Object(table)
    }

    /// The part of the rule that is in the names of callers.
    pub(super) fn identity(&self) -> Value {
        json!({ "issuer": self.issuer, "claim": self.claim.as_str() })
    }

    /// The rule in a few words, for people.
    pub(super) fn text(&self) -> String {
        format!("jwt {} of {}", self.claim.as_str(), self.issuer)
    }
}

impl FromText for CertificateField {
    const EXPECTED: &'static str = "one of \"subject\" \"san\" \"fingerprint\"";

    fn parse(text: &str) -> Result<Self, String> {
        let all = [Self::Subject, Self::San, Self::Fingerprint];
        let found = all.into_iter().find(|field| field.as_str() == text);
        found.ok_or_else(|| "this must be `subject`, `san` or `fingerprint`".to_owned())
    }

    fn schema() -> Value {
        json!({ "enum": ["subject", "san", "fingerprint"] })
    }
}

impl FromText for Network {
    const EXPECTED: &'static str = "a network: \"10.0.0.0/8\"";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: semel_tower::NetworkError| error.to_string())
    }
}

/// The rule for a header, believed from everywhere or from these networks.
pub(super) fn header(
    name: HeaderName,
    from: &TomlField<OneOrMore<Network>>,
) -> Result<CallerRule, String> {
    let CallerRule::Header(name) = CallerRule::header(name)? else {
        return Err("this header cannot name a caller".to_owned());
    };
    Ok(match from.value() {
        Some(OneOrMore(networks)) => CallerRule::TrustedHeader {
            name,
            from: networks.iter().map(|network| network.value).collect(),
        },
        None => CallerRule::Header(name),
    })
}

/// Resolves what the rules of a route refer to outside the file, and reports what is missing.
pub(super) fn resolve(
    loader: &mut Loader<'_, '_>,
    rules: &[Located<CallerRule>],
) -> Vec<CallerRule> {
    let mut resolved = Vec::new();
    for rule in rules {
        let mut value = rule.value.clone();
        resolve_rule(loader, &mut value, &rule.origin);
        resolved.push(value);
    }
    resolved
}

fn resolve_rule(loader: &mut Loader<'_, '_>, rule: &mut CallerRule, origin: &ValueOrigin) {
    match rule {
        CallerRule::Jwt(jwt) => jwt.resolve(loader, origin),
        CallerRule::Certificate(_) if !loader.verifies_clients => {
            let message = "clients need a CA for their certificates: set `client_ca` in \
                           gateway.tls";
            loader.report.add_error(origin, message);
        }
        CallerRule::All(parts) => {
            for part in parts {
                resolve_rule(loader, &mut part.rule, origin);
            }
        }
        CallerRule::Authorization
        | CallerRule::Header(_)
        | CallerRule::TrustedHeader { .. }
        | CallerRule::CredentialHeader(_)
        | CallerRule::Cookie(_)
        | CallerRule::Host
        | CallerRule::Certificate(_)
        | CallerRule::Anonymous => {}
    }
}

#[cfg(test)]
mod tests;
