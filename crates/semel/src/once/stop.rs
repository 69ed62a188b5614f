//! How an operation says that it has no value to give.

use std::error::Error;

use bytes::Bytes;
use serde::Serialize;

use super::{Reason, record};

/// Why an operation ended without a value, and what is known about its effect.
///
/// | the operation says | it means | the record is |
/// |---|---|---|
/// | [`Stop::refused`] | a final no: the card is declined | completed, the refusal replayed |
/// | [`Stop::retry`] | nothing happened; try again | released, the next call runs it |
/// | [`Stop::unknown`] | nobody knows what became of it | by [`on_unknown`] |
/// | `?` on any error, or a panic | the same | by [`on_unknown`] |
///
/// [`on_unknown`]: super::Once::on_unknown
///
/// An error that says nothing about itself counts as *unknown* because that is what it is: a
/// connection that broke may have broken before or after the money moved. Say `retry` only where
/// you know that nothing happened.
///
/// ```
/// use semel::Stop;
///
/// async fn charge(cents: u64) -> Result<u64, Stop> {
///     if cents > 100_000 {
///         return Err(Stop::refused("over the limit of the card"));
///     }
///     let fee: u64 = "30".parse()?; // any error, by the question mark: unknown
///     cents.checked_add(fee).ok_or_else(|| Stop::retry("the bank is closed"))
/// }
/// # let _ = charge(1);
/// ```
///
/// It is deliberately not an [`Error`] itself: only so can the question mark turn every other error
/// into one.
#[derive(Debug)]
pub struct Stop(pub(super) Kind);

#[derive(Debug)]
pub(super) enum Kind {
    /// The reason as JSON; `None` if it could not be written.
    Refused(Option<Bytes>),
    Retry(Reason),
    Unknown(Reason),
}

impl Stop {
    /// A final no, for this reason. It is recorded, and every repeat gets it.
    ///
    /// The reason is anything that serde can write as JSON; a reason that it cannot write is
    /// recorded as a refusal without one.
    pub fn refused<R: Serialize + ?Sized>(reason: &R) -> Self {
        Self(Kind::Refused(record::to_json(reason)))
    }

    /// Nothing happened, and the next call may run the operation again.
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Kind::Retry(Reason(error.into())))
    }

    /// The operation was begun, and nobody knows what became of it.
    pub fn unknown(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Kind::Unknown(Reason(error.into())))
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::unknown(error)
    }
}
