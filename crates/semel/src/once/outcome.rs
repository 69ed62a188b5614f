//! The outcomes of a call of `once`, each with the action to take.

use std::fmt;

use super::{FailureCause, OnceError, Refusal, RunReport};

/// The outcome of a call.
///
/// Three of these are final and the same for every call with the key, for as long as the record is
/// retained: a value ([`Ran`](Self::Ran), [`Replayed`](Self::Replayed)) and a refusal
/// ([`Refused`](Self::Refused)).
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome<T> {
    /// The operation ran in this call, and its value is recorded. Use the value.
    Ran(T),
    /// The operation ran before, or concurrently in the same process, and returned this value. Use
    /// it as if the operation had just run.
    Replayed(T),
    /// The operation was refused for good, now or before. Calling again gives the same; a new
    /// attempt needs a new key.
    Refused(Refusal),
    /// The operation ran, in this call or in the execution that it joined, and reported that
    /// nothing happened. Nothing is recorded: call again with the same key, after a delay.
    Retry(FailureCause),
    /// Another execution did not finish within [`wait`](super::Once::wait). Nothing was done. Call
    /// again with the same key, after a delay.
    InProgress,
    /// The key belongs to an operation with another [fingerprint](super::Once::fingerprint).
    /// Nothing was done. This is a bug where keys are made: a retry with changed content, or two
    /// operations under one key.
    KeyReused,
    /// It is unknown whether the operation took effect. Do not repeat it under another key. Unless
    /// it [runs again](Unknown::runs_again) by itself, pass it to a person, who finds out and
    /// [resolves](semel_core::Store::resolve) it.
    Unknown(Unknown<T>),
    /// The operation ran here, but it did not renew its lease in time, and by now the record has
    /// another owner, was settled without this run, or is gone: it may have run twice. The result
    /// of this run is not recorded. Rely on what the record says [now](Overtaken::now), and undo
    /// what
    /// [this run](Overtaken::mine) did, unless your own database refused it by its fence.
    Overtaken(Overtaken<T>),
    /// The store was unavailable, and [`OnStoreDown::Pass`](semel_core::OnStoreDown::Pass) let the
    /// operation run without a claim, in this call or in the execution that it joined. This is its
    /// report, and none of it is recorded: the operation may have run before, concurrently or after
    /// this run, and a repeat may run it again. So call again only after `Retry`. Store a value or
    /// a refusal yourself; an unknown outcome is for a person.
    Unguarded(RunReport<T>),
}

impl<T> Outcome<T> {
    /// The value, if the operation returned one that is recorded.
    #[must_use]
    pub const fn value(&self) -> Option<&T> {
        if let Self::Ran(value) | Self::Replayed(value) = self { Some(value) } else { None }
    }

    /// As [`value`](Self::value), by value.
    #[must_use]
    pub fn into_value(self) -> Option<T> {
        if let Self::Ran(value) | Self::Replayed(value) = self { Some(value) } else { None }
    }

    /// Whether it is final: a value or a refusal, the same for every call with this key. A queue
    /// consumer acknowledges its message only then. An [unguarded](Self::Unguarded) run is never
    /// final: leaving its message in the queue runs it again, and only the consumer can decide
    /// whether that is better than losing it.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Ran(_) | Self::Replayed(_) | Self::Refused(_))
    }
}

/// An operation whose effect is unknown.
#[derive(Debug)]
pub struct Unknown<T> {
    pub(super) reason: FailureCause,
    pub(super) report: Option<RunReport<T>>,
    pub(super) ran: bool,
    pub(super) runs_again: Option<bool>,
}

impl<T> Unknown<T> {
    /// Why it is unknown. If this call ran the operation and it returned an error, it is that
    /// error.
    #[must_use]
    pub const fn reason(&self) -> &FailureCause {
        &self.reason
    }

    /// Whether this call ran the operation. If not, it found the record held, or joined an
    /// execution with an unknown outcome.
    #[must_use]
    pub const fn ran(&self) -> bool {
        self.ran
    }

    /// Whether the next call with this key runs the operation again, as
    /// [`OnUnknown::Rerun`](semel_core::OnUnknown::Rerun) says; `Some(false)` means that no call
    /// runs it until someone resolves it.
    ///
    /// `None` if this call cannot know: it depends on the policy of the call that ran it, or on
    /// whether its end is recorded in time. Call again with the same key, after a delay, to find
    /// out.
    #[must_use]
    pub const fn runs_again(&self) -> Option<bool> {
        self.runs_again
    }

    /// The operation's own report, if this call ran it and only the recording failed. It is not
    /// durable, so do not rely on it; it helps a person to find out what happened.
    #[must_use]
    pub const fn report(&self) -> Option<&RunReport<T>> {
        self.report.as_ref()
    }
}

impl<T> fmt::Display for Unknown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

/// An operation that ran here and does not count: the record has another owner.
#[derive(Debug)]
pub struct Overtaken<T> {
    pub(super) mine: RunReport<T>,
    pub(super) now: Box<Result<Outcome<T>, OnceError>>,
}

impl<T> Overtaken<T> {
    /// The report of this run, which shows what may have to be undone: after [`RunReport::Retry`]
    /// there is nothing.
    #[must_use]
    pub const fn mine(&self) -> &RunReport<T> {
        &self.mine
    }

    /// What the record says by now, as a repeat of this call would get it.
    ///
    /// # Errors
    ///
    /// If a repeat would get an error instead of an outcome.
    pub fn now(&self) -> Result<&Outcome<T>, &OnceError> {
        (*self.now).as_ref()
    }
}
