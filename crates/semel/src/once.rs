//! `once`: any async operation, run once per key.
//!
//! For work without an HTTP front: a nightly job, a queue consumer, a command that a person may
//! start twice. The first call with a key runs the operation and records its value. Every repeat
//! gets that value without running the operation, in this process or another one, after a restart
//! or concurrently.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::{MemoryStore, Outcome, Semel, core::Caller, keys};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize)]
//! struct Order {
//!     id: u64,
//!     cents: u64,
//! }
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Invoice {
//!     number: String,
//! }
//!
//! let semel = Semel::new(MemoryStore::new());
//! let order = Order { id: 17, cents: 4_900 };
//!
//! for call in 1..=2 {
//!     let key = keys::from_parts("invoices", [order.id.to_string()]);
//!     let outcome = semel
//!         .once("invoices", Caller::new("shop-3")?, key)
//!         .fingerprint(&order)
//!         .run(move |_lease| async move { Ok(Invoice { number: format!("R-{call}") }) })
//!         .await?;
//!     match outcome {
//!         Outcome::Ran(invoice) => assert_eq!((call, &*invoice.number), (1, "R-1")),
//!         Outcome::Replayed(invoice) => assert_eq!((call, &*invoice.number), (2, "R-1")),
//!         other => panic!("{other:?}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # How an operation ends
//!
//! With `Ok(value)`, or with a [`OperationError`]: a final refusal, which is recorded and replayed
//! like a value; *retry*, where nothing happened and the next call may run it; or *unknown*. The
//! question mark on any error gives *unknown*, and so does a panic, because neither proves whether
//! something happened. Then [`on_unknown`](Once::on_unknown) decides. By default nothing runs again
//! until a person has resolved it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use semel::{MemoryStore, Outcome, Semel, OperationError, core::Caller, keys};
//! # let semel = Semel::new(MemoryStore::new());
//! # let caller = || Caller::new("shop-3");
//! # let key = || keys::from_parts("charges", ["order-17"]);
//! async fn bank() -> Result<u64, std::io::Error> {
//!     Err(std::io::ErrorKind::ConnectionReset.into())
//! }
//!
//! let charge = || semel.once("charges", caller().unwrap(), key());
//! let outcome = charge().run(|_| async { Ok(bank().await?) }).await?;
//! let Outcome::Unknown(unknown) = outcome else { panic!("{outcome:?}") };
//! assert!(unknown.ran() && unknown.reason().downcast_ref::<std::io::Error>().is_some());
//!
//! // The money may have moved: nothing runs again.
//! let outcome = charge().run(|_| async { Ok(7_u64) }).await?;
//! assert!(matches!(outcome, Outcome::Unknown(_)));
//! # Ok(())
//! # }
//! ```
//!
//! # A fence for your own database
//!
//! A machine that was suspended may wake up after its lease and continue beside the new owner. Only
//! the database that it writes to can stop it. So write the lease's [fence](crate::Lease::fence)
//! with everything, and refuse a lower one:
//!
//! ```sql
//! UPDATE accounts SET balance = balance - 4900, fence = 42 WHERE id = 7 AND fence <= 42
//! ```
//!
//! # What is recorded
//!
//! The value as JSON, so it must survive a round trip through JSON. (A NaN or an infinity does not:
//! it is written as `null`, which no float can be read from.) It is kept for the
//! [retention](Once::retention), and a later version of the program may read it: a changed type
//! must still read old values, or a repeat gets [`Unreadable`](OnceErrorKind::Unreadable). A value
//! larger than `response_bytes_max` of the [policy](Once::policy), or one that cannot be written as
//! JSON, goes to the caller that ran it; a repeat gets [`NotRetained`](OnceErrorKind::NotRetained)
//! and never runs it again.
//!
//! # Cancellation
//!
//! Once polled, the operation runs in a task of its own: dropping the call's future, by a timeout
//! for example, does not cancel it, and a repeat gets its value.

#[cfg(feature = "transactional")]
pub(crate) mod end;
mod error;
mod failure_cause;
mod operation_error;
mod outcome;
mod record;
mod refusal;
mod reply;
mod run_report;

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use semel_core::{
    Caller, Fingerprint, Key, OnStoreDown, OnUnknown, Policy, RecordId, Scope, ScopeError,
    canonical,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{BeginRequest, ExecutionOutput, Lease, OperationReply, Semel};

pub use error::{OnceError, OnceErrorKind};
pub use failure_cause::FailureCause;
pub use operation_error::OperationError;
pub use outcome::{Outcome, Overtaken, Unknown};
pub use record::{answer, refusal};
pub use refusal::Refusal;
pub use run_report::RunReport;

/// The domain of a fingerprint whose only part is the canonical JSON of one value, or that has no
/// part.
const DOMAIN: &str = "semel.once";

static DEFAULT: LazyLock<Arc<Policy>> = LazyLock::new(Arc::default);

impl Semel {
    /// An operation to be run once under this scope, caller and key. See [`once`](crate::once).
    ///
    /// The scope names the family of operations; its validity is checked when the operation
    /// [runs](Once::run). Keys of different callers are separate; a job with a single caller may
    /// use [`Caller::anonymous`].
    pub fn once(&self, scope: &str, caller: Caller, key: Key) -> Once {
        Once {
            semel: self.clone(),
            scope: Scope::new(scope),
            caller,
            key,
            fingerprint: Ok(no_fingerprint()),
            policy: Arc::clone(&DEFAULT),
        }
    }
}

/// One call, being prepared. Nothing happens before [`run`](Self::run) is awaited.
#[must_use = "nothing happens before `run` is awaited"]
pub struct Once {
    semel: Semel,
    scope: Result<Scope, ScopeError>,
    caller: Caller,
    key: Key,
    fingerprint: Result<Fingerprint, OnceError>,
    policy: Arc<Policy>,
}

impl Once {
    /// Sets the fingerprint: everything that must be equal in a repeat, such as the amount. A call
    /// with the same key and another fingerprint is [`Outcome::KeyReused`].
    ///
    /// The value is written as JSON, brought into canonical form ([`canonical`]) and hashed as the
    /// only part of the domain `semel.once` ([`Fingerprint::of_parts`]); see [`fingerprint`]. Leave
    /// out what changes between two attempts. Without a fingerprint the key alone identifies the
    /// operation, and the fingerprint is that of no part.
    ///
    /// # Pitfalls
    ///
    /// A `HashSet` is written in a random order, so that an honest repeat gets
    /// [`Outcome::KeyReused`]. Use a sorted collection, such as a `BTreeSet`. The members of a map
    /// may come in any order.
    ///
    /// JSON has no NaN and no infinity: both are written as `null`, as `None` is, and have the same
    /// fingerprint. Use integers for amounts.
    pub fn fingerprint<V: Serialize + ?Sized>(mut self, meaning: &V) -> Self {
        self.fingerprint = fingerprint(meaning);
        self
    }

    /// Sets the whole policy, for many calls that share it. Earlier settings are dropped.
    ///
    /// `keep`, `release` and `request_bytes_max` concern HTTP and have no effect here: the
    /// operation itself decides what is recorded.
    pub fn policy(mut self, policy: Arc<Policy>) -> Self {
        self.policy = policy;
        self
    }

    /// How long a value or refusal is kept; 24 hours unless set. After that the key is free, so
    /// choose it longer than any retry may take.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings().retention = retention;
        self
    }

    /// The lease: how long an owner may go without renewing before it counts as crashed; 30 seconds
    /// unless set. It is renewed while the operation runs.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings().lease = lease;
        self
    }

    /// How long to wait for another execution before [`Outcome::InProgress`]; 10 seconds unless
    /// set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings().wait = wait;
        self
    }

    /// What to do when the outcome is unknown: after an untyped error, a panic or a crash. Unless
    /// set, the record is held until someone resolves it.
    pub fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.settings().on_unknown = on_unknown;
        self
    }

    /// What to do while the store is unavailable. Unless set, nothing runs. With
    /// [`OnStoreDown::Pass`] the operation runs without a claim, its lease has no fence, and the
    /// outcome is [`Outcome::Unguarded`].
    pub fn on_store_down(mut self, on_store_down: OnStoreDown) -> Self {
        self.settings().on_store_down = on_store_down;
        self
    }

    fn settings(&mut self) -> &mut Policy {
        Arc::make_mut(&mut self.policy)
    }

    /// Runs the operation unless it ran before, and returns the outcome.
    ///
    /// An operation that is not needed is dropped without being called.
    ///
    /// # Errors
    ///
    /// If there is no outcome; see [`OnceErrorKind`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn run<O, F, T>(self, operation: O) -> Result<Outcome<T>, OnceError>
    where
        O: FnOnce(Lease) -> F + Send + 'static,
        F: Future<Output = Result<T, OperationError>> + Send + 'static,
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let Self { semel, scope, caller, key, fingerprint, policy } = self;
        let scope = scope.map_err(|error| OnceError::because(OnceErrorKind::Scope, error))?;
        let id = RecordId::new(scope, caller, key);
        let wanted = BeginRequest::new(id, fingerprint?, Arc::clone(&policy));
        let on_unknown = policy.on_unknown;
        let pending = semel.begin(wanted, move |lease: Lease| async move {
            let end = operation(lease).await;
            ExecutionOutput::Ended(reply::execution_result(&end, &policy), Some(end))
        });
        match pending.await {
            OperationReply::Replied { reply, own, .. } => reply::outcome(reply, own, on_unknown),
            OperationReply::Early { recorded, .. } => {
                reply::outcome(recorded.await, None, on_unknown)
            }
        }
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("scope", &self.scope)
            .field("caller", &self.caller)
            .field("key", &self.key)
            .field("fingerprint", &self.fingerprint)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// The fingerprint that `once` computes for this [value](Once::fingerprint).
///
/// For operators and jobs that resolve a record: it shows whether the record belongs to a given
/// operation.
///
/// ```
/// use semel::{core::Snapshot, once};
///
/// /// Whether the record was made for this amount.
/// fn is_about(seen: &Snapshot, cents: u32) -> Result<bool, once::OnceError> {
///     Ok(seen.fingerprint == Some(once::fingerprint(&cents)?))
/// }
/// # let _ = is_about;
/// # Ok::<(), once::OnceError>(())
/// ```
///
/// # Errors
///
/// If the value cannot be written as canonical JSON.
pub fn fingerprint<V: Serialize + ?Sized>(meaning: &V) -> Result<Fingerprint, OnceError> {
    let kind = OnceErrorKind::Fingerprint;
    let json = serde_json::to_vec(meaning).map_err(|error| OnceError::because(kind, error))?;
    fingerprint_of_json(&json)
}

/// The fingerprint that `once` computes for the value that this JSON document describes. For
/// fronts.
///
/// # Errors
///
/// If the document is not JSON, or names a member twice.
pub fn fingerprint_of_json(json: &[u8]) -> Result<Fingerprint, OnceError> {
    let kind = OnceErrorKind::Fingerprint;
    let text = canonical::json_text(json).map_err(|error| OnceError::because(kind, error))?;
    Ok(Fingerprint::of_parts(DOMAIN, &[&text]))
}

/// The fingerprint of a `once` call without [one](Once::fingerprint): the key alone identifies the
/// operation. For fronts.
#[must_use]
pub fn no_fingerprint() -> Fingerprint {
    Fingerprint::of_parts(DOMAIN, &[])
}
