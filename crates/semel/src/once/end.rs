//! The end of an operation in a transaction: its writes are committed or not, so nothing is
//! unknown.

use semel_core::Answer;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    OnceError, OperationError, Outcome, Refusal, operation_error::OperationErrorKind, record, reply,
};

/// What to do with the transaction, and the outcome for the caller.
pub(crate) enum TransactionEnd<T> {
    /// Record this answer. A refusal may treat its writes differently than a value.
    Record { answer: Answer, refused: bool, outcome: Outcome<T> },
    /// Roll back.
    Undo(Outcome<T>),
}

impl<T: Serialize> TransactionEnd<T> {
    pub(crate) fn of(ended: Result<T, OperationError>, bytes_max: usize) -> Self {
        match ended {
            Ok(value) => {
                let answer = record::of_value(&value, bytes_max);
                Self::Record { answer, refused: false, outcome: Outcome::Ran(value) }
            }
            Err(OperationError(OperationErrorKind::Refused(reason))) => {
                let answer = record::of_refusal(reason.as_ref(), bytes_max);
                let outcome = Outcome::Refused(Refusal { reason, is_replayed: false });
                Self::Record { answer, refused: true, outcome }
            }
            Err(OperationError(
                OperationErrorKind::Retry(reason) | OperationErrorKind::Unknown(reason),
            )) => Self::Undo(Outcome::Retry(reason)),
        }
    }
}

/// The outcome for a caller that meets a record.
pub(crate) fn replayed<T: DeserializeOwned>(answer: &Answer) -> Result<Outcome<T>, OnceError> {
    record::read(answer).map(reply::replayed_outcome)
}
