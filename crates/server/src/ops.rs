//! What operators see of a running server: metrics, logs, and the audit log of their own acts.

pub(crate) mod audit;
mod colour;
pub(crate) mod escape;
mod held;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod moment;
pub(crate) mod seldom;
pub(crate) mod span;
mod watch;

pub(crate) use colour::is_colourful;
pub(crate) use held::HeldCount;
pub(crate) use watch::Watch;
