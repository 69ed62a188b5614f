//! How an operation ended that is recorded in a transaction: its writes stand or they do not, so
//! nothing about it is unknown.

use semel_core::Answer;
use serde::{Serialize, de::DeserializeOwned};

use super::{OnceError, Outcome, Refusal, Stop, record, reply, stop::Kind};

/// What is to be done about it, and what its caller is told then.
pub(crate) enum End<T> {
    /// Record this answer. The writes of a refusal are another matter than those of a value.
    Record { answer: Answer, refused: bool, outcome: Outcome<T> },
    /// Undo everything.
    Undo(Outcome<T>),
}

impl<T: Serialize> End<T> {
    pub(crate) fn of(ended: Result<T, Stop>, bytes_max: usize) -> Self {
        match ended {
            Ok(value) => {
                let answer = record::of_value(&value, bytes_max);
                Self::Record { answer, refused: false, outcome: Outcome::Ran(value) }
            }
            Err(Stop(Kind::Refused(reason))) => {
                let answer = record::of_refusal(reason.as_ref(), bytes_max);
                let outcome = Outcome::Refused(Refusal { reason, replayed: false });
                Self::Record { answer, refused: true, outcome }
            }
            Err(Stop(Kind::Retry(reason) | Kind::Unknown(reason))) => {
                Self::Undo(Outcome::Retry(reason))
            }
        }
    }
}

/// What a caller is told of a record.
pub(crate) fn replayed<T: DeserializeOwned>(answer: &Answer) -> Result<Outcome<T>, OnceError> {
    record::read(answer).map(reply::kept)
}
