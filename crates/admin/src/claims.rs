//! What the service API's calls are made of: their JSON, the rules for claims, and their seal.

pub(crate) mod claim_rules;
pub(crate) mod claim_seal;
pub(crate) mod wire;

use std::sync::Arc;

use tokio::sync::Semaphore;

pub use self::{claim_rules::ClaimRules, claim_seal::ClaimSeal};

/// How many large bodies are read at once.
const LARGE_BODIES_MAX: usize = 16;

/// How many claims of a server wait for another owner. Further claims do not wait.
pub(crate) const WAITS_MAX: usize = if cfg!(test) { 4 } else { 512 };

/// The service API's part of the state.
#[derive(Debug)]
pub struct ServiceState {
    /// Seals the claims.
    pub seal: ClaimSeal,
    /// What claims may choose.
    pub rules: Arc<ClaimRules>,
    /// Limits the number of large bodies that are read at once.
    pub(crate) large_bodies: Semaphore,
    /// Limits the number of claims that may wait.
    pub(crate) waits: Semaphore,
}

impl ServiceState {
    /// A service API with these secrets and rules.
    #[must_use]
    pub fn new(seal: ClaimSeal, rules: Arc<ClaimRules>) -> Self {
        let large_bodies = Semaphore::new(LARGE_BODIES_MAX);
        Self { seal, rules, large_bodies, waits: Semaphore::new(WAITS_MAX) }
    }
}
