//! Why a request could not be forwarded. The difference that matters: whether a byte of it went
//! out.

use std::{error, fmt, time::Duration};

use semel::core::{Problem, Reason};
use semel_tower::{BoxError, CallBroken, NeverReached};

/// Why a request could not be forwarded.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// No byte of it went out.
    Unreachable(Unreached),
    /// Its own body broke off while it was sent. Only a body that is not guarded is sent before it
    /// is whole.
    Sender(BoxError),
    /// It was sent, in part at least; what the upstream made of it is unknown.
    Broken(BoxError),
    /// It was sent, and no answer came in time.
    Timeout(TimedOut),
}

/// The upstream was silent for too long.
#[derive(Debug)]
pub(crate) struct TimedOut {
    after: Duration,
    /// For the record.
    reason: CallBroken,
}

/// Why a record has an unknown outcome whose request was sent, and whose connection broke before
/// the answer began.
static BROKEN_BEFORE_ANSWER: CallBroken = CallBroken(Reason::ConnectionLost(0));

impl TimedOut {
    pub(crate) fn new(after: Duration) -> Self {
        let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        Self { after, reason: CallBroken(Reason::TimedOut(millis)) }
    }

    pub(crate) const fn after(&self) -> Duration {
        self.after
    }

    /// What the layer looks for among the sources of an error.
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

    /// What the client is told.
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
            Self::Sender(error) => write!(f, "the request broke off: {error}"),
            Self::Broken(error) => write!(f, "the upstream broke off: {error}"),
            Self::Timeout(timed_out) => {
                write!(f, "the upstream did not answer within {:?}", timed_out.after)
            }
        }
    }
}

impl error::Error for ForwardError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            // The layer looks for these among the sources: whether the key is free again, and why
            // the outcome is unknown.
            Self::Unreachable(_) => Some(&NeverReached),
            Self::Broken(_) => Some(&BROKEN_BEFORE_ANSWER),
            Self::Timeout(timed_out) => Some(timed_out.reason()),
            Self::Sender(error) => Some(&**error),
        }
    }
}
