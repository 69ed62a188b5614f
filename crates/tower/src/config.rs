//! The settings of a layer, shared by all its requests.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, Version, request::Parts};
use semel::{
    Deadline, EventKind, Semel,
    core::{Dialect, FingerprintRule, HostRule, Policy, RetryContext, Scope, canonical::Pointer},
};

use crate::{
    Callers, Cors, DeadlineRule, HeldStatus, IssuedKeys, KeyRule, LookupPath, RequestOutcome,
    RequestOutcomeKind,
    body::Body,
    caller::Identified,
    cors::{ResponseCors, preflighted_method},
    former::FormerIdentity,
    grpc,
    refusal::RequestRefusal,
    replay_headers::ReplayHeaders,
    reply::{Docs, Responder},
    signature::Signature,
    subject::SubjectRule,
};

/// How long an answer is read after its client has disconnected or stopped reading, unless
/// [`IdempotencyLayer::read_on`](crate::IdempotencyLayer::read_on) is set.
pub const READ_ON_DEFAULT: Duration = Duration::from_secs(60);

/// How much of an answer is stored. The client whose request ran gets all of it in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordContent {
    /// Status, kept headers and body, which a repeat gets byte for byte.
    #[default]
    Full,
    /// The status alone. Repeats get 410 `response-not-retained`.
    Status,
    /// The values that these JSON Pointers lead to are replaced by `"[redacted]"` before the
    /// answer is stored. Replays that lack one are marked `Idempotent-Replayed: redacted`. Of a
    /// body that is not JSON only the status is stored.
    Redacted(Vec<Pointer>),
}

/// The settings of one layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerConfig {
    pub(crate) semel: Semel,
    pub(crate) scope: Scope,
    pub(crate) callers: Callers,
    pub(crate) key: KeyRule,
    pub(crate) dialect: Dialect,
    pub(crate) policy: Arc<Policy>,
    /// The policy for a key from the body, if the sender is not proven.
    pub(crate) policy_for_body_key: Arc<Policy>,
    /// Whether that equals the general policy.
    pub(crate) keep_under_body_keys: bool,
    /// The signature that every guarded request must carry.
    pub(crate) signature: Option<Signature>,
    pub(crate) fingerprint: FingerprintRule,
    /// The fingerprint rule for a signed key.
    pub(crate) fingerprint_for_signed_key: FingerprintRule,
    /// Whether a proxy in front names the host of a request.
    pub(crate) forwarded_host: bool,
    pub(crate) subject: SubjectRule,
    pub(crate) methods: Vec<Method>,
    /// The deadlines of clients that count, and what the service sees of them.
    pub(crate) deadline: DeadlineRule,
    pub(crate) replay_headers: ReplayHeaders,
    /// What pages of other origins may do.
    pub(crate) cors: Option<Arc<Cors>>,
    /// Where callers look up their operations.
    pub(crate) lookup: Option<LookupPath>,
    /// The keys that the server issues.
    pub(crate) issued_keys: Option<Arc<IssuedKeys>>,
    /// When the upstream is asked what became of a held operation.
    pub(crate) held_status: Option<Arc<dyn HeldStatus>>,
    /// How much of an answer is stored.
    pub(crate) content: RecordContent,
    /// How long an answer is read after its client has disconnected.
    pub(crate) read_on: Duration,
    pub(crate) docs: Option<Docs>,
    /// Whether answers carry a [`RequestOutcome`].
    pub(crate) record_outcome: bool,
    /// Whether requests are only observed.
    pub(crate) observe: bool,
    /// Former identities of this layer's records.
    pub(crate) former: FormerIdentity,
    /// The date in the `Deprecation` header of requests without a key: when the layer was built,
    /// unless it was set.
    pub(crate) since: HeaderValue,
}

impl LayerConfig {
    pub(crate) fn new(semel: Semel, scope: Scope, callers: Callers) -> Self {
        let policy = Policy::default();
        Self {
            semel,
            scope,
            callers,
            key: KeyRule::default(),
            dialect: Dialect::IETF,
            policy_for_body_key: Arc::new(policy.keeping_successes()),
            policy: Arc::new(policy),
            keep_under_body_keys: false,
            signature: None,
            fingerprint: FingerprintRule::default(),
            fingerprint_for_signed_key: FingerprintRule::default(),
            forwarded_host: false,
            subject: SubjectRule::default(),
            methods: vec![Method::POST, Method::PATCH],
            deadline: DeadlineRule::new([]),
            replay_headers: ReplayHeaders::default(),
            cors: None,
            lookup: None,
            issued_keys: None,
            held_status: None,
            content: RecordContent::default(),
            read_on: READ_ON_DEFAULT,
            docs: None,
            record_outcome: false,
            observe: false,
            former: FormerIdentity::default(),
            since: deprecation(now()),
        }
    }

    /// The deadline of a request; refuses a request whose deadline has passed or cannot be read.
    pub(crate) fn deadline_of(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<Deadline>, RequestRefusal> {
        let left = self.deadline.time_left(headers, now())?;
        Ok(left.map(|left| self.semel.deadline_in(left)))
    }

    /// The caller of a request that the layer answers itself.
    pub(crate) async fn identify(&self, parts: &Parts) -> Result<Identified, RequestRefusal> {
        let caller = self.callers.identify(parts);
        if !matches!(&caller, Err(refusal) if refusal.waits_for_keys()) {
            return caller;
        }
        self.callers.keys_refreshed().await;
        self.callers.identify(parts)
    }

    /// Refuses a request before it reaches the engine.
    pub(crate) fn refuse<B>(
        &self,
        responder: Responder<'_>,
        refusal: &RequestRefusal,
    ) -> Response<Body<B>> {
        self.report_caller_failure(refusal);
        self.semel.report(&self.scope, EventKind::Refused(refusal.problem));
        let mut response = responder.refuse(refusal);
        if self.record_outcome {
            let outcome = RequestOutcomeKind::Refused(refusal.problem);
            response.extensions_mut().insert(RequestOutcome { id: None, outcome, lease: None });
        }
        response
    }

    /// Reports why a caller was refused, if that is the reason of the refusal.
    pub(crate) fn report_caller_failure(&self, refusal: &RequestRefusal) {
        if let Some(failure) = refusal.caller_failure {
            let reason = failure.as_str();
            self.semel.report(&self.scope, EventKind::CallerRefused { reason });
        }
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.policy_for_body_key = Arc::new(policy.keeping_successes());
        self.policy = Arc::new(policy);
    }

    pub(crate) fn set_callers(&mut self, callers: Callers) {
        self.callers = callers;
        self.adjust_callers();
    }

    pub(crate) fn set_key(&mut self, key: KeyRule) {
        self.key = key;
        self.key.set_bytes_max(self.dialect.key_bytes_max());
        self.adjust_callers();
    }

    pub(crate) fn set_dialect(&mut self, dialect: Dialect) {
        let key = KeyRule::of_dialect(&dialect).with_requirement_of(&self.key);
        self.dialect = dialect;
        self.set_key(key);
    }

    pub(crate) fn set_forwarded_host(&mut self) {
        self.forwarded_host = true;
        self.adjust_callers();
    }

    #[cfg(feature = "webhooks")]
    pub(crate) fn set_signature(&mut self, signature: Signature) {
        self.signature = Some(signature);
        self.adjust_callers();
    }

    pub(crate) fn add_former_callers(&mut self, callers: Callers, until: Option<SystemTime>) {
        self.former.callers.push((callers, until));
        self.adjust_callers();
    }

    /// Applies the other settings to the rules for callers, present and former.
    fn adjust_callers(&mut self) {
        let mut read = self.key.headers();
        let counted = self.fingerprint.headers.iter();
        read.extend(counted.filter_map(|name| HeaderName::try_from(name.as_str()).ok()));
        let former = self.former.callers.iter_mut().map(|(callers, _)| callers);
        for callers in former.chain([&mut self.callers]) {
            callers.set_read(read.clone());
            if self.signature.is_some() {
                callers.set_verified();
            }
            if self.forwarded_host {
                callers.set_forwarded_host();
            }
        }
    }

    /// The policy for a key. A key from the body is trusted like any other if a signature covers it
    /// or the caller is proven: no other client can use the key first.
    pub(crate) const fn policy_for(&self, key_from_body: bool, proven: bool) -> &Arc<Policy> {
        let proven = proven || self.signature.is_some() || self.keep_under_body_keys;
        if key_from_body && !proven { &self.policy_for_body_key } else { &self.policy }
    }

    pub(crate) fn set_fingerprint(&mut self, rule: FingerprintRule) {
        self.fingerprint_for_signed_key = rule.clone();
        self.fingerprint = rule;
        self.adjust_callers();
    }

    /// Excludes the host from the fingerprint.
    pub(crate) const fn ignore_host(&mut self) {
        self.fingerprint.host = HostRule::Ignore;
        self.fingerprint_for_signed_key.host = HostRule::Ignore;
    }

    /// The fingerprint rule for a key. A client that can send a captured event under another key
    /// could use up the key of a future event; so the body must be equal there.
    pub(crate) fn fingerprint_for(&self, key_from_body: bool) -> &FingerprintRule {
        let signs = |signature: &Signature| {
            key_from_body || self.key.is_signed(|name| signature.signs(name))
        };
        if self.signature.as_ref().is_some_and(signs) {
            &self.fingerprint_for_signed_key
        } else {
            &self.fingerprint
        }
    }

    /// Whether requests are only observed. A signature has to keep forgeries out, which observing
    /// cannot do: with a signature, requests are guarded.
    pub(crate) const fn observes(&self) -> bool {
        self.observe && self.signature.is_none()
    }

    /// The rule for pages of other origins, which an observing layer leaves to the service.
    pub(crate) fn cors(&self) -> Option<&Arc<Cors>> {
        self.cors.as_ref().filter(|_| !self.observes())
    }

    /// The rule for the response to a request with these headers.
    pub(crate) fn response_cors(&self, headers: &HeaderMap) -> Option<Box<ResponseCors>> {
        let of = |cors| Box::new(ResponseCors::new(cors, &self.dialect, headers));
        self.cors().map(of)
    }

    /// The answer to a preflight, if this layer answers it.
    pub(crate) fn preflight<B>(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Response<Body<B>>> {
        let cors = self.cors()?;
        preflighted_method(method, headers)?;
        let counted = self.fingerprint.headers.iter();
        let counted = counted.filter_map(|name| HeaderName::try_from(name.as_str()).ok());
        let deadlines = self.deadline.header_names();
        let read = self.key.headers().into_iter().chain(self.callers.named().iter().cloned());
        Some(cors.preflight(headers, &self.methods, read.chain(counted).chain(deadlines)))
    }

    /// The responder for a request with this version and these headers.
    pub(crate) fn responder(&self, version: Version, headers: &HeaderMap) -> Responder<'_> {
        let (docs, grpc) = (self.docs.as_ref(), grpc::is_grpc_request(version, headers));
        let next_read = self.held_status.as_ref().map(|status| status.interval());
        let retry = RetryContext::guarded(self.policy.on_unknown).with_next_read(next_read);
        Responder {
            docs,
            dialect: &self.dialect,
            grpc,
            is_webhook: self.signature.is_some(),
            retry,
        }
    }

    pub(crate) fn set_docs(&mut self, url: &str) {
        let target = link_target(url);
        let link = |relation| HeaderValue::try_from(format!("<{target}>; rel=\"{relation}\"")).ok();
        self.docs = link("describedby")
            .zip(link("deprecation"))
            .map(|(described_by, deprecation)| Docs { described_by, deprecation });
    }

    pub(crate) fn set_replay_headers(&mut self, names: impl IntoIterator<Item = HeaderName>) {
        self.replay_headers = ReplayHeaders::new(names);
    }
}

/// A URL for angle brackets: characters that are not allowed there are percent-encoded.
fn link_target(url: &str) -> String {
    use std::fmt::Write;

    let mut target = String::with_capacity(url.len());
    for byte in url.trim().bytes() {
        if byte.is_ascii_graphic() && !matches!(byte, b'<' | b'>' | b'"' | b'\\') {
            target.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(target, "%{byte:02X}");
        }
    }
    target
}

#[expect(clippy::disallowed_methods, reason = "dates in headers are in wall time")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// The date of RFC 9745: `@` and the seconds since 1970.
pub(crate) fn deprecation(since: SystemTime) -> HeaderValue {
    let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    HeaderValue::try_from(format!("@{}", since.as_secs()))
        .unwrap_or_else(|_| HeaderValue::from_static("@0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_cannot_be_broken_out_of() {
        assert_eq!(link_target("https://a.example/b#c"), "https://a.example/b#c");
        assert_eq!(link_target("https://a/>; x=\"é"), "https://a/%3E;%20x=%22%C3%A9");
    }

    #[test]
    fn a_deprecation_is_a_date() {
        let text = deprecation(now());
        let text = text.to_str().unwrap().strip_prefix('@').unwrap();
        assert!(text.parse::<u64>().unwrap() > 1_700_000_000);
    }
}
