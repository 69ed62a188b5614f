//! One spelling for each path. What other software may read it as besides is in `readings.rs`.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter};

/// The normalized path for route matching: percent-encoded letters, digits and `-._~` decoded, the
/// other escapes in capitals, double slashes merged, dot segments removed.
///
/// It is for matching only; what goes to the upstream and into the fingerprint is the path as it
/// was sent. It borrows when nothing changes.
pub fn normal_path(path: &str) -> Cow<'_, str> {
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') {
        return Cow::Borrowed(path);
    }
    if memchr(b'%', bytes).is_some() {
        return Cow::Owned(tidy(&decode(bytes)));
    }
    let untidy = memchr_iter(b'/', bytes).any(|slash| {
        let rest = bytes.get(slash.saturating_add(1)..).unwrap_or_default();
        matches!(
            rest,
            [b'/', ..] | [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..]
        )
    });
    if untidy { Cow::Owned(tidy(path)) } else { Cow::Borrowed(path) }
}

fn decode(path: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let character = match (byte, after) {
            (b'%', [high, low, ..]) => escaped(*high, *low),
            _ => None,
        };
        let Some(character) = character else {
            decoded.push(byte);
            continue;
        };
        if character.is_ascii_alphanumeric() || b"-._~".contains(&character) {
            decoded.push(character);
        } else {
            decoded.push(byte);
            decoded.extend(after.iter().take(2).map(u8::to_ascii_uppercase));
        }
        rest = after.get(2..).unwrap_or_default();
    }
    // Only whole ASCII characters were replaced by others.
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The byte of two hexadecimal digits.
pub(super) fn escaped(high: u8, low: u8) -> Option<u8> {
    let (high, low) = digit(high).zip(digit(low))?;
    Some((high << 4) | low)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Merges double slashes and removes dot segments.
fn tidy(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let ends_in_folder = matches!(path.rsplit('/').next(), Some("" | "." | ".."));
    let mut tidied = String::with_capacity(path.len());
    for segment in &segments {
        tidied.push('/');
        tidied.push_str(segment);
    }
    if ends_in_folder || segments.is_empty() {
        tidied.push('/');
    }
    tidied
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_plain_path_is_borrowed() {
        for path in ["/", "/v1/payments", "/v1/", "/.well-known/x", "/a.b/..c", "*", ""] {
            assert!(matches!(normal_path(path), Cow::Borrowed(same) if same == path), "{path}");
        }
    }

    #[test]
    fn every_spelling_of_a_path_is_one() {
        for (spelt, normal) in [
            ("//v1///payments", "/v1/payments"),
            ("/v1/./payments", "/v1/payments"),
            ("/v1/x/../payments", "/v1/payments"),
            ("/v1/x/%2e%2E/payments", "/v1/payments"),
            ("/%761/%70ayments", "/v1/payments"),
            ("/a/..", "/"),
            ("/../../a", "/a"),
            ("/a/.", "/a/"),
            ("/a//", "/a/"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2Fb/%7e", "/a%2Fb/~"),
            ("/%", "/%"),
            ("/%4", "/%4"),
            ("/%zz", "/%zz"),
            ("/%+1", "/%+1"),
            ("/%C3%a9", "/%C3%A9"),
        ] {
            assert_eq!(normal_path(spelt), normal, "{spelt}");
        }
    }

    proptest! {
        #[test]
        fn a_normal_path_is_normal(path in "/[a%2eE./~-]{0,20}") {
            let once = normal_path(&path).into_owned();
            // Decoding is done once: `%2565` is `%25` and `65`, not `e`.
            if !once.contains('%') {
                prop_assert_eq!(normal_path(&once), once.as_str());
            }
            prop_assert!(once.starts_with('/') && !once.contains("//") && !once.contains("/../"));
        }
    }
}
