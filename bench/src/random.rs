//! Random numbers, bytes and keys, faster to generate than anything measured with them.

use std::{collections::hash_map::RandomState, hash::BuildHasher as _};

/// A key that looks like a UUID.
pub(crate) type KeyText = [u8; 36];

/// The generator `SplitMix64` with a random seed.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        Self(RandomState::new().hash_one(0))
    }

    pub(crate) const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.number().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    pub(crate) fn key(&mut self) -> KeyText {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let mut key = [b'-'; 36];
        let places = [0..8, 9..13, 14..18, 19..23, 24..36].into_iter().flatten();
        for (place, digit) in places.zip(digits) {
            key[place] = DIGITS[usize::from(digit)];
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_looks_like_a_uuid_and_comes_once() {
        let mut random = Random::new();
        let key = random.key();
        let groups = key.split(|byte| *byte == b'-').map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert!(key.iter().all(|byte| *byte == b'-' || byte.is_ascii_hexdigit()));
        assert_ne!(key, random.key());
    }
}
