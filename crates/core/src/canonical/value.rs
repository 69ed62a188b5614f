//! One value out of a document: what a route reads a key from.

use super::error::JsonError;
use super::number::plain_integer;
use super::parse;
use super::pointer::Pointer;
use super::tree::Kind;

/// A value that a pointer leads to, as far as it can name something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string, unescaped.
    Text(String),
    /// An integer of at most [`INTEGER_DIGITS_MAX`] digits, in plain digits: `1e2` is `100`.
    Integer(String),
    /// Anything else: a container, a literal, a fraction, a string that is not Unicode.
    Other,
}

/// How many digits an integer may have to be told in plain digits.
pub const INTEGER_DIGITS_MAX: usize = 255;

/// What a pointer leads to in a JSON document, `None` if it leads nowhere.
///
/// ```
/// use semel_core::canonical::{self, Pointer, Value};
///
/// let body = br#"{"id":"evt_1","data":{"amount":100}}"#;
/// let find = |text: &str| canonical::find(body, &Pointer::parse(text).unwrap());
/// assert_eq!(find("/id")?, Some(Value::Text("evt_1".to_owned())));
/// assert_eq!(find("/data/amount")?, Some(Value::Integer("100".to_owned())));
/// assert_eq!(find("/data")?, Some(Value::Other));
/// assert_eq!(find("/type")?, None);
/// # Ok::<(), canonical::JsonError>(())
/// ```
///
/// # Errors
///
/// If the body is refused as in [`json`](super::json).
pub fn find(body: &[u8], pointer: &Pointer) -> Result<Option<Value>, JsonError> {
    let tree = parse::document(body)?;
    let Some(node) = tree.find(pointer).and_then(|index| tree.node(index)) else {
        return Ok(None);
    };
    let text = str::from_utf8(tree.bytes(node)).ok();
    let value = match node.kind {
        Kind::String | Kind::Unescaped => text.map(|text| Value::Text(text.to_owned())),
        Kind::Plain | Kind::Number => text.and_then(plain_integer).map(Value::Integer),
        Kind::Array | Kind::Object => None,
    };
    Ok(Some(value.unwrap_or(Value::Other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, body: &str) -> Option<Value> {
        find(body.as_bytes(), &Pointer::parse(text).unwrap()).unwrap()
    }

    fn integer(text: &str) -> Option<Value> {
        Some(Value::Integer(text.to_owned()))
    }

    #[test]
    fn an_integer_is_told_in_plain_digits_however_it_was_spelled() {
        for spelling in ["100", "1e2", "100.0", "0.1e3", "10000e-2"] {
            assert_eq!(at("", spelling), integer("100"), "{spelling}");
        }
        assert_eq!(at("", "-70"), integer("-70"));
        assert_eq!(at("", "-0.0"), integer("0"));
        assert_eq!(at("", "9007199254740993"), integer("9007199254740993"));
    }

    #[test]
    fn an_integer_too_long_to_be_told_is_not_expanded() {
        assert_eq!(at("", "1e254"), integer(&format!("1{}", "0".repeat(254))));
        for long in ["1e255", "1e999999999", &"7".repeat(256)] {
            assert_eq!(at("", long), Some(Value::Other), "{long}");
        }
    }

    #[test]
    fn what_is_neither_a_string_nor_an_integer_is_something_else() {
        for other in ["1.5", "1e-1", "true", "false", "null", "[]", "{}", r#""\ud800""#] {
            assert_eq!(at("", other), Some(Value::Other), "{other}");
        }
    }

    #[test]
    fn a_string_is_told_without_its_escapes() {
        assert_eq!(at("/a~1b", r#"{"a/b":"x\u0041"}"#), Some(Value::Text("xA".to_owned())));
        assert_eq!(at("/1", r#"["a","b"]"#), Some(Value::Text("b".to_owned())));
        assert_eq!(at("/2", r#"["a","b"]"#), None);
    }

    #[test]
    fn a_document_that_is_not_json_has_no_values() {
        assert!(find(b"{", &Pointer::parse("/a").unwrap()).is_err());
    }
}
