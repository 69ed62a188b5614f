//! The secrets that turn a credential into a caller name.

use std::time::SystemTime;

use semel_tower::Secret;

/// The secrets that turn a credential into a caller name.
#[derive(Clone, Debug)]
pub struct CallerSecrets {
    /// Records are written under this one.
    pub current: Secret,
    /// Records may also be found under this one.
    pub former: Option<FormerSecret>,
}

/// A secret that was replaced.
#[derive(Clone, Debug)]
pub struct FormerSecret {
    /// The secret itself.
    pub secret: Secret,
    /// When it was replaced.
    pub since: SystemTime,
}

impl CallerSecrets {
    /// One secret, without a former one.
    pub const fn new(current: Secret) -> Self {
        Self { current, former: None }
    }
}
