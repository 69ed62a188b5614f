//! Why a request could not be forwarded, and in particular whether a byte of it was sent.

use std::{error, fmt, time::Duration};

use semel::core::{Problem, Reason};
use semel_tower::{BoxError, CallBroken, NeverReached};

/// Why a request could not be forwarded.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// No byte of it was sent.
    Unreachable(Unreached),
    /// The client's body failed while it was sent. Only an unguarded body is sent before it is
    /// complete.
    Sender(BoxError),
    /// At least a part of it was sent; what the upstream did with it is unknown.
    Broken(BoxError),
    /// It was sent, and no response came in time.
    Timeout(TimedOut),
}

/// A timeout expired.
#[derive(Debug)]
pub(crate) struct TimedOut {
    after: Duration,
    /// Reason that is stored in the record.
    reason: CallBroken,
}

/// Reason for an unknown outcome: the request was sent, and the connection failed before the
/// response began.
static BROKEN_BEFORE_ANSWER: CallBroken = CallBroken(Reason::ConnectionLost(0));

impl TimedOut {
    pub(crate) fn new(after: Duration) -> Self {
        let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        Self { after, reason: CallBroken(Reason::TimedOut(millis)) }
    }

    pub(crate) const fn after(&self) -> Duration {
        self.after
    }

    /// The error source that the layer looks for.
    pub(crate) const fn reason(&self) -> &CallBroken {
        &self.reason
    }
}

/// Why an upstream was not reached.
#[derive(Debug)]
pub(crate) struct Unreached {
    what: String,
}

impl ForwardError {
    pub(crate) fn timeout(after: Duration) -> Self {
        Self::Timeout(TimedOut::new(after))
    }

    pub(crate) fn unreachable(what: impl fmt::Display) -> Self {
        Self::Unreachable(Unreached { what: what.to_string() })
    }

    /// The problem reported to the client.
    pub(crate) const fn problem(&self) -> Problem {
        match self {
            Self::Unreachable(_) => Problem::UpstreamUnreachable,
            Self::Sender(_) => Problem::BodyMalformed,
            Self::Broken(_) | Self::Timeout(_) => Problem::UpstreamTimeout,
        }
    }
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(unreached) => unreached.what.fmt(f),
            Self::Sender(error) => write!(f, "reading the request body failed: {error}"),
            Self::Broken(error) => write!(f, "the upstream connection failed: {error}"),
            Self::Timeout(timed_out) => {
                write!(f, "the upstream did not respond within {:?}", timed_out.after)
            }
        }
    }
}

impl error::Error for ForwardError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            // The layer looks for these sources. They say whether the key is free again, and why
            // the outcome is unknown.
            Self::Unreachable(_) => Some(&NeverReached),
            Self::Broken(_) => Some(&BROKEN_BEFORE_ANSWER),
            Self::Timeout(timed_out) => Some(timed_out.reason()),
            Self::Sender(error) => Some(&**error),
        }
    }
}
