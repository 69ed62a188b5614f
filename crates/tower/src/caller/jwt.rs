//! Callers that a verified JSON Web Token names.
//!
//! `jsonwebtoken` checks signatures and claims. The rules here decide which key may verify which
//! token: the algorithm is one of the key, never the choice of the token alone.

use std::{sync::Arc, time::Duration};

use http::{header, request::Parts};
use jsonwebtoken::{Validation, dangerous, errors::ErrorKind, get_current_timestamp};
use quick_cache::sync::Cache;
use semel::core::Caller;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{
    CallerRefusal, Callers, Identification, authorization, bounded, jwks::VerificationKeyLookup,
    named_caller, only_line,
};
use crate::{Jwks, caller::CallerExtractor, refusal::CallerFailure};

/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// The most verified tokens that are remembered.
const VERIFIED_MAX: usize = 10_000;

/// How far the clocks of an issuer and of this machine may differ by default.
const LEEWAY: Duration = Duration::from_secs(60);

/// The largest such difference.
const LEEWAY_MAX: Duration = Duration::from_secs(3600);

/// Verifies the tokens of one issuer. Clones share what was verified.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use semel_tower::{Callers, Jwks, JwtVerifier};
///
/// let keys = Jwks::secret(b"a secret of 32 bytes for HS256 only")?;
/// let verifier = JwtVerifier::new(&keys, "https://issuer.example", ["payments"]).claim("/tenant");
/// let callers = Callers::jwt(&verifier);
/// # let _ = callers;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct JwtVerifier {
    keys: Jwks,
    issuer: Arc<str>,
    claim: Arc<str>,
    validation: Arc<Validation>,
    /// Verified tokens by their hash.
    verified: Arc<Cache<[u8; 32], VerifiedToken>>,
}

#[derive(Clone, Debug)]
struct VerifiedToken {
    caller: Caller,
    /// Digest of the key that verified it.
    key: [u8; 32],
    /// In seconds since 1970.
    expires: u64,
}

impl JwtVerifier {
    /// Accepts tokens of this issuer for one of these audiences. The claim `sub` names the caller.
    pub fn new<A: Into<String>>(
        keys: &Jwks,
        issuer: &str,
        audiences: impl IntoIterator<Item = A>,
    ) -> Self {
        // Fails if the process has chosen another provider, which then stays in force.
        let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
        let leeway = LEEWAY.as_secs();
        let mut validation = Validation { validate_nbf: true, leeway, ..Validation::default() };
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[issuer]);
        validation.aud = Some(audiences.into_iter().map(Into::into).collect());
        Self {
            keys: keys.clone(),
            issuer: issuer.into(),
            claim: "/sub".into(),
            validation: Arc::new(validation),
            verified: Arc::new(Cache::new(VERIFIED_MAX)),
        }
    }

    /// The claim that names the caller, as a JSON Pointer: `/sub`, `/tenant/id`.
    #[must_use]
    pub fn claim(mut self, pointer: &str) -> Self {
        self.claim = pointer.into();
        self.forget()
    }

    /// How far the clocks of the issuer and of this machine may differ: at most an hour. By
    /// default: one minute.
    #[must_use]
    pub fn leeway(mut self, leeway: Duration) -> Self {
        Arc::make_mut(&mut self.validation).leeway = leeway.min(LEEWAY_MAX).as_secs();
        self.forget()
    }

    fn forget(mut self) -> Self {
        self.verified = Arc::new(Cache::new(VERIFIED_MAX));
        self
    }

    /// The keys.
    #[must_use]
    pub const fn keys(&self) -> &Jwks {
        &self.keys
    }

    /// The caller of a request; `None` if it carries no token of this kind.
    pub(super) fn find(&self, parts: &Parts) -> Identification {
        match token(parts)? {
            Some(token) => self.verify(token).map(Some),
            None => Ok(None),
        }
    }

    /// The caller that a token names, without verifying anything.
    pub(super) fn find_unverified(&self, parts: &Parts) -> Identification {
        let Some(token) = token(parts)? else { return Ok(None) };
        let claims = dangerous::insecure_decode_claims::<Value>(token);
        let claims = claims.map_err(|_| malformed())?;
        self.name(&claims)
    }

    fn verify(&self, token: &[u8]) -> Result<Caller, CallerRefusal> {
        if token.len() > TOKEN_BYTES_MAX {
            let detail = "the token is too long";
            return Err(CallerRefusal::new(CallerFailure::TokenMalformed, detail));
        }
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.verified.get(&hash) {
            let expires = known.expires.saturating_add(self.validation.leeway);
            if get_current_timestamp() <= expires && self.keys.contains(&known.key) {
                return Ok(known.caller);
            }
            self.verified.remove(&hash);
        }
        let token_header = jsonwebtoken::decode_header(token).map_err(|_| malformed())?;
        if token_header.crit.is_some() {
            let detail = "the token has critical extensions, which are not supported";
            return Err(CallerRefusal::new(CallerFailure::TokenMalformed, detail));
        }
        let (kid, algorithm) = (token_header.kid.as_deref(), token_header.alg);
        let decoded = self.keys.find(kid, algorithm, |key| {
            let validation =
                Validation { algorithms: vec![algorithm], ..(*self.validation).clone() };
            let decoded = jsonwebtoken::decode::<Value>(token, &key.key, &validation);
            decoded.map(|token| (token.claims, key.digest)).map_err(|error| refusal(error.kind()))
        });
        let (claims, key) = match decoded {
            VerificationKeyLookup::Found(decoded) => decoded?,
            VerificationKeyLookup::WrongAlgorithm => {
                return Err(refusal(&ErrorKind::InvalidAlgorithm));
            }
            VerificationKeyLookup::Unknown => {
                let detail = "the issuer has no key of the name that the token states";
                return Err(CallerRefusal::new(CallerFailure::KeyUnknown, detail));
            }
            VerificationKeyLookup::Unavailable => return Err(keys_unavailable()),
        };
        let caller = self.name(&claims)?.ok_or_else(malformed)?;
        let expires = claims.get("exp").and_then(Value::as_f64).unwrap_or_default();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a date that jsonwebtoken has checked; a cast of a float saturates"
        )]
        let expires = expires as u64;
        self.verified.insert(hash, VerifiedToken { caller: caller.clone(), key, expires });
        Ok(caller)
    }

    /// The name of the caller: `jwt:`, the issuer, `:` and the claim. The claim is written without
    /// colons, so that the last one ends the issuer.
    fn name(&self, claims: &Value) -> Identification {
        let claim = match claims.pointer(&self.claim) {
            Some(Value::String(text)) if !text.is_empty() => text.clone(),
            Some(Value::Number(number)) if !number.is_f64() => number.to_string(),
            _ => {
                let detail = format!(
                    "the token has no claim {} with a text or a whole number to name the caller",
                    self.claim
                );
                return Err(CallerRefusal::new(CallerFailure::Claim, detail));
            }
        };
        let claim = claim.replace('%', "%25").replace(':', "%3A");
        let name = bounded("jwt:", "jwt-sha256:", &[&*self.issuer, ":", &claim].concat());
        named_caller(&name)
    }

    /// What a request without a caller should send.
    pub(super) fn expects(&self) -> String {
        format!("an Authorization header with a Bearer token of {}", self.issuer)
    }
}

impl Callers {
    /// The caller that a verified JSON Web Token names, in `Authorization: Bearer`. In the store
    /// it is called `jwt:<issuer>:<claim>`. A renewed token names the same caller.
    ///
    /// RS256, PS256, ES256 and EdDSA are accepted with a [key set](Jwks::url), HS256 with a
    /// [secret](Jwks::secret); the key decides which. A token must have an expiry, this issuer and
    /// one of the audiences.
    ///
    /// - An invalid token, or none where no other rule finds a caller: 401 `caller-unverified`
    ///   with `WWW-Authenticate`.
    /// - Another issuer or audience: 403 `caller-unidentified`.
    /// - No keys, because they cannot be fetched: 503 `caller-unavailable`.
    ///
    /// A bearer token that is not a JSON Web Token is left to the next rule.
    #[must_use]
    pub fn jwt(verifier: &JwtVerifier) -> Self {
        Self::one(CallerExtractor::Jwt(verifier.clone()), Some(header::AUTHORIZATION))
    }
}

/// The JSON Web Token in the only `Authorization` header.
fn token(parts: &Parts) -> Result<Option<&[u8]>, CallerRefusal> {
    let line = only_line(parts, &header::AUTHORIZATION)?;
    Ok(line.and_then(|line| authorization::bearer_jwt(line.as_bytes())))
}

/// The answer to a request without a token.
pub(super) fn token_missing() -> CallerRefusal {
    let detail = "the request has no JSON Web Token: send Authorization: Bearer and a token of \
                  the issuer that this route accepts";
    CallerRefusal::new(CallerFailure::TokenMissing, detail)
}

fn malformed() -> CallerRefusal {
    CallerRefusal::new(CallerFailure::TokenMalformed, "the token cannot be read")
}

fn keys_unavailable() -> CallerRefusal {
    let detail = "the key of the token could not be fetched from the issuer yet, so the token \
                  cannot be verified; nothing was done, retry with the same key";
    CallerRefusal::new(CallerFailure::KeysUnavailable, detail)
}

/// The refusal for an error of the library.
#[expect(clippy::wildcard_enum_match_arm, reason = "all other errors are malformed tokens")]
fn refusal(kind: &ErrorKind) -> CallerRefusal {
    let (failure, detail) = match kind {
        ErrorKind::InvalidSignature => {
            (CallerFailure::Signature, "the signature of the token does not verify")
        }
        ErrorKind::InvalidAlgorithm => (
            CallerFailure::Algorithm,
            "the token is signed with an algorithm that its key is not for",
        ),
        ErrorKind::ExpiredSignature => (CallerFailure::Expired, "the token has expired"),
        ErrorKind::ImmatureSignature => (CallerFailure::NotYetValid, "the token is not valid yet"),
        ErrorKind::InvalidIssuer => {
            (CallerFailure::Issuer, "the token is from another issuer than this route accepts")
        }
        ErrorKind::InvalidAudience => {
            (CallerFailure::Audience, "the token is for another audience than this route accepts")
        }
        ErrorKind::MissingRequiredClaim(claim) => match claim.as_str() {
            "iss" => (CallerFailure::Issuer, "the token has no issuer"),
            "aud" => (CallerFailure::Audience, "the token has no audience"),
            _ => (CallerFailure::Expired, "the token has no expiry"),
        },
        _ => return malformed(),
    };
    CallerRefusal::new(failure, detail)
}

#[cfg(test)]
mod tests;
