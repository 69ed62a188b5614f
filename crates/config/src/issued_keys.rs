//! `issued_keys`: the keys that the gateway issues.

use std::time::Duration;

use semel_tower::{ISSUED_KEY_BYTES, IssuedKeys, Secret};
use serde_json::Value;

use super::{
    CallerRule, IssuedKeyUse, KeyLocation,
    read::{FromText, FromToml, TomlValue, origin},
    report::DiagnosticReport,
    settings::{Setting, SettingsTable as _, default, settings},
    units::{PositiveDuration, time_text},
};

/// The longest lifetime: a record is kept for as long.
const LIFETIME_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

const LIFETIME_DEFAULT: Duration = Duration::from_secs(60 * 60);
const PATH_DEFAULT: &str = "/idempotency-tokens";

settings! {
    /// The keys that the gateway issues.
    IssuedKeysTable {
        /// Path under which a caller gets a key with POST.
        path: TokenPath = default(PATH_DEFAULT);
        /// Time in which a key may be used for the first time, at most 30d. A record is kept for
        /// at least as long.
        lifetime: PositiveDuration = default(time_text(LIFETIME_DEFAULT));
    }
}

/// The path under which keys are issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenPath(String);

impl FromText for TokenPath {
    const EXPECTED: &'static str = "a path: \"/idempotency-tokens\"";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
        if !text.starts_with('/') || text.len() < 2 || !text.bytes().all(plain) {
            return Err("this is not a path; write \"/idempotency-tokens\"".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

/// `issued_keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IssuedKeysSetting {
    path: String,
    lifetime: Duration,
}

impl Default for IssuedKeysSetting {
    fn default() -> Self {
        Self { path: PATH_DEFAULT.to_owned(), lifetime: LIFETIME_DEFAULT }
    }
}

impl IssuedKeysSetting {
    pub(super) fn rule(&self, token: IssuedKeyUse) -> IssuedKeysRule {
        IssuedKeysRule { path: self.path.clone(), lifetime: self.lifetime, token }
    }
}

impl FromToml for IssuedKeysSetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let table = IssuedKeysTable::read(found, report)?;
        if table.path.is_bad() || table.lifetime.is_bad() {
            return None;
        }
        let lifetime = table.lifetime.value().map_or(LIFETIME_DEFAULT, |time| time.0);
        if !(Duration::from_secs(1)..=LIFETIME_MAX).contains(&lifetime) {
            report.add_error(&origin(found), "`lifetime` is 1s to 30d");
            return None;
        }
        let path = table.path.value().map_or(PATH_DEFAULT, |path| &path.0).to_owned();
        Some(Self { path, lifetime })
    }

    fn schema() -> Value {
        IssuedKeysTable::schema()
    }

    fn members() -> Vec<Setting> {
        IssuedKeysTable::all()
    }
}

/// The keys that the gateway issues for a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedKeysRule {
    /// Path under which a caller gets a key with POST.
    pub path: String,
    /// Time in which a key may be used for the first time.
    pub lifetime: Duration,
    /// Whether keys of clients are accepted as well.
    pub token: IssuedKeyUse,
}

impl IssuedKeysRule {
    /// The rule of the layer, with this caller secret.
    pub fn rule(&self, secret: &Secret) -> IssuedKeys {
        let keys = IssuedKeys::new(secret, &self.path, self.lifetime);
        match self.token {
            IssuedKeyUse::Accepted => keys,
            IssuedKeyUse::Required => keys.required(),
        }
    }
}

/// Why a route cannot issue keys.
pub(super) fn obstacle(
    sources: &[KeyLocation],
    callers: &[CallerRule],
    is_signed: bool,
    key_bytes_max: Option<usize>,
) -> Option<&'static str> {
    let takes_token = |source: &KeyLocation| match source {
        KeyLocation::Header(_) => true,
        KeyLocation::Json(pointers) => pointers.len() == 1,
        KeyLocation::CloudEvent => false,
    };
    if is_signed {
        Some(
            "the sender of a webhook names its events, so no keys are issued to it; remove `token`",
        )
    } else if callers.iter().all(CallerRule::is_shared) {
        Some(
            "every caller of this route is anonymous or a host alone, so no keys can be issued; \
             remove `token`, or identify the callers",
        )
    } else if !sources.iter().all(takes_token) {
        Some("an issued key is in a header or in one member of the body; remove `token`")
    } else if key_bytes_max.is_some_and(|max| max < ISSUED_KEY_BYTES) {
        Some("an issued key has 64 characters, more than this dialect allows; remove `token`")
    } else {
        None
    }
}
