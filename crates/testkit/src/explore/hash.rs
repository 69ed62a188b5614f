//! A hash that is fast for many small numbers, which is what a world is made of. It is the same in
//! every run, so that every run explores alike.

use std::hash::Hasher;

/// Multiplies each word into the state and folds the 128-bit product.
#[derive(Clone, Copy)]
pub(super) struct Folding(u64);

/// Digits of pi and of the golden ratio: odd, and without a pattern.
const SEED: u64 = 0x243f_6a88_85a3_08d3;
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Default for Folding {
    fn default() -> Self {
        Self(SEED)
    }
}

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_usize(bytes.len());
    }

    fn write_u64(&mut self, word: u64) {
        // The state is advanced, so that a word equal to it does not fold to zero each time.
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        let bytes = product.to_le_bytes();
        let (mut low, mut high) = ([0; 8], [0; 8]);
        low.copy_from_slice(&bytes[..8]);
        high.copy_from_slice(&bytes[8..]);
        self.0 = (u64::from_le_bytes(low) ^ u64::from_le_bytes(high)).wrapping_add(SEED);
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number.try_into().unwrap_or(u64::MAX));
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.try_into().unwrap_or(u64::MAX));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
