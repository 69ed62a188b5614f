//! Signed webhooks: a signature over the raw bytes of the body proves the sender.

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
    hmac::{Encoding, HmacScheme},
    presented::SignatureInvalid,
    secret::{HmacAlgorithm, SignatureError},
};
use self::{
    presented::PresentedSignatures,
    secret::{MacKey, parse_keys},
    standard::SignatureHeaders,
};
use crate::{KeyRule, header::GITHUB_DELIVERY, refusal::RequestRefusal};

/// How far the timestamp of a signature may be from now, unless a route says otherwise.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// Verifies webhooks: the scheme of the sender, and the secrets that it may sign with.
///
/// Several secrets are valid at once, so that one can be rotated: add the new one, change it at the
/// sender, then remove the old one. A secret is never printed, and no refusal contains the expected
/// signature. Signatures are compared in constant time.
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
    clock: Arc<WallClock>,
}

/// Returns the wall-clock time.
type WallClock = dyn Fn() -> SystemTime + Send + Sync;

#[derive(Clone, Debug)]
enum Scheme {
    Standard(SignatureHeaders),
    Stripe,
    GitHub,
    Hmac(HmacScheme),
}

impl Signature {
    /// [Standard Webhooks](https://www.standardwebhooks.com): the headers `webhook-id`,
    /// `webhook-timestamp` and `webhook-signature`, secrets of the form `whsec_…`. Only its
    /// symmetric signatures, `v1`, are supported.
    ///
    /// # Errors
    ///
    /// If there is no secret, or one is not decode_base64, too short or not symmetric.
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

    fn standard<S>(names: SignatureHeaders, secrets: S) -> Result<Self, SignatureError>
    where
        S: IntoIterator<Item: AsRef<str>>,
    {
        let key = |secret: &str| MacKey::new(HmacAlgorithm::Sha256, &standard::secret(secret)?);
        Ok(Self::new(Scheme::Standard(names), parse_keys(secrets, key)?))
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
        Ok(Self::new(Scheme::Stripe, parse_keys(secrets, sha256)?))
    }

    /// GitHub: the header `X-Hub-Signature-256`.
    ///
    /// Its signature covers neither a time nor the id of the delivery. A client that captures a
    /// delivery can send it again at any time, and under another id.
    ///
    /// # Errors
    ///
    /// If there is no secret, or one is too short.
    pub fn github<S>(secrets: S) -> Result<Self, SignatureError>
    where
        S: IntoIterator<Item: AsRef<str>>,
    {
        Ok(Self::new(Scheme::GitHub, parse_keys(secrets, sha256)?))
    }

    /// Any other sender that signs with HMAC.
    ///
    /// # Errors
    ///
    /// If there is no secret, one is too short, or the scheme is inconsistent.
    pub fn hmac<S>(scheme: HmacScheme, secrets: S) -> Result<Self, SignatureError>
    where
        S: IntoIterator<Item: AsRef<str>>,
    {
        scheme.check()?;
        let key = |secret: &str| MacKey::new(scheme.algorithm, secret.as_bytes());
        let keys = parse_keys(secrets, key)?;
        Ok(Self::new(Scheme::Hmac(scheme), keys))
    }

    fn new(scheme: Scheme, keys: Vec<MacKey>) -> Self {
        Self { scheme, keys, tolerance: TOLERANCE, clock: Arc::new(wall_clock) }
    }

    /// The maximum distance of a signature's timestamp from now, in the past and in the future. By
    /// default: [`TOLERANCE`]. It has no effect on a scheme without a timestamp.
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

    /// The event id of the scheme: `webhook-id`, `svix-id`, `X-GitHub-Delivery`, or `/id` in the
    /// body of Stripe's. An [`HmacScheme`] has none.
    #[must_use]
    pub fn key(&self) -> Option<KeyRule> {
        match &self.scheme {
            Scheme::Standard(names) => Some(KeyRule::header(names.id.clone())),
            Scheme::Stripe => Pointer::parse(stripe::ID).ok().map(KeyRule::json),
            Scheme::GitHub => Some(KeyRule::header(GITHUB_DELIVERY)),
            Scheme::Hmac(_) => None,
        }
    }

    /// The headers that [`Signature::verify`] reads.
    #[must_use]
    pub fn headers(&self) -> Vec<HeaderName> {
        match &self.scheme {
            Scheme::Standard(names) => names.all().to_vec(),
            Scheme::Stripe => vec![stripe::SIGNATURE],
            Scheme::GitHub => vec![github::SIGNATURE],
            Scheme::Hmac(scheme) => scheme.headers(),
        }
    }

    /// Whether the signature covers this header, as it covers the ids of Standard Webhooks.
    pub(crate) fn signs(&self, header: &HeaderName) -> bool {
        matches!(&self.scheme, Scheme::Standard(names) if names.id == *header)
    }

    /// Verifies that these headers sign this body: its raw bytes, before any `Content-Encoding` is
    /// decoded.
    ///
    /// # Errors
    ///
    /// If a header is missing, repeated or malformed, if the timestamp is too far from now, or if
    /// no signature matches the body and one of the secrets.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), SignatureInvalid> {
        let presented = self.presented(headers)?;
        if self.keys.iter().any(|key| key.verify(&presented, body)) {
            return Ok(());
        }
        Err(SignatureInvalid::new(format!(
            "no signature in {} fits the body and a secret of this route; sign the bytes of the \
             body as they are sent, with the secret that this endpoint has",
            presented.header
        )))
    }

    /// Checks what is possible before the body was read.
    pub(crate) fn check_head(&self, headers: &HeaderMap) -> Result<(), RequestRefusal> {
        self.presented(headers).map(drop).map_err(refuse)
    }

    pub(crate) fn check(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), RequestRefusal> {
        self.verify(headers, body).map_err(refuse)
    }

    fn presented(&self, headers: &HeaderMap) -> Result<PresentedSignatures, SignatureInvalid> {
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
    MacKey::new(HmacAlgorithm::Sha256, secret.as_bytes())
}

fn refuse(invalid: SignatureInvalid) -> RequestRefusal {
    RequestRefusal::detailed(Problem::SignatureInvalid, invalid.detail)
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
