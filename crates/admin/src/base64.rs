//! Base64, for bodies that are not text (RFC 4648, section 4).

use data_encoding::{BASE64, BASE64_NOPAD};

/// Bytes as base64, padded.
pub fn encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The bytes of a text in base64, with or without its padding.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let coding = if text.ends_with('=') { BASE64 } else { BASE64_NOPAD };
    coding.decode(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_4648_round_trip() {
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
    fn invalid_base64_is_refused() {
        for bad in ["Z", "Zg=", "Zg===", "Z g=", "Zm9v====", "Zm-v", "====", "Zm9vY==="] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
