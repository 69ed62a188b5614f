//! The secret that turns a credential into a caller name.

use std::{error, fmt};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The minimum length of a [`Secret`], in bytes.
pub const SECRET_BYTES_MIN: usize = 16;

/// The key of the hash that turns a credential into a caller name.
///
/// The store contains these names, and a reader of the store must not be able to guess a password
/// by brute force; so the hash is keyed. **The secret must be the same in every process that shares
/// a store, and after every restart:** with another secret a caller has another name, and its
/// earlier keys are new. Rotate it only when no retry can still arrive.
///
/// ```
/// use semel_tower::Secret;
///
/// let secret = Secret::new("9f86d081884c7d659a2feaa0c55ad015")?;
/// assert_eq!(format!("{secret:?}"), "Secret(…)");
/// assert!(Secret::new("too short").is_err());
/// # Ok::<(), semel_tower::SecretError>(())
/// ```
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

/// A [`Secret`] with fewer than [`SECRET_BYTES_MIN`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretError {
    length: usize,
}

impl Secret {
    /// A secret of these bytes, at least [`SECRET_BYTES_MIN`] of them; 32 random ones are best.
    ///
    /// # Errors
    ///
    /// If there are fewer.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, SecretError> {
        let bytes = bytes.as_ref();
        let error = SecretError { length: bytes.len() };
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(error);
        }
        // HMAC takes a key of any length.
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| error)
    }

    /// A key for another purpose, derived from the secret. Different purposes have different keys,
    /// none of which is the key of a caller name.
    #[must_use]
    pub fn derive_key(&self, purpose: &str) -> [u8; 32] {
        let mut hash = self.0.clone();
        // No part of a caller name begins with a zero byte.
        hash.update(b"\0semel derived key\0");
        hash.update(purpose.as_bytes());
        hash.finalize().into_bytes().into()
    }

    /// 128 bits of the keyed hash of these parts, as 32 hexadecimal digits. The boundaries between
    /// parts count, as long as none but the last contains a zero byte.
    pub(super) fn name(&self, prefix: &str, parts: &[&[u8]]) -> String {
        let mut hash = self.0.clone();
        for part in parts {
            hash.update(part);
            hash.update(&[0]);
        }
        let hash = hash.finalize().into_bytes();
        hexadecimal(prefix, hash.get(..16).unwrap_or(&hash))
    }
}

/// A prefix and these bytes in hexadecimal.
pub(super) fn hexadecimal(prefix: &str, bytes: &[u8]) -> String {
    let mut text = String::with_capacity(prefix.len().saturating_add(64));
    text.push_str(prefix);
    for byte in bytes {
        for digit in [byte >> 4, byte & 0x0F] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or_default());
        }
    }
    text
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the secret has {} bytes; use at least {SECRET_BYTES_MIN}, better 32 random ones",
            self.length
        )
    }
}

impl error::Error for SecretError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text).unwrap()
    }

    #[test]
    fn a_name_is_the_same_in_every_process_and_for_ever() {
        // echo -ne 'authorization\0bearer\0token\0' | openssl dgst -sha256 -hmac 0123456789abcdef
        let name = secret("0123456789abcdef").name("", &[b"authorization", b"bearer", b"token"]);
        assert_eq!(name, "95423e206c35be352bc35fb9e82cab36");
    }

    #[test]
    fn another_secret_gives_another_name() {
        let of = |text: &str| secret(text).name("a:", &[b"x"]);
        assert_eq!(of("0123456789abcdef"), of("0123456789abcdef"));
        assert_ne!(of("0123456789abcdef"), of("0123456789abcdeF"));
        assert_eq!(of("0123456789abcdef").len(), 2 + 32);
    }

    #[test]
    fn a_derived_key_belongs_to_its_secret_and_its_purpose() {
        let key = |text: &str, purpose: &str| secret(text).derive_key(purpose);
        let one = key("0123456789abcdef", "a");
        assert_eq!(one, key("0123456789abcdef", "a"));
        assert_ne!(one, key("0123456789abcdef", "b"));
        assert_ne!(one, key("0123456789abcdeF", "a"));
    }

    #[test]
    fn parts_with_equal_concatenation_give_distinct_names() {
        let secret = secret("0123456789abcdef");
        assert_ne!(secret.name("", &[b"ab", b"c"]), secret.name("", &[b"a", b"bc"]));
    }

    #[test]
    fn a_short_secret_is_refused_and_not_printed() {
        let error = Secret::new("hunter2").unwrap_err();
        assert!(error.to_string().contains("7 bytes"));
        assert!(!error.to_string().contains("hunter2"));
        assert!(!format!("{:?}", secret("0123456789abcdef")).contains('1'));
    }
}
