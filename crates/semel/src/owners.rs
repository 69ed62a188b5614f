//! Owner tokens: sixteen random bytes for each claim, drawn from the system a block at a time.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use semel_core::OwnerToken;

const TOKENS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct OwnerTokenGenerator {
    /// The unused rest of the block.
    drawn: Mutex<Vec<[u8; 16]>>,
}

impl OwnerTokenGenerator {
    /// A token that no other claim has, mixed with the nanoseconds of `now`, because two copies of
    /// one machine snapshot have the same block. `None` if the system has no randomness: then
    /// nothing may run.
    pub(crate) fn next_token(&self, now: Duration) -> Option<OwnerToken> {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if drawn.is_empty() {
            let mut block = [0; 16 * TOKENS];
            getrandom::fill(&mut block).ok()?;
            let (tokens, _) = block.as_chunks();
            drawn.extend(tokens);
        }
        let mixed = u128::from_ne_bytes(drawn.pop()?) ^ now.as_nanos();
        Some(OwnerToken::from_bytes(mixed.to_ne_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_token_is_drawn_twice() {
        let owners = OwnerTokenGenerator::default();
        let tokens: BTreeSet<_> =
            (0..1000).map(|_| owners.next_token(Duration::from_nanos(7)).unwrap()).collect();
        assert_eq!(tokens.len(), 1000);
    }
}
