//! HTTP/1.1 towards a client: a connection and its requests.

pub(crate) mod conn;
pub(crate) mod encode;
pub(crate) mod parse;
pub(crate) mod serve;
pub(crate) mod upgrade;
