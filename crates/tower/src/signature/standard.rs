//! Standard Webhooks 1.0, and Svix, from which it comes, with two sets of header names.
//!
//! HMAC-SHA256 over `id.timestamp.body`. The header contains signatures with their versions,
//! separated by spaces: `v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4= v1,…`. Unknown versions
//! are skipped.

use http::{HeaderMap, HeaderName};

use super::{
    SignatureError, SignatureInvalid,
    presented::{PresentedSignatures, decode_signatures, line, timestamp},
    secret::decode_base64,
};
use crate::header::{SVIX_ID, WEBHOOK_ID};

/// The header names of a scheme.
#[derive(Clone, Debug)]
pub(super) struct SignatureHeaders {
    pub(super) id: HeaderName,
    timestamp: HeaderName,
    signature: HeaderName,
}

impl SignatureHeaders {
    pub(super) fn all(&self) -> [HeaderName; 3] {
        [self.id.clone(), self.timestamp.clone(), self.signature.clone()]
    }
}

pub(super) const WEBHOOK: SignatureHeaders = SignatureHeaders {
    id: WEBHOOK_ID,
    timestamp: HeaderName::from_static("webhook-timestamp"),
    signature: HeaderName::from_static("webhook-signature"),
};

pub(super) const SVIX: SignatureHeaders = SignatureHeaders {
    id: SVIX_ID,
    timestamp: HeaderName::from_static("svix-timestamp"),
    signature: HeaderName::from_static("svix-signature"),
};

/// The bytes of a secret: decode_base64, usually after `whsec_`.
pub(super) fn secret(text: &str) -> Result<Vec<u8>, SignatureError> {
    if text.starts_with("whpk_") || text.starts_with("whsk_") {
        return Err(SignatureError::Asymmetric);
    }
    decode_base64(text.strip_prefix("whsec_").unwrap_or(text)).ok_or(SignatureError::NotBase64)
}

pub(super) fn read(
    names: &SignatureHeaders,
    headers: &HeaderMap,
) -> Result<PresentedSignatures, SignatureInvalid> {
    const EXPECTED: &str = "v1, a comma and the signature as base64";
    let id = line(headers, &names.id)?;
    // With a dot in it, the signed text would be ambiguous.
    if id.is_empty() || id.contains('.') {
        return Err(SignatureInvalid::malformed(&names.id, "an id without a dot"));
    }
    let sent_at = line(headers, &names.timestamp)?;
    let at = timestamp(sent_at, &names.timestamp)?;
    let known = line(headers, &names.signature)?.split(' ');
    let known = known.filter_map(|entry| decode_base64(entry.strip_prefix("v1,")?));
    Ok(PresentedSignatures {
        before: format!("{id}.{sent_at}."),
        after: String::new(),
        signatures: decode_signatures(known, &names.signature, EXPECTED)?,
        at: Some(at),
        header: names.signature.clone(),
    })
}
