//! JSON in one spelling: what a document says, without how it was written.
//!
//! A client that retries may serialise its request again: members in another order, other white
//! space, `1.0` for `1`. Those are the same request. But nothing that could be a different amount
//! may ever become equal, so nothing is rounded and nothing is dropped:
//!
//! ```
//! use semel_core::canonical::json_text;
//!
//! let first = json_text(br#"{"amount": 100, "to": "Zo\u00eb"}"#)?;
//! let again = json_text(r#"{"to":"Zoë","amount":1.00e2}"#.as_bytes())?;
//! assert_eq!(first, again);
//! assert_eq!(first, r#"{"amount":1e2,"to":"Zoë"}"#.as_bytes());
//!
//! // Two integers that are one and the same double.
//! assert_ne!(json_text(b"9007199254740993")?, json_text(b"9007199254740992")?);
//! # Ok::<(), semel_core::canonical::JsonError>(())
//! ```
//!
//! # The canonical text
//!
//! It is JSON itself, so that any language can reproduce it, and it is its own canonical text:
//!
//! - **No white space** outside strings. UTF-8, no byte order mark.
//! - **Objects** have their members sorted by the bytes of the unescaped names in UTF-8, which is
//!   the order of code points (RFC 8785 sorts by UTF-16 code units instead).
//! - **Strings** are what `JSON.stringify` of ECMAScript 2019 makes of them: `\"`, `\\`, `\b`,
//!   `\t`, `\n`, `\f`, `\r`; any other character below U+0020 as `\u00xx` and a lone surrogate as
//!   `\udxxx`, hexadecimal digits in lower case; everything else as it is, `/` and U+007F
//!   included. Unicode is not normalised: `é` and `e` + U+0301 stay different. A lone surrogate
//!   sorts as the three bytes that UTF-8 would give it if it were allowed.
//! - **Numbers** are `0`, or an optional `-`, the significant digits without zeros at either end,
//!   and, unless it is zero, `e` and the decimal exponent: `7` is `7`, `100` is `1e2`, `-12.50`
//!   is `-125e-1`, `-0.0` is `0`. An exponent is never expanded, so `1e999999999` costs no more
//!   than its eleven characters.
//! - `true`, `false` and `null` are themselves.
//!
//! # What is refused
//!
//! Everything that is not JSON by RFC 8259, and what two readers could understand differently:
//! equal member names in one object (compared after unescaping), bytes that are not UTF-8, more
//! than [`DEPTH_MAX`] levels, an exponent that does not fit in 64 bits. A byte order mark at the
//! start is skipped. The memory used is at worst about fifteen times the input (see
//! [`JSON_BYTES_MAX`]), the time by the input and the sorting of names.
//!
//! # A selection of it
//!
//! Some members change with every attempt (`sent_at`, a nonce). A [`Selection`] names what counts
//! by [JSON Pointers](Pointer). A star, which is not JSON, stands where no value counts:
//!
//! - **Except**: a member that a pointer names is left out, as if it had not been sent. An array
//!   element is replaced by `*`, so that the other elements keep their places and the array its
//!   length. A pointer that matches nothing changes nothing. With the empty pointer nothing would
//!   be left to compare, so every document is refused.
//! - **Only**: the text is `only{…}`, with one member per pointer, sorted by the bytes of the
//!   pointer: the pointer as a string, then the canonical text of what it selects, or `*` if it
//!   selects nothing. If no pointer selects anything the document is refused: with nothing to
//!   compare, every request would be equal to every other.
//!
//! ```
//! use semel_core::canonical::{self, Pointer, Selection};
//!
//! let body = br#"{"amount":5,"sent_at":"12:00","lines":[1,2]}"#;
//! let pointers = || ["/sent_at", "/lines/0"].map(|text| Pointer::parse(text).unwrap()).to_vec();
//!
//! let mut text = Vec::new();
//! canonical::json(body, &Selection::Except(pointers()), &mut text)?;
//! assert_eq!(text, br#"{"amount":5,"lines":[*,2]}"#);
//!
//! text.clear();
//! canonical::json(body, &Selection::Only(pointers()), &mut text)?;
//! assert_eq!(text, br#"only{"/lines/0":1,"/sent_at":"12:00"}"#);
//! # Ok::<(), canonical::JsonError>(())
//! ```

mod emit;
mod error;
mod number;
mod parse;
mod pointer;
#[cfg(test)]
mod properties;
mod redact;
mod string;
#[cfg(test)]
mod tests;
mod tree;
mod value;

pub use error::{JsonError, JsonErrorKind};
pub use number::NUMBER_DIGITS_MAX;
pub use pointer::{Pointer, PointerError, Selection};
pub use redact::{REDACTED, raw_value, redact};
pub use value::{Value, find, find_all};

/// How deep arrays and objects may be nested.
pub const DEPTH_MAX: usize = 128;

/// The largest document that is read. A caller that holds bodies in memory sets its own, lower
/// limit before it calls; this one keeps the memory of a mistake bounded.
pub const JSON_BYTES_MAX: usize = 64 << 20;

/// Appends the canonical text of what the selection takes from a JSON document.
///
/// # Errors
///
/// If the body is not JSON, is refused for one of the reasons in the
/// [module documentation](self), or if the selection leaves nothing to compare: an
/// [`Only`](Selection::Only) that selects nothing, an [`Except`](Selection::Except) the whole. What
/// was appended before that stays as it was.
pub fn json(body: &[u8], selection: &Selection, out: &mut Vec<u8>) -> Result<(), JsonError> {
    let mut tree = parse::document(body)?;
    match selection {
        Selection::Whole => emit::write_document(&tree, out),
        Selection::Except(pointers) => {
            if pointers.iter().any(Pointer::is_whole) {
                return Err(JsonError::new(JsonErrorKind::NothingSelected, 0));
            }
            for pointer in pointers {
                tree.remove(pointer);
            }
            emit::write_document(&tree, out);
        }
        Selection::Only(pointers) => emit::write_selected(&tree, pointers, out)?,
    }
    Ok(())
}

/// The canonical text of a whole JSON document.
///
/// # Errors
///
/// As [`json`] with [`Selection::Whole`].
pub fn json_text(body: &[u8]) -> Result<Vec<u8>, JsonError> {
    let mut text = Vec::new();
    json(body, &Selection::Whole, &mut text)?;
    Ok(text)
}
