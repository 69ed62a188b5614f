//! What a route says, in one place that all its requests share.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use semel::{
    EventKind, Semel,
    core::{FingerprintRule, HostRule, Keep, Policy, RetryContext, Scope, StatusSet},
};

use crate::{
    Callers, KeyRule, READ_ON_DEFAULT, RecordContent, Served, ServedOutcome, Signature, body::Body,
    former::Former, grpc, kept::Kept, refusal::Refusal, reply::Voice, subject::SubjectRule,
};

/// The settings of one layer.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) semel: Semel,
    pub(crate) scope: Scope,
    pub(crate) callers: Callers,
    pub(crate) key: KeyRule,
    pub(crate) policy: Arc<Policy>,
    /// The policy for a key that the body named, if nothing proves who sent it.
    pub(crate) policy_for_body_key: Arc<Policy>,
    /// Whether that is the policy of all others.
    pub(crate) keep_under_body_keys: bool,
    /// What every guarded request must carry.
    pub(crate) signature: Option<Signature>,
    pub(crate) fingerprint: FingerprintRule,
    /// The rule where the key itself is signed.
    pub(crate) fingerprint_for_signed_key: FingerprintRule,
    /// Whether a proxy in front says which host a request is for.
    pub(crate) forwarded_host: bool,
    pub(crate) subject: SubjectRule,
    pub(crate) methods: Vec<Method>,
    pub(crate) kept: Kept,
    /// How much of an answer is stored.
    pub(crate) content: RecordContent,
    /// How long an answer is read on after its client left.
    pub(crate) read_on: Duration,
    pub(crate) docs: Option<Docs>,
    /// Whether answers carry a [`Served`].
    pub(crate) served: bool,
    /// Whether requests are to be looked at only.
    pub(crate) observe: bool,
    /// Where else the records of this layer may be.
    pub(crate) former: Former,
    /// When the layer was built, as a `Deprecation` header says it.
    pub(crate) since: HeaderValue,
}

/// The lines that lead to the documentation.
#[derive(Clone, Debug)]
pub(crate) struct Docs {
    pub(crate) described_by: HeaderValue,
    pub(crate) deprecation: HeaderValue,
}

impl Config {
    pub(crate) fn new(semel: Semel, scope: Scope, callers: Callers) -> Self {
        let policy = Policy::default();
        Self {
            semel,
            scope,
            callers,
            key: KeyRule::default(),
            policy_for_body_key: Arc::new(success_only(&policy)),
            policy: Arc::new(policy),
            keep_under_body_keys: false,
            signature: None,
            fingerprint: FingerprintRule::default(),
            fingerprint_for_signed_key: FingerprintRule::default(),
            forwarded_host: false,
            subject: SubjectRule::default(),
            methods: vec![Method::POST, Method::PATCH],
            kept: Kept::default(),
            content: RecordContent::default(),
            read_on: READ_ON_DEFAULT,
            docs: None,
            served: false,
            observe: false,
            former: Former::default(),
            since: now(),
        }
    }

    /// Refuses a request before the engine heard of it.
    pub(crate) fn refuse<B>(&self, voice: Voice<'_>, refusal: &Refusal) -> Response<Body<B>> {
        self.semel.report(&self.scope, EventKind::Refused(refusal.problem));
        let mut response = voice.refuse(refusal);
        if self.served {
            let outcome = ServedOutcome::Refused(refusal.problem);
            response.extensions_mut().insert(Served { id: None, outcome, lease: None });
        }
        response
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.policy_for_body_key = Arc::new(success_only(&policy));
        self.policy = Arc::new(policy);
    }

    pub(crate) fn set_callers(&mut self, callers: Callers) {
        self.callers = callers;
        self.adjust_callers();
    }

    pub(crate) fn set_key(&mut self, key: KeyRule) {
        self.key = key;
        self.adjust_callers();
    }

    pub(crate) fn set_forwarded_host(&mut self) {
        self.forwarded_host = true;
        self.adjust_callers();
    }

    pub(crate) fn set_signature(&mut self, signature: Signature) {
        self.signature = Some(signature);
        self.adjust_callers();
    }

    pub(crate) fn add_former_callers(&mut self, callers: Callers, until: Option<SystemTime>) {
        self.former.callers.push((callers, until));
        self.adjust_callers();
    }

    /// Tells the rules for callers, present and former, what the other settings say.
    fn adjust_callers(&mut self) {
        let former = self.former.callers.iter_mut().map(|(callers, _)| callers);
        for callers in former.chain([&mut self.callers]) {
            callers.set_keys(self.key.headers());
            if self.signature.is_some() {
                callers.set_verified();
            }
            if self.forwarded_host {
                callers.set_forwarded_host();
            }
        }
    }

    /// The policy for a key. One from the body is as good as any where a signature covers it, or
    /// where the caller is proven: nobody else can come before him with it.
    pub(crate) const fn policy_for(&self, key_from_body: bool, proven: bool) -> &Arc<Policy> {
        let proven = proven || self.signature.is_some() || self.keep_under_body_keys;
        if key_from_body && !proven { &self.policy_for_body_key } else { &self.policy }
    }

    pub(crate) fn set_fingerprint(&mut self, rule: FingerprintRule) {
        self.fingerprint_for_signed_key = rule.clone();
        self.fingerprint = rule;
    }

    /// Leaves the host out, whatever the rules say.
    pub(crate) const fn ignore_host(&mut self) {
        self.fingerprint.host = HostRule::Ignore;
        self.fingerprint_for_signed_key.host = HostRule::Ignore;
    }

    /// What counts under a key. Whoever can send a captured event under another key could take the
    /// place of an event that is still to come; so there the body must be the same, too.
    pub(crate) fn fingerprint_for(&self, key_from_body: bool) -> &FingerprintRule {
        let signs = |signature: &Signature| key_from_body || self.key.is_signed_by(signature);
        if self.signature.as_ref().is_some_and(signs) {
            &self.fingerprint_for_signed_key
        } else {
            &self.fingerprint
        }
    }

    /// Whether requests are only looked at. A signature is there to keep forgeries out, which
    /// cannot be done by looking: where there is one, requests are guarded.
    pub(crate) const fn observes(&self) -> bool {
        self.observe && self.signature.is_none()
    }

    /// How a request with these headers is answered.
    pub(crate) fn voice(&self, headers: &HeaderMap) -> Voice<'_> {
        let (docs, grpc) = (self.docs.as_ref(), grpc::is_grpc(headers));
        let retry = RetryContext::guarded(self.policy.on_unknown);
        Voice { docs, grpc, inbox: self.signature.is_some(), retry }
    }

    pub(crate) fn set_docs(&mut self, url: &str) {
        let target = link_target(url);
        let link = |relation| HeaderValue::try_from(format!("<{target}>; rel=\"{relation}\"")).ok();
        self.docs = link("describedby")
            .zip(link("deprecation"))
            .map(|(described_by, deprecation)| Docs { described_by, deprecation });
    }

    pub(crate) fn set_kept(&mut self, names: impl IntoIterator<Item = HeaderName>) {
        self.kept = Kept::new(names);
    }
}

/// The policy under a key that proves nothing about who sent it: no error is kept.
fn success_only(policy: &Policy) -> Policy {
    let keep = match &policy.keep {
        Keep::Statuses(statuses) => Keep::Statuses(StatusSet::new(
            statuses.iter().filter(|status| (200..300).contains(status)),
        )),
        Keep::Deterministic | Keep::Success | Keep::All => Keep::Success,
    };
    Policy { keep, ..policy.clone() }
}

/// A URL between angle brackets: what cannot stand there is percent-encoded.
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

/// The date of RFC 9745: `@` and the seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "a date for a header, once per layer")]
fn now() -> HeaderValue {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
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
    fn under_a_key_from_the_body_a_list_is_shorter_by_its_errors() {
        let kept = |keep| success_only(&Policy { keep, ..Policy::default() }).keep;
        let list = |statuses: &[u16]| Keep::Statuses(StatusSet::new(statuses.iter().copied()));
        assert_eq!(kept(list(&[200, 201, 400, 422])), list(&[200, 201]));
        assert_eq!(kept(Keep::All), Keep::Success);
        assert_eq!(kept(Keep::Deterministic), Keep::Success);
    }

    #[test]
    fn a_deprecation_is_a_date() {
        let text = now();
        let text = text.to_str().unwrap().strip_prefix('@').unwrap();
        assert!(text.parse::<u64>().unwrap() > 1_700_000_000);
    }
}
