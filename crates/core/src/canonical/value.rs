//! Reads single values of a JSON document, such as a key in a body.

use super::error::JsonError;
use super::number::plain_decimal;
use super::parse;
use super::pointer::Pointer;
use super::tree::{Node, NodeKind, Tree};

/// The value at a pointer. Only scalars keep their contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string, unescaped.
    Text(String),
    /// A number in decimal digits: `1e2` is `100`, `1.50` is `1.5`. A number that needs more than
    /// [`NUMBER_DIGITS_MAX`](super::NUMBER_DIGITS_MAX) digits is in its [canonical form](super),
    /// such as `1e999`.
    Number(String),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
    /// Any other value: a container, or a string that is not valid Unicode.
    Other,
}

impl Value {
    /// The text of a string, a number, `true` or `false`.
    ///
    /// ```
    /// use semel_core::canonical::Value;
    ///
    /// assert_eq!(Value::Number("49.9".to_owned()).text(), Some("49.9"));
    /// assert_eq!(Value::Bool(true).text(), Some("true"));
    /// assert_eq!(Value::Null.text(), None);
    /// ```
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Number(text) => Some(text),
            Self::Bool(true) => Some("true"),
            Self::Bool(false) => Some("false"),
            Self::Null | Self::Other => None,
        }
    }
}

/// Finds the value at a pointer in a JSON document; `None` if it does not exist.
///
/// ```
/// use semel_core::canonical::{self, Pointer, Value};
///
/// let body = br#"{"id":"evt_1","data":{"amount":100}}"#;
/// let find = |text: &str| canonical::find(body, &Pointer::parse(text).unwrap());
/// assert_eq!(find("/id")?, Some(Value::Text("evt_1".to_owned())));
/// assert_eq!(find("/data/amount")?, Some(Value::Number("100".to_owned())));
/// assert_eq!(find("/data")?, Some(Value::Other));
/// assert_eq!(find("/type")?, None);
/// # Ok::<(), canonical::JsonError>(())
/// ```
///
/// # Errors
///
/// The errors of [`json`](super::json).
pub fn find(body: &[u8], pointer: &Pointer) -> Result<Option<Value>, JsonError> {
    let tree = parse::document(body)?;
    Ok(value_at(&tree, pointer))
}

/// Finds the values at several pointers, in their order. The document is parsed once.
///
/// # Errors
///
/// The errors of [`json`](super::json).
pub fn find_all<'a>(
    body: &[u8],
    pointers: impl IntoIterator<Item = &'a Pointer>,
) -> Result<Vec<Option<Value>>, JsonError> {
    let tree = parse::document(body)?;
    Ok(pointers.into_iter().map(|pointer| value_at(&tree, pointer)).collect())
}

fn value_at(tree: &Tree<'_>, pointer: &Pointer) -> Option<Value> {
    let node = tree.find(pointer).and_then(|index| tree.node(index))?;
    Some(scalar(tree, node).unwrap_or(Value::Other))
}

fn scalar(tree: &Tree<'_>, node: Node) -> Option<Value> {
    let text = str::from_utf8(tree.bytes(node)).ok()?;
    match node.kind {
        NodeKind::String | NodeKind::Unescaped => Some(Value::Text(text.to_owned())),
        NodeKind::Number => Some(Value::Number(plain_decimal(text))),
        NodeKind::Plain => Some(match text {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            number => Value::Number(plain_decimal(number)),
        }),
        NodeKind::Array | NodeKind::Object => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, body: &str) -> Option<Value> {
        find(body.as_bytes(), &Pointer::parse(text).unwrap()).unwrap()
    }

    fn number(text: &str) -> Option<Value> {
        Some(Value::Number(text.to_owned()))
    }

    #[test]
    fn every_spelling_of_a_number_gives_the_same_decimal_digits() {
        for (expected, spellings) in [
            ("100", &["100", "1e2", "100.0", "0.1e3", "10000e-2"][..]),
            ("1.5", &["1.5", "1.50", "15e-1", "0.15e1"]),
            ("0.05", &["0.05", "5e-2", "0.5e-1"]),
            ("-0.5", &["-0.5", "-5e-1"]),
            ("-70", &["-70", "-7e1"]),
            ("49.9", &["49.90"]),
            ("0", &["0", "-0.0", "0e9"]),
            ("9007199254740993", &["9007199254740993"]),
        ] {
            for spelling in spellings {
                assert_eq!(at("", spelling), number(expected), "{spelling}");
            }
        }
    }

    #[test]
    fn a_number_with_too_many_digits_is_not_expanded() {
        assert_eq!(at("", "1e254"), number(&format!("1{}", "0".repeat(254))));
        assert_eq!(at("", "1e-254"), number(&format!("0.{}1", "0".repeat(253))));
        for (long, canonical) in
            [("10e254", "1e255"), ("0.1e-254", "1e-255"), ("1e999999999", "1e999999999")]
        {
            assert_eq!(at("", long), number(canonical), "{long}");
        }
        let long = "7".repeat(256);
        assert_eq!(at("", &long), number(&long));
    }

    #[test]
    fn the_other_scalars_are_distinguished_from_containers() {
        assert_eq!(at("", "true"), Some(Value::Bool(true)));
        assert_eq!(at("", "false"), Some(Value::Bool(false)));
        assert_eq!(at("", "null"), Some(Value::Null));
        for other in ["[]", "{}", r#""\ud800""#] {
            assert_eq!(at("", other), Some(Value::Other), "{other}");
        }
    }

    #[test]
    fn several_values_are_found_in_the_order_of_their_pointers() {
        let pointers = ["/b", "/c", "/a"].map(|text| Pointer::parse(text).unwrap());
        let found = find_all(br#"{"a":"x","b":7}"#, &pointers).unwrap();
        assert_eq!(found, [number("7"), None, Some(Value::Text("x".to_owned()))]);
        assert!(find_all(b"{", &pointers).is_err());
    }

    #[test]
    fn a_string_is_unescaped() {
        assert_eq!(at("/a~1b", r#"{"a/b":"x\u0041"}"#), Some(Value::Text("xA".to_owned())));
        assert_eq!(at("/1", r#"["a","b"]"#), Some(Value::Text("b".to_owned())));
        assert_eq!(at("/2", r#"["a","b"]"#), None);
    }

    #[test]
    fn a_document_that_is_not_json_has_no_values() {
        assert!(find(b"{", &Pointer::parse("/a").unwrap()).is_err());
    }
}
