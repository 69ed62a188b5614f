//! Keys that the server issues: tokens that prove who asked for them, for which scope, and until
//! when they may be used for the first time.
//!
//! A token is `st1.` and the base64url of 45 bytes: the version, the id of the secret, the expiry
//! in seconds since 1970, 16 random bytes, and 16 bytes of HMAC-SHA-256 over these, the scope and
//! the caller. 45 bytes need no padding and leave no unused bits, so a token has one spelling.
//! Verifying one reads no store.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use semel::core::{Key, Problem, RecordId};
use sha2::Sha256;

use crate::{Secret, refusal::RequestRefusal};

/// What every token begins with.
const PREFIX: &str = "st1.";

const VERSION: u8 = 1;
const SIGNED_BYTES: usize = 1 + 4 + 8 + 16;
const MAC_BYTES: usize = 16;

/// The length of every token.
pub const ISSUED_KEY_BYTES: usize = 64;

/// How far the clocks of two gateways may be apart: a record is kept for this much longer than its
/// token is valid, so that no gateway takes the token for unused.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(10 * 60);

/// How a route uses the keys that it issues.
///
/// ```
/// use std::time::Duration;
/// use semel_tower::{IssuedKeys, Secret};
///
/// let secret = Secret::new("9f86d081884c7d659a2feaa0c55ad015")?;
/// let hour = Duration::from_secs(3600);
/// let keys = IssuedKeys::new(&secret, "/idempotency-tokens", hour).required();
/// # let _ = keys;
/// # Ok::<(), semel_tower::SecretError>(())
/// ```
#[derive(Clone, Debug)]
pub struct IssuedKeys {
    path: Box<str>,
    lifetime: Duration,
    required: bool,
    current: TokenSecret,
    /// The secret before the current one, and until when its tokens are valid.
    former: Option<(TokenSecret, Option<SystemTime>)>,
}

/// What is known of a key that was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedKey {
    /// Whether it may be used for the first time no more.
    pub(crate) is_expired: bool,
    /// How long its record must be kept.
    pub(crate) retention_min: Duration,
}

impl IssuedKeys {
    /// Issues keys to those who POST to this path. A key may be used for the first time within
    /// `lifetime`. The secret must be the same in every process that shares a store.
    ///
    /// A key that the client made is accepted as well, unless issued ones are
    /// [required](IssuedKeys::required).
    #[must_use]
    pub fn new(secret: &Secret, path: &str, lifetime: Duration) -> Self {
        let current = TokenSecret::of(secret);
        Self { path: path.into(), lifetime, required: false, current, former: None }
    }

    /// Refuses a key that was not issued here with 422 `token-invalid`.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Accepts keys that were issued under the former secret too, until this time.
    #[must_use]
    pub fn former_secret(mut self, secret: &Secret, until: Option<SystemTime>) -> Self {
        self.former = Some((TokenSecret::of(secret), until));
        self
    }

    /// Whether a POST to this path asks for a key.
    pub(crate) fn is_path(&self, path: &str) -> bool {
        *self.path == *path
    }

    /// A new key for a scope and a caller, and its expiry. `None` if the system has no
    /// randomness.
    pub(crate) fn issue(
        &self,
        owner: &RecordOwner<'_>,
        now: SystemTime,
    ) -> Option<(String, SystemTime)> {
        let expiry = seconds(now).saturating_add(self.lifetime.as_secs());
        let mut random = [0; 16];
        getrandom::fill(&mut random).ok()?;
        let expires_at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(expiry))?;
        Some((self.current.token(expiry, &random, owner), expires_at))
    }

    /// Verifies the key of a record. `former` are the ids that the record had under former scopes
    /// and callers: a key that was issued to one of them is valid too. `None` for a key that the
    /// client made, where that is accepted.
    pub(crate) fn verify(
        &self,
        id: &RecordId,
        former: &[RecordId],
        now: SystemTime,
    ) -> Result<Option<VerifiedKey>, RequestRefusal> {
        let Some(token) = IssuedToken::parse(&id.key) else {
            let is_own = !id.key.as_str().starts_with(PREFIX) && !self.required;
            return if is_own { Ok(None) } else { Err(invalid()) };
        };
        let secret = self.secret(&token, now).ok_or_else(invalid)?;
        let mut ids = std::iter::once(id).chain(former);
        if !ids.any(|id| secret.verifies(&token, &RecordOwner::of(id))) {
            return Err(invalid());
        }
        let left = token.expiry().saturating_sub(seconds(now));
        let retention_min = match left {
            0 => Duration::ZERO,
            left => Duration::from_secs(left).saturating_add(CLOCK_DIFFERENCE_MAX),
        };
        Ok(Some(VerifiedKey { is_expired: left == 0, retention_min }))
    }

    /// The secret that a token names, if it is not retired.
    fn secret(&self, token: &IssuedToken, now: SystemTime) -> Option<&TokenSecret> {
        if token.secret_id() == self.current.id {
            return Some(&self.current);
        }
        let (former, until) = self.former.as_ref()?;
        let counts = until.is_none_or(|until| now < until);
        (counts && token.secret_id() == former.id).then_some(former)
    }
}

fn invalid() -> RequestRefusal {
    Problem::TokenInvalid.into()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Whom a token belongs to.
pub(crate) struct RecordOwner<'a> {
    pub(crate) scope: &'a str,
    pub(crate) caller: &'a str,
}

impl<'a> RecordOwner<'a> {
    fn of(id: &'a RecordId) -> Self {
        Self { scope: id.scope.as_str(), caller: id.caller.as_str() }
    }
}

/// A secret that signs tokens.
#[derive(Clone)]
struct TokenSecret {
    /// Tells tokens of several secrets apart. It is derived, so it reveals nothing.
    id: [u8; 4],
    mac: Hmac<Sha256>,
}

impl TokenSecret {
    fn of(secret: &Secret) -> Self {
        let [a, b, c, d, ..] = secret.derive_key("issued keys: id of the secret");
        let key = secret.derive_key("issued keys: signature");
        // HMAC fills a shorter key up with zeros.
        let mut block = [0; 64];
        for (filled, byte) in block.iter_mut().zip(key) {
            *filled = byte;
        }
        Self { id: [a, b, c, d], mac: <Hmac<Sha256> as KeyInit>::new(&block.into()) }
    }

    fn token(&self, expiry: u64, random: &[u8; 16], owner: &RecordOwner<'_>) -> String {
        let signed = [&[VERSION][..], &self.id, &expiry.to_be_bytes(), random].concat();
        let mac = self.signature(&signed, owner).finalize().into_bytes();
        let token = [&signed, mac.get(..MAC_BYTES).unwrap_or(&mac)].concat();
        format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&token))
    }

    fn verifies(&self, token: &IssuedToken, owner: &RecordOwner<'_>) -> bool {
        let (signed, mac) = token.0.split_at(SIGNED_BYTES);
        self.signature(signed, owner).verify_truncated_left(mac).is_ok()
    }

    /// A scope has no zero byte, so the boundaries between the parts count.
    fn signature(&self, signed: &[u8], owner: &RecordOwner<'_>) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(signed);
        mac.update(owner.scope.as_bytes());
        mac.update(&[0]);
        mac.update(owner.caller.as_bytes());
        mac
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(…)")
    }
}

/// The bytes of a token, not verified.
struct IssuedToken([u8; SIGNED_BYTES + MAC_BYTES]);

impl IssuedToken {
    fn parse(key: &Key) -> Option<Self> {
        let text = key.as_str().strip_prefix(PREFIX)?;
        let mut bytes = [0; SIGNED_BYTES + MAC_BYTES];
        if BASE64URL_NOPAD.decode_len(text.len()).ok()? != bytes.len() {
            return None;
        }
        BASE64URL_NOPAD.decode_mut(text.as_bytes(), &mut bytes).ok()?;
        (bytes.first() == Some(&VERSION)).then_some(Self(bytes))
    }

    fn secret_id(&self) -> [u8; 4] {
        let [_, a, b, c, d, ..] = self.0;
        [a, b, c, d]
    }

    fn expiry(&self) -> u64 {
        let [_, _, _, _, _, a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

#[cfg(test)]
mod tests;
