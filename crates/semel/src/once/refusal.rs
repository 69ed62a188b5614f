//! A final refusal of an operation, as returned to the code that called `once`.

use std::fmt;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::{OnceError, OnceErrorKind, record};

/// A recorded refusal of an operation
/// ([`OperationError::refused`](super::OperationError::refused)); every repeat gets it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use semel::{MemoryStore, Outcome, Semel, OperationError, core::Caller, keys};
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
///         .run(|_| async { Err::<(), _>(OperationError::refused(&Declined::Expired)) })
///         .await?;
///     let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
///     assert_eq!(refusal.read::<Declined>()?, Declined::Expired);
///     assert_eq!(refusal.is_replayed(), replayed);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Refusal {
    pub(super) reason: Option<Bytes>,
    pub(super) is_replayed: bool,
}

impl Refusal {
    /// The reason that the operation gave to
    /// [`OperationError::refused`](super::OperationError::refused).
    ///
    /// # Errors
    ///
    /// If the reason was not retained, or cannot be deserialized as `R`.
    pub fn read<R: DeserializeOwned>(&self) -> Result<R, OnceError> {
        match &self.reason {
            Some(reason) => record::from_json(reason),
            None => Err(OnceError::new(OnceErrorKind::NotRetained)),
        }
    }

    /// Whether it was recorded before, or comes from an execution that this call joined.
    #[must_use]
    pub const fn is_replayed(&self) -> bool {
        self.is_replayed
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
        write!(f, "Refusal({self}, replayed: {})", self.is_replayed)
    }
}
