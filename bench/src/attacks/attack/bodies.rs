//! Compressed bodies that cost much to read.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};

use super::LARGE_BYTES;

/// JSON that is compressed as far as honest JSON can be.
pub(super) fn compressed() -> Vec<u8> {
    let item = r#"{"sku":"A-1","quantity":1,"price":"12.99","currency":"eur"},"#;
    let items = item.repeat((LARGE_BYTES - 100) / item.len());
    let json = format!("{{\"items\":[{}]}}", items.trim_end_matches(','));
    // Stronger compression would be refused for its ratio.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(0));
    let mut halves = GzEncoder::new(Vec::new(), Compression::fast());
    let (stored, packed) = json.as_bytes().split_at(json.len() / 64);
    let done = encoder.write_all(stored).and_then(|()| halves.write_all(packed));
    match (done, encoder.finish(), halves.finish()) {
        (Ok(()), Ok(first), Ok(second)) => [first, second].concat(),
        _ => Vec::new(),
    }
}

pub(super) fn empty_members() -> Vec<u8> {
    let member = GzEncoder::new(Vec::new(), Compression::fast()).finish().unwrap_or_default();
    member.repeat(LARGE_BYTES / member.len().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_bodies_are_within_the_limits_of_an_honest_one() {
        let body = compressed();
        assert!(body.len() > LARGE_BYTES / 100 && body.len() < LARGE_BYTES / 10, "{}", body.len());
        assert!(empty_members().len() > LARGE_BYTES / 2);
    }
}
