//! The refusal of a request: a problem and its details.

use std::{borrow::Cow, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use semel::core::Problem;

/// A problem and, where more is known, a detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestRefusal {
    pub(crate) problem: Problem,
    pub(crate) detail: Option<Cow<'static, str>>,
    /// The `WWW-Authenticate` header.
    pub(crate) challenge: Option<HeaderValue>,
    /// Why the caller was refused.
    pub(crate) caller_failure: Option<CallerFailure>,
    /// When a velocity limit has a unit again.
    pub(crate) limit: Option<Box<LimitAdvice>>,
}

impl RequestRefusal {
    pub(crate) fn detailed(problem: Problem, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { detail: Some(detail.into()), ..problem.into() }
    }

    /// Whether the keys that verify the caller may arrive soon.
    pub(crate) fn waits_for_keys(&self) -> bool {
        self.caller_failure == Some(CallerFailure::KeysUnavailable)
    }
}

impl From<Problem> for RequestRefusal {
    fn from(problem: Problem) -> Self {
        Self { problem, detail: None, challenge: None, caller_failure: None, limit: None }
    }
}

/// The longest wait after which a client should retry a request that a limit refused.
const RETRY_WAIT_MAX: Duration = Duration::from_secs(60);

/// What a client learns about the limit that refused its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitAdvice {
    pub(crate) wait: Duration,
    pub(crate) rate_limit: Option<HeaderValue>,
    pub(crate) policy: Option<HeaderValue>,
}

impl LimitAdvice {
    /// When the client should send the request again; `None` if that is too far away.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        (self.wait <= RETRY_WAIT_MAX).then_some(self.wait)
    }

    /// Adds the headers that say when there is a unit again.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(self.wait)));
        for (name, value) in [("ratelimit", &self.rate_limit), ("ratelimit-policy", &self.policy)] {
            if let Some(value) = value {
                headers.insert(HeaderName::from_static(name), value.clone());
            }
        }
    }
}

/// Whole seconds, rounded up.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// Why a rule refused what a request presents, for a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallerFailure {
    /// No token, and no other rule found a caller.
    TokenMissing,
    /// The token is too long, is no JSON Web Token, or has critical extensions.
    TokenMalformed,
    /// The algorithm of the token is not one of the key.
    Algorithm,
    /// The key set does not have the key that the token names.
    KeyUnknown,
    /// The key set could not be fetched, or not yet since a token named an unknown key.
    KeysUnavailable,
    /// The signature does not verify.
    Signature,
    /// The token has expired, or has no expiry.
    Expired,
    /// The token is not valid yet.
    NotYetValid,
    /// The token is from another issuer.
    Issuer,
    /// The token is for another audience.
    Audience,
    /// The claim that names the caller is missing or unusable.
    Claim,
    /// The header came from outside the listed networks.
    Network,
    /// The client certificate has no usable name.
    Certificate,
}

impl CallerFailure {
    /// Every reason.
    pub const ALL: [Self; 13] = [
        Self::TokenMissing,
        Self::TokenMalformed,
        Self::Algorithm,
        Self::KeyUnknown,
        Self::KeysUnavailable,
        Self::Signature,
        Self::Expired,
        Self::NotYetValid,
        Self::Issuer,
        Self::Audience,
        Self::Claim,
        Self::Network,
        Self::Certificate,
    ];

    /// The label of the metric.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TokenMissing => "token-missing",
            Self::TokenMalformed => "token-malformed",
            Self::Algorithm => "algorithm",
            Self::KeyUnknown => "key-unknown",
            Self::KeysUnavailable => "keys-unavailable",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYetValid => "not-yet-valid",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Claim => "claim",
            Self::Network => "network",
            Self::Certificate => "certificate",
        }
    }

    /// A client with an invalid token gets 401, so that it fetches a new one. No new token would
    /// help with another issuer, audience, network or certificate.
    pub(crate) const fn problem(self) -> Problem {
        match self {
            Self::TokenMissing
            | Self::TokenMalformed
            | Self::Algorithm
            | Self::KeyUnknown
            | Self::Signature
            | Self::Expired
            | Self::NotYetValid => Problem::CallerUnverified,
            Self::KeysUnavailable => Problem::CallerUnavailable,
            Self::Issuer | Self::Audience | Self::Claim | Self::Network | Self::Certificate => {
                Problem::CallerUnidentified
            }
        }
    }
}
