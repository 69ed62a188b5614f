//! A multipart body after a line with its boundary. What was parsed can be written with another
//! boundary and is the same; the media type is read without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use semel_core::fingerprint::{BodyKind, Fingerprint, FingerprintRule, FingerprintInput};
use semel_core::multipart::{self, PARTS_MAX, Part};

fuzz_target!(|data: &[u8]| {
    let mut halves = data.splitn(2, |byte| *byte == b'\n');
    let (boundary, body) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());

    // The first line as a media type as well.
    let kind = BodyKind::of(Some(boundary), false);
    let meaning = FingerprintInput { kind, body, ..FingerprintInput::new("POST", "/") };
    let _ = Fingerprint::of(&meaning, &FingerprintRule::default());

    let Ok(parts) = multipart::parse(body, boundary) else {
        assert!(multipart::canonical(body, boundary).is_err());
        return;
    };
    assert!(parts.len() <= PARTS_MAX);
    let canonical = multipart::canonical(body, boundary).unwrap();

    let other = fresh_boundary(body);
    let rewritten = write(&parts, &other);
    assert_eq!(multipart::parse(&rewritten, &other).unwrap(), parts);
    assert_eq!(multipart::canonical(&rewritten, &other).unwrap(), canonical);

    // Every byte of every content counts.
    for (index, part) in parts.iter().enumerate().take(4) {
        let mut changed = parts.clone();
        let longer = [part.content, b"."].concat();
        changed[index] = Part { fields: part.fields.clone(), content: &longer };
        let changed = write(&changed, &other);
        assert_ne!(multipart::canonical(&changed, &other).unwrap(), canonical);
    }
});

/// A boundary that is not in the body.
fn fresh_boundary(body: &[u8]) -> Vec<u8> {
    (0_u64..)
        .map(|number| format!("fresh{number}").into_bytes())
        .find(|candidate| !body.windows(candidate.len()).any(|window| window == candidate))
        .unwrap()
}

fn write(parts: &[Part<'_>], boundary: &[u8]) -> Vec<u8> {
    let mut out = b"preamble\r\n".to_vec();
    for part in parts {
        out.extend([b"--", boundary, b" \t\r\n"].concat());
        for field in &part.fields {
            let name = field.name.to_ascii_uppercase();
            out.extend([name.as_bytes(), b": ", &field.value, b"\r\nX-Other: 1\r\n"].concat());
        }
        out.extend([b"\r\n", part.content, b"\r\n"].concat());
    }
    out.extend([b"--", boundary, b"--\r\nepilogue"].concat());
    out
}
