//! The shared secrets of a webhook sender, as HMAC keys.

use data_encoding::{BASE64_NOPAD, HEXLOWER_PERMISSIVE};
use hmac::{Hmac, KeyInit as _, Mac};
use sha2::{Sha256, Sha512};

use super::presented::PresentedSignatures;
use crate::SECRET_BYTES_MIN;

/// The hash function of the HMAC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HmacAlgorithm {
    /// SHA-256, which nearly all senders use.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
}

/// Why a [`Signature`](super::Signature) cannot be built. No message contains a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureError {
    /// There is no secret to verify with.
    NoSecret,
    /// A secret has fewer than [`SECRET_BYTES_MIN`] bytes: it could be guessed from one event.
    ShortSecret {
        /// Its length in bytes.
        length: usize,
    },
    /// A secret of Standard Webhooks that is not base64.
    NotBase64,
    /// A secret of Standard Webhooks for signatures by a key pair (`whpk_…`, `whsk_…`).
    Asymmetric,
    /// The template does not contain `{body}` exactly once.
    TemplateBodyCount,
    /// The template has an unknown placeholder or a stray brace.
    UnknownPlaceholder,
    /// The template has `{timestamp}` and no timestamp header is set, or the other way round.
    TimestampMismatch,
}

impl std::fmt::Display for SignatureError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoSecret => f.write_str("a signature needs at least one secret"),
            Self::ShortSecret { length } => write!(
                f,
                "the secret has {length} bytes, so it could be guessed from one event; use at \
                 least {SECRET_BYTES_MIN}"
            ),
            Self::NotBase64 => f.write_str("the secret is not whsec_ followed by base64"),
            Self::Asymmetric => f.write_str(
                "the secret is a key for v1a signatures, which are not supported; use the \
                 whsec_ secret",
            ),
            Self::TemplateBodyCount => {
                f.write_str("the signed text must contain {body} exactly once")
            }
            Self::UnknownPlaceholder => f.write_str(
                "the signed text may contain {body} and {timestamp}, and no other braces",
            ),
            Self::TimestampMismatch => f.write_str(
                "a timestamp proves nothing unless it is signed: name its header, and write \
                 {timestamp} in the signed text",
            ),
        }
    }
}

impl std::error::Error for SignatureError {}

/// A secret as an HMAC key.
#[derive(Clone)]
pub(super) enum MacKey {
    Sha256(Hmac<Sha256>),
    Sha512(Hmac<Sha512>),
}

impl MacKey {
    pub(super) fn new(algorithm: HmacAlgorithm, secret: &[u8]) -> Result<Self, SignatureError> {
        let short = SignatureError::ShortSecret { length: secret.len() };
        if secret.len() < SECRET_BYTES_MIN {
            return Err(short);
        }
        // HMAC takes a key of any length.
        match algorithm {
            HmacAlgorithm::Sha256 => Hmac::new_from_slice(secret).map(Self::Sha256),
            HmacAlgorithm::Sha512 => Hmac::new_from_slice(secret).map(Self::Sha512),
        }
        .map_err(|_| short)
    }

    /// Whether one of the signatures of the request is valid for the body and this secret.
    pub(super) fn verify(&self, presented: &PresentedSignatures, body: &[u8]) -> bool {
        match self {
            Self::Sha256(key) => verify_any(key.clone(), presented, body),
            Self::Sha512(key) => verify_any(key.clone(), presented, body),
        }
    }
}

fn verify_any<M: Mac + Clone>(key: M, presented: &PresentedSignatures, body: &[u8]) -> bool {
    let mac = key.chain_update(&presented.before).chain_update(body);
    let mac = mac.chain_update(&presented.after);
    // The comparison takes constant time.
    presented.signatures.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
}

/// Parses all secrets of a route; an error if there is none.
pub(super) fn parse_keys<S>(
    secrets: S,
    read: impl Fn(&str) -> Result<MacKey, SignatureError>,
) -> Result<Vec<MacKey>, SignatureError>
where
    S: IntoIterator<Item: AsRef<str>>,
{
    let keys: Result<Vec<_>, _> = secrets.into_iter().map(|secret| read(secret.as_ref())).collect();
    match keys {
        Ok(keys) if keys.is_empty() => Err(SignatureError::NoSecret),
        keys => keys,
    }
}

/// The bytes of a text in decode_base64, with its padding or without.
pub(super) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    BASE64_NOPAD.decode(text.trim_end_matches('=').as_bytes()).ok()
}

/// The bytes of hexadecimal digits of either case.
pub(super) fn decode_hex(text: &str) -> Option<Vec<u8>> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()
}
