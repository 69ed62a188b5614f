//! The cache entry of one record, and its validation.
//!
//! ```text
//! entry    = version(1) kind epoch expires fingerprint answer checksum
//! kind     = 0x00 completed | 0x01 in flight (no answer)
//! epoch    = eight bytes: the store's epoch that was known before the record was read
//! expires  = eight bytes: milliseconds of the wall clock after which it says nothing
//! checksum = sixteen bytes of SHA-256 over the record's digest and all of the above
//! ```
//!
//! Numbers are big-endian. The digest covers the store's identity and the whole id of the record,
//! so an entry of another store, of another record, or a truncated or corrupt one has the wrong
//! checksum. A valid checksum requires the store's identity, which is not public.

use bytes::Bytes;
use semel_core::{Answer, Epoch, Fingerprint, RecordId, StoreId, fingerprint::FINGERPRINT_BYTES};
use sha2::{Digest as _, Sha256};

const VERSION: u8 = 1;
const COMPLETED: u8 = 0;
const IN_FLIGHT: u8 = 1;

const EPOCH_AT: usize = 2;
const EXPIRES_AT: usize = EPOCH_AT + 8;
const FINGERPRINT_AT: usize = EXPIRES_AT + 8;
const ANSWER_AT: usize = FINGERPRINT_AT + FINGERPRINT_BYTES;
const CHECKSUM_BYTES: usize = 16;

/// Larger answers are not cached: they would delay the lookups of small ones.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The length of a record's name.
pub(crate) const NAME_BYTES: usize = 16;

/// The part of a digest that names a record in Redis and in messages.
pub(crate) type RecordName = [u8; NAME_BYTES];

/// The digest of a store's identity and a record's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordDigest([u8; 32]);

impl RecordDigest {
    pub(crate) fn of(store: &StoreId, id: &RecordId) -> Self {
        let mut hash = Sha256::new();
        hash.update(store.as_bytes());
        for part in [id.scope.as_str(), id.caller.as_str(), id.key.as_str()] {
            // Each is at most 255 bytes long, so the lengths fit and keep the parts apart.
            hash.update([u8::try_from(part.len()).unwrap_or(u8::MAX)]);
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// Half of the digest: enough to distinguish records, and the checksum covers all of it.
    pub(crate) fn name(&self) -> RecordName {
        self.0.first_chunk().copied().unwrap_or_default()
    }
}

/// A decoded entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisEntry {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) epoch: Epoch,
    /// In milliseconds of the wall clock.
    pub(crate) expires: u64,
    pub(crate) state: CachedState,
}

/// The cached state of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CachedState {
    Completed(Answer),
    InFlight,
}

impl RedisEntry {
    /// The bytes to store; `None` where the answer is too large.
    pub(crate) fn write(&self, digest: &RecordDigest) -> Option<Vec<u8>> {
        let (kind, answer): (u8, &[u8]) = match &self.state {
            CachedState::Completed(answer) => (COMPLETED, answer.as_bytes()),
            CachedState::InFlight => (IN_FLIGHT, &[]),
        };
        if answer.len() > ANSWER_BYTES_MAX {
            return None;
        }
        let mut out = Vec::with_capacity(ANSWER_AT + answer.len() + CHECKSUM_BYTES);
        out.extend([VERSION, kind]);
        out.extend(self.epoch.0.to_be_bytes());
        out.extend(self.expires.to_be_bytes());
        out.extend(self.fingerprint.as_bytes());
        out.extend(answer);
        let checksum = checksum(digest, &out);
        out.extend(checksum);
        Some(out)
    }

    /// Decodes the entry of the record with this digest; `None` if anything does not match.
    pub(crate) fn read(bytes: &Bytes, digest: &RecordDigest) -> Option<Self> {
        let (written, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
        if *written.first()? != VERSION || *sum != checksum(digest, written) {
            return None;
        }
        let number = |at: usize| written.get(at..)?.first_chunk().copied().map(u64::from_be_bytes);
        let fingerprint = written.get(FINGERPRINT_AT..ANSWER_AT)?;
        let answer = bytes.slice(ANSWER_AT..written.len());
        let state = match *written.get(1)? {
            COMPLETED => CachedState::Completed(Answer::from_stored(answer).ok()?),
            IN_FLIGHT if answer.is_empty() => CachedState::InFlight,
            _ => return None,
        };
        Some(Self {
            fingerprint: Fingerprint::from_bytes(fingerprint).ok()?,
            epoch: Epoch(number(EPOCH_AT)?),
            expires: number(EXPIRES_AT)?,
            state,
        })
    }
}

fn checksum(digest: &RecordDigest, written: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hash = Sha256::new();
    hash.update(digest.0);
    hash.update(written);
    let sum: [u8; 32] = hash.finalize().into();
    sum.first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use semel_core::{Caller, Key, Scope, StoredResponse};

    use super::*;

    const STORE: StoreId = StoreId::from_bytes([7; 16]);

    fn id(scope: &str, caller: &str, key: &str) -> RecordId {
        let caller = Caller::from_stored(caller).unwrap();
        RecordId::new(Scope::new(scope).unwrap(), caller, Key::new(key).unwrap())
    }

    fn digest() -> RecordDigest {
        RecordDigest::of(&STORE, &id("payments", "shop", "k-1"))
    }

    fn completed(body: Vec<u8>, epoch: u64, expires: u64) -> RedisEntry {
        let response = StoredResponse { status: 201, body: body.into(), ..Default::default() };
        RedisEntry {
            fingerprint: Fingerprint::from_bytes(&[1; FINGERPRINT_BYTES]).unwrap(),
            epoch: Epoch(epoch),
            expires,
            state: CachedState::Completed(Answer::response(&response)),
        }
    }

    fn hint() -> RedisEntry {
        RedisEntry { state: CachedState::InFlight, ..completed(Vec::new(), 3, 4) }
    }

    proptest! {
        #[test]
        fn an_entry_is_read_back(
            body in proptest::collection::vec(any::<u8>(), 0..300),
            epoch in any::<u64>(), expires in any::<u64>(),
        ) {
            let entry = completed(body, epoch, expires);
            let bytes = entry.write(&digest()).unwrap().into();
            prop_assert_eq!(RedisEntry::read(&bytes, &digest()), Some(entry));
        }

        #[test]
        fn any_flipped_bit_is_refused(
            body in proptest::collection::vec(any::<u8>(), 0..300),
            at in any::<prop::sample::Index>(), bit in 0..8,
        ) {
            let mut bytes = completed(body, 5, 6).write(&digest()).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(RedisEntry::read(&bytes.into(), &digest()), None);
        }

        #[test]
        fn anything_else_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(RedisEntry::read(&bytes.into(), &digest()), None);
        }
    }

    #[test]
    fn a_hint_is_read_back() {
        let bytes = hint().write(&digest()).unwrap().into();
        assert_eq!(RedisEntry::read(&bytes, &digest()), Some(hint()));
    }

    #[test]
    fn every_cut_and_every_addition_is_refused() {
        let mut bytes = completed(b"paid".to_vec(), 5, 6).write(&digest()).unwrap();
        for end in 0..bytes.len() {
            assert_eq!(
                RedisEntry::read(&bytes[..end].to_vec().into(), &digest()),
                None,
                "cut at {end}"
            );
        }
        bytes.push(0);
        assert_eq!(RedisEntry::read(&bytes.into(), &digest()), None);
    }

    #[test]
    fn an_entry_in_the_wrong_place_is_refused() {
        let bytes: Bytes = completed(b"paid".to_vec(), 5, 6).write(&digest()).unwrap().into();
        for other in [id("payments", "shop", "k-2"), id("paymentss", "hop", "k-1")] {
            assert_eq!(
                RedisEntry::read(&bytes, &RecordDigest::of(&STORE, &other)),
                None,
                "{other}"
            );
        }
        let elsewhere = StoreId::from_bytes([8; 16]);
        let other = RecordDigest::of(&elsewhere, &id("payments", "shop", "k-1"));
        assert_eq!(RedisEntry::read(&bytes, &other), None, "another store");
        assert_ne!(other.name(), digest().name());
    }

    #[test]
    fn a_large_answer_stays_out() {
        assert!(completed(vec![0; ANSWER_BYTES_MAX], 5, 6).write(&digest()).is_none());
        assert!(completed(vec![0; ANSWER_BYTES_MAX - 100], 5, 6).write(&digest()).is_some());
    }
}
