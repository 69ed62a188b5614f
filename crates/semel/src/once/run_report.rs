//! The report of a run, where it differs from the record.

use super::{FailureCause, OperationError, Refusal, operation_error::OperationErrorKind};

/// How an operation ended, by its own report. It is not recorded, and no repeat gets it.
///
/// It shows what may have to be undone, or helps a person to find out what happened: a value means
/// that the operation took effect, `Retry` that it did not.
///
/// ```
/// use semel::once::RunReport;
///
/// fn to_do<T: std::fmt::Debug>(report: &RunReport<T>) -> String {
///     match report {
///         RunReport::Value(value) => format!("undo {value:?}"),
///         RunReport::Refused(refusal) => format!("nothing, it was refused: {refusal}"),
///         RunReport::Retry(_) => "nothing".to_owned(),
///         RunReport::Unknown(reason) => format!("find out whether it happened: {reason}"),
///     }
/// }
/// assert_eq!(to_do(&RunReport::Value("invoice-7")), "undo \"invoice-7\"");
/// ```
#[derive(Debug)]
pub enum RunReport<T> {
    /// It took effect and returned this value.
    Value(T),
    /// It was refused for good.
    Refused(Refusal),
    /// Nothing happened, for this reason.
    Retry(FailureCause),
    /// Its effect is unknown: an untyped error, or a panic. Or the run was joined, and its value
    /// cannot be passed on.
    Unknown(FailureCause),
}

impl<T> RunReport<T> {
    /// `None` for a panic.
    pub(super) fn of(end: Option<Result<T, OperationError>>) -> Self {
        match end {
            Some(Ok(value)) => Self::Value(value),
            Some(Err(OperationError(OperationErrorKind::Refused(reason)))) => {
                Self::Refused(Refusal { reason, is_replayed: false })
            }
            Some(Err(OperationError(OperationErrorKind::Retry(reason)))) => Self::Retry(reason),
            Some(Err(OperationError(OperationErrorKind::Unknown(reason)))) => Self::Unknown(reason),
            None => Self::Unknown(FailureCause::from_text("the operation panicked".into())),
        }
    }

    /// The value, if it returned one.
    #[must_use]
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Refused(_) | Self::Retry(_) | Self::Unknown(_) => None,
        }
    }
}
