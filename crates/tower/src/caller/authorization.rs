//! The credential in an `Authorization` header.

/// The content of a single `Authorization` header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AuthorizationCredential<'a> {
    /// A credential that is the same at every attempt.
    Stable {
        /// In lower case.
        scheme: &'static str,
        token: &'a [u8],
    },
    /// A credential that changes between attempts or cannot be read, with a description.
    Unstable(&'static str),
}

/// Reads the value of an `Authorization` header.
pub(super) fn read(value: &[u8]) -> AuthorizationCredential<'_> {
    let value = value.trim_ascii();
    let Some(end) = value.iter().position(|byte| *byte == b' ') else {
        return AuthorizationCredential::Unstable(
            "one word, which is not a scheme and a credential",
        );
    };
    let (scheme, token) = value.split_at_checked(end).unwrap_or((value, &[]));
    let token = token.trim_ascii();
    if token.is_empty() {
        return AuthorizationCredential::Unstable("a scheme without a credential");
    }
    if scheme.eq_ignore_ascii_case(b"basic") {
        return AuthorizationCredential::Stable { scheme: "basic", token };
    }
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return AuthorizationCredential::Unstable(
            "neither Basic nor Bearer, and may change with every request",
        );
    }
    if is_jwt(token) {
        AuthorizationCredential::Unstable(
            "a JSON Web Token, which is reissued while its owner stays the same",
        )
    } else if is_paseto(token) {
        AuthorizationCredential::Unstable(
            "a PASETO token, which is reissued while its owner stays the same",
        )
    } else {
        AuthorizationCredential::Stable { scheme: "bearer", token }
    }
}

/// The JSON Web Token of a Bearer credential; `None` for any other credential.
pub(super) fn bearer_jwt(value: &[u8]) -> Option<&[u8]> {
    let value = value.trim_ascii();
    let end = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, token) = value.split_at_checked(end)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer") && is_jwt(token)).then_some(token)
}

/// Three parts (signed) or five (encrypted) of base64url, the first of which is a JSON object.
fn is_jwt(token: &[u8]) -> bool {
    let parts = token.split(|byte| *byte == b'.');
    let base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'=');
    matches!(parts.clone().count(), 3 | 5)
        && parts.clone().all(|part| part.iter().all(base64))
        && parts.take(1).any(opens_an_object)
}

/// Whether the first character that base64url encodes is `{`, after white space.
fn opens_an_object(encoded: &[u8]) -> bool {
    let (mut bits, mut count) = (0_u32, 0_u32);
    for digit in encoded.iter().map_while(|byte| sextet(*byte)) {
        bits = (bits << 6 | u32::from(digit)) & 0xFFFF;
        count += 6;
        if count < 8 {
            continue;
        }
        count -= 8;
        match u8::try_from(bits >> count & 0xFF) {
            Ok(b' ' | b'\t' | b'\n' | b'\r') => {}
            byte => return byte == Ok(b'{'),
        }
    }
    false
}

fn sextet(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}

/// `v4.local.…`, `v2.public.…` and their like.
fn is_paseto(token: &[u8]) -> bool {
    matches!(token, [b'v' | b'k', b'1'..=b'9', b'.', rest @ ..]
        if rest.starts_with(b"local.") || rest.starts_with(b"public."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_stable(value: &str) -> bool {
        matches!(read(value.as_bytes()), AuthorizationCredential::Stable { .. })
    }

    #[test]
    fn basic_and_an_opaque_bearer_are_stable_whatever_their_case() {
        for (value, scheme, token) in [
            ("Basic dTpw", "basic", "dTpw"),
            ("bAsIc   dTpw", "basic", "dTpw"),
            ("Bearer sk_live_51H", "bearer", "sk_live_51H"),
            ("bearer a.b.c", "bearer", "a.b.c"),
            ("Bearer v4.locale.x", "bearer", "v4.locale.x"),
        ] {
            let expected = AuthorizationCredential::Stable { scheme, token: token.as_bytes() };
            assert_eq!(read(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn a_reissued_token_is_not_stable() {
        for value in [
            // {"alg":"HS256"}, {"alg":"none"} and an encrypted one.
            "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
            "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.",
            "Bearer eyJhbGciOiJkaXIifQ..aXY.Y3Q.dGFn",
            // A line feed, then the object.
            "bearer Cnsi.e30.e30",
            "Bearer v4.public.eyJzdWIiOiIxIn0",
            "Bearer v2.local.abc",
        ] {
            assert!(!is_stable(value), "{value}");
        }
    }

    #[test]
    fn other_schemes_and_broken_values_are_not() {
        for value in [
            "AWS4-HMAC-SHA256 Credential=a/b, Signature=c",
            "Digest username=\"a\"",
            "DPoP abc",
            "sk_live_51H",
            "Bearer",
            "Bearer  ",
            "",
        ] {
            assert!(!is_stable(value), "{value}");
        }
    }

    #[test]
    fn three_parts_that_hold_no_object_are_an_opaque_token() {
        // The first part is `["a"]` and text.
        assert!(is_stable("Bearer WyJhIl0.e30.e30"));
        assert!(is_stable("Bearer live.0a1b2c.9f8e"));
        assert!(is_stable("Bearer ..."), "four empty parts");
    }
}
