//! From a listening socket to a request: accepting, worker threads, connections and their peers.

pub(crate) mod accept;
pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod date;
pub(crate) mod peer;
pub(crate) mod proxies;
pub(crate) mod stream_timeout;
pub(crate) mod worker;
