//! JSON Pointers (RFC 6901), and what a route selects with them.

use std::fmt;
use std::str::FromStr;

/// A JSON Pointer: `/lines/0/amount`, or nothing for the whole document.
///
/// ```
/// use semel_core::canonical::Pointer;
///
/// let pointer = Pointer::parse("/a~1b/0")?;
/// assert_eq!(pointer.tokens().collect::<Vec<_>>(), ["a/b", "0"]);
/// assert!(Pointer::parse("amount").is_err());
/// # Ok::<(), semel_core::canonical::PointerError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer {
    /// First, so that pointers sort by their text.
    text: Box<str>,
    tokens: Box<[Box<str>]>,
}

/// Why a text is not a JSON Pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// It is not empty and does not start with a slash.
    #[error("the JSON Pointer {text:?} must start with a slash; write \"/{text}\"")]
    NoSlash {
        /// The text.
        text: String,
    },
    /// A tilde that is followed by neither `0` nor `1`.
    #[error("in the JSON Pointer {text:?} a ~ stands alone; write ~0 for ~ and ~1 for /")]
    Tilde {
        /// The text.
        text: String,
    },
}

/// Which part of a JSON document counts.
///
/// The order of the pointers does not matter, nor whether one is given twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// All of it.
    #[default]
    Whole,
    /// Only what these pointers lead to. At least one must lead somewhere.
    Only(Vec<Pointer>),
    /// All but what these pointers lead to. None may lead to the whole document.
    Except(Vec<Pointer>),
}

impl Pointer {
    /// The pointer that a text spells.
    ///
    /// # Errors
    ///
    /// If the text is neither empty nor starts with a slash, or if a tilde in it is followed by
    /// neither `0` nor `1`.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        let mut parts = text.split('/');
        if parts.next() != Some("") {
            return Err(PointerError::NoSlash { text: text.to_owned() });
        }
        let tokens = parts.map(unescape).collect::<Option<_>>();
        let tokens = tokens.ok_or_else(|| PointerError::Tilde { text: text.to_owned() })?;
        Ok(Self { text: text.into(), tokens })
    }

    /// The text of the pointer, as it was parsed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it leads to the whole document.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.text.is_empty()
    }

    /// The member names and array indices on the way, unescaped.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().map(|token| &**token)
    }
}

fn unescape(part: &str) -> Option<Box<str>> {
    let mut pieces = part.split('~');
    let mut token = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (sign, rest) = match piece.as_bytes().first()? {
            b'0' => ('~', piece.strip_prefix('0')?),
            b'1' => ('/', piece.strip_prefix('1')?),
            _ => return None,
        };
        token.push(sign);
        token.push_str(rest);
    }
    Some(token.into_boxed_str())
}

impl FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        Self::parse(text)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pointer").field(&self.text).finish()
    }
}
