//! Why an action of an operator failed.

use std::fmt;

use semel::core::StoreError;

/// Why an action failed.
#[derive(Debug)]
pub enum ActionError {
    /// The request is malformed.
    Malformed(String),
    /// There is no such record.
    Absent,
    /// The record is not what the operator saw.
    Stale,
    /// The store failed.
    Store(StoreError),
    /// The audit log could not be written, so nothing was done.
    AuditLog(anyhow::Error),
}

impl fmt::Display for ActionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(detail) => f.write_str(detail),
            Self::Absent => f.write_str("there is no such record"),
            Self::Stale => f.write_str(
                "stale: the record changed since it was read, or its state does not allow this; \
                 nothing was changed, read it again",
            ),
            Self::Store(error) => error.fmt(f),
            Self::AuditLog(error) => write!(f, "{error:#}"),
        }
    }
}

impl std::error::Error for ActionError {}
