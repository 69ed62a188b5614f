//! What a store says when it cannot do what it was asked.

use std::{error::Error, fmt};

/// A store could not do what it was asked. Lost races are not errors; see law 3.
///
/// The type is opaque: ask [`kind`](Self::kind) what went wrong and [`effect`](Self::effect)
/// whether the write may have happened all the same.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    effect: Effect,
    message: Box<str>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store cannot be reached or has been closed; it may come back.
    Unavailable,
    /// Too many claims are waiting already; nothing was done.
    Busy,
    /// The disk is full.
    Full,
    /// The store cannot be written.
    ReadOnly,
    /// What was read is damaged, or is not a store of ours.
    Corrupt,
    /// The store was written by a newer Semel.
    Newer,
    /// More bytes than the store takes.
    TooLarge,
}

/// Whether a write that failed may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It did not happen.
    None,
    /// It may have happened. Ask again with the same owner token, or with the same fence and bytes.
    Unknown,
}

impl StoreError {
    /// An error whose write did not happen. The message says what to do about it.
    pub fn new(kind: StoreErrorKind, message: impl Into<Box<str>>) -> Self {
        Self { kind, effect: Effect::None, message: message.into(), source: None }
    }

    /// The same error, but the write may have happened.
    #[must_use]
    pub fn effect_unknown(mut self) -> Self {
        self.effect = Effect::Unknown;
        self
    }

    /// The same error with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What went wrong.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the write may have happened.
    #[must_use]
    pub const fn effect(&self) -> Effect {
        self.effect
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.effect {
            Effect::None => Ok(()),
            Effect::Unknown => f.write_str(" (the write may have happened)"),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| -> &(dyn Error + 'static) { source })
    }
}
