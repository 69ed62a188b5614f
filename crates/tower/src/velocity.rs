//! Velocity limits and duplicates of a route: how often operations with equal values may run.
//!
//! The store decides the limits together with the claim, so they are exact for all processes that
//! share it. It sees keyed hashes of the values only.

use std::{borrow::Cow, error, fmt, time::Duration};

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, request::Parts};
use semel::core::{
    BodyKind, Fingerprint, LimitRefusal,
    canonical::{self, Pointer},
    limit::{AnswerTag, ClaimLimits, Counted, LIMITS_MAX, Limit, LimitKey, LimitKind},
};
use semel::{BeginRequest, Lease};
use sha2::Sha256;

use crate::{
    Secret,
    header::{IDEMPOTENCY_DUPLICATE, IDEMPOTENCY_TAG},
    refusal::{LimitAdvice, RequestRefusal, whole_seconds},
    request::DecodedBody,
};

/// The wait if all units are reserved by operations that run.
const RESERVED_RETRY: Duration = Duration::from_secs(1);

/// What a limit counts by. A value that a request does not have counts as one of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitValue {
    /// The caller.
    Caller,
    /// The address of the client; for IPv6 its /64 network.
    Address,
    /// A header, all its lines.
    Header(HeaderName),
    /// A place in a JSON body.
    Json(Pointer),
}

/// What happens to a claim beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitAction {
    /// It is granted and reported.
    Report,
    /// The same, and its answer carries `Idempotency-Duplicate: possible`.
    Mark,
    /// It is refused, and nothing runs.
    #[default]
    Refuse,
}

/// A limit of operations with equal values in a window.
///
/// ```
/// use std::time::Duration;
/// use semel_tower::{LimitValue, VelocityRule};
///
/// let rule = VelocityRule::new([LimitValue::Address], 20, Duration::from_secs(60));
/// # let _ = rule;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VelocityRule {
    values: Vec<LimitValue>,
    /// Whether operations count by what they mean.
    by_intent: bool,
    max: u16,
    window: Duration,
    counted: Counted,
    kind: LimitKind,
    action: LimitAction,
    name: Box<str>,
}

impl VelocityRule {
    /// At most `max` executions with these equal values in a window; what exceeds it is refused.
    pub fn new(values: impl IntoIterator<Item = LimitValue>, max: u16, window: Duration) -> Self {
        let mut rule = Self {
            values: values.into_iter().collect(),
            by_intent: false,
            max,
            window,
            counted: Counted::Executions,
            kind: LimitKind::Velocity,
            action: LimitAction::Refuse,
            name: "".into(),
        };
        rule.name = rule.describe().into();
        rule
    }

    /// The same operation of a caller under another key in a window: in flight, held or completed
    /// below 400.
    #[must_use]
    pub fn duplicates(window: Duration, action: LimitAction) -> Self {
        let mut rule = Self::new([LimitValue::Caller], 1, window);
        (rule.by_intent, rule.kind, rule.action) = (true, LimitKind::Duplicate, action);
        rule.counted = Counted::Completed;
        rule.name = "duplicates".into();
        rule
    }

    /// What counts, instead of executions.
    #[must_use]
    pub fn counting(mut self, counted: Counted) -> Self {
        self.counted = counted;
        self.name = self.describe().into();
        self
    }

    /// What happens beyond the limit.
    #[must_use]
    pub const fn action(mut self, action: LimitAction) -> Self {
        self.action = action;
        self
    }

    /// The name of the limit, for clients and metrics: what it counts, by which values.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn describe(&self) -> String {
        let values: Vec<Cow<'_, str>> = self.values.iter().map(LimitValue::name).collect();
        format!("{} by {}", self.counted, values.join(", "))
    }

    /// What the key of a counter depends on besides values: limits that differ do not share units.
    fn settings(&self) -> String {
        let (max, window) = (self.max, self.window.as_millis());
        format!("{:?} {} {max} {window} {}", self.kind, self.describe(), self.by_intent)
    }
}

impl LimitValue {
    fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Caller => "caller".into(),
            Self::Address => "address".into(),
            Self::Header(name) => name.as_str().into(),
            Self::Json(pointer) => pointer.to_string().into(),
        }
    }
}

/// The store of the engine does not support velocity limits, as those in a transaction of the user
/// do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsUnsupported;

impl fmt::Display for LimitsUnsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this store does not support velocity limits")
    }
}

impl error::Error for LimitsUnsupported {}

/// The limits of a layer.
#[derive(Clone, Debug)]
pub(crate) struct VelocityRules {
    rules: Vec<VelocityRule>,
    /// For keyed hashes, with the settings of each rule hashed already.
    hashes: Vec<Hmac<Sha256>>,
}

impl VelocityRules {
    /// `None` without a rule; rules beyond [`LIMITS_MAX`] and repeated ones are left out.
    pub(crate) fn new(mut rules: Vec<VelocityRule>, secret: &Secret, scope: &str) -> Option<Self> {
        let mut seen = Vec::new();
        rules.retain(|rule| {
            let settings = rule.settings();
            let is_new = !seen.contains(&settings) && seen.len() < LIMITS_MAX;
            seen.push(settings);
            is_new
        });
        let key = secret.derive_key("velocity limits");
        let hash = |rule: &VelocityRule| {
            let mut hash = Hmac::new_from_slice(&key).ok()?;
            update(&mut hash, scope.as_bytes());
            update(&mut hash, rule.settings().as_bytes());
            Some(hash)
        };
        let hashes: Vec<Hmac<Sha256>> = rules.iter().filter_map(hash).collect();
        (!rules.is_empty() && hashes.len() == rules.len()).then_some(Self { rules, hashes })
    }

    /// Whether a rule counts by what an operation means.
    pub(crate) fn need_intent(&self) -> bool {
        self.rules.iter().any(|rule| rule.by_intent)
    }

    /// The limits of a request.
    pub(crate) fn limits(
        &self,
        parts: &Parts,
        body: &DecodedBody<'_>,
        operation: &BeginRequest,
        intent: Fingerprint,
    ) -> ClaimLimits {
        let pointers = self.rules.iter().flat_map(|rule| &rule.values);
        let pointers = pointers.filter_map(|value| match value {
            LimitValue::Json(pointer) => Some(pointer),
            LimitValue::Caller | LimitValue::Address | LimitValue::Header(_) => None,
        });
        let read = !body.opaque && body.kind != BodyKind::Empty;
        let found = read.then(|| canonical::find_all(&body.body, pointers).ok()).flatten();
        let mut members = found.unwrap_or_default().into_iter();
        let is_intended = parts
            .headers
            .get(IDEMPOTENCY_DUPLICATE)
            .is_some_and(|value| value.as_bytes().trim_ascii() == b"intended");
        let limits = self.rules.iter().zip(&self.hashes).map(|(rule, hash)| {
            let mut hash = hash.clone();
            for value in &rule.values {
                match value {
                    LimitValue::Caller => {
                        update(&mut hash, operation.id.caller.as_str().as_bytes())
                    }
                    LimitValue::Address => match operation.sender.peer() {
                        Some(peer) => update(&mut hash, peer.to_string().as_bytes()),
                        None => absent(&mut hash),
                    },
                    LimitValue::Header(name) => header(&mut hash, &parts.headers, name),
                    LimitValue::Json(_) => match members.next().flatten() {
                        // The kind of the value counts: "1" is not 1.
                        Some(value) => update(&mut hash, format!("{value:?}").as_bytes()),
                        None => absent(&mut hash),
                    },
                }
            }
            if rule.by_intent {
                update(&mut hash, intent.as_bytes());
            }
            rule.limit(hash, is_intended)
        });
        // They are few and distinct: see `new`.
        ClaimLimits::new(limits).unwrap_or_default()
    }

    /// The response to a request that a limit refused.
    pub(crate) fn refusal(&self, refused: LimitRefusal) -> RequestRefusal {
        let Some(rule) = self.rules.get(usize::from(refused.index)) else {
            return refused.problem().into();
        };
        if rule.kind == LimitKind::Duplicate {
            let detail = "The same operation was sent under another key a short time ago. Nothing \
                          was done. If a second one is meant, send the request again with the \
                          same key and the header `Idempotency-Duplicate: intended`.";
            return RequestRefusal::detailed(refused.problem(), detail);
        }
        let (name, max, window) = (rule.name(), rule.max, rule.window.as_secs());
        let detail = format!(
            "The limit \"{name}\" of {max} in {window} s was reached. Nothing was done; retry with \
             the same key after the time in Retry-After."
        );
        let wait = refused.frees_in.unwrap_or(RESERVED_RETRY);
        let mut refusal = RequestRefusal::detailed(refused.problem(), detail);
        refusal.limit = Some(Box::new(LimitAdvice {
            wait,
            rate_limit: rate_limit(name, wait),
            policy: value(&format!("\"{name}\";q={max};w={window}")),
        }));
        refusal
    }

    /// The rules of the limits that an operation has exceeded and that only report.
    pub(crate) fn exceeded(&self, lease: &Lease) -> impl Iterator<Item = &VelocityRule> {
        let exceeded = lease.exceeded_limits();
        let rules = (0_u8..).zip(&self.rules);
        rules.filter(move |(index, _)| exceeded.contains(*index)).map(|(_, rule)| rule)
    }

    /// The rule at this position.
    pub(crate) fn rule(&self, refused: LimitRefusal) -> Option<&VelocityRule> {
        self.rules.get(usize::from(refused.index))
    }
}

impl VelocityRule {
    fn limit(&self, hash: Hmac<Sha256>, is_intended: bool) -> Limit {
        let hash: [u8; 32] = hash.finalize().into_bytes().into();
        let mut key = [0; 16];
        key.iter_mut().zip(hash).for_each(|(to, byte)| *to = byte);
        let mut limit = Limit::new(LimitKey::from_bytes(key), self.max, self.window);
        limit.counted = self.counted.clone();
        limit.kind = self.kind;
        limit.refuses = self.action == LimitAction::Refuse
            && !(is_intended && self.kind == LimitKind::Duplicate);
        limit
    }

    /// Whether the answer of an operation that exceeded the limit is marked.
    pub(crate) fn marks(&self) -> bool {
        self.action == LimitAction::Mark
    }
}

fn rate_limit(name: &str, wait: Duration) -> Option<HeaderValue> {
    value(&format!("\"{name}\";r=0;t={}", whole_seconds(wait)))
}

fn value(text: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(text).ok()
}

/// The tag that the service gave its answer.
pub(crate) fn answer_tag(headers: &HeaderMap) -> Option<AnswerTag> {
    AnswerTag::new(headers.get(IDEMPOTENCY_TAG)?.to_str().ok()?.trim())
}

/// A part with its length, so that different parts never hash the same bytes.
fn update(hash: &mut Hmac<Sha256>, part: &[u8]) {
    hash.update(&[1]);
    hash.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
    hash.update(part);
}

fn absent(hash: &mut Hmac<Sha256>) {
    hash.update(&[0]);
}

fn header(hash: &mut Hmac<Sha256>, headers: &HeaderMap, name: &HeaderName) {
    let lines = headers.get_all(name).iter();
    let lines: Vec<&[u8]> = lines.map(|line| line.as_bytes().trim_ascii()).collect();
    if lines.is_empty() {
        return absent(hash);
    }
    update(hash, &lines.join(&b", "[..]));
}
