//! Connections to upstreams: connecting, sharing and pooling.

pub(crate) mod connect;
pub(crate) mod h2_connection;
pub(crate) mod pool;
pub(crate) mod pool_map;
