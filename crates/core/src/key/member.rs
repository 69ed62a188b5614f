//! Keys that stand in a body: any text, one member or several together.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::{KEY_BYTES_MAX, Key, KeyError, put_hex};

/// Stands between two members.
const SEPARATOR: char = ',';

/// Stands for a member that is `null`. No text is written like this: a percent sign is always
/// followed by two hexadecimal digits.
const NULL: &str = "%null";

/// Stands before the hash of a key that would be too long. No text is written like this either.
const HASH: &str = "%~";

/// How many bytes of a key that would be too long stand before its hash.
const HEAD_BYTES: usize = KEY_BYTES_MAX - HASH.len() - 64;

impl Key {
    /// The key that the members of a body name: one, or several together. A member is the text of a
    /// string, of a number, of `true` or `false`; `None` is `null`.
    ///
    /// A key is 1 to 255 visible ASCII characters in every store, and a body may hold any text. So
    /// the text is written like this, and different members are always different keys:
    ///
    /// - the bytes of its UTF-8 that are not visible ASCII, and `%` and `,`, as `%` and two
    ///   hexadecimal digits in upper case; all others as they are. What a header could hold without
    ///   these two is the same key there and here;
    /// - several members with a `,` between them; `null` as `%null`;
    /// - what would be longer than [`KEY_BYTES_MAX`] as its first 189 bytes at most, `%~`, and the
    ///   SHA-256 of the whole in 64 hexadecimal digits.
    ///
    /// ```
    /// use semel_core::key::Key;
    ///
    /// assert_eq!(Key::from_members([Some("evt_1")])?.as_str(), "evt_1");
    /// assert_eq!(Key::from_members([Some("PO 17/ü")])?.as_str(), "PO%2017/%C3%BC");
    /// let entry = Key::from_members([Some("spring cup"), Some("u-7"), Some("3")])?;
    /// assert_eq!(entry.as_str(), "spring%20cup,u-7,3");
    /// let pair = |one, two| Key::from_members([Some(one), Some(two)]);
    /// assert_ne!(pair("ab", "c")?, pair("a", "bc")?);
    /// # Ok::<(), semel_core::key::KeyError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`KeyError::Empty`] if every member is empty or `null`, or there is none: that names
    /// nothing.
    pub fn from_members<'a>(
        members: impl IntoIterator<Item = Option<&'a str>>,
    ) -> Result<Self, KeyError> {
        let mut key = String::new();
        let mut names_something = false;
        for (index, member) in members.into_iter().enumerate() {
            if index > 0 {
                key.push(SEPARATOR);
            }
            match member {
                Some(text) => put_text(text, &mut key),
                None => key.push_str(NULL),
            }
            names_something |= member.is_some_and(|text| !text.is_empty());
        }
        if !names_something {
            return Err(KeyError::Empty);
        }
        if key.len() > KEY_BYTES_MAX {
            key = shortened(&key);
        }
        Ok(Self(key.into()))
    }
}

fn put_text(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' && char::from(byte) != SEPARATOR {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

fn shortened(key: &str) -> String {
    let head = key.get(..HEAD_BYTES).unwrap_or(key);
    // No escape is cut in two.
    let head = match head.as_bytes() {
        [.., b'%'] => head.get(..head.len().saturating_sub(1)),
        [.., b'%', _] => head.get(..head.len().saturating_sub(2)),
        _ => None,
    }
    .unwrap_or(head);
    let mut short = [head, HASH].concat();
    for byte in Sha256::digest(key) {
        put_hex(byte, &mut short);
    }
    short
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn key(members: &[Option<&str>]) -> String {
        Key::from_members(members.iter().copied()).unwrap().as_str().to_owned()
    }

    #[test]
    fn a_text_that_fits_in_a_header_is_the_same_key_there() {
        for text in ["evt_1", "8e03978e-40d5-43dd-bc93-6894a57f9324", "a\"b\\c", "!~", "a/b:c"] {
            assert_eq!(Key::from_members([Some(text)]), Key::new(text), "{text}");
        }
    }

    #[test]
    fn any_text_is_a_key_of_visible_characters() {
        for (text, expected) in [
            ("a b", "a%20b"),
            ("Zoë", "Zo%C3%AB"),
            ("100%", "100%25"),
            ("%20", "%2520"),
            ("a,b", "a%2Cb"),
            ("\n\0", "%0A%00"),
            (" ", "%20"),
        ] {
            assert_eq!(key(&[Some(text)]), expected, "{text:?}");
            assert_eq!(Key::new(expected).unwrap().as_str(), expected);
        }
    }

    #[test]
    fn members_with_equal_concatenation_give_distinct_keys() {
        let lists: [&[Option<&str>]; 15] = [
            &[Some("a"), Some("bc")],
            &[Some("ab"), Some("c")],
            &[Some("abc")],
            &[Some("a,bc")],
            &[Some("a%2Cbc")],
            &[Some("abc"), Some("")],
            &[Some(""), Some("abc")],
            &[Some("abc"), None],
            &[Some("abc"), Some("null")],
            &[Some("abc"), Some("%null")],
            &[Some("abc,%null")],
            &[None, Some("abc")],
            &[Some("abc"), Some(""), Some("")],
            &[Some("abc"), Some(",")],
            &[Some("abc,")],
        ];
        let keys: BTreeSet<String> = lists.iter().map(|list| key(list)).collect();
        assert_eq!(keys.len(), lists.len(), "{keys:?}");
    }

    #[test]
    fn members_without_text_give_no_key() {
        for nothing in [&[][..], &[None], &[Some("")], &[None, Some("")], &[None, None]] {
            assert_eq!(Key::from_members(nothing.iter().copied()), Err(KeyError::Empty));
        }
    }

    #[test]
    fn a_long_text_is_named_by_its_beginning_and_its_hash() {
        assert_eq!(key(&[Some(&"x".repeat(255))]), "x".repeat(255));
        let long = "x".repeat(256);
        // printf 'x%.0s' $(seq 256) | sha256sum
        let hash = "85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a";
        let short = key(&[Some(&long)]);
        assert_eq!(short.len(), 255);
        assert!(short.starts_with(&format!("{}%~", "x".repeat(189))), "{short}");
        assert_eq!(short.get(191..), Some(hash));
        let others = [
            key(&[Some(&"x".repeat(257))]),
            key(&[Some(&long), Some("")]),
            key(&[Some(&"x".repeat(189)), Some(&"x".repeat(66))]),
        ];
        assert!(others.iter().all(|other| *other != short && other.len() == 255));
        let huge = key(&[Some(&"\u{10FFFF}".repeat(100_000))]);
        assert!(Key::new(&huge).is_ok() && huge.contains("%BF%~"), "{huge}");
    }

    proptest! {
        #[test]
        fn different_members_are_different_keys(
            one in prop::collection::vec(prop::option::of("[a,%é2C ]{0,4}"), 1..4),
            two in prop::collection::vec(prop::option::of("[a,%é2C ]{0,4}"), 1..4),
        ) {
            let of = |members: &[Option<String>]| {
                Key::from_members(members.iter().map(Option::as_deref))
            };
            if let (Ok(first), Ok(second)) = (of(&one), of(&two)) {
                prop_assert_eq!(one == two, first == second);
                prop_assert!(Key::new(first.as_str()).is_ok());
            }
        }
    }
}
