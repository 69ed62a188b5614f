//! The layer, and what a route says to it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderName, Method};
use semel::{
    Semel,
    core::{BodyRule, FingerprintRule, Keep, OnUnknown, Policy, QueryRule, Scope},
};
use tower_layer::Layer;

use crate::{
    Callers, CaptureSource, INBOX_RETENTION, Idempotency, KeyRule, RecordContent, Signature,
    config::Config,
};

/// Puts [`Idempotency`] around a service.
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
    config: Arc<Config>,
}

impl IdempotencyLayer {
    /// Guards a family of operations. There is no default for who the callers are: without a rule
    /// one customer could be shown the answer of another.
    pub fn new(semel: &Semel, scope: Scope, callers: Callers) -> Self {
        Self { config: Arc::new(Config::new(semel.clone(), scope, callers)) }
    }

    /// Guards the receiver of signed webhooks: each event runs once, and its redelivery is answered
    /// with the first success.
    ///
    /// The `source` is where events come from, as a scope of its own: `webhooks.stripe`. What this
    /// sets can be changed by the other methods: the [key of the scheme](Signature::key) is
    /// required, the caller is anonymous, a success is kept for [`INBOX_RETENTION`], what may have
    /// failed runs again at the next delivery ([`OnUnknown::Rerun`]: senders deliver at least
    /// once), and the query does not count. Nor does the body if the key is signed, because then
    /// the id says which event it is; a key in a header that is not signed, as GitHub's, could be
    /// put on any body. A scheme without a key of its own takes it from `Idempotency-Key`, until
    /// [`IdempotencyLayer::key`] says otherwise.
    ///
    /// A redelivery whose first answer was [too large to keep](Policy::response_bytes_max), or a
    /// [stream](crate::Streaming), gets its status alone, not 410: senders switch an endpoint off
    /// that is gone.
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
    pub fn inbox(semel: &Semel, source: Scope, signature: Signature) -> Self {
        let policy = Policy {
            retention: INBOX_RETENTION,
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

    /// Who the callers are, instead of those that the layer was made with.
    pub fn callers(self, callers: Callers) -> Self {
        self.with(|config| config.set_callers(callers))
    }

    /// Where the key is, and whether there must be one. By default: the header `Idempotency-Key`,
    /// not required.
    pub fn key(self, rule: KeyRule) -> Self {
        self.with(|config| config.set_key(rule))
    }

    /// Another scope that this layer's operations had before. An operation that would begin is
    /// looked up there too and gets what it would have got there; nothing is written there. Say so
    /// for one [retention](Policy::retention) after a change of scope, or retries of what ran under
    /// the former one run again. What was [observed](IdempotencyLayer::observe) is in
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

    /// Other rules by which this layer named callers before: the same rules with the former
    /// [secret](crate::Secret), say. Operations are looked up under that name too, as in a former
    /// [scope](IdempotencyLayer::formerly), and recorded under the present one.
    pub fn former_callers(self, callers: Callers) -> Self {
        self.with(|config| config.add_former_callers(callers, None))
    }

    /// As [`IdempotencyLayer::former_callers`], until this time.
    pub fn former_callers_until(self, callers: Callers, until: SystemTime) -> Self {
        self.with(|config| config.add_former_callers(callers, Some(until)))
    }

    /// What becomes of a request and its answer: retention, lease, wait, what is kept, the limits.
    pub fn policy(self, policy: Policy) -> Self {
        self.with(|config| config.set_policy(policy))
    }

    /// Keeps under a key [from the body](KeyRule::json) what the policy says, also where nothing
    /// proves who sent it. By default only a success is kept there: otherwise whoever guesses the
    /// key of an operation to come could send something in its place that is refused, and the
    /// refusal would be kept.
    pub fn keep_under_body_keys(self) -> Self {
        self.with(|config| config.keep_under_body_keys = true)
    }

    /// Which part of a request makes it the request it is. By default: method, host, path, query
    /// and the whole body.
    ///
    /// Where one credential acts for several accounts, the header that says for which one counts
    /// too, or the second account's request would get the first one's answer:
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

    /// The host that a request is for does not count in the
    /// [fingerprint](IdempotencyLayer::fingerprint) set so far: for a service that does not care
    /// under which name it is reached.
    pub fn ignore_host(self) -> Self {
        self.with(Config::ignore_host)
    }

    /// Takes the host that a request is for from `X-Forwarded-Host`, or else from `Forwarded`,
    /// where there is one. Only behind a proxy that sets them itself.
    pub fn forwarded_host(self) -> Self {
        self.with(Config::set_forwarded_host)
    }

    /// What the records of this layer say that they are [about](crate::Subject::about), instead of
    /// method, host and path: for paths that hold what must not be stored.
    pub fn about(self, text: &str) -> Self {
        self.with(|config| config.subject.about = Some(text.into()))
    }

    /// Takes a value out of each guarded request, under this name: an order's number, an amount.
    /// See [`Subject::captured`](crate::Subject::captured).
    pub fn capture(self, name: &str, source: CaptureSource) -> Self {
        self.with(|config| config.subject.captures.push((name.into(), source)))
    }

    /// Refuses every request that is not signed, with 401 `signature-invalid`: before its key is
    /// looked for in the store and before it is asked who sent it, with a key or without. Nothing
    /// is recorded of it, so a forgery cannot take the place of what it imitates. That holds for
    /// all [methods](IdempotencyLayer::methods), for those too that are not guarded.
    ///
    /// If the [key](IdempotencyLayer::key) is looked for in several places, put those that are
    /// signed first: a header that is not, before a place in the body, lets everybody who captured
    /// an event send it again under a key of his own.
    ///
    /// What is verified is [anonymous](Callers::anonymous) whatever credential it carries, and a
    /// [key in its body](KeyRule::json) keeps what the policy says.
    pub fn signature(self, signature: Signature) -> Self {
        self.with(|config| config.set_signature(signature))
    }

    /// Which methods are guarded. By default: POST and PATCH. Others pass straight through, once
    /// their [signature](IdempotencyLayer::signature) is verified if there must be one.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|config| config.methods = methods.into_iter().collect())
    }

    /// Which headers of an answer are kept and replayed besides the standard ones. What belongs to
    /// one connection, one moment or one client (`Set-Cookie`, `Date`, `Retry-After`…) is never
    /// kept, even if it is named here.
    pub fn keep_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.set_kept(names))
    }

    /// How much of an answer is stored. By default: all that a replay needs.
    pub fn record(self, content: RecordContent) -> Self {
        self.with(|config| config.content = content)
    }

    /// How long an answer is read on after its client left, or took nothing for as long. By
    /// default: [`READ_ON_DEFAULT`](crate::READ_ON_DEFAULT).
    ///
    /// The operation belongs to the server, so it is judged by its whole answer; but an endless
    /// stream that nobody reads must end some time. When that time is over, an answer with a
    /// `Content-Length`, without a `Trailer` header and not of gRPC is judged by its head, and any
    /// other has an unknown outcome.
    pub fn read_on(self, time: Duration) -> Self {
        self.with(|config| config.read_on = time)
    }

    /// The page that tells how to retry, for the `Link` header of every problem.
    pub fn docs(self, url: &str) -> Self {
        self.with(|config| config.set_docs(url))
    }

    /// Leaves a [`Served`](crate::Served) among the extensions of every answer to a guarded
    /// request, for a layer outside that keeps a log. By default there is none.
    pub fn served(self) -> Self {
        self.with(|config| config.served = true)
    }

    /// Only looks: every request goes to the service as if there were no layer, and the
    /// [`Observer`](semel::Observer) is [told](semel::Would) what the layer would have done with
    /// it. The first step for a service that has traffic already.
    ///
    /// Nothing is refused, replayed, joined or waited for, nothing is added to an answer, and the
    /// store is asked beside the request, never before it. As without the layer, there is no
    /// [`Lease`](crate::Lease) for the handler. What is remembered meanwhile lives in
    /// [a scope of its own](Scope::observed). A layer that begins to guard looks there if
    /// [`formerly`](IdempotencyLayer::formerly) says so.
    ///
    /// A layer with a [signature](IdempotencyLayer::signature) guards all the same: a forgery is
    /// kept out, not counted.
    ///
    /// ```
    /// use semel::{Event, EventKind, MemoryStore, Observer, Semel, Would, core::Scope};
    /// use semel_tower::{Callers, IdempotencyLayer};
    ///
    /// #[derive(Debug)]
    /// struct Numbers;
    ///
    /// impl Observer for Numbers {
    ///     fn on_event(&self, event: &Event<'_>) {
    ///         if let EventKind::Would(Would::Replay) = event.kind {
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

    fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
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
