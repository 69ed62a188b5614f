//! HTTP over loopback: one request and its answer, the load that sends it, and the programs that
//! are loaded.

pub(crate) mod exchange;
pub(crate) mod load;
pub(crate) mod program;
pub(crate) mod serve;
