//! Events of held records whose upstream is asked what became of them.

use semel::core::reconcile::ReadFinding;

/// An event of a held record: what a read found, or what became of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileEvent {
    /// A read found the operation.
    Found,
    /// A read found two operations.
    TwoFound,
    /// A read found no operation.
    Absent,
    /// A read found another operation.
    Differs,
    /// A read proved nothing.
    Unclear,
    /// A read got no answer.
    ReadFailed,
    /// The answer was recorded.
    Completed,
    /// The record was released.
    Released,
    /// The record had changed, so nothing was done.
    Overtaken,
    /// The record is read no more, because two operations were found.
    StoppedAtTwo,
    /// The record is read no more, because it was held for too long.
    GivenUp,
}

impl ReconcileEvent {
    /// In the order of their discriminants.
    pub(super) const ALL: [Self; 11] = [
        Self::Found,
        Self::TwoFound,
        Self::Absent,
        Self::Differs,
        Self::Unclear,
        Self::ReadFailed,
        Self::Completed,
        Self::Released,
        Self::Overtaken,
        Self::StoppedAtTwo,
        Self::GivenUp,
    ];

    /// The event of a read.
    #[must_use]
    pub const fn of(finding: &ReadFinding) -> Self {
        match finding {
            ReadFinding::Found(_) => Self::Found,
            ReadFinding::TwoFound => Self::TwoFound,
            ReadFinding::Absent => Self::Absent,
            ReadFinding::Differs(_) => Self::Differs,
            ReadFinding::Unclear => Self::Unclear,
        }
    }

    /// The label.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::TwoFound => "two-found",
            Self::Absent => "absent",
            Self::Differs => "differs",
            Self::Unclear => "unclear",
            Self::ReadFailed => "read-failed",
            Self::Completed => "completed",
            Self::Released => "released",
            Self::Overtaken => "overtaken",
            Self::StoppedAtTwo => "stopped-at-two",
            Self::GivenUp => "given-up",
        }
    }
}
