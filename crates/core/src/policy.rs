//! What a route says about its operations, and what that makes of an answer.

use std::time::Duration;

use crate::OnUnknown;

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
    /// Which answers are recorded.
    pub keep: Keep,
    /// Which statuses, if they are not kept, free the key for another try. Those from 400 to 499
    /// always do.
    pub release: StatusSet,
    /// What to do with a new request while the store is away.
    pub on_store_down: OnStoreDown,
    /// The largest request body that is guarded.
    pub request_bytes_max: usize,
    /// The largest answer whose body is recorded.
    pub response_bytes_max: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(24 * 60 * 60),
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(10),
            on_unknown: OnUnknown::Hold,
            keep: Keep::Deterministic,
            release: StatusSet::new([401, 403, 408, 425, 429, 500, 503]),
            on_store_down: OnStoreDown::Reject,
            request_bytes_max: 1 << 20,
            response_bytes_max: 1 << 20,
        }
    }
}

/// Which answers are recorded and replayed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Those that a repeat would get again: 2xx, 3xx, and 4xx less 401, 403, 408, 425 and 429.
    Deterministic,
    /// 2xx only.
    Success,
    /// Every answer, errors included.
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

/// What an answer says about itself, as far as a policy asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFacts {
    /// The HTTP status.
    pub status: u16,
    /// For gRPC, what its trailers said.
    pub grpc: Grpc,
    /// What the service said in `Idempotency-Outcome`.
    pub said: Option<Verdict>,
}

/// Whether an answer is gRPC, and its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grpc {
    /// Plain HTTP: the HTTP status counts.
    No,
    /// gRPC that ended without `grpc-status`.
    NoTrailers,
    /// The value of `grpc-status`.
    Status(u16),
}

/// What an answer makes of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Recorded and replayed.
    Completed,
    /// Not recorded; the key is free for another try.
    Retry,
    /// Nobody knows what happened: `on_unknown` decides.
    Unknown,
}

impl Verdict {
    /// Reads `Idempotency-Outcome`.
    #[must_use]
    pub fn from_header(value: &[u8]) -> Option<Self> {
        match value.trim_ascii() {
            b"completed" => Some(Self::Completed),
            b"retry" => Some(Self::Retry),
            b"unknown" => Some(Self::Unknown),
            _ => None,
        }
    }
}

impl Policy {
    /// What an answer makes of its record: the first row that fits.
    #[must_use]
    pub fn verdict(&self, facts: &AnswerFacts) -> Verdict {
        if let Some(said) = facts.said {
            return said;
        }
        match facts.grpc {
            Grpc::No => self.http_verdict(facts.status),
            Grpc::NoTrailers => Verdict::Unknown,
            Grpc::Status(code) => self.grpc_verdict(code),
        }
    }

    fn http_verdict(&self, status: u16) -> Verdict {
        let keep = match &self.keep {
            Keep::All => true,
            Keep::Success => matches!(status, 200..=299),
            Keep::Statuses(set) => set.contains(status),
            Keep::Deterministic => {
                matches!(status, 200..=499) && !matches!(status, 401 | 403 | 408 | 425 | 429)
            }
        };
        if keep {
            Verdict::Completed
        } else if self.release.contains(status) || matches!(status, 400..=499) {
            // An error of the client was refused: nothing happened.
            Verdict::Retry
        } else {
            // A success or a redirect that is not kept is no proof that nothing happened.
            Verdict::Unknown
        }
    }

    /// gRPC's codes, judged by what they promise (`google.rpc.Code`), with `keep` and `release`
    /// read through the HTTP status of each. `UNKNOWN`, `CANCELLED`,
    /// `DEADLINE_EXCEEDED` and `DATA_LOSS` promise nothing; `ABORTED` promises that nothing
    /// happened.
    fn grpc_verdict(&self, code: u16) -> Verdict {
        let status = match code {
            0 => 200,
            3 | 9 | 11 => 400,
            5 => 404,
            6 => 409,
            7 => 403,
            8 => 429,
            12 => 501,
            13 => 500,
            14 => 503,
            16 => 401,
            10 if self.keep != Keep::All => return Verdict::Retry,
            _ if self.keep != Keep::All => return Verdict::Unknown,
            _ => return Verdict::Completed,
        };
        // `UNIMPLEMENTED` is an answer that a repeat would get again, though 501 is not.
        if code == 12 && self.keep == Keep::Deterministic {
            return Verdict::Completed;
        }
        self.http_verdict(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(status: u16) -> AnswerFacts {
        AnswerFacts { status, grpc: Grpc::No, said: None }
    }

    fn grpc(code: u16) -> AnswerFacts {
        AnswerFacts { status: 200, grpc: Grpc::Status(code), said: None }
    }

    #[test]
    fn deterministic_answers_are_kept_and_transient_ones_released() {
        let policy = Policy::default();
        for status in [200, 201, 204, 302, 400, 402, 404, 409, 422] {
            assert_eq!(policy.verdict(&http(status)), Verdict::Completed, "{status}");
        }
        for status in [401, 403, 408, 425, 429, 500, 503] {
            assert_eq!(policy.verdict(&http(status)), Verdict::Retry, "{status}");
        }
        for status in [501, 502, 504, 599] {
            assert_eq!(policy.verdict(&http(status)), Verdict::Unknown, "{status}");
        }
    }

    #[test]
    fn a_500_taken_off_the_release_list_is_unknown() {
        let policy = Policy { release: StatusSet::new([503]), ..Policy::default() };
        assert_eq!(policy.verdict(&http(500)), Verdict::Unknown);
        assert_eq!(policy.verdict(&http(503)), Verdict::Retry);
    }

    #[test]
    fn keep_comes_before_release() {
        let all = Policy { keep: Keep::All, ..Policy::default() };
        assert_eq!(all.verdict(&http(500)), Verdict::Completed);
        assert_eq!(all.verdict(&grpc(2)), Verdict::Completed);
        let success = Policy { keep: Keep::Success, ..Policy::default() };
        assert_eq!(success.verdict(&http(404)), Verdict::Retry);
        let listed = Policy { keep: Keep::Statuses(StatusSet::new([418])), ..Policy::default() };
        assert_eq!(listed.verdict(&http(418)), Verdict::Completed);
        assert_eq!(listed.verdict(&http(404)), Verdict::Retry);
    }

    #[test]
    fn a_success_that_is_not_kept_is_unknown() {
        let success = Policy { keep: Keep::Success, ..Policy::default() };
        for status in [100, 302, 303, 399] {
            assert_eq!(success.verdict(&http(status)), Verdict::Unknown, "{status}");
        }
        let created = Policy { keep: Keep::Statuses(StatusSet::new([201])), ..Policy::default() };
        assert_eq!(created.verdict(&http(201)), Verdict::Completed);
        for status in [200, 202, 204, 303] {
            assert_eq!(created.verdict(&http(status)), Verdict::Unknown, "{status}");
        }
        assert_eq!(created.verdict(&grpc(0)), Verdict::Unknown);
        assert_eq!(created.verdict(&grpc(5)), Verdict::Retry);
        let listed = Policy { release: StatusSet::new([202, 502]), ..created };
        assert_eq!(listed.verdict(&http(202)), Verdict::Retry);
        assert_eq!(listed.verdict(&http(502)), Verdict::Retry);
        assert_eq!(listed.verdict(&http(200)), Verdict::Unknown);
    }

    #[test]
    fn what_the_service_says_comes_first() {
        let policy = Policy::default();
        for (text, verdict) in [
            (&b"completed"[..], Verdict::Completed),
            (b"retry", Verdict::Retry),
            (b" unknown ", Verdict::Unknown),
        ] {
            let said = Verdict::from_header(text);
            assert_eq!(said, Some(verdict));
            assert_eq!(policy.verdict(&AnswerFacts { said, ..http(200) }), verdict);
        }
        assert_eq!(Verdict::from_header(b"maybe"), None);
    }

    #[test]
    fn grpc_is_judged_by_its_own_status() {
        let policy = Policy::default();
        let expected = [
            (0, Verdict::Completed),
            (1, Verdict::Unknown),
            (2, Verdict::Unknown),
            (3, Verdict::Completed),
            (4, Verdict::Unknown),
            (5, Verdict::Completed),
            (6, Verdict::Completed),
            (7, Verdict::Retry),
            (8, Verdict::Retry),
            (9, Verdict::Completed),
            (10, Verdict::Retry),
            (11, Verdict::Completed),
            (12, Verdict::Completed),
            (13, Verdict::Retry),
            (14, Verdict::Retry),
            (15, Verdict::Unknown),
            (16, Verdict::Retry),
            (99, Verdict::Unknown),
        ];
        for (code, verdict) in expected {
            assert_eq!(policy.verdict(&grpc(code)), verdict, "grpc-status {code}");
        }
        let missing = AnswerFacts { grpc: Grpc::NoTrailers, ..http(200) };
        assert_eq!(policy.verdict(&missing), Verdict::Unknown);
    }
}
