//! How an operation reports that it has no value.

use std::error::Error;

use bytes::Bytes;
use serde::Serialize;

use super::{FailureCause, record};

/// Why an operation ended without a value, and what is known about its effect.
///
/// | the operation returns | meaning | the record is |
/// |---|---|---|
/// | [`OperationError::refused`] | a final refusal | completed, the refusal replayed |
/// | [`OperationError::retry`] | nothing happened; try again | released, the next call runs it |
/// | [`OperationError::unknown`] | the effect is unknown | by [`on_unknown`] |
/// | `?` on any error, or a panic | the same | by [`on_unknown`] |
///
/// [`on_unknown`]: super::Once::on_unknown
///
/// An untyped error counts as *unknown*: a connection may have broken before or after the money
/// moved. Use `retry` only where you know that nothing happened.
///
/// ```
/// use semel::OperationError;
///
/// async fn charge(cents: u64) -> Result<u64, OperationError> {
///     if cents > 100_000 {
///         return Err(OperationError::refused("over the limit of the card"));
///     }
///     let fee: u64 = "30".parse()?; // any error, by the question mark: unknown
///     cents.checked_add(fee).ok_or_else(|| OperationError::retry("the bank is closed"))
/// }
/// # let _ = charge(1);
/// ```
///
/// It deliberately does not implement [`Error`]: only so can the question mark convert every other
/// error.
#[derive(Debug)]
pub struct OperationError(pub(super) OperationErrorKind);

#[derive(Debug)]
pub(super) enum OperationErrorKind {
    /// The reason as JSON; `None` if it could not be written.
    Refused(Option<Bytes>),
    Retry(FailureCause),
    Unknown(FailureCause),
}

impl OperationError {
    /// A final refusal, for this reason. It is recorded, and every repeat gets it.
    ///
    /// The reason is anything that serde can write as JSON. A reason that cannot be written is
    /// recorded as a refusal without one.
    pub fn refused<R: Serialize + ?Sized>(reason: &R) -> Self {
        Self(OperationErrorKind::Refused(record::to_json(reason)))
    }

    /// Nothing happened, and the next call may run the operation again.
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(OperationErrorKind::Retry(FailureCause(error.into())))
    }

    /// The operation began, and its effect is unknown.
    pub fn unknown(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(OperationErrorKind::Unknown(FailureCause(error.into())))
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for OperationError {
    fn from(error: E) -> Self {
        Self::unknown(error)
    }
}
