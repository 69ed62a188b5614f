//! What the embedded store is compared with: the same work by the plain way, and the least work that
//! is durable at all.

mod each;
mod log;

pub(crate) use each::OneByOne;
pub(crate) use log::BareLog;
