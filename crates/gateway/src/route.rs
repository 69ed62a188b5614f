//! Finds the route of a request, and refuses requests that must not be forwarded.

pub(crate) mod bad_request;
pub(crate) mod caller_secrets;
pub(crate) mod caller_verifiers;
pub(crate) mod check;
pub(crate) mod context;
pub(crate) mod pending_line;
mod request_trace;
pub(crate) mod strict_routes;
pub(crate) mod table;
pub(crate) mod unmatched;
pub(crate) mod webhook_verifiers;
