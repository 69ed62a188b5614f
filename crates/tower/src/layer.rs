//! The layer and its settings.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderName, Method};
#[cfg(feature = "webhooks")]
use semel::core::{BodyRule, Keep, OnUnknown, QueryRule};
use semel::{
    Semel,
    core::{Dialect, FingerprintRule, Policy, Scope},
};
use tower_layer::Layer;

use crate::{
    Callers, CaptureSource, Cors, DeadlineRule, HeldStatus, Idempotency, IssuedKeys, KeyRule,
    LookupPath, RecordContent,
    config::{LayerConfig, deprecation},
};

/// Applies [`Idempotency`] to a service.
///
/// ```
/// use std::time::Duration;
/// use http::HeaderName;
/// use semel::{MemoryStore, Semel, core::{Policy, Scope}};
/// use semel_tower::{Callers, IdempotencyLayer, KeyRule};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let semel = Semel::new(MemoryStore::new());
/// let merchant = Callers::header(HeaderName::from_static("x-merchant-id"))?;
/// let layer = IdempotencyLayer::new(&semel, Scope::new("payments")?, merchant)
///     .key(KeyRule::default().required())
///     .policy(Policy { wait: Duration::from_secs(3), ..Policy::default() })
///     .docs("https://example.org/docs/retries");
/// # let _ = layer;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct IdempotencyLayer {
    config: Arc<LayerConfig>,
}

impl IdempotencyLayer {
    /// Guards a family of operations. Callers have no default: without a rule one customer could
    /// get the answer of another.
    pub fn new(semel: &Semel, scope: Scope, callers: Callers) -> Self {
        Self { config: Arc::new(LayerConfig::new(semel.clone(), scope, callers)) }
    }

    /// Guards the receiver of signed webhooks: each event runs once, and a redelivery gets the
    /// first success.
    ///
    /// The `source` is the origin of the events, as a scope of its own: `webhooks.stripe`. The
    /// other methods can change these settings: the
    /// [key of the scheme](crate::Signature::key) is required, the caller is anonymous, a success
    /// is kept for a [week](crate::INBOX_RETENTION), an unknown outcome runs again at the next
    /// delivery ([`OnUnknown::Rerun`]: senders deliver at least once), and the query does not
    /// count. Nor does the body if the key is signed, because then the id identifies the event; an
    /// unsigned key in a header, as GitHub's, could be combined with any body. A scheme without a
    /// key of its own uses `Idempotency-Key`, until [`IdempotencyLayer::key`] is set.
    ///
    /// A redelivery whose first answer was [too large to keep](Policy::response_bytes_max), or a
    /// [stream](crate::Streaming), gets its status alone, not 410: senders disable an endpoint that
    /// answers 410.
    ///
    /// ```
    /// use semel::{MemoryStore, Semel, core::Scope};
    /// use semel_tower::{IdempotencyLayer, Signature};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (old, new) = ("whsec_4hTqPzcfsx8pBzQE", "whsec_R9f2RTnvqLkG4wJd");
    /// let semel = Semel::new(MemoryStore::new());
    /// let signature = Signature::stripe([old, new])?;
    /// let layer = IdempotencyLayer::inbox(&semel, Scope::new("webhooks.stripe")?, signature);
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "webhooks")]
    pub fn inbox(semel: &Semel, source: Scope, signature: crate::Signature) -> Self {
        let policy = Policy {
            retention: crate::INBOX_RETENTION,
            keep: Keep::Success,
            on_unknown: OnUnknown::Rerun,
            ..Policy::default()
        };
        let fingerprint =
            FingerprintRule { query: QueryRule::Ignore, ..FingerprintRule::default() };
        let for_signed_key = FingerprintRule { body: BodyRule::Ignore, ..fingerprint.clone() };
        Self::new(semel, source, Callers::anonymous())
            .key(signature.key().unwrap_or_default().required())
            .policy(policy)
            .fingerprint(fingerprint)
            .signature(signature)
            .with(|config| config.fingerprint_for_signed_key = for_signed_key)
    }

    /// Replaces the caller rules of the layer.
    pub fn callers(self, callers: Callers) -> Self {
        self.with(|config| config.set_callers(callers))
    }

    /// Where the key is, and whether it is required. By default: the header `Idempotency-Key`, not
    /// required.
    pub fn key(self, rule: KeyRule) -> Self {
        self.with(|config| config.set_key(rule))
    }

    /// Speaks the dialect of a provider: the statuses and the documents of the layer's own errors,
    /// and the longest key. It also sets where the [key](IdempotencyLayer::key) is, so set that
    /// afterwards if it is elsewhere. What runs and what is replayed is the same in every dialect,
    /// and so are the errors of gRPC.
    ///
    /// ```
    /// use semel::{MemoryStore, Semel, core::{Dialect, Problem, Scope}};
    /// use semel_tower::{Callers, IdempotencyLayer};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let semel = Semel::new(MemoryStore::new());
    /// let dialect = Dialect::STRIPE.with_status(Problem::ResponseNotRetained, 400)?;
    /// let layer = IdempotencyLayer::new(&semel, Scope::new("charges")?, Callers::anonymous())
    ///     .dialect(dialect);
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn dialect(self, dialect: Dialect) -> Self {
        self.with(|config| config.set_dialect(dialect))
    }

    /// A former scope of this layer's operations. A new operation is looked up there too and gets
    /// its recorded result; nothing is written there. Keep it for one
    /// [retention](Policy::retention) after a change of scope, or retries of operations in the
    /// former scope run again. [Observed](IdempotencyLayer::observe) operations are in
    /// [`Scope::observed`].
    ///
    /// ```
    /// use semel::{MemoryStore, Semel, core::Scope};
    /// use semel_tower::{Callers, IdempotencyLayer};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let semel = Semel::new(MemoryStore::new());
    /// let (payments, before) = (Scope::new("payments")?, Scope::new("default")?);
    /// let layer = IdempotencyLayer::new(&semel, payments, Callers::anonymous()).formerly(before);
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn formerly(self, scope: Scope) -> Self {
        self.with(|config| config.former.scopes.push((scope, None)))
    }

    /// As [`IdempotencyLayer::formerly`], until this time.
    pub fn formerly_until(self, scope: Scope, until: SystemTime) -> Self {
        self.with(|config| config.former.scopes.push((scope, Some(until))))
    }

    /// Former caller rules of this layer, such as the same rules with the former
    /// [secret](crate::Secret). Operations are looked up under that name too, as in a former
    /// [scope](IdempotencyLayer::formerly), and recorded under the current one.
    pub fn former_callers(self, callers: Callers) -> Self {
        self.with(|config| config.add_former_callers(callers, None))
    }

    /// As [`IdempotencyLayer::former_callers`], until this time.
    pub fn former_callers_until(self, callers: Callers, until: SystemTime) -> Self {
        self.with(|config| config.add_former_callers(callers, Some(until)))
    }

    /// The policy: retention, lease, wait, which answers are kept, the limits.
    pub fn policy(self, policy: Policy) -> Self {
        self.with(|config| config.set_policy(policy))
    }

    /// The date in the `Deprecation` header of requests without a key, if they are
    /// [warned](KeyRule::warn). By default the time when the layer was built, which changes with
    /// every restart.
    pub fn warned_since(self, since: SystemTime) -> Self {
        self.with(|config| config.since = deprecation(since))
    }

    /// Applies the full policy to a key [from the body](KeyRule::json), even if the sender is not
    /// proven. By default only a success is kept there: otherwise a client that guesses the key of
    /// a future operation could send a request that is refused, and the refusal would be kept.
    pub fn keep_under_body_keys(self) -> Self {
        self.with(|config| config.keep_under_body_keys = true)
    }

    /// What identifies a request. By default: method, host, path, query and the whole body.
    ///
    /// Where one credential acts for several accounts, include the header that names the account,
    /// or the second account's request would get the first one's answer:
    ///
    /// ```
    /// use semel::core::{FingerprintHeader, FingerprintRule};
    ///
    /// let account = FingerprintHeader::new("Stripe-Account")?;
    /// let rule = FingerprintRule { headers: vec![account], ..FingerprintRule::default() };
    /// # let _ = rule;
    /// # Ok::<(), semel::core::fingerprint::FingerprintHeaderError>(())
    /// ```
    ///
    /// Then the second is refused with 422 `key-reused`. To give each account keys of its own, put
    /// the header into the [caller](Callers::and).
    pub fn fingerprint(self, rule: FingerprintRule) -> Self {
        self.with(|config| config.set_fingerprint(rule))
    }

    /// Excludes the host from the [fingerprint](IdempotencyLayer::fingerprint) set so far, for a
    /// service that is reached under several names.
    pub fn ignore_host(self) -> Self {
        self.with(LayerConfig::ignore_host)
    }

    /// Takes the host of a request from `X-Forwarded-Host`, or else from `Forwarded`, if present.
    /// Use it only behind a proxy that sets them itself.
    pub fn forwarded_host(self) -> Self {
        self.with(LayerConfig::set_forwarded_host)
    }

    /// The [description](crate::Subject::about) of this layer's records, instead of method, host
    /// and path: for paths with content that must not be stored.
    pub fn about(self, text: &str) -> Self {
        self.with(|config| config.subject.about = Some(text.into()))
    }

    /// Captures a value of each guarded request under this name, such as an order number or an
    /// amount. See [`Subject::captured`](crate::Subject::captured).
    pub fn capture(self, name: &str, source: CaptureSource) -> Self {
        self.with(|config| config.subject.captures.push((name.into(), source)))
    }

    /// Refuses every request without a valid signature with 401 `signature-invalid`, with a key or
    /// without, before its key is looked up and before its caller is identified. Nothing is
    /// recorded, so a forgery cannot use up the key of the event that it imitates. This applies to
    /// all [methods](IdempotencyLayer::methods), unguarded ones included.
    ///
    /// If the [key](IdempotencyLayer::key) has several sources, put the signed ones first: an
    /// unsigned header before a member of the body lets a client that captured an event send it
    /// again under another key.
    ///
    /// A verified request is [anonymous](Callers::anonymous) whatever credential it carries, and
    /// the full policy applies to a [key in its body](KeyRule::json).
    #[cfg(feature = "webhooks")]
    pub fn signature(self, signature: crate::Signature) -> Self {
        self.with(|config| config.set_signature(signature))
    }

    /// The guarded methods. By default: POST and PATCH. Others pass through, once their
    /// [signature](IdempotencyLayer::signature) is verified if one is required.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|config| config.methods = methods.into_iter().collect())
    }

    /// Additional headers of an answer that are recorded and replayed. Headers of one connection,
    /// one moment or one client (`Set-Cookie`, `Date`, `Retry-After`…) are never recorded, even if
    /// named here.
    pub fn keep_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.set_replay_headers(names))
    }

    /// How much of an answer is stored. By default: everything that a replay needs.
    pub fn record(self, content: RecordContent) -> Self {
        self.with(|config| config.content = content)
    }

    /// How long an answer is read after its client has disconnected or stopped reading. By default:
    /// [`READ_ON_DEFAULT`](crate::READ_ON_DEFAULT).
    ///
    /// The operation belongs to the server, so it is judged by its whole answer; but an endless
    /// stream without a reader must end. After this time, an answer with a `Content-Length`,
    /// without a `Trailer` header and not of gRPC is judged by its head, and any other has an
    /// unknown outcome.
    pub fn read_on(self, time: Duration) -> Self {
        self.with(|config| config.read_on = time)
    }

    /// Obeys the deadlines that clients send. By default none is read.
    ///
    /// In either case a guarded operation does not see its client's `grpc-timeout`: a gRPC server
    /// would cancel the operation at that deadline, and the outcome would be unknown.
    pub fn deadline(self, rule: DeadlineRule) -> Self {
        self.with(|config| config.deadline = rule)
    }

    /// Lets pages of other origins send requests: answers their preflights and computes
    /// `Access-Control-*` for each response, replays and refusals included. Those headers of the
    /// service are replaced and never recorded. No other CORS layer may be around this one.
    ///
    /// In axum, use [`Router::layer`](axum::Router::layer), so that preflights reach this layer.
    pub fn cors(self, cors: Cors) -> Self {
        self.with(|config| config.cors = Some(Arc::new(cors)))
    }

    /// Lets a caller look up its own operation with `GET` under this path, without sending it
    /// again. By default there is no such path.
    ///
    /// The answer is a JSON document: `state` (`in_flight`, `completed`, `released`, `held`; 404
    /// `absent`), `attempt`, `claimed_at`, `ended_at`, and of a completed operation `expires_at`
    /// and `answer`, with `status`, `headers`, `body` (or `body_base64`) and `trailers` as they are
    /// replayed, or `retained: false`. The record of another caller is absent. Callers that are
    /// [anonymous](Callers::anonymous) or a [host](Callers::host) alone are refused. Nothing runs.
    ///
    /// The key is percent-encoded; several members of a body have commas between them.
    ///
    /// **Any client that can be the caller can read the answer with the key alone.** A replay also
    /// needs an equal request.
    ///
    /// In axum, use [`Router::layer`](axum::Router::layer), so that the path reaches this layer.
    pub fn lookup(self, path: LookupPath) -> Self {
        self.with(|config| config.lookup = Some(path))
    }

    /// Issues keys: the answer to `POST` under the path of [`IssuedKeys`] is 201 and a JSON
    /// document with `token`, `scope` and `expires_at`. The client sends the token as the key of
    /// one operation. A token of another caller, another scope or another server, an altered one,
    /// and one whose first use comes after its expiry are refused with 422 `token-invalid`, before
    /// the store is read. What is recorded under a token is replayed whatever its age.
    ///
    /// Callers that are [anonymous](Callers::anonymous) or a [host](Callers::host) alone get none.
    ///
    /// In axum, use [`Router::layer`](axum::Router::layer), so that the path reaches this layer.
    pub fn issued_keys(self, keys: IssuedKeys) -> Self {
        self.with(|config| config.issued_keys = Some(Arc::new(keys)))
    }

    /// Says that something asks the upstream what became of operations whose outcome is unknown.
    /// Clients are then advised to retry after the next read, instead of not at all.
    pub fn held_status(self, status: Arc<dyn HeldStatus>) -> Self {
        self.with(|config| config.held_status = Some(status))
    }

    /// The URL of the documentation on retries, for the `Link` header of every problem.
    pub fn docs(self, url: &str) -> Self {
        self.with(|config| config.set_docs(url))
    }

    /// Whether a [`RequestOutcome`](crate::RequestOutcome) is added to the extensions of every
    /// answer to a guarded request, for an access log in an outer layer. By default it is not.
    pub fn record_outcome(self, yes: bool) -> Self {
        self.with(|config| config.record_outcome = yes)
    }

    /// Only observes: every request goes to the service as if there were no layer, and the
    /// [`Observer`](semel::Observer) receives [what the layer would have
    /// done](semel::ObservedOutcome) with it. The first step for a service with existing traffic.
    ///
    /// Nothing is refused, replayed, joined or delayed, nothing is added to an answer, and the
    /// store is called concurrently with the request, never before it. As without the layer, there
    /// is no [`Lease`](crate::Lease) for the handler. Observed records are in [a scope of their
    /// own](Scope::observed). A layer that starts to guard reads them if
    /// [`formerly`](IdempotencyLayer::formerly) names that scope.
    ///
    /// A layer with a [signature](IdempotencyLayer::signature) guards nevertheless: forgeries must
    /// be refused, not counted.
    ///
    /// ```
    /// use semel::{Event, EventKind, MemoryStore, Observer, Semel, ObservedOutcome, core::Scope};
    /// use semel_tower::{Callers, IdempotencyLayer};
    ///
    /// #[derive(Debug)]
    /// struct Numbers;
    ///
    /// impl Observer for Numbers {
    ///     fn on_event(&self, event: &Event<'_>) {
    ///         if let EventKind::Observed(ObservedOutcome::Replay) = event.kind {
    ///             // A duplicate that ran, and would not have.
    ///         }
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let semel = Semel::builder(MemoryStore::new()).observer(Numbers).build();
    /// let payments = Scope::new("payments")?;
    /// let layer = IdempotencyLayer::new(&semel, payments, Callers::anonymous()).observe();
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn observe(self) -> Self {
        self.with(|config| config.observe = true)
    }

    fn with(mut self, change: impl FnOnce(&mut LayerConfig)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency::new(inner, Arc::clone(&self.config))
    }
}
