//! Signed events, as GitHub sends them.

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Where events are taken.
pub(super) const PATH: &str = "/events";

/// The header that identifies an event.
pub(super) const ID: &str = "x-github-delivery";

/// The header that has its signature.
pub(super) const SIGNATURE: &str = "x-hub-signature-256";

/// The variable that holds the secret of the gateway.
pub(super) const SECRET_VARIABLE: &str = "BENCH_EVENT_SECRET";

pub(super) const SECRET: &str = "the secret of the sender of events";

/// The signature of a genuine event.
pub(super) fn signature(body: &[u8]) -> String {
    signed(SECRET, body)
}

/// A signature that has the right form.
pub(super) fn forged_signature(body: &[u8]) -> String {
    signed("another secret than that of the sender", body)
}

fn signed(secret: &str, body: &[u8]) -> String {
    // A key of any length will do.
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).map(|mac| mac.chain_update(body));
    let mac = mac.map(|mac| HEXLOWER.encode(&mac.finalize().into_bytes())).unwrap_or_default();
    format!("sha256={mac}")
}
