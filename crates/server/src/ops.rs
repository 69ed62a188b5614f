//! What operators see of a running server: metrics, logs, and the audit log of their own acts.

pub(crate) mod audit;
pub(crate) mod escape;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod span;
mod watch;

pub(crate) use watch::Watch;
