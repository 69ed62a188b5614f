//! The key: what a client sends to name one logical operation.
//!
//! # On the wire
//!
//! The standard form is a structured-field string (RFC 9651), `Idempotency-Key: "8e03978e"`. Most
//! clients in the field send the bare form, `Idempotency-Key: 8e03978e`. Both are accepted and are
//! the same key:
//!
//! ```
//! use semel_core::key::Key;
//!
//! let quoted = Key::from_header([br#""8e03978e""#.as_slice()])?;
//! let bare = Key::from_header([b" 8e03978e ".as_slice()])?;
//! assert_eq!(quoted, bare);
//! assert_eq!(quoted.unwrap().as_str(), "8e03978e");
//! # Ok::<(), semel_core::key::KeyError>(())
//! ```
//!
//! # Malformed is never absent
//!
//! RFC 9651 lets a recipient ignore a field that does not parse. For money that is the wrong
//! choice: the request would run without protection although its sender asked for it. So only a
//! request with no such line at all has no key; everything else is a key or an error.
//!
//! ```
//! use semel_core::key::{Key, KeyError};
//!
//! assert_eq!(Key::from_header([]), Ok(None));
//! assert_eq!(Key::from_header([b"".as_slice()]), Err(KeyError::Empty));
//! assert_eq!(Key::from_header([b"a".as_slice(), b"a"]), Err(KeyError::Repeated));
//! assert_eq!(Key::from_header([b"a, b".as_slice()]), Err(KeyError::List));
//! ```
//!
//! # In a body
//!
//! A key may also be made of the members of a body, which hold any text: see
//! [`Key::from_members`].

mod member;
mod structured;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

/// The longest key, in characters (which are bytes, since a key is ASCII).
pub const KEY_BYTES_MAX: usize = 255;

/// What a client sends to name one logical operation: 1 to 255 visible ASCII characters.
///
/// Keys are compared byte by byte: upper and lower case are different. A clone shares the text.
///
/// ```
/// use semel_core::key::Key;
///
/// let key = Key::new("order-17")?;
/// assert_eq!(key.to_string(), "order-17");
/// assert!(Key::new("order 17").is_err());
/// # Ok::<(), semel_core::key::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why a key was refused. The message tells the sender what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// More than one header line.
    #[error("the key header was sent more than once; send exactly one line with one key")]
    Repeated,
    /// No characters, be it `""` or nothing at all.
    #[error("the key is empty; send 1 to 255 visible ASCII characters, or leave the header out")]
    Empty,
    /// More than [`KEY_BYTES_MAX`] characters.
    #[error("the key has {length} characters; shorten it to 255 or fewer")]
    TooLong {
        /// How many characters it has.
        length: usize,
    },
    /// A space, a control character or something that is not ASCII.
    #[error(
        "character {position} of the key is 0x{byte:02x}; use visible ASCII only (! to ~, no space)"
    )]
    Character {
        /// The byte that is not allowed.
        byte: u8,
        /// Which character of the key it is, counted from 1.
        position: usize,
    },
    /// A comma in a bare value, which would make it a list.
    #[error("the key contains a comma, which makes it a list; send one key, or put it in quotes")]
    List,
    /// A double quote in a bare value.
    #[error("the key contains a double quote; put the whole key in quotes and write it as \\\"")]
    Quote,
    /// A quoted value without an end.
    #[error("the quoted key has no closing double quote; add it")]
    Unterminated,
    /// A backslash before something else than a double quote or a backslash.
    #[error("in a quoted key a backslash stands only before \" or \\; write \\\\ for a backslash")]
    Escape,
    /// Something after the `;` that is not a structured-field parameter.
    #[error("what follows the ; after the quoted key is not a parameter of RFC 9651; leave it out")]
    Parameter,
    /// Something after the quoted value that does not belong there.
    #[error("something follows the closing double quote of the key; send only the quoted key")]
    Trailing,
}

impl Key {
    /// The key with exactly this text.
    ///
    /// # Errors
    ///
    /// If the text is empty, longer than [`KEY_BYTES_MAX`] or not visible ASCII throughout.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        let strange = |byte: &u8| !byte.is_ascii_graphic();
        if let Some((index, byte)) = text.bytes().enumerate().find(|(_, byte)| strange(byte)) {
            return Err(KeyError::Character { byte, position: index.saturating_add(1) });
        }
        if text.len() > KEY_BYTES_MAX {
            return Err(KeyError::TooLong { length: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// The key that is this UUID: lower case, with hyphens.
    ///
    /// ```
    /// use semel_core::key::Key;
    ///
    /// let key = Key::from_uuid(*b"sixteen bytes...");
    /// assert_eq!(key.as_str(), "73697874-6565-6e20-6279-7465732e2e2e");
    /// ```
    #[must_use]
    pub fn from_uuid(bytes: [u8; 16]) -> Self {
        let mut text = String::with_capacity(36);
        for (index, byte) in bytes.into_iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            put_hex(byte, &mut text);
        }
        Self(text.into())
    }

    /// The key that is this hash: 64 hexadecimal digits in lower case.
    ///
    /// ```
    /// use semel_core::key::Key;
    ///
    /// assert_eq!(Key::from_digest([0xa5; 32]).as_str(), "a5".repeat(32));
    /// ```
    #[must_use]
    pub fn from_digest(bytes: [u8; 32]) -> Self {
        let mut text = String::with_capacity(64);
        for byte in bytes {
            put_hex(byte, &mut text);
        }
        Self(text.into())
    }

    /// The key in the lines of a header, `None` if there is no line.
    ///
    /// A value that starts with a double quote is a structured-field string; its parameters must
    /// be well formed and are ignored. Any other value is the key itself, and may contain neither
    /// a comma nor a double quote. Spaces and tabs around the value do not count.
    ///
    /// # Errors
    ///
    /// If there is more than one line, or the value of the line is not one key. A malformed key
    /// is never treated as absent.
    pub fn from_header<'a>(
        lines: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Option<Self>, KeyError> {
        let mut lines = lines.into_iter();
        let Some(line) = lines.next() else { return Ok(None) };
        if lines.next().is_some() {
            return Err(KeyError::Repeated);
        }
        let value = trim(line);
        let key = match value.first() {
            Some(b'"') => Self::from_bytes(&structured::string_item(value)?),
            _ if value.contains(&b',') => Err(KeyError::List),
            _ if value.contains(&b'"') => Err(KeyError::Quote),
            _ => Self::from_bytes(value),
        }?;
        Ok(Some(key))
    }

    /// The text of the key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key as the value of a header in the standard, quoted form.
    ///
    /// ```
    /// use semel_core::key::Key;
    ///
    /// let key = Key::new(r#"a"b"#)?;
    /// let line = key.to_header();
    /// assert_eq!(line, r#""a\"b""#);
    /// assert_eq!(Key::from_header([line.as_bytes()])?, Some(key));
    /// # Ok::<(), semel_core::key::KeyError>(())
    /// ```
    #[must_use]
    pub fn to_header(&self) -> String {
        format!("\"{}\"", self.0.replace('\\', r"\\").replace('"', "\\\""))
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        match str::from_utf8(bytes) {
            Ok(text) => Self::new(text),
            // The first byte that is not ASCII is an error of the charset, whatever follows it.
            Err(_) => Err(bytes.iter().enumerate().find(|(_, byte)| !byte.is_ascii()).map_or(
                KeyError::Empty,
                |(index, byte)| KeyError::Character {
                    byte: *byte,
                    position: index.saturating_add(1),
                },
            )),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&&*self.0).finish()
    }
}

fn put_hex(byte: u8, out: &mut String) {
    for digit in [byte >> 4, byte & 0xf] {
        // Four bits are always a digit.
        out.push(char::from_digit(u32::from(digit), 16).unwrap_or_default());
    }
}

/// The value without the optional white space of RFC 9110 around it.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
