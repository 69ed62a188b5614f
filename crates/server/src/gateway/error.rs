//! Why a request could not be forwarded. The difference that matters: whether a byte of it went
//! out.

use std::{error, fmt, time::Duration};

use semel::core::Problem;
use semel_tower::{BoxError, NeverReached};

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
    Timeout(Duration),
}

/// Why an upstream was not reached.
#[derive(Debug)]
pub(crate) struct Unreached {
    what: String,
}

impl ForwardError {
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
            Self::Timeout(after) => write!(f, "the upstream did not answer within {after:?}"),
        }
    }
}

impl error::Error for ForwardError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            // The layer looks for this among the sources: the key is free again.
            Self::Unreachable(_) => Some(&NeverReached),
            Self::Sender(error) | Self::Broken(error) => Some(&**error),
            Self::Timeout(_) => None,
        }
    }
}
