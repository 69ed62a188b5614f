//! Owner tokens: sixteen random bytes for each claim, drawn from the system a block at a time.

use std::sync::{Mutex, PoisonError};

use semel_core::OwnerToken;

const TOKENS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// What is left of the block.
    drawn: Mutex<Vec<OwnerToken>>,
}

impl Owners {
    /// A token that no other claim has. `None` if the system has no randomness to give: then
    /// nothing may run.
    pub(crate) fn draw(&self) -> Option<OwnerToken> {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if drawn.is_empty() {
            let mut block = [0; 16 * TOKENS];
            getrandom::fill(&mut block).ok()?;
            let (tokens, _) = block.as_chunks();
            drawn.extend(tokens.iter().copied().map(OwnerToken::from_bytes));
        }
        drawn.pop()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_token_is_drawn_twice() {
        let owners = Owners::default();
        let tokens: BTreeSet<_> = (0..1000).map(|_| owners.draw().unwrap()).collect();
        assert_eq!(tokens.len(), 1000);
    }
}
