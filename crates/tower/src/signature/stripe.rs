//! Stripe: HMAC-SHA256 over `timestamp.body`, and one header for both time and signatures:
//! `Stripe-Signature: t=1492774577,v1=5257a869…,v1=…,v0=…`. Only `v1` counts; a second one is there
//! while a secret is rolled.

use http::{HeaderMap, HeaderName};

use super::{
    SignatureInvalid,
    presented::{PresentedSignatures, decode_signatures, line, timestamp},
    secret::decode_hex,
};

pub(super) const SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");

/// Where an event has its id.
pub(super) const ID: &str = "/id";

pub(super) fn read(headers: &HeaderMap) -> Result<PresentedSignatures, SignatureInvalid> {
    const EXPECTED: &str = "t=, the time, and after a comma v1=, the signature in hexadecimal";
    let pairs = || line(headers, &SIGNATURE).map(|line| line.split(',').map(str::trim));
    let mut times = pairs()?.filter_map(|pair| pair.strip_prefix("t="));
    let (Some(sent_at), None) = (times.next(), times.next()) else {
        return Err(SignatureInvalid::malformed(&SIGNATURE, EXPECTED));
    };
    let known = pairs()?.filter_map(|pair| decode_hex(pair.strip_prefix("v1=")?));
    Ok(PresentedSignatures {
        before: format!("{sent_at}."),
        after: String::new(),
        at: Some(timestamp(sent_at, &SIGNATURE)?),
        signatures: decode_signatures(known, &SIGNATURE, EXPECTED)?,
        header: SIGNATURE,
    })
}
