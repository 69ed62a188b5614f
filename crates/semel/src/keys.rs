//! Idempotency keys: random, or derived from existing ids.
//!
//! A key stands for an *intent*, "bill customer 7 for February", and every attempt of that intent
//! carries the same key. A key that is regenerated for each attempt protects nothing; a key that is
//! reused for a whole session makes the second purchase a repeat of the first.
//!
//! # Which kind to use
//!
//! - The operation has no id yet (a button, a form, a new order): [`random`]. Create the key
//!   *before* the first attempt and store it beside the order, so that a retry after a crash finds
//!   it.
//! - The same, and you store keys in an indexed table: [`time_ordered`]. Keys of about the same
//!   time are adjacent on disk; but the key reveals when it was created.
//! - The operation is named by existing ids, such as (customer, month), (order, step) or the id of
//!   an event: [`from_parts`]. Nothing has to be stored: a retry derives the same key.
//! - The same, and the receiver accepts only UUIDs: [`uuid_from`]. Do not let an outsider choose
//!   the parts then, because version 5 is based on SHA-1.
//!
//! Derived keys are the hardest to get wrong, because they need no state. But each part must exist
//! before the first attempt and must never change.
//!
//! # What a derived key must not contain
//!
//! - **A clock.** An attempt after midnight, or after a backoff, would be another operation. The
//!   *business* date is no clock: pass the night that is billed, do not read the current day.
//! - **The attempt number**, the host, the process, a session, a request id: all of them change
//!   between attempts of one intent.
//! - **Recomputed values**, such as a price or a total. They belong in the
//!   [fingerprint](crate::once::Once::fingerprint), which detects that they changed; in the key
//!   they would create a second operation.
//! - **A reference that people type**, such as a purchase order number. It may be copied into a
//!   second order by mistake.
//!
//! A hash of the request body alone is a mistake for two reasons. Two orders of the same coffee
//! would be one operation. And a body that was corrected between two attempts would have a new key,
//! so nothing detects that the first attempt may have run.
//!
//! If an operation is *meant* to happen again (a second reminder for one invoice), store a sequence
//! number and make it a part.
//!
//! # What a key does not do
//!
//! It makes repeats of one intent harmless while the record is
//! [retained](crate::once::Once::retention): choose a retention longer than any retry may take. It
//! does not detect that two different keys mean the same thing; a unique constraint in your own
//! database does. Derived keys can be guessed. That does no harm between callers, because each
//! caller has its own keys; for anonymous callers use random keys.
//!
//! # In other languages
//!
//! The parts are joined as netstrings: the length in bytes as decimal digits, a colon, the bytes,
//! a comma. So `["ab", "c"]` and `["a", "bc"]` are different, and the text can be made anywhere:
//!
//! ```text
//! $ printf '9:invoicing,3:c-7,7:2026-02,' | sha256sum
//! a8251c19e43987d49da07f4f4ee38fdedcf2d36b47af014a1561eecaf8f0c929
//! $ python3 -c 'import uuid; print(uuid.uuid5(uuid.NAMESPACE_URL, "3:c-7,7:2026-02,"))'
//! de88812b-5d8b-59ff-9593-96611fd3ef7b
//! ```
//!
//! ```
//! use semel::keys::{self, Uuid};
//!
//! let hash = keys::from_parts("invoicing", ["c-7", "2026-02"]);
//! let uuid = keys::uuid_from(Uuid::NAMESPACE_URL, ["c-7", "2026-02"]);
//! assert!(hash.as_str().starts_with("a8251c19e43987d4"));
//! assert_eq!(uuid.as_str(), "de88812b-5d8b-59ff-9593-96611fd3ef7b");
//! ```

use semel_core::Key;
use sha2::{Digest, Sha256};

pub use uuid::Uuid;

/// A new random key, a UUID of version 4.
///
/// Store it before the first attempt: a second random key would name another operation.
///
/// ```
/// assert_ne!(semel::keys::random(), semel::keys::random());
/// ```
#[must_use]
pub fn random() -> Key {
    Key::from_uuid(Uuid::new_v4().into_bytes())
}

/// A new key that sorts after those made before it in this process, a UUID of version 7: the time
/// in milliseconds, then a counter and random bits.
///
/// As with [`random`], store it before the first attempt. The key reveals when it was made.
///
/// ```
/// let first = semel::keys::time_ordered();
/// assert!(first < semel::keys::time_ordered());
/// ```
#[must_use]
pub fn time_ordered() -> Key {
    Key::from_uuid(Uuid::now_v7().into_bytes())
}

/// The UUID of version 5 for these parts in a namespace: equal parts give equal keys.
///
/// The namespace is a UUID of your own, generated once and written into the program; it separates
/// operations that happen to have equal parts. The boundaries of the parts are significant.
///
/// ```
/// use semel::keys::{self, Uuid};
///
/// const REFUNDS: Uuid = Uuid::from_u128(0x8f8d1a52_2a3f_4a0e_9c43_6b4f3c9f6d10);
///
/// let key = keys::uuid_from(REFUNDS, ["order-17", "line-2"]);
/// assert_eq!(key, keys::uuid_from(REFUNDS, ["order-17", "line-2"]));
/// assert_ne!(key, keys::uuid_from(REFUNDS, ["order-1", "7line-2"]));
/// ```
#[must_use]
pub fn uuid_from<P>(namespace: Uuid, parts: P) -> Key
where
    P: IntoIterator,
    P::Item: AsRef<[u8]>,
{
    let mut name = Vec::new();
    for part in parts {
        push_netstring(part.as_ref(), &mut name);
    }
    Key::from_uuid(Uuid::new_v5(&namespace, &name).into_bytes())
}

/// The SHA-256 of a domain and these parts, as 64 hexadecimal digits: equal parts give equal keys.
///
/// The domain is a name of your own for these operations; it separates operations that happen to
/// have equal parts. The boundaries of the parts are significant.
///
/// ```
/// use semel::keys;
///
/// let key = keys::from_parts("invoicing", ["c-7", "2026-02"]);
/// assert_eq!(key, keys::from_parts("invoicing", ["c-7", "2026-02"]));
/// assert_ne!(key, keys::from_parts("reminders", ["c-7", "2026-02"]));
/// ```
#[must_use]
pub fn from_parts<P>(domain: &str, parts: P) -> Key
where
    P: IntoIterator,
    P::Item: AsRef<[u8]>,
{
    let mut name = Vec::new();
    push_netstring(domain.as_bytes(), &mut name);
    for part in parts {
        push_netstring(part.as_ref(), &mut name);
    }
    Key::from_digest(Sha256::digest(&name).into())
}

fn push_netstring(part: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(part.len().to_string().as_bytes());
    out.push(b':');
    out.extend_from_slice(part);
    out.push(b',');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const NAMESPACE: Uuid = Uuid::from_u128(0x8f8d1a52_2a3f_4a0e_9c43_6b4f3c9f6d10);

    /// Made with Python's `hashlib` and `uuid`.
    #[test]
    fn derived_keys_equal_those_of_other_languages() {
        let vectors: [(&[&str], &str, &str); 5] = [
            (
                &["c-7", "2026-02"],
                "a8251c19e43987d49da07f4f4ee38fdedcf2d36b47af014a1561eecaf8f0c929",
                "3816e9ba-6085-51cf-9325-cc50f8548cbc",
            ),
            (
                &["Zoë", ""],
                "f16e5bc62d6ebf57facc780b59d1d10ad8651f0eecb85167fa42f69d404d0473",
                "f59729ea-3ed7-5812-ba80-9a2543ce547f",
            ),
            (
                &["ab", "c"],
                "5f0e2517fead87f4e313034dcf0b846099d46dc965928c3d4ea3f925d34da236",
                "ebd20cd2-a696-5a92-9b9f-2fc8ad3713e9",
            ),
            (
                &["a", "bc"],
                "c20f436dcb2c78a8ce6a75a1da995490a4ab19ed66f1263ce7f927b6fbe92e84",
                "61778cd5-0dd3-5433-a907-c34e00ca9373",
            ),
            (
                &[],
                "b811cd33e99a7f46f0bd35dd13a9ae46ef2cb0b0e799ceb89cedc5efa7d10957",
                "1ce42fbc-3bdb-517a-9a4f-5bd84a24799e",
            ),
        ];
        for (parts, hash, uuid) in vectors {
            assert_eq!(from_parts("invoicing", parts).as_str(), hash, "{parts:?}");
            assert_eq!(uuid_from(NAMESPACE, parts).as_str(), uuid, "{parts:?}");
        }
    }

    #[test]
    fn parts_that_contain_a_separator_give_different_keys() {
        let joined: BTreeSet<Key> = [
            from_parts("d", ["a", "b"]),
            from_parts("d", ["a,1:b"]),
            from_parts("d", ["1:a,1:b,"]),
            from_parts("d", ["ab"]),
            from_parts("d", ["ab", ""]),
            from_parts("d", ["", "ab"]),
            from_parts("da", ["b"]),
            from_parts("d1:a,", ["b"]),
        ]
        .into();
        assert_eq!(joined.len(), 8);
    }

    #[test]
    fn parts_may_be_texts_or_bytes() {
        let key = from_parts("d", ["a", "b"]);
        assert_eq!(from_parts("d", [String::from("a"), String::from("b")]), key);
        assert_eq!(from_parts("d", [b"a".as_slice(), b"b"]), key);
        assert_eq!(from_parts("d", vec![vec![b'a'], vec![b'b']]), key);
    }

    #[test]
    fn a_key_is_the_uuid_as_every_language_writes_it() {
        for (key, version) in [(random(), 4), (time_ordered(), 7), (uuid_from(NAMESPACE, ["a"]), 5)]
        {
            let uuid = Uuid::parse_str(key.as_str()).unwrap();
            assert_eq!(uuid.hyphenated().to_string(), key.as_str());
            assert_eq!(uuid.get_version_num(), version);
        }
    }

    #[test]
    fn time_ordered_keys_rise_within_a_millisecond_too() {
        let keys: Vec<Key> = (0..10_000).map(|_| time_ordered()).collect();
        assert!(keys.is_sorted_by(|earlier, later| earlier < later));
    }
}
