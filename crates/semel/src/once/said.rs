//! What a run said of itself, where that is not what the record says.

use super::{Reason, Refusal, Stop, stop::Kind};

/// How an operation ended, by its own account. It is not recorded, and no repeat will see it.
///
/// It tells what there may be to undo, or to tell the person who has to find out: a value says that
/// the operation took effect, `Retry` that it did not.
///
/// ```
/// use semel::once::Said;
///
/// fn to_do<T: std::fmt::Debug>(said: &Said<T>) -> String {
///     match said {
///         Said::Value(value) => format!("undo {value:?}"),
///         Said::Refused(refusal) => format!("nothing, it was refused: {refusal}"),
///         Said::Retry(_) => "nothing".to_owned(),
///         Said::Unknown(reason) => format!("find out whether it happened: {reason}"),
///     }
/// }
/// assert_eq!(to_do(&Said::Value("invoice-7")), "undo \"invoice-7\"");
/// ```
#[derive(Debug)]
pub enum Said<T> {
    /// It took effect and gave this.
    Value(T),
    /// It was a final no.
    Refused(Refusal),
    /// Nothing happened, for this reason.
    Retry(Reason),
    /// It was begun, and it does not know itself what became of it: an untyped error, or a panic.
    /// Or it was joined, and the value it gave cannot be handed on.
    Unknown(Reason),
}

impl<T> Said<T> {
    /// `None` is how a panic looks from outside.
    pub(super) fn of(end: Option<Result<T, Stop>>) -> Self {
        match end {
            Some(Ok(value)) => Self::Value(value),
            Some(Err(Stop(Kind::Refused(reason)))) => {
                Self::Refused(Refusal { reason, replayed: false })
            }
            Some(Err(Stop(Kind::Retry(reason)))) => Self::Retry(reason),
            Some(Err(Stop(Kind::Unknown(reason)))) => Self::Unknown(reason),
            None => Self::Unknown(Reason::told("the operation panicked".into())),
        }
    }

    /// The value, if it gave one.
    #[must_use]
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Refused(_) | Self::Retry(_) | Self::Unknown(_) => None,
        }
    }
}
