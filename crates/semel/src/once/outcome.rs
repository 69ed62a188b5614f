//! How a call of `once` can end, each way with what to do about it.

use std::fmt;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::{OnceError, OnceErrorKind, Reason, Said, record};

/// What became of a call.
///
/// Three of these are final and the same for every call with the key, for as long as the record is
/// retained: a value ([`Ran`](Self::Ran), [`Replayed`](Self::Replayed)) and a refusal
/// ([`Refused`](Self::Refused)).
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome<T> {
    /// The operation ran, here and now, and its value is recorded. Go on with it.
    Ran(T),
    /// The operation ran once before, or beside this call in the same process, and this is the
    /// value it gave. Go on with it as if it had just run.
    Replayed(T),
    /// The operation said a final no, now or before. Calling again gives the same; a new try needs
    /// a new key.
    Refused(Refusal),
    /// The operation ran, here or in the execution this call joined, and said that nothing
    /// happened. Nothing is recorded: call again with the same key, after a pause.
    Retry(Reason),
    /// Somebody runs it, and did not finish within [`wait`](super::Once::wait). Nothing was done.
    /// Call again with the same key, after a pause.
    InProgress,
    /// The key belongs to an operation with another [fingerprint](super::Once::fingerprint).
    /// Nothing was done. It is a bug where keys are made: a retry that changed what it asks for, or
    /// two operations under one key.
    Reused,
    /// Nobody knows whether the operation took effect. Do not repeat it under another key. Unless
    /// it [runs again](Unknown::runs_again) by itself, put it on the list of a person, who finds
    /// out and [resolves](semel_core::Store::resolve) it.
    Unknown(Unknown<T>),
    /// The operation ran here, but it was silent for longer than its lease, and by now the record
    /// has another owner, was settled without this run, or is gone: it may have run twice. What
    /// this run said is not recorded. Go by what the record says [now](Lost::now), and undo what
    /// [this run](Lost::mine) did if your own database did not refuse it by its fence.
    Lost(Lost<T>),
    /// The store was away, and [`OnStoreDown::Pass`](semel_core::OnStoreDown::Pass) let the
    /// operation run without a claim, here or in the execution this call joined. This is what it
    /// said, and nothing of it is recorded: it may have run before, beside this run or after it,
    /// and a repeat may run it again. So call again only if it said `Retry`. Take a value or a
    /// refusal for what it is, and keep it yourself; what it does not know is for a person.
    Unguarded(Said<T>),
}

impl<T> Outcome<T> {
    /// The value, where the operation gave one that is recorded.
    #[must_use]
    pub const fn value(&self) -> Option<&T> {
        if let Self::Ran(value) | Self::Replayed(value) = self { Some(value) } else { None }
    }

    /// As [`value`](Self::value), by value.
    #[must_use]
    pub fn into_value(self) -> Option<T> {
        if let Self::Ran(value) | Self::Replayed(value) = self { Some(value) } else { None }
    }

    /// Whether it is settled: a value or a refusal, the same for every call with this key. A
    /// consumer of a queue acknowledges its message only then. What ran
    /// [unguarded](Self::Unguarded) is never settled: to leave its message in the queue is to run
    /// it again, and whether that is better than to lose it only the consumer can say.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Ran(_) | Self::Replayed(_) | Self::Refused(_))
    }
}

/// A final no.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use semel::{MemoryStore, Outcome, Semel, Stop, core::Caller, keys};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// enum Declined {
///     Expired,
///     Stolen,
/// }
///
/// let semel = Semel::new(MemoryStore::new());
/// for replayed in [false, true] {
///     let key = keys::from_parts("charges", ["order-17"]);
///     let outcome = semel
///         .once("charges", Caller::new("shop-3")?, key)
///         .run(|_| async { Err::<(), _>(Stop::refused(&Declined::Expired)) })
///         .await?;
///     let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
///     assert_eq!(refusal.read::<Declined>()?, Declined::Expired);
///     assert_eq!(refusal.replayed(), replayed);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Refusal {
    pub(super) reason: Option<Bytes>,
    pub(super) replayed: bool,
}

impl Refusal {
    /// The reason that the operation gave to [`Stop::refused`](super::Stop::refused).
    ///
    /// # Errors
    ///
    /// If the reason was not retained, or is not one that can be read as `R`.
    pub fn read<R: DeserializeOwned>(&self) -> Result<R, OnceError> {
        match &self.reason {
            Some(reason) => record::from_json(reason),
            None => Err(OnceError::new(OnceErrorKind::NotRetained)),
        }
    }

    /// Whether it was said before, or by an execution that this call joined.
    #[must_use]
    pub const fn replayed(&self) -> bool {
        self.replayed
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => f.write_str(&String::from_utf8_lossy(reason)),
            None => f.write_str("refused, for a reason that was not retained"),
        }
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refusal({self}, replayed: {})", self.replayed)
    }
}

/// An operation of which nobody knows whether it took effect.
#[derive(Debug)]
pub struct Unknown<T> {
    pub(super) reason: Reason,
    pub(super) said: Option<Said<T>>,
    pub(super) ran: bool,
    pub(super) runs_again: Option<bool>,
}

impl<T> Unknown<T> {
    /// Why it is unknown. If this very call ran the operation and that ended in an error, it is
    /// that error.
    #[must_use]
    pub const fn reason(&self) -> &Reason {
        &self.reason
    }

    /// Whether this very call ran the operation. If not, it found the record held, or joined an
    /// execution that ended so.
    #[must_use]
    pub const fn ran(&self) -> bool {
        self.ran
    }

    /// Whether the next call with this key runs the operation again, as
    /// [`OnUnknown::Rerun`](semel_core::OnUnknown::Rerun) says; `Some(false)` means that no call
    /// runs it until someone resolves it.
    ///
    /// `None` is where this call cannot know: that is for the policy of the call that ran it, or
    /// depends on whether its end is recorded in time. Call again with the same key, after a pause,
    /// to learn it.
    #[must_use]
    pub const fn runs_again(&self) -> Option<bool> {
        self.runs_again
    }

    /// What the operation said, if this very call ran it and only the recording failed. It is not
    /// durable, so nothing may be built on it; but it helps whoever has to find out what happened.
    #[must_use]
    pub const fn said(&self) -> Option<&Said<T>> {
        self.said.as_ref()
    }
}

impl<T> fmt::Display for Unknown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

/// An operation that ran here and does not count: the record went to somebody else meanwhile.
#[derive(Debug)]
pub struct Lost<T> {
    pub(super) mine: Said<T>,
    pub(super) now: Box<Result<Outcome<T>, OnceError>>,
}

impl<T> Lost<T> {
    /// What this run said, and so what there may be to undo: after
    /// [`Said::Retry`] there is nothing.
    #[must_use]
    pub const fn mine(&self) -> &Said<T> {
        &self.mine
    }

    /// What the record says by now, as a repeat of this call would be told.
    ///
    /// # Errors
    ///
    /// If that is not an outcome, but one of the errors that a repeat would get.
    pub fn now(&self) -> Result<&Outcome<T>, &OnceError> {
        (*self.now).as_ref()
    }
}
