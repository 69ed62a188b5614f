//! What a record is remembered under: scope, caller and key together.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{Caller, Key, Scope};

/// The address of a record. Two requests meet only if all three parts are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    /// The family of operations.
    pub scope: Scope,
    /// Who sent it.
    pub caller: Caller,
    /// What the client called the operation.
    pub key: Key,
}

/// The SHA-256 digest of a [`RecordId`], for stores that want an address of fixed size.
pub type RecordDigest = [u8; 32];

impl RecordId {
    /// Puts the three parts together.
    #[must_use]
    pub const fn new(scope: Scope, caller: Caller, key: Key) -> Self {
        Self { scope, caller, key }
    }

    /// SHA-256 over a version byte and the three parts, each behind its length, so that no two
    /// addresses share their bytes (`a` + `bc` is not `ab` + `c`).
    #[must_use]
    pub fn digest(&self) -> RecordDigest {
        let mut hash = Sha256::new();
        hash.update([1]);
        for part in [self.scope.as_str(), self.caller.as_str(), self.key.as_str()] {
            // Each part has at most 255 bytes, so one byte holds its length.
            hash.update([u8::try_from(part.len()).unwrap_or(u8::MAX)]);
            hash.update(part.as_bytes());
        }
        hash.finalize().into()
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.scope, self.caller, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(scope: &str, caller: &str, key: &str) -> RecordId {
        RecordId::new(
            Scope::new(scope).unwrap(),
            Caller::from_stored(caller).unwrap(),
            Key::new(key).unwrap(),
        )
    }

    #[test]
    fn parts_are_joined_without_ambiguity() {
        let all = [
            id("ab", "c", "d"),
            id("a", "bc", "d"),
            id("a", "b", "cd"),
            id("a", "", "bcd"),
            id("a", "anonymous", "bcd"),
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(one.digest(), other.digest());
            }
        }
    }
}
