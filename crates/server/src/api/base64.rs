//! Base64, for bodies that are not text (RFC 4648, section 4).

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as base64, padded.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_u32, |group, byte| (group << 8) | u32::from(*byte));
        let group = group << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = (group >> (18 - 6 * place)) & 0x3F;
            let known = place <= chunk.len();
            let digit = DIGITS.get(digit as usize).filter(|_| known).unwrap_or(&b'=');
            text.push(char::from(*digit));
        }
    }
    text
}

/// The bytes of a text in base64, with or without its padding.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    let padding = text.len() - digits.len();
    let padded = text.len().is_multiple_of(4) && padding <= 2;
    if digits.len() % 4 == 1 || (padding > 0 && !padded) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for chunk in digits.chunks(4) {
        let mut group = 0_u32;
        for place in 0..4 {
            let digit = chunk.get(place).map_or(Some(0), |digit| value(*digit))?;
            group = (group << 6) | digit;
        }
        let whole = group.to_be_bytes();
        bytes.extend_from_slice(whole.get(1..chunk.len())?);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    DIGITS.iter().position(|known| *known == digit).and_then(|place| u32::try_from(place).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc_go_there_and_back() {
        let examples = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (bytes, text) in examples {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
            assert_eq!(decode(text.trim_end_matches('=')).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for bad in ["Z", "Zg=", "Zg===", "Z g=", "Zm9v====", "Zm-v", "====", "Zm9vY==="] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
