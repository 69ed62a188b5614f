//! Data of granted claims, for caching their answers: an answer comes without the fingerprint and
//! the retention of its claim.

use std::sync::{Mutex, PoisonError};

use semel_core::{Claim, Claimant, Fence, Fingerprint, time::millis};

/// The number of slots. Each fence has one slot, which a later fence may take: then the answer is
/// not cached when it is recorded.
const SLOTS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Grants(Box<[Mutex<Option<GrantedClaim>>]>);

/// A claim that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantedClaim {
    /// The owner token as well: a store that fails over may issue a fence again (law 5).
    by: Claimant,
    pub(crate) fingerprint: Fingerprint,
    /// When it was claimed, on the wall clock: the record was created then or later.
    claimed_at: u64,
    retention: u64,
}

impl GrantedClaim {
    /// The earliest expiry of the record; `None` if the execution may have been so slow that its
    /// retention restarts with the answer. `margin` is the allowed clock difference.
    pub(crate) const fn expires(&self, now: u64, margin: u64) -> Option<u64> {
        let expires = self.claimed_at.saturating_add(self.retention);
        let left = expires.saturating_sub(now);
        if left.saturating_sub(margin) < self.retention.div_ceil(2) { None } else { Some(expires) }
    }
}

impl Default for Grants {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| Mutex::default()).collect())
    }
}

impl Grants {
    pub(crate) fn put(&self, fence: Fence, claim: &Claim, claimed_at: u64) {
        let retention = millis(claim.retention);
        let by = claim.claimant(fence);
        let granted = GrantedClaim { by, fingerprint: claim.fingerprint, claimed_at, retention };
        if let Some(slot) = self.slot(fence) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(granted);
        }
    }

    pub(crate) fn take(&self, by: Claimant) -> Option<GrantedClaim> {
        let mut slot = self.slot(by.fence)?.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take_if(|granted| granted.by == by)
    }

    fn slot(&self, fence: Fence) -> Option<&Mutex<Option<GrantedClaim>>> {
        let number = usize::try_from(fence.get() % SLOTS as u64).ok()?;
        self.0.get(number)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use semel_core::{Caller, Key, OwnerToken, RecordId, Scope};

    use super::*;

    fn claim(retention: Duration) -> Claim {
        let (scope, key) = (Scope::new("s").unwrap(), Key::new("k").unwrap());
        let id = RecordId::new(scope, Caller::anonymous(), key);
        let fingerprint = Fingerprint::from_bytes(&[1; 33]).unwrap();
        let mut claim = Claim::new(id, fingerprint, OwnerToken::from_bytes([0; 16]));
        claim.retention = retention;
        claim
    }

    fn fence(number: u64) -> Fence {
        Fence::new(number).unwrap()
    }

    /// The owner of [`claim`].
    fn by(number: u64) -> Claimant {
        Claimant::new(fence(number), OwnerToken::from_bytes([0; 16]))
    }

    #[test]
    fn a_grant_is_taken_once_and_by_its_own_claimant() {
        let grants = Grants::default();
        grants.put(fence(5), &claim(Duration::from_secs(1)), 0);
        assert!(grants.take(by(5 + SLOTS as u64)).is_none());
        let other = Claimant::new(fence(5), OwnerToken::from_bytes([1; 16]));
        assert!(grants.take(other).is_none(), "the fence was issued again to another owner");
        assert!(grants.take(by(5)).is_some());
        assert!(grants.take(by(5)).is_none());
    }

    #[test]
    fn a_later_grant_takes_the_place_of_an_earlier_one() {
        let grants = Grants::default();
        let later = by(5 + SLOTS as u64);
        grants.put(fence(5), &claim(Duration::from_secs(1)), 0);
        grants.put(later.fence, &claim(Duration::from_secs(1)), 0);
        assert!(grants.take(by(5)).is_none());
        assert!(grants.take(later).is_some());
    }

    #[test]
    fn an_answer_after_half_the_retention_has_an_unknown_expiry() {
        let grants = Grants::default();
        grants.put(fence(1), &claim(Duration::from_millis(101)), 1000);
        let granted = grants.take(by(1)).unwrap();
        assert_eq!(granted.expires(1050, 0), Some(1101));
        assert_eq!(granted.expires(1051, 0), None);
        assert_eq!(granted.expires(1040, 10), Some(1101));
        assert_eq!(granted.expires(1041, 10), None);
    }

    #[test]
    fn an_endless_retention_does_not_overflow() {
        let grants = Grants::default();
        grants.put(fence(1), &claim(Duration::MAX), 1000);
        assert_eq!(grants.take(by(1)).unwrap().expires(2000, 10), Some(u64::MAX));
    }
}
