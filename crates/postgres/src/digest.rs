//! The compact primary key: sixteen bytes that stand for scope, caller and key.

use std::error::Error;

use bytes::{BufMut as _, BytesMut};
use semel_core::{OwnerToken, RecordId};
use sha2::{Digest as _, Sha256};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The first half of a SHA-256. A collision is practically impossible, by chance or on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Digest(pub(crate) [u8; 16]);

impl Digest {
    /// The primary key of a record in this crate's own table. Its first four bytes come from the
    /// key alone, so that all records of a key are found by a range.
    pub(crate) fn with_key(id: &RecordId) -> Self {
        let mut digest = Self::of(id);
        digest.0.iter_mut().zip(key_bytes(id.key.as_str())).for_each(|(to, byte)| *to = byte);
        digest
    }

    /// The first and the last digest that a record of this key can have.
    pub(crate) fn range_of(key: &str) -> (Self, Self) {
        let of = |rest| {
            let mut digest = [rest; 16];
            digest.iter_mut().zip(key_bytes(key)).for_each(|(to, byte)| *to = byte);
            Self(digest)
        };
        (of(0), of(0xff))
    }

    pub(crate) fn of(id: &RecordId) -> Self {
        let mut hash = Sha256::new();
        for part in [id.scope.as_str(), id.caller.as_str(), id.key.as_str()] {
            // With its length, so that different records never hash the same bytes.
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        let mut digest = [0; 16];
        digest.iter_mut().zip(hash.finalize()).for_each(|(to, byte)| *to = byte);
        Self(digest)
    }

    /// Parses the text that `digest::text` writes in SQL.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut digits = text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16));
        let mut digest = [0; 16];
        for byte in &mut digest {
            let (high, low) = (digits.next()??, digits.next()??);
            *byte = u8::try_from(high * 16 + low).ok()?;
        }
        digits.next().is_none().then_some(Self(digest))
    }

    /// The first eight bytes, which are the cursor of a listing.
    pub(crate) fn head(self) -> u64 {
        let (head, _) = self.0.split_at(8);
        head.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// The last digest that begins with these eight bytes.
    pub(crate) fn last_of(head: u64) -> Self {
        let mut digest = [0xff; 16];
        digest.iter_mut().zip(head.to_be_bytes()).for_each(|(to, byte)| *to = byte);
        Self(digest)
    }
}

/// The part of a digest that comes from the key.
fn key_bytes(key: &str) -> [u8; 4] {
    let hash = Sha256::digest(key);
    hash.first_chunk().copied().unwrap_or_default()
}

impl From<&OwnerToken> for Digest {
    // Also sixteen bytes, in a column of the same type.
    fn from(owner: &OwnerToken) -> Self {
        Self(*owner.as_bytes())
    }
}

impl ToSql for Digest {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

impl FromSql<'_> for Digest {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Key, Scope};

    use super::*;

    fn digest(scope: &str, caller: &str, key: &str) -> Digest {
        let caller = Caller::new(caller).unwrap();
        Digest::of(&RecordId::new(Scope::new(scope).unwrap(), caller, Key::new(key).unwrap()))
    }

    #[test]
    fn the_boundaries_between_the_parts_count() {
        assert_ne!(digest("a", "bc", "d"), digest("ab", "c", "d"));
        assert_ne!(digest("a", "b", "cd"), digest("a", "bc", "d"));
        assert_eq!(digest("a", "b", "c"), digest("a", "b", "c"));
    }

    /// The same as that of `semel-sqlx`, whose tests have these numbers too.
    #[test]
    fn a_digest_is_the_same_in_other_programs() {
        let digest = digest("orders", "shop-3", "k-1");
        assert_eq!(Some(digest), Digest::parse("b419559d-4e0b-e293-4315-76a3e9cd8550"));
        assert_eq!(digest.head().cast_signed(), -5_469_246_138_357_128_557);
    }

    #[test]
    fn a_digest_is_read_as_the_database_writes_it() {
        let read = Digest::parse("00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(read.0[..4], [0, 0x11, 0x22, 0x33]);
        assert_eq!(Digest::last_of(read.head()).0[..9], [0, 17, 34, 51, 68, 85, 102, 119, 255]);
        assert_eq!(Digest::parse("0011"), None);
        assert_eq!(Digest::parse("00112233-4455-6677-8899-aabbccddeeff0"), None);
    }
}
