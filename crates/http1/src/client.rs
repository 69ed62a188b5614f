//! HTTP/1.1 towards an upstream: one request and its response.

pub(crate) mod body;
pub(crate) mod encode;
pub(crate) mod exchange;
pub(crate) mod parse;
pub(crate) mod stream;
