//! Sinks for protocols.

#[cfg(feature = "http")]
mod http;
#[cfg(feature = "nats")]
mod nats;

#[cfg(feature = "http")]
pub use http::HttpSink;
#[cfg(feature = "nats")]
pub use nats::{KEY_HEADER, NatsSink};

/// Why a sink cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSink {
    /// The URL cannot be read.
    #[error("not a URL: {0}")]
    Url(String),
    /// The secret is not one of Standard Webhooks.
    #[error("not a secret of Standard Webhooks: `whsec_` and base64 of 24 to 64 bytes")]
    Secret,
    /// A header cannot be sent.
    #[error("`{0}` cannot be a header: its name or its value has a character that is not allowed")]
    Header(String),
    /// The client of the protocol cannot be set up.
    #[error("the client cannot be set up: {0}")]
    Client(String),
}
