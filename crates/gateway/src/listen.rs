//! From a listening socket to a request: accepting, worker threads and connections.

pub(crate) mod accept;
pub(crate) mod accepted;
pub(crate) mod connection;
pub(crate) mod date;
pub(crate) mod empty_body;
pub(crate) mod http1_service;
pub(crate) mod stream_timeout;
pub(crate) mod worker;
pub(crate) mod worker_state;
