//! What a record is remembered under: scope, caller and key together.

use std::fmt;

use crate::{Caller, Key, Scope};

/// The address of a record. Two requests meet only if all three parts are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    /// The family of operations.
    pub scope: Scope,
    /// Who sent it.
    pub caller: Caller,
    /// What the client called the operation.
    pub key: Key,
}

impl RecordId {
    /// Puts the three parts together.
    #[must_use]
    pub const fn new(scope: Scope, caller: Caller, key: Key) -> Self {
        Self { scope, caller, key }
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.scope, self.caller, self.key)
    }
}
