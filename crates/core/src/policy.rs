//! What a route says about its operations, and what that makes of an answer.

use std::time::Duration;

use crate::{OnUnknown, Reason, Verdict};

/// The settings of a route that decide what becomes of a request.
///
/// ```
/// use std::time::Duration;
/// use semel_core::{OnUnknown, Policy};
///
/// let policy = Policy { retention: Duration::from_secs(3600), ..Policy::default() };
/// assert_eq!(policy.on_unknown, OnUnknown::Hold);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// How long a finished record is kept.
    pub retention: Duration,
    /// How long an owner may stay silent before it counts as gone. The engine takes less than
    /// [`LEASE_MIN`](crate::LEASE_MIN) for that.
    pub lease: Duration,
    /// How long a repeat waits for the first answer; zero answers at once.
    pub wait: Duration,
    /// What to do when the outcome is unknown.
    pub on_unknown: OnUnknown,
    /// How long a held record waits for an operator before it ends with `operation-failed`. `None`
    /// holds it until an operator resolves it.
    pub hold_for: Option<Duration>,
    /// Which answers are recorded.
    pub keep: Keep,
    /// Which statuses free the key for any request: nothing ran under it.
    pub forget: StatusList,
    /// Which statuses free the key for the same request: by convention, services send them before
    /// the work begins.
    pub release: StatusList,
    /// What to do with a new request while the store is away.
    pub on_store_down: OnStoreDown,
    /// How long a claim may take, reconnecting included.
    pub store_timeout: Duration,
    /// The largest request body that is guarded.
    pub request_bytes_max: usize,
    /// The largest answer whose body is recorded.
    pub response_bytes_max: usize,
}

/// What [`Policy::forget`] means by [`StatusList::Default`].
pub const FORGET_DEFAULT: [u16; 3] = [307, 308, 421];

/// What [`Policy::release`] means by [`StatusList::Default`].
///
/// 408, 500 and 503 are not here: Go's `TimeoutHandler`, tower-http's `TimeoutLayer`, Express and
/// many proxies send them while the work goes on.
pub const RELEASE_DEFAULT: [u16; 6] = [401, 403, 405, 425, 429, 501];

impl Default for Policy {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(24 * 60 * 60),
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(10),
            on_unknown: OnUnknown::Hold,
            hold_for: None,
            keep: Keep::Deterministic,
            forget: StatusList::Default,
            release: StatusList::Default,
            on_store_down: OnStoreDown::Reject,
            store_timeout: Duration::from_secs(2),
            request_bytes_max: 1 << 20,
            response_bytes_max: 1 << 20,
        }
    }
}

/// Which answers are recorded and replayed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Those that a repeat would get again: 2xx, 3xx and 4xx, less 408, 499 and what
    /// [`Policy::forget`] and [`Policy::release`] list.
    Deterministic,
    /// 2xx only.
    Success,
    /// Every answer, errors included, less what [`Policy::forget`] and [`Policy::release`] list.
    All,
    /// These statuses.
    Statuses(StatusSet),
}

/// What to do with a new request while the store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreDown {
    /// No claim, no execution (`store-unavailable`).
    #[default]
    Reject,
    /// Run it unguarded.
    Pass,
}

/// A set of status codes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusSet(Vec<u16>);

impl StatusSet {
    /// A set of these codes.
    pub fn new(codes: impl IntoIterator<Item = u16>) -> Self {
        let mut codes: Vec<u16> = codes.into_iter().collect();
        codes.sort_unstable();
        codes.dedup();
        Self(codes)
    }

    /// Whether `code` is in the set.
    #[must_use]
    pub fn contains(&self, code: u16) -> bool {
        self.0.binary_search(&code).is_ok()
    }

    /// The codes, rising.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().copied()
    }
}

/// A list of statuses that a route may leave to its default. A status that another list names
/// explicitly is not on a default list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum StatusList {
    /// The default of the setting.
    #[default]
    Default,
    /// Exactly these statuses.
    Explicit(StatusSet),
}

impl StatusList {
    /// A list of exactly these statuses.
    pub fn explicit(codes: impl IntoIterator<Item = u16>) -> Self {
        Self::Explicit(StatusSet::new(codes))
    }

    /// The statuses that the route named.
    #[must_use]
    pub const fn named(&self) -> Option<&StatusSet> {
        match self {
            Self::Default => None,
            Self::Explicit(set) => Some(set),
        }
    }

    fn names(&self, status: u16) -> bool {
        self.named().is_some_and(|set| set.contains(status))
    }
}

/// What an answer says about itself, as far as a policy asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFacts {
    /// The HTTP status.
    pub status: u16,
    /// For gRPC, what its trailers said.
    pub grpc: GrpcStatus,
    /// What the service said in `Idempotency-Outcome`.
    pub said: Option<Verdict>,
    /// Whether the answer carries `Retry-After` or `x-should-retry: true`.
    pub asks_for_retry: bool,
}

/// Whether an answer is gRPC, and its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcStatus {
    /// Plain HTTP: the HTTP status counts.
    No,
    /// gRPC that ended without `grpc-status`.
    NoTrailers,
    /// The value of `grpc-status`.
    Status(u16),
}

impl AnswerFacts {
    /// Why the answer did not complete its record.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match (self.said, self.grpc) {
            (Some(Verdict::Completed), _) | (None, GrpcStatus::No) => Reason::Answered(self.status),
            (Some(said), _) => Reason::Declared(said),
            (None, GrpcStatus::NoTrailers) => Reason::GrpcStatusMissing,
            (None, GrpcStatus::Status(code)) => Reason::GrpcStatus(code),
        }
    }

    /// Whether the service reports success, so that "nothing happened" would contradict it.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        match self.grpc {
            GrpcStatus::No => self.status < 400,
            GrpcStatus::NoTrailers => true,
            GrpcStatus::Status(code) => code == 0,
        }
    }
}

impl Policy {
    /// The same policy under a key that proves nothing about who sent it: of what it keeps, only
    /// successes are kept.
    ///
    /// ```
    /// # use semel_core::{Keep, Policy};
    /// assert_eq!(Policy::default().keeping_successes().keep, Keep::Success);
    /// ```
    #[must_use]
    pub fn keeping_successes(&self) -> Self {
        let keep = match &self.keep {
            Keep::Statuses(statuses) => Keep::Statuses(StatusSet::new(
                statuses.iter().filter(|status| (200..300).contains(status)),
            )),
            Keep::Deterministic | Keep::Success | Keep::All => Keep::Success,
        };
        Self { keep, ..self.clone() }
    }

    /// What an answer makes of its record: the first row of the table in the contract that fits.
    #[must_use]
    pub fn verdict(&self, facts: &AnswerFacts) -> Verdict {
        match (facts.said, facts.grpc) {
            // "It did not happen" contradicts a success.
            (Some(Verdict::Retry | Verdict::Forget), _) if facts.is_success() => Verdict::Unknown,
            (Some(said), _) => said,
            (None, GrpcStatus::No) => self.http_verdict(facts.status, facts.asks_for_retry),
            (None, GrpcStatus::NoTrailers) => Verdict::Unknown,
            (None, GrpcStatus::Status(code)) => self.grpc_verdict(code),
        }
    }

    /// A status that two explicit lists name, which contradict each other then.
    #[must_use]
    pub fn contradiction(&self) -> Option<u16> {
        let listed = |list: &StatusList| -> Vec<u16> {
            list.named().into_iter().flat_map(StatusSet::iter).collect()
        };
        let kept = match &self.keep {
            Keep::Statuses(set) => set.iter().collect(),
            Keep::Deterministic | Keep::Success | Keep::All => Vec::new(),
        };
        let mut all = [listed(&self.forget), listed(&self.release), kept].concat();
        all.sort_unstable();
        all.windows(2).find_map(|pair| match pair {
            [first, second] if first == second => Some(*first),
            _ => None,
        })
    }

    /// What an explicit list of the route says about a status.
    fn listed(&self, status: u16) -> Option<Verdict> {
        if self.forget.names(status) {
            Some(Verdict::Forget)
        } else if self.release.names(status) {
            Some(Verdict::Retry)
        } else if matches!(&self.keep, Keep::Statuses(set) if set.contains(status)) {
            Some(Verdict::Completed)
        } else {
            None
        }
    }

    fn http_verdict(&self, status: u16, asks_for_retry: bool) -> Verdict {
        let client_error = matches!(status, 400..=499);
        let listed = self.listed(status);
        if listed != Some(Verdict::Forget) && client_error && asks_for_retry {
            return Verdict::Retry;
        }
        if let Some(listed) = listed {
            return listed;
        }
        if self.forget == StatusList::Default && FORGET_DEFAULT.contains(&status) {
            return Verdict::Forget;
        }
        if self.release == StatusList::Default && RELEASE_DEFAULT.contains(&status) {
            return Verdict::Retry;
        }
        let proves_nothing = matches!(status, 408 | 499);
        let kept = match &self.keep {
            Keep::All => matches!(status, 200..=599),
            Keep::Success => matches!(status, 200..=299),
            Keep::Deterministic => matches!(status, 200..=499) && !proves_nothing,
            Keep::Statuses(_) => false,
        };
        match () {
            () if kept => Verdict::Completed,
            // The service refused the request, so nothing happened.
            () if client_error && !proves_nothing => Verdict::Retry,
            // A success or a redirect that is not kept does not prove that nothing happened.
            () => Verdict::Unknown,
        }
    }

    /// Judges gRPC's codes by what `google.rpc.Code` promises of them. Explicit lists apply to the
    /// HTTP status of a code.
    fn grpc_verdict(&self, code: u16) -> Verdict {
        if let Some(listed) = self.listed(grpc_http_status(code)) {
            return listed;
        }
        let promises_a_refusal = matches!(code, 3 | 5 | 6 | 9 | 11);
        match (code, &self.keep) {
            (7 | 12 | 16, _) if self.release == StatusList::Default => Verdict::Retry,
            (_, Keep::All) | (0, Keep::Deterministic | Keep::Success) => Verdict::Completed,
            (_, Keep::Deterministic) if promises_a_refusal => Verdict::Completed,
            _ if promises_a_refusal || matches!(code, 7 | 12 | 16) => Verdict::Retry,
            // CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, INTERNAL,
            // UNAVAILABLE and DATA_LOSS: a proxy sends them for a stream that broke as well.
            _ => Verdict::Unknown,
        }
    }
}

/// The HTTP status that `google.rpc.Code` gives a gRPC code.
const fn grpc_http_status(code: u16) -> u16 {
    match code {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(status: u16) -> AnswerFacts {
        AnswerFacts { status, grpc: GrpcStatus::No, said: None, asks_for_retry: false }
    }

    fn grpc(code: u16) -> AnswerFacts {
        AnswerFacts { grpc: GrpcStatus::Status(code), ..http(200) }
    }

    #[test]
    fn of_a_list_only_successes_stay_under_a_key_that_proves_nothing() {
        let kept = |keep| Policy { keep, ..Policy::default() }.keeping_successes().keep;
        let list = |statuses: &[u16]| Keep::Statuses(StatusSet::new(statuses.iter().copied()));
        assert_eq!(kept(list(&[200, 201, 400, 422])), list(&[200, 201]));
        assert_eq!(kept(Keep::All), Keep::Success);
        assert_eq!(kept(Keep::Deterministic), Keep::Success);
    }

    #[test]
    fn the_defaults_trust_no_status_that_a_timeout_helper_sends() {
        let policy = Policy::default();
        for status in [200, 201, 204, 302, 303, 400, 402, 404, 409, 410, 422] {
            assert_eq!(policy.verdict(&http(status)), Verdict::Completed, "{status}");
        }
        for status in [307, 308, 421] {
            assert_eq!(policy.verdict(&http(status)), Verdict::Forget, "{status}");
        }
        for status in [401, 403, 405, 425, 429, 501] {
            assert_eq!(policy.verdict(&http(status)), Verdict::Retry, "{status}");
        }
        // 505 is about the version of HTTP, which the gateway chooses: no client can provoke it.
        for status in [100, 408, 499, 500, 502, 503, 504, 505, 507, 511, 599] {
            assert_eq!(policy.verdict(&http(status)), Verdict::Unknown, "{status}");
        }
    }

    #[test]
    fn every_status_has_a_verdict_under_every_policy_and_408_is_never_released_by_default() {
        let keeps = [Keep::Deterministic, Keep::Success, Keep::Statuses(StatusSet::new([201]))];
        for keep in keeps {
            let policy = Policy { keep, ..Policy::default() };
            for status in [408, 499] {
                assert_eq!(policy.verdict(&http(status)), Verdict::Unknown, "{status} {policy:?}");
            }
        }
        let listed = Policy { release: StatusList::explicit([408, 500]), ..Policy::default() };
        assert_eq!(listed.verdict(&http(408)), Verdict::Retry);
        assert_eq!(listed.verdict(&http(500)), Verdict::Retry);
        assert_eq!(listed.verdict(&http(503)), Verdict::Unknown);
    }

    #[test]
    fn a_client_error_that_asks_for_a_retry_is_released() {
        let policy = Policy::default();
        for status in [404, 408, 409, 422] {
            let facts = AnswerFacts { asks_for_retry: true, ..http(status) };
            assert_eq!(policy.verdict(&facts), Verdict::Retry, "{status}");
        }
        for (status, verdict) in [(200, Verdict::Completed), (503, Verdict::Unknown)] {
            let facts = AnswerFacts { asks_for_retry: true, ..http(status) };
            assert_eq!(policy.verdict(&facts), verdict, "{status}");
        }
    }

    #[test]
    fn an_explicit_list_takes_a_status_from_a_default_one() {
        let kept = Keep::Statuses(StatusSet::new([200, 307, 429]));
        let policy = Policy { keep: kept, ..Policy::default() };
        for status in [200, 307, 429] {
            assert_eq!(policy.verdict(&http(status)), Verdict::Completed, "{status}");
        }
        let policy = Policy { forget: StatusList::explicit([400, 401, 422]), ..Policy::default() };
        for status in [400, 401, 422] {
            assert_eq!(policy.verdict(&http(status)), Verdict::Forget, "{status}");
        }
        assert_eq!(policy.verdict(&http(307)), Verdict::Completed);
        assert_eq!(policy.verdict(&http(403)), Verdict::Retry);
    }

    #[test]
    fn two_explicit_lists_with_one_status_contradict_each_other() {
        assert_eq!(Policy::default().contradiction(), None);
        let (release, forget) = (StatusList::explicit([400, 500]), StatusList::explicit([400]));
        let both = Policy { release, forget, ..Policy::default() };
        assert_eq!(both.contradiction(), Some(400));
        let keep = Keep::Statuses(StatusSet::new([500]));
        let forget = StatusList::Default;
        assert_eq!(Policy { keep, forget, ..both }.contradiction(), Some(500));
    }

    #[test]
    fn keep_all_does_not_override_forget_and_release() {
        let all = Policy { keep: Keep::All, ..Policy::default() };
        for status in [200, 404, 408, 500, 503] {
            assert_eq!(all.verdict(&http(status)), Verdict::Completed, "{status}");
        }
        assert_eq!(all.verdict(&http(307)), Verdict::Forget);
        assert_eq!(all.verdict(&http(429)), Verdict::Retry);
        assert_eq!(all.verdict(&http(101)), Verdict::Unknown);
        assert_eq!(all.verdict(&grpc(2)), Verdict::Completed);
        assert_eq!(all.verdict(&grpc(16)), Verdict::Retry);
    }

    #[test]
    fn a_success_that_is_not_kept_is_unknown() {
        let success = Policy { keep: Keep::Success, ..Policy::default() };
        for status in [302, 303, 399] {
            assert_eq!(success.verdict(&http(status)), Verdict::Unknown, "{status}");
        }
        assert_eq!(success.verdict(&http(404)), Verdict::Retry);
        let created = Policy { keep: Keep::Statuses(StatusSet::new([201])), ..Policy::default() };
        assert_eq!(created.verdict(&http(201)), Verdict::Completed);
        for status in [200, 202, 204, 303] {
            assert_eq!(created.verdict(&http(status)), Verdict::Unknown, "{status}");
        }
        assert_eq!(created.verdict(&grpc(0)), Verdict::Unknown);
        assert_eq!(created.verdict(&grpc(5)), Verdict::Retry);
    }

    #[test]
    fn the_verdict_header_of_the_service_takes_precedence() {
        let policy = Policy::default();
        for (text, verdict) in [
            (&b"completed"[..], Verdict::Completed),
            (b"retry", Verdict::Retry),
            (b"forget", Verdict::Forget),
            (b" unknown ", Verdict::Unknown),
        ] {
            let said = Verdict::from_header(text);
            assert_eq!(said, Some(verdict));
            assert_eq!(policy.verdict(&AnswerFacts { said, ..http(500) }), verdict);
            assert_eq!(policy.verdict(&AnswerFacts { said, ..grpc(13) }), verdict);
        }
        assert_eq!(Verdict::from_header(b"maybe"), None);
    }

    #[test]
    fn a_service_cannot_take_a_success_back() {
        let policy = Policy::default();
        for said in [Some(Verdict::Retry), Some(Verdict::Forget)] {
            for facts in [http(200), http(303), grpc(0)] {
                let facts = AnswerFacts { said, ..facts };
                assert_eq!(policy.verdict(&facts), Verdict::Unknown, "{facts:?}");
            }
        }
    }

    #[test]
    fn grpc_is_judged_by_what_its_status_promises() {
        let policy = Policy::default();
        for code in 0..=20 {
            let expected = match code {
                0 | 3 | 5 | 6 | 9 | 11 => Verdict::Completed,
                7 | 12 | 16 => Verdict::Retry,
                _ => Verdict::Unknown,
            };
            assert_eq!(policy.verdict(&grpc(code)), expected, "grpc-status {code}");
        }
        let missing = AnswerFacts { grpc: GrpcStatus::NoTrailers, ..http(200) };
        assert_eq!(policy.verdict(&missing), Verdict::Unknown);
        let listed = Policy { release: StatusList::explicit([503]), ..Policy::default() };
        assert_eq!(listed.verdict(&grpc(14)), Verdict::Retry);
        assert_eq!(listed.verdict(&grpc(13)), Verdict::Unknown);
    }
}
