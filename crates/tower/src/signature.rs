//! Webhooks that prove who sent them: a signature over the raw bytes of the body.

mod github;
mod hmac;
mod presented;
mod secret;
mod standard;
mod stripe;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName};
use semel::core::{Problem, canonical::Pointer};

pub use self::{
    hmac::{Algorithm, Encoding, HmacScheme},
    presented::SignatureInvalid,
    secret::SignatureError,
};
use self::{
    presented::Presented,
    secret::{MacKey, read_all},
    standard::Names,
};
use crate::{KeyRule, header::GITHUB_DELIVERY, refusal::Refusal};

/// How far the timestamp of a signature may be from now, unless a route says otherwise.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// How a route knows that a webhook comes from whom it seems to: the scheme of its sender, and the
/// secrets that it may be signed with.
///
/// Several secrets count at once, so that one can be replaced: give the new one beside the old,
/// change it at the sender, then take the old one away. A secret is never printed, and no refusal
/// says what the right signature would have been. Signatures are compared in constant time.
///
/// ```
/// use http::{HeaderMap, HeaderName};
/// use semel_tower::Signature;
///
/// let signature = Signature::github(["It's a Secret to Everybody"])?;
/// let mut headers = HeaderMap::new();
/// assert!(signature.verify(&headers, b"Hello, World!").is_err());
/// let sent = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
/// headers.insert("x-hub-signature-256", sent.parse()?);
/// assert!(signature.verify(&headers, b"Hello, World!").is_ok());
/// assert!(signature.verify(&headers, b"Hello, World?").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Signature {
    scheme: Scheme,
    keys: Vec<MacKey>,
    tolerance: Duration,
    clock: Arc<Clock>,
}

/// Tells the time of day.
type Clock = dyn Fn() -> SystemTime + Send + Sync;

#[derive(Clone, Debug)]
enum Scheme {
    Standard(Names),
    Stripe,
    GitHub,
    Hmac(HmacScheme),
}

impl Signature {
    /// [Standard Webhooks](https://www.standardwebhooks.com): the headers `webhook-id`,
    /// `webhook-timestamp` and `webhook-signature`, secrets of the form `whsec_…`. Only the
    /// symmetric signatures of it, `v1`, are known here.
    ///
    /// # Errors
    ///
    /// If there is no secret, or one is not base64, too short or not symmetric.
    pub fn standard_webhooks<S>(secrets: S) -> Result<Self, SignatureError>
    where
        S: IntoIterator<Item: AsRef<str>>,
    {
        Self::standard(standard::WEBHOOK, secrets)
    }

    /// The same with Svix's own headers: `svix-id`, `svix-timestamp`, `svix-signature`.
    ///
    /// # Errors
    ///
    /// As those of [`Signature::standard_webhooks`].
    pub fn svix<S>(secrets: S) -> Result<Self, SignatureError>
    where
        S: IntoIterator<Item: AsRef<str>>,
    {
        Self::standard(standard::SVIX, secrets)
    }

    fn standard<S>(names: Names, secrets: S) -> Result<Self, SignatureError>
    where
        S: IntoIterator<Item: AsRef<str>>,
    {
        let key = |secret: &str| MacKey::new(Algorithm::Sha256, &standard::secret(secret)?);
        Ok(Self::new(Scheme::Standard(names), read_all(secrets, key)?))
    }

    /// Stripe: the header `Stripe-Signature`, secrets as the dashboard shows them (`whsec_…`, all
    /// of it).
    ///
    /// # Errors
    ///
    /// If there is no secret, or one is too short.
    pub fn stripe<S>(secrets: S) -> Result<Self, SignatureError>
    where
        S: IntoIterator<Item: AsRef<str>>,
    {
        Ok(Self::new(Scheme::Stripe, read_all(secrets, sha256)?))
    }

    /// GitHub: the header `X-Hub-Signature-256`.
    ///
    /// Its signature covers neither a time nor the id of the delivery. Whoever captures a delivery
    /// can send it again at any time, and under another id.
    ///
    /// # Errors
    ///
    /// If there is no secret, or one is too short.
    pub fn github<S>(secrets: S) -> Result<Self, SignatureError>
    where
        S: IntoIterator<Item: AsRef<str>>,
    {
        Ok(Self::new(Scheme::GitHub, read_all(secrets, sha256)?))
    }

    /// Any other sender that signs with HMAC.
    ///
    /// # Errors
    ///
    /// If there is no secret, one is too short, or the scheme contradicts itself.
    pub fn hmac<S>(scheme: HmacScheme, secrets: S) -> Result<Self, SignatureError>
    where
        S: IntoIterator<Item: AsRef<str>>,
    {
        scheme.check()?;
        let key = |secret: &str| MacKey::new(scheme.algorithm, secret.as_bytes());
        let keys = read_all(secrets, key)?;
        Ok(Self::new(Scheme::Hmac(scheme), keys))
    }

    fn new(scheme: Scheme, keys: Vec<MacKey>) -> Self {
        Self { scheme, keys, tolerance: TOLERANCE, clock: Arc::new(wall_clock) }
    }

    /// How far the timestamp of a signature may be from now, in the past and in the future. By
    /// default: [`TOLERANCE`]. Where the scheme has no timestamp it says nothing.
    #[must_use]
    pub const fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Another clock than the system's, for tests.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Where the scheme has the id of an event: `webhook-id`, `svix-id`, `X-GitHub-Delivery`, or
    /// `/id` in the body of Stripe's. An [`HmacScheme`] does not say.
    #[must_use]
    pub fn key(&self) -> Option<KeyRule> {
        match &self.scheme {
            Scheme::Standard(names) => Some(KeyRule::header(names.id.clone())),
            Scheme::Stripe => Pointer::parse(stripe::ID).ok().map(KeyRule::json),
            Scheme::GitHub => Some(KeyRule::header(GITHUB_DELIVERY)),
            Scheme::Hmac(_) => None,
        }
    }

    /// Whether this header is signed too, as the ids of Standard Webhooks are.
    pub(crate) fn signs(&self, header: &HeaderName) -> bool {
        matches!(&self.scheme, Scheme::Standard(names) if names.id == *header)
    }

    /// Whether these headers sign this body: its raw bytes, before any `Content-Encoding` is
    /// undone.
    ///
    /// # Errors
    ///
    /// If a header is missing, there twice or malformed, if the timestamp is too far from now, or
    /// if no signature fits the body and one of the secrets.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), SignatureInvalid> {
        let presented = self.presented(headers)?;
        if self.keys.iter().any(|key| key.signed(&presented, body)) {
            return Ok(());
        }
        Err(SignatureInvalid::new(format!(
            "no signature in {} fits the body and a secret of this route; sign the bytes of the \
             body as they are sent, with the secret that this endpoint has",
            presented.header
        )))
    }

    /// What can be told before the body is here.
    pub(crate) fn check_head(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.presented(headers).map(drop).map_err(refuse)
    }

    pub(crate) fn check(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), Refusal> {
        self.verify(headers, body).map_err(refuse)
    }

    fn presented(&self, headers: &HeaderMap) -> Result<Presented, SignatureInvalid> {
        let presented = match &self.scheme {
            Scheme::Standard(names) => standard::read(names, headers)?,
            Scheme::Stripe => stripe::read(headers)?,
            Scheme::GitHub => github::read(headers)?,
            Scheme::Hmac(scheme) => scheme.read(headers)?,
        };
        presented.check_time((self.clock)(), self.tolerance)?;
        Ok(presented)
    }
}

fn sha256(secret: &str) -> Result<MacKey, SignatureError> {
    MacKey::new(Algorithm::Sha256, secret.as_bytes())
}

fn refuse(invalid: SignatureInvalid) -> Refusal {
    Refusal::detailed(Problem::SignatureInvalid, invalid.detail)
}

#[expect(clippy::disallowed_methods, reason = "senders sign by the time of day")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signature")
            .field("scheme", &self.scheme)
            .field("secrets", &self.keys.len())
            .field("tolerance", &self.tolerance)
            .finish_non_exhaustive()
    }
}
