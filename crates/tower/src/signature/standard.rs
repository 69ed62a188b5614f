//! Standard Webhooks 1.0, and Svix, whose scheme it was, under two sets of names.
//!
//! HMAC-SHA256 over `id.timestamp.body`. The header holds signatures with their versions, separated
//! by spaces: `v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4= v1,…`. Versions that are not known
//! are passed over.

use http::{HeaderMap, HeaderName};

use super::{
    SignatureError, SignatureInvalid,
    presented::{Presented, line, some_of, timestamp},
    secret::base64,
};
use crate::header::{SVIX_ID, WEBHOOK_ID};

/// What the headers are called.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) id: HeaderName,
    timestamp: HeaderName,
    signature: HeaderName,
}

pub(super) const WEBHOOK: Names = Names {
    id: WEBHOOK_ID,
    timestamp: HeaderName::from_static("webhook-timestamp"),
    signature: HeaderName::from_static("webhook-signature"),
};

pub(super) const SVIX: Names = Names {
    id: SVIX_ID,
    timestamp: HeaderName::from_static("svix-timestamp"),
    signature: HeaderName::from_static("svix-signature"),
};

/// The bytes of a secret: base64, usually after `whsec_`.
pub(super) fn secret(text: &str) -> Result<Vec<u8>, SignatureError> {
    if text.starts_with("whpk_") || text.starts_with("whsk_") {
        return Err(SignatureError::Asymmetric);
    }
    base64(text.strip_prefix("whsec_").unwrap_or(text)).ok_or(SignatureError::NotBase64)
}

pub(super) fn read(names: &Names, headers: &HeaderMap) -> Result<Presented, SignatureInvalid> {
    const EXPECTED: &str = "v1, a comma and the signature as base64";
    let id = line(headers, &names.id)?;
    // With a dot in it, the end of one id and the begin of what follows could be another id.
    if id.is_empty() || id.contains('.') {
        return Err(SignatureInvalid::malformed(&names.id, "an id without a dot"));
    }
    let sent_at = line(headers, &names.timestamp)?;
    let at = timestamp(sent_at, &names.timestamp)?;
    let known = line(headers, &names.signature)?.split(' ');
    let known = known.filter_map(|entry| base64(entry.strip_prefix("v1,")?));
    Ok(Presented {
        before: format!("{id}.{sent_at}."),
        after: String::new(),
        signatures: some_of(known, &names.signature, EXPECTED)?,
        at: Some(at),
        header: names.signature.clone(),
    })
}
