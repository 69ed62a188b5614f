//! Forms (`application/x-www-form-urlencoded`) as ordered pairs.
//!
//! A client library may write a space as `+` or `%20`, and `%c3` as `%C3`; those are the same
//! form. Everything else counts: the order of the pairs, a pair that is sent twice, an empty
//! value as opposed to none.
//!
//! # The canonical form
//!
//! For each piece between two `&`: a byte that is 1 if the piece contains a `=` and 0 if not; the
//! decoded name; and, if there is a `=`, the decoded value. Name and value are each preceded by
//! their length as 8 bytes, the most significant first.
//!
//! A percent sign that is not followed by two hexadecimal digits means different things to
//! different readers. Such a body has no canonical form and is compared byte by byte, with others
//! of its kind only: its fingerprint says `form-bytes`.
//!
//! ```
//! use semel_core::form::pairs;
//!
//! assert_eq!(pairs(b"to=Z%c3%b6e+X&n=1"), pairs(b"to=Z%C3%B6e%20X&n=%31"));
//! assert_ne!(pairs(b"a=1&b=2"), pairs(b"b=2&a=1"));
//! assert_eq!(pairs(b"discount=100%"), None);
//! ```

/// The canonical form of a form, `None` if a percent escape in it is broken.
#[must_use]
pub fn pairs(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len().saturating_mul(2));
    for piece in body.split(|byte| *byte == b'&') {
        let mut halves = piece.splitn(2, |byte| *byte == b'=');
        let name = halves.next().unwrap_or_default();
        let value = halves.next();
        out.push(u8::from(value.is_some()));
        decode(name, &mut out)?;
        if let Some(value) = value {
            decode(value, &mut out)?;
        }
    }
    Some(out)
}

/// Appends a decoded name or value, its length first.
fn decode(mut rest: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let escapes = rest.iter().filter(|byte| **byte == b'%').count();
    // Each escape is three bytes for one. If they are not, decoding fails below.
    let length = rest.len().saturating_sub(escapes.saturating_mul(2));
    out.extend_from_slice(&u64::try_from(length).ok()?.to_be_bytes());
    loop {
        rest = match rest {
            [] => return Some(()),
            [b'%', high, low, rest @ ..] => {
                out.push(hex(*high)? << 4 | hex(*low)?);
                rest
            }
            [b'%', ..] => return None,
            [b'+', rest @ ..] => {
                out.push(b' ');
                rest
            }
            [byte, rest @ ..] => {
                out.push(*byte);
                rest
            }
        }
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::pairs;

    fn framed(parts: &[(u8, &[&[u8]])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (tag, texts) in parts {
            out.push(*tag);
            for text in *texts {
                out.extend_from_slice(&(text.len() as u64).to_be_bytes());
                out.extend_from_slice(text);
            }
        }
        out
    }

    #[test]
    fn pairs_are_decoded_and_framed() {
        let expected = framed(&[(1, &[b"a b", b"="]), (1, &[b"", b"\xFF"]), (0, &[b"c"])]);
        assert_eq!(pairs(b"a+b=%3d&=%Ff&c").unwrap(), expected);
    }

    #[test]
    fn order_repetition_and_empty_pieces_count() {
        let forms: [&[u8]; 9] =
            [b"a=1&b=2", b"b=2&a=1", b"a=1", b"a=1&a=1", b"a", b"a=", b"a&", b"&a", b""];
        for (index, form) in forms.iter().enumerate() {
            for other in &forms[index + 1..] {
                assert_ne!(pairs(form), pairs(other), "{form:?} {other:?}");
            }
        }
    }

    #[test]
    fn an_encoded_separator_is_not_a_separator() {
        assert_ne!(pairs(b"a=1%26b=2"), pairs(b"a=1&b=2"));
        assert_ne!(pairs(b"a%3D1"), pairs(b"a=1"));
        assert_ne!(pairs(b"a=1%2B1"), pairs(b"a=1+1"));
    }

    #[test]
    fn a_broken_escape_has_no_canonical_form() {
        for form in [b"a=%".as_slice(), b"%4", b"a=%zz", b"a=%4g&b=1", b"%%41", b"a=%+1"] {
            assert_eq!(pairs(form), None, "{form:?}");
        }
    }

    fn spelled(decoded: &[(Vec<u8>, Vec<u8>)], style: u8) -> Vec<u8> {
        let mut out = Vec::new();
        let text = |text: &[u8], out: &mut Vec<u8>| {
            for (index, byte) in text.iter().enumerate() {
                match (byte, (style >> (index % 8)) & 1) {
                    (b' ', 0) => out.push(b'+'),
                    (byte, 0) if byte.is_ascii_alphanumeric() => out.push(*byte),
                    (byte, 0) => out.extend(format!("%{byte:02x}").bytes()),
                    (byte, _) => out.extend(format!("%{byte:02X}").bytes()),
                }
            }
        };
        for (index, (name, value)) in decoded.iter().enumerate() {
            if index > 0 {
                out.push(b'&');
            }
            text(name, &mut out);
            out.push(b'=');
            text(value, &mut out);
        }
        out
    }

    fn forms() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
        let text =
            || prop::collection::vec(prop_oneof![any::<u8>(), b'a'..=b'b', Just(b' ')], 0..3);
        prop::collection::vec((text(), text()), 1..4)
    }

    proptest! {
        #[test]
        fn forms_are_equal_exactly_when_their_pairs_are(
            a in forms(), b in forms(), one: u8, two: u8,
        ) {
            prop_assert_eq!(pairs(&spelled(&a, one)), pairs(&spelled(&a, two)));
            prop_assert_eq!(a == b, pairs(&spelled(&a, one)) == pairs(&spelled(&b, two)));
        }

        #[test]
        fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = pairs(&body);
        }
    }
}
