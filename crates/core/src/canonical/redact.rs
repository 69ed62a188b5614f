//! Values of a document replaced, and every other byte left as it is.

use std::ops::Range;

use super::error::JsonError;
use super::parse;
use super::pointer::Pointer;
use super::string;
use super::tree::{NodeIndex, next};

/// What stands in place of a value that was redacted.
pub const REDACTED: &str = "\"[redacted]\"";

/// Replaces each value that a pointer leads to by the string `[redacted]`, whatever its type.
/// `None` if no pointer leads anywhere: then there is nothing to replace.
///
/// Everything else stays byte for byte as it was.
///
/// ```
/// use semel_core::canonical::{self, Pointer};
///
/// let pointers = ["/card/number", "/cvc"].map(|text| Pointer::parse(text).unwrap());
/// let body = br#"{ "id": 7, "card": {"number": "4242 4242", "brand": "visa"} }"#;
/// let redacted = canonical::redact(body, &pointers)?;
/// let expected = br#"{ "id": 7, "card": {"number": "[redacted]", "brand": "visa"} }"#;
/// assert_eq!(redacted.as_deref(), Some(&expected[..]));
/// assert_eq!(canonical::redact(br#"{"id": 7}"#, &pointers)?, None);
/// # Ok::<(), canonical::JsonError>(())
/// ```
///
/// # Errors
///
/// If the body is refused as in [`json`](super::json): where the values are is not known then.
pub fn redact(body: &[u8], pointers: &[Pointer]) -> Result<Option<Vec<u8>>, JsonError> {
    let tree = parse::document(body)?;
    let mut values: Vec<NodeIndex> = pointers.iter().filter_map(|it| tree.find(it)).collect();
    values.sort_unstable();
    values.dedup();
    if values.is_empty() {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(body.len());
    let mut copied = 0;
    for Range { start, end } in (Scanner { body, values: &values, ..Scanner::default() }).spans() {
        out.extend_from_slice(body.get(copied..start).unwrap_or_default());
        out.extend_from_slice(REDACTED.as_bytes());
        copied = end;
    }
    out.extend_from_slice(body.get(copied..).unwrap_or_default());
    Ok(Some(out))
}

/// The bytes of the value at a pointer, as the document spells it; `None` if it does not exist.
///
/// ```
/// use semel_core::canonical::{self, Pointer};
///
/// let body = br#"{"data": [{"id": "ch_1", "amount": 1.50}]}"#;
/// let first = canonical::raw_value(body, &Pointer::parse("/data/0").unwrap())?;
/// assert_eq!(first, Some(&br#"{"id": "ch_1", "amount": 1.50}"#[..]));
/// # Ok::<(), canonical::JsonError>(())
/// ```
///
/// # Errors
///
/// The errors of [`json`](super::json).
pub fn raw_value<'b>(body: &'b [u8], pointer: &Pointer) -> Result<Option<&'b [u8]>, JsonError> {
    let tree = parse::document(body)?;
    let Some(value) = tree.find(pointer) else { return Ok(None) };
    let spans = Scanner { body, values: &[value], ..Scanner::default() }.spans();
    Ok(spans.into_iter().next().and_then(|span| body.get(span)))
}

/// Finds where nodes stand in a body that was parsed. The tree does not know: of a string with
/// escapes it has the characters, of a container the members. But its nodes lie in the order of the
/// body, so they are counted here.
#[derive(Default)]
struct Scanner<'a> {
    body: &'a [u8],
    /// The nodes to find, rising.
    values: &'a [NodeIndex],
    spans: Vec<Range<usize>>,
    /// The node that begins next.
    node: NodeIndex,
    depth: usize,
    /// Where a container began that is to be found, and at which depth. What is inside is part of
    /// it.
    open: Option<(usize, usize)>,
}

impl Scanner<'_> {
    fn spans(mut self) -> Vec<Range<usize>> {
        let mut at = if self.body.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        while let Some(byte) = self.body.get(at) {
            let end = at.saturating_add(self.length(at, *byte));
            match byte {
                b'{' | b'[' => {
                    if self.is_next_wanted() {
                        self.open = Some((at, self.depth));
                    }
                    self.depth = self.depth.saturating_add(1);
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if let Some((start, _)) = self.open.take_if(|(_, depth)| *depth == self.depth) {
                        self.spans.push(start..end);
                    }
                }
                b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' => {}
                _ => {
                    if self.is_next_wanted() {
                        self.spans.push(at..end);
                    }
                }
            }
            at = end;
        }
        self.spans
    }

    /// Whether the node that begins here is to be found. It is counted.
    fn is_next_wanted(&mut self) -> bool {
        let node = self.node;
        self.node = next(node);
        self.open.is_none() && self.values.binary_search(&node).is_ok()
    }

    /// How long the token is that begins here.
    fn length(&self, at: usize, first: u8) -> usize {
        let rest = self.body.get(at.saturating_add(1)..).unwrap_or_default();
        let inside = match first {
            b'"' => string_length(rest),
            b'{' | b'[' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' => 0,
            _ => {
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || *byte <= b' ';
                rest.iter().position(ends).unwrap_or(rest.len())
            }
        };
        inside.saturating_add(1)
    }
}

/// How many bytes a string takes after its opening quote, the closing one included.
fn string_length(rest: &[u8]) -> usize {
    let mut at = 0_usize;
    loop {
        at = at.saturating_add(string::run(rest.get(at..).unwrap_or_default()));
        match rest.get(at) {
            Some(b'"') => return at.saturating_add(1),
            // An escape: the character after the backslash is no end.
            Some(_) => at = at.saturating_add(2),
            None => return rest.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(body: &str, pointers: &[&str]) -> String {
        let pointers: Vec<Pointer> =
            pointers.iter().map(|text| Pointer::parse(text).unwrap()).collect();
        let out = redact(body.as_bytes(), &pointers).unwrap();
        out.map_or_else(|| body.to_owned(), |out| String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_value_of_any_type_is_replaced() {
        for value in ["1", "-1.5e3", "true", "null", r#""a\"b\\""#, "[1, {\"a\": []}]", "{}", "[ ]"]
        {
            let body = format!("\u{feff}{{ \"a\" : {value} , \"b\":[{value},{value}]}}\n");
            let after = redacted(&body, &["/a", "/b/1"]);
            let expected =
                format!("\u{feff}{{ \"a\" : \"[redacted]\" , \"b\":[{value},\"[redacted]\"]}}\n");
            assert_eq!(after, expected);
        }
    }

    #[test]
    fn a_value_inside_one_that_is_replaced_is_gone_with_it() {
        let body = r#"{"card":{"number":"4242","exp":{"m":1}},"id":7}"#;
        let expected = r#"{"card":"[redacted]","id":7}"#;
        assert_eq!(redacted(body, &["/card", "/card/number", "/card/exp/m", "/card"]), expected);
    }

    #[test]
    fn the_whole_document_can_be_replaced() {
        assert_eq!(redacted(" [1] ", &[""]), " \"[redacted]\" ");
        assert_eq!(redacted("7", &[""]), "\"[redacted]\"");
    }

    #[test]
    fn a_member_is_found_however_its_name_is_spelled() {
        let body = r#"{"n\u0075mber":"4242"}"#;
        assert_eq!(redacted(body, &["/number"]), r#"{"n\u0075mber":"[redacted]"}"#);
    }

    #[test]
    fn a_pointer_without_a_target_redacts_nothing() {
        let pointers = [Pointer::parse("/card/number").unwrap()];
        assert_eq!(redact(br#"{"card":"none"}"#, &pointers), Ok(None));
        assert!(redact(b"card 4242", &pointers).is_err());
        assert!(redact(br#"{"card":{"number":1,"number":2}}"#, &pointers).is_err());
    }
}
