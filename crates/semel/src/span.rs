//! Spans of an operation, for a subscriber that asks for the target `semel::span`.
//!
//! Without one they cost a load and a branch each.

use tracing::Span;

/// From before the claim until the end is recorded, whether its client is still there or not. Its
/// parent is the span in which the operation was begun.
pub(crate) fn of_operation() -> Span {
    tracing::info_span!(target: "semel::span", "operation")
}

/// Around the call of the store that claims.
pub(crate) fn of_claim() -> Span {
    tracing::info_span!(target: "semel::span", "claim")
}

/// Around the call of the store that records the end of an execution.
pub(crate) fn of_record() -> Span {
    tracing::info_span!(target: "semel::span", "record")
}
