//! GitHub: HMAC-SHA256 over the body alone, `X-Hub-Signature-256: sha256=757107ea…`.

use http::{HeaderMap, HeaderName};

use super::{
    SignatureInvalid,
    presented::{PresentedSignatures, decode_signatures, line},
    secret::decode_hex,
};

pub(super) const SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");

pub(super) fn read(headers: &HeaderMap) -> Result<PresentedSignatures, SignatureInvalid> {
    const EXPECTED: &str = "sha256= and the signature in hexadecimal";
    let signature = line(headers, &SIGNATURE)?.strip_prefix("sha256=").and_then(decode_hex);
    Ok(PresentedSignatures {
        before: String::new(),
        after: String::new(),
        at: None,
        signatures: decode_signatures(signature.into_iter(), &SIGNATURE, EXPECTED)?,
        header: SIGNATURE,
    })
}
