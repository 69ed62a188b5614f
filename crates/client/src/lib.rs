//! A retrying HTTP client, a journal of its calls, and claims of Semel's service API.
//!
//! | type | what it does |
//! |---|---|
//! | [`RetryClient`] | sends a request until its answer is final, with one key |
//! | [`Journal`] | keeps the keys of unfinished calls on disk, for the time after a crash |
//! | [`ServiceClient`] | claims and completes operations that are not HTTP requests |
//!
//! ```no_run
//! use bytes::Bytes;
//! use semel_client::RetryClient;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = RetryClient::new()?;
//! let request = http::Request::post("https://api.example.org/charges")
//!     .header("content-type", "application/json")
//!     .body(Bytes::from_static(br#"{"amount":1000}"#))?;
//! let answer = client.send(request).await?;
//! println!("{}", answer.status());
//! # Ok(())
//! # }
//! ```
//!
//! A call that survives a crash of its process:
//!
//! ```no_run
//! # use bytes::Bytes;
//! # use semel_client::{Journal, RetryClient};
//! # async fn example(request: http::Request<Bytes>) -> Result<(), Box<dyn std::error::Error>> {
//! let (client, journal) = (RetryClient::new()?, Journal::open("calls.journal")?);
//! // The key is on the disk before the first byte of the request is sent. After a crash the same
//! // name finds the same key.
//! let request = journal.prepare("charge order-17", request)?;
//! let answer = client.send(request).await?;
//! // Store the answer first, then:
//! journal.finish("charge order-17")?;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")
)]

mod attempt;
mod claim;
mod clock;
mod connection;
mod journal;
mod retry_client;
mod service;

pub use claim::{ClaimGuard, ClaimLost};
pub use connection::{ServiceError, ServiceProblem};
pub use journal::{Journal, JournalError, UnfinishedCall};
pub use retry_client::{CallError, RetryClient};
pub use semel_core::retry::{Backoff, BudgetRule, GiveUpReason, RetryPolicy};
pub use service::{ClaimRequest, ClaimedKey, OperationResult, ServiceClient};
