//! The lines of a key header, separated by line feeds. A quoted value is read exactly as another
//! implementation of RFC 9651 reads it; a bare value is taken as it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use semel_core::key::{Key, KeyError};
use sfv::{BareItem, Item, Parser};

fuzz_target!(|data: &[u8]| {
    let lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let result = Key::from_header(lines.iter().copied());
    let [line] = lines.as_slice() else {
        assert_eq!(result, Err(KeyError::Repeated));
        return;
    };
    assert_ne!(result, Ok(None), "a malformed key was treated as absent");
    let key = result.ok().flatten();

    let value = line.trim_ascii();
    let trimmed_alike = line.iter().all(|byte| !matches!(byte, b'\r' | 0x0C));
    if trimmed_alike {
        let expected = if value.starts_with(b"\"") { structured(value) } else { bare(value) };
        assert_eq!(key.as_ref().map(Key::as_str), expected.as_deref());
    }
    if let Some(key) = key {
        assert_eq!(Key::new(key.as_str()), Ok(key.clone()));
        let header = key.to_header();
        assert_eq!(Key::from_header([header.as_bytes()]), Ok(Some(key)));
    }
});

fn structured(value: &[u8]) -> Option<String> {
    let item: Item = Parser::new(value).parse().ok()?;
    let BareItem::String(text) = item.bare_item else { return None };
    fits(text.as_str()).then(|| text.as_str().to_owned())
}

fn bare(value: &[u8]) -> Option<String> {
    let text = str::from_utf8(value).ok()?;
    (fits(text) && !text.contains([',', '"'])).then(|| text.to_owned())
}

fn fits(text: &str) -> bool {
    (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}
