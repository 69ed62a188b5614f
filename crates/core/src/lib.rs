//! The pure heart of Semel: no I/O, no clock, no runtime, no HTTP types.
//!
//! | module | what lives there |
//! |---|---|
//! | [`key`], [`caller`], [`scope`], [`id`] | what a record is remembered under |
//! | [`fingerprint`], [`canonical`], [`form`], [`multipart`] | what a request *means* |
//! | [`record`], [`details`], [`response`] | what is remembered |
//! | [`policy`] | what a route configures |
//! | [`problem`], [`dialect`] | the errors that a client gets |
//! | [`rules`] | the specification of a store, as pure functions |
//! | [`store`], [`error`] | the trait that every store implements, and its laws |
//! | [`flow`] | the request machine: events in, one step out |
//! | [`retry`] | when a client sends a request again |
//! | [`time`] | two clocks that never meet |
#![warn(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::as_conversions)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::as_conversions,
        reason = "a test may panic"
    )
)]

pub mod caller;
pub mod canonical;
pub mod details;
pub mod dialect;
pub mod error;
pub mod fingerprint;
pub mod flow;
pub mod form;
pub mod id;
pub mod key;
pub mod multipart;
pub mod policy;
pub mod problem;
pub mod reconcile;
pub mod record;
pub mod response;
pub mod retry;
pub mod rules;
pub mod scope;
pub mod store;
pub mod time;
mod usage;
mod verdict;

pub use caller::{Caller, CallerError};
pub use details::{About, Captured, NodeName, Reason, ReasonText};
pub use dialect::Dialect;
pub use error::{Effect, StoreError, StoreErrorKind};
pub use fingerprint::{
    BodyError, BodyKind, BodyRule, Fingerprint, FingerprintHeader, FingerprintInput,
    FingerprintRule, HostRule, QueryRule,
};
pub use flow::{Action, ExecutionResult, Flow, LEASE_MIN, Plan, Reply};
pub use id::RecordId;
pub use key::{Key, KeyError};
pub use policy::{
    AnswerFacts, FORGET_DEFAULT, GrpcStatus, Keep, OnStoreDown, Policy, RELEASE_DEFAULT,
    StatusList, StatusSet,
};
pub use problem::{ErrorType, Problem, RetryContext};
pub use record::{Claimant, Fence, OwnerToken, Record, Snapshot, State, StateName, StateView};
pub use response::{Answer, Content, DecodeError, Field, StoredResponse};
pub use scope::{Scope, ScopeError};
pub use store::{
    Batch, Changed, Claim, Claimed, Cursor, Epoch, Fenced, Finish, Grant, ListQuery, Occupied,
    Page, RELEASED_RETENTION_MAX, RecordAction, Release, Resolution, Resolved, Store, StoreId,
    Summary,
};
pub use time::{ProcessTime, StoreTime};
pub use usage::{DiskSpace, Usage};
pub use verdict::{OnUnknown, Verdict};
