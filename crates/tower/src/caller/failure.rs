//! Why a caller was refused.

use std::borrow::Cow;

use http::HeaderValue;
use semel::core::Problem;

use crate::refusal::RequestRefusal;

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
    /// The key set could not be fetched.
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
    const fn problem(self) -> Problem {
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

/// Why a rule refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallerRefusal {
    pub(super) failure: Option<CallerFailure>,
    detail: Cow<'static, str>,
}

impl CallerRefusal {
    pub(super) fn new(failure: CallerFailure, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { failure: Some(failure), detail: detail.into() }
    }
}

impl<T: Into<Cow<'static, str>>> From<T> for CallerRefusal {
    fn from(detail: T) -> Self {
        Self { failure: None, detail: detail.into() }
    }
}

impl From<CallerRefusal> for RequestRefusal {
    fn from(refusal: CallerRefusal) -> Self {
        let CallerRefusal { failure, detail } = refusal;
        let problem = failure.map_or(Problem::CallerUnidentified, CallerFailure::problem);
        // RFC 6750: without a token there is no error code.
        let challenge = match failure {
            Some(CallerFailure::TokenMissing) => Some("Bearer realm=\"semel\"".to_owned()),
            Some(_) if problem == Problem::CallerUnverified => {
                Some(format!("Bearer error=\"invalid_token\", error_description=\"{detail}\""))
            }
            Some(_) | None => None,
        };
        let challenge = challenge.and_then(|text| HeaderValue::try_from(text).ok());
        Self { problem, detail: Some(detail), challenge, caller_failure: failure }
    }
}
