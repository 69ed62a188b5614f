//! The `claim` that a client holds: the record, the fence and the owner, encrypted and
//! authenticated, so that any server with the same secret can take the next call.

use aws_lc_rs::{
    aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand,
};
use data_encoding::BASE64URL_NOPAD;
use semel::core::{Caller, Claimant, Fence, Key, OwnerToken, RecordId, Scope, time::millis};

/// The form of a claim, which its encryption authenticates.
const FORM: &[u8] = b"semel claim 1";

/// What a claim begins with.
const PREFIX: &str = "sc1.";

/// The longest text of a claim: scope, caller and key have at most 255 bytes each.
const TEXT_BYTES_MAX: usize = 2048;

/// What a claim says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldClaim {
    pub(crate) id: RecordId,
    pub(crate) by: Claimant,
    pub(crate) lease: std::time::Duration,
}

/// Encrypts claims, and decrypts those of the current and of the previous secret.
#[derive(Debug)]
pub struct ClaimSeal {
    current: LessSafeKey,
    former: Option<LessSafeKey>,
}

impl ClaimSeal {
    /// Seals with keys that are derived from the secret and from the one before it.
    #[must_use]
    pub fn new(current: &[u8; 32], former: Option<&[u8; 32]>) -> Option<Self> {
        let key = |bytes: &[u8; 32]| {
            let key = UnboundKey::new(&AES_256_GCM_SIV, bytes).ok()?;
            Some(LessSafeKey::new(key))
        };
        Some(Self { current: key(current)?, former: former.and_then(key) })
    }

    /// The text for the client; `None` if the system has no randomness.
    pub(crate) fn seal(&self, claim: &HeldClaim) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut text = claim.encode();
        let (aad, used) = (Aad::from(FORM), Nonce::assume_unique_for_key(nonce));
        self.current.seal_in_place_append_tag(used, aad, &mut text).ok()?;
        let mut sealed = nonce.to_vec();
        sealed.append(&mut text);
        Some(format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&sealed)))
    }

    /// What a claim says; `None` if it was altered, or sealed under another secret.
    pub(crate) fn open(&self, text: &str) -> Option<HeldClaim> {
        let text = text.strip_prefix(PREFIX).filter(|text| text.len() <= TEXT_BYTES_MAX)?;
        let sealed = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let open = |key: &LessSafeKey| {
            let mut text = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let opened = key.open_in_place(nonce, Aad::from(FORM), &mut text).ok()?;
            HeldClaim::decode(opened)
        };
        open(&self.current).or_else(|| open(self.former.as_ref()?))
    }
}

impl HeldClaim {
    fn encode(&self) -> Vec<u8> {
        let RecordId { scope, caller, key } = &self.id;
        let mut text = Vec::with_capacity(256);
        text.extend(self.by.fence.get().to_be_bytes());
        text.extend(self.by.owner.as_bytes());
        text.extend(millis(self.lease).to_be_bytes());
        for part in [scope.as_str(), caller.as_str()] {
            // Both have at most 255 bytes.
            text.push(u8::try_from(part.len()).unwrap_or(u8::MAX));
            text.extend(part.as_bytes());
        }
        text.extend(key.as_str().as_bytes());
        text
    }

    fn decode(text: &[u8]) -> Option<Self> {
        let (fence, text) = text.split_first_chunk()?;
        let (owner, text) = text.split_first_chunk()?;
        let (lease, text) = text.split_first_chunk()?;
        let part = |text: &[u8]| -> Option<(String, Vec<u8>)> {
            let (length, text) = text.split_first()?;
            let (part, text) = text.split_at_checked(usize::from(*length))?;
            Some((str::from_utf8(part).ok()?.to_owned(), text.to_vec()))
        };
        let (scope, text) = part(text)?;
        let (caller, key) = part(&text)?;
        let id = RecordId::new(
            Scope::new(&scope).ok()?,
            Caller::new(&caller).ok()?,
            Key::new(str::from_utf8(&key).ok()?).ok()?,
        );
        let fence = Fence::new(u64::from_be_bytes(*fence))?;
        let by = Claimant::new(fence, OwnerToken::from_bytes(*owner));
        Some(Self { id, by, lease: std::time::Duration::from_millis(u64::from_be_bytes(*lease)) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn claim() -> HeldClaim {
        let id = RecordId::new(
            Scope::new("invoices").unwrap(),
            Caller::new("app:billing").unwrap(),
            Key::new("order-17").unwrap(),
        );
        let owner = OwnerToken::from_bytes([7; 16]);
        let by = Claimant::new(Fence::new(1_763_491_234_567_890).unwrap(), owner);
        HeldClaim { id, by, lease: Duration::from_millis(30_001) }
    }

    fn seal(current: u8, former: Option<u8>) -> ClaimSeal {
        ClaimSeal::new(&[current; 32], former.map(|byte| [byte; 32]).as_ref()).unwrap()
    }

    #[test]
    fn a_claim_is_read_by_every_server_with_the_secret_or_the_next_one() {
        let text = seal(1, None).seal(&claim()).unwrap();
        for server in [seal(1, None), seal(1, Some(9)), seal(2, Some(1))] {
            assert_eq!(server.open(&text), Some(claim()));
        }
        for server in [seal(2, None), seal(2, Some(3))] {
            assert_eq!(server.open(&text), None);
        }
        assert!(text.len() < 200 && !text.contains("order"), "{text}");
    }

    #[test]
    fn a_claim_that_was_altered_anywhere_is_refused() {
        let server = seal(1, None);
        let text = server.seal(&claim()).unwrap();
        for at in 0..text.len() {
            let mut altered = text.clone().into_bytes();
            altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(server.open(str::from_utf8(&altered).unwrap()), None, "{at}");
            assert_eq!(server.open(&text[..at]), None, "{at}");
        }
        assert_eq!(server.open(&format!("{text}A")), None);
    }
}
