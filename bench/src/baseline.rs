//! Baselines for the embedded store: the same work in plain SQLite, and the least work that is
//! durable.

mod each;
mod log;

pub(crate) use each::OneByOne;
pub(crate) use log::BareLog;
