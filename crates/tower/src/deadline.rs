//! The deadline that a client sends with a request.
//!
//! A deadline bounds three things of the request that carries it: being admitted, waiting or
//! joining, and *beginning* to run. An operation that has begun is never cancelled by it, because a
//! cancelled operation has an unknown outcome.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use semel::{Deadline, core::Problem};

use crate::refusal::RequestRefusal;

/// A header in which clients send a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadlineHeader {
    /// `Request-Deadline`: a point in time, as a structured-field Date (`@1794902400`) or as in RFC
    /// 3339 (`2026-11-18T16:00:00Z`).
    RequestDeadline,
    /// `Request-Timeout`: seconds.
    RequestTimeout,
    /// `X-Request-Timeout-Ms`: milliseconds.
    RequestTimeoutMs,
    /// `grpc-timeout`: up to eight digits and a unit, as in `1500m`.
    GrpcTimeout,
    /// `x-envoy-expected-rq-timeout-ms`: milliseconds.
    EnvoyExpectedTimeoutMs,
}

impl DeadlineHeader {
    /// Every header.
    pub const ALL: [Self; 5] = [
        Self::RequestDeadline,
        Self::RequestTimeout,
        Self::RequestTimeoutMs,
        Self::GrpcTimeout,
        Self::EnvoyExpectedTimeoutMs,
    ];

    /// The name, in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RequestDeadline => "request-deadline",
            Self::RequestTimeout => "request-timeout",
            Self::RequestTimeoutMs => "x-request-timeout-ms",
            Self::GrpcTimeout => "grpc-timeout",
            Self::EnvoyExpectedTimeoutMs => "x-envoy-expected-rq-timeout-ms",
        }
    }

    /// The header with this name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|header| header.as_str().eq_ignore_ascii_case(name))
    }

    /// The form of its value, for people.
    const fn form(self) -> &'static str {
        match self {
            Self::RequestDeadline => "a date such as @1794902400 or 2026-11-18T16:00:00Z",
            Self::RequestTimeout => "a number of seconds such as 5 or 0.5",
            Self::RequestTimeoutMs | Self::EnvoyExpectedTimeoutMs => {
                "a number of milliseconds such as 1500"
            }
            Self::GrpcTimeout => "up to eight digits and a unit (H, M, S, m, u or n) such as 1500m",
        }
    }

    const fn header_name(self) -> HeaderName {
        HeaderName::from_static(self.as_str())
    }

    /// The time that a value leaves at `now`; zero if it is over.
    fn left(self, value: &str, now: SystemTime, leeway: Duration) -> Option<Duration> {
        match self {
            Self::RequestDeadline => {
                let at = SystemTime::from(date(value)?).checked_add(leeway)?;
                Some(at.duration_since(now).unwrap_or_default())
            }
            Self::RequestTimeout => seconds(value),
            Self::RequestTimeoutMs | Self::EnvoyExpectedTimeoutMs => {
                digits(value, 15).map(Duration::from_millis)
            }
            Self::GrpcTimeout => grpc_timeout(value),
        }
    }

    /// The value that leaves `left` at `now`, in the form of `before`.
    fn value(self, left: Duration, before: &HeaderValue, now: SystemTime) -> Option<HeaderValue> {
        let millis = left.as_millis();
        let text = match self {
            Self::RequestDeadline => {
                let at = Timestamp::try_from(now.checked_add(left)?).ok()?;
                if before.as_bytes().starts_with(b"@") {
                    format!("@{}", at.as_second())
                } else {
                    at.to_string()
                }
            }
            // Whole seconds where there are any, because not every service reads fractions.
            Self::RequestTimeout if left < Duration::from_secs(1) => {
                format!("0.{:03}", millis.max(1))
            }
            Self::RequestTimeout => left.as_secs().to_string(),
            Self::RequestTimeoutMs | Self::EnvoyExpectedTimeoutMs => millis.max(1).to_string(),
            Self::GrpcTimeout if millis < 100_000_000 => format!("{}m", millis.max(1)),
            Self::GrpcTimeout => format!("{}S", left.as_secs().min(99_999_999)),
        };
        HeaderValue::try_from(text).ok()
    }

    /// The value that hands on the rest of the client's deadline. A date stays as the client has
    /// sent it, unless another header ends earlier: each hop adds its own leeway.
    fn rest(self, left: Duration, before: &HeaderValue, now: SystemTime) -> Option<HeaderValue> {
        let sent = before.to_str().ok().map(str::trim).and_then(date).map(SystemTime::from);
        let is_earlier = sent.zip(now.checked_add(left)).is_some_and(|(sent, end)| sent <= end);
        if self == Self::RequestDeadline && is_earlier {
            return Some(before.clone());
        }
        self.value(left, before, now)
    }
}

/// Unsigned digits, at most `max` of them.
fn digits(text: &str, max: usize) -> Option<u64> {
    let plain = !text.is_empty() && text.len() <= max && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Seconds with at most three decimals, as a structured-field Integer or Decimal.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(w, f)| (w, Some(f)));
    let millis = match fraction {
        None => 0,
        Some(fraction) => {
            let scale = 10_u64.pow(u32::try_from(3_usize.checked_sub(fraction.len())?).ok()?);
            digits(fraction, 3)?.checked_mul(scale)?
        }
    };
    Some(Duration::from_secs(digits(whole, 12)?).saturating_add(Duration::from_millis(millis)))
}

fn grpc_timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = digits(number, 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number.saturating_mul(3600)),
        "M" => Duration::from_secs(number.saturating_mul(60)),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

fn date(text: &str) -> Option<Timestamp> {
    match text.strip_prefix('@') {
        Some(seconds) => Timestamp::from_second(seconds.parse().ok()?).ok(),
        None => text.parse().ok(),
    }
}

/// Which deadlines a route obeys, and what its service learns of them.
///
/// The earliest deadline of a request counts. A deadline that cannot be read is 400
/// `deadline-malformed`; one that has passed is 504 `deadline-exceeded`, before anything is done.
/// A client whose operation runs beyond the deadline gets 504 `deadline-exceeded` too; the
/// operation runs on, and a retry gets its answer.
///
/// ```
/// # use std::time::Duration;
/// use semel_tower::{DeadlineHeader, DeadlineRule};
///
/// let rule = DeadlineRule::new([DeadlineHeader::RequestTimeout, DeadlineHeader::GrpcTimeout])
///     .service_timeout(Duration::from_secs(60));
/// # drop(rule);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct DeadlineRule {
    headers: Vec<DeadlineHeader>,
    leeway: Duration,
    propagate: bool,
    service_timeout: Option<Duration>,
}

impl Default for DeadlineRule {
    fn default() -> Self {
        Self::new(DeadlineHeader::ALL)
    }
}

impl DeadlineRule {
    /// The leeway unless it is set.
    pub const LEEWAY_DEFAULT: Duration = Duration::from_secs(2);

    /// Obeys the deadlines in these headers. With none of them, no deadline is obeyed.
    pub fn new(headers: impl IntoIterator<Item = DeadlineHeader>) -> Self {
        let (headers, leeway) = (headers.into_iter().collect(), Self::LEEWAY_DEFAULT);
        Self { headers, leeway, propagate: false, service_timeout: None }
    }

    /// The headers that are read.
    pub(crate) fn header_names(&self) -> impl Iterator<Item = HeaderName> {
        self.headers.iter().map(|header| HeaderName::from_static(header.as_str()))
    }

    /// How far the clocks of clients may be behind (2 seconds). It is added to points in time, and
    /// not to durations.
    pub const fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// Passes the client's deadline on: the service sees the time that is left. Use it only where
    /// an operation that the service cancels may run again (`on_unknown = "rerun"`).
    pub const fn propagate(mut self) -> Self {
        self.propagate = true;
        self
    }

    /// The time limit of an operation that has begun. The service sees it instead of the client's
    /// deadline. Without it, the headers are removed.
    pub const fn service_timeout(mut self, timeout: Duration) -> Self {
        self.service_timeout = Some(timeout);
        self
    }

    /// The time that a request has left at `now`; `None` if it has no deadline.
    pub(crate) fn time_left(
        &self,
        headers: &HeaderMap,
        now: SystemTime,
    ) -> Result<Option<Duration>, RequestRefusal> {
        let mut earliest: Option<Duration> = None;
        for header in &self.headers {
            let mut lines = headers.get_all(header.as_str()).iter();
            let Some(line) = lines.next() else { continue };
            let text = line.to_str().ok().map(str::trim).filter(|_| lines.next().is_none());
            let left = text.and_then(|text| header.left(text, now, self.leeway));
            let left = left.ok_or_else(|| malformed(*header))?;
            earliest = Some(earliest.map_or(left, |earliest| earliest.min(left)));
        }
        match earliest {
            Some(Duration::ZERO) => Err(Problem::DeadlineExceeded.into()),
            left => Ok(left),
        }
    }

    /// Rewrites the headers for the service. It must not cancel what the client no longer waits
    /// for. Every gRPC server obeys `grpc-timeout`, so it is rewritten even where it is not read.
    pub(crate) fn rewrite(
        &self,
        headers: &mut HeaderMap,
        deadline: Option<Deadline>,
        now: SystemTime,
    ) {
        let unread = [DeadlineHeader::GrpcTimeout];
        let unread = unread.iter().filter(|header| !self.headers.contains(header));
        for header in self.headers.iter().chain(unread) {
            let Some(before) = headers.remove(header.as_str()) else { continue };
            let read = self.headers.contains(header);
            let value = if self.propagate && read {
                deadline.and_then(|deadline| header.rest(deadline.left(), &before, now))
            } else {
                self.service_timeout.and_then(|timeout| header.value(timeout, &before, now))
            };
            if let Some(value) = value {
                headers.insert(header.header_name(), value);
            }
        }
    }
}

fn malformed(header: DeadlineHeader) -> RequestRefusal {
    let (name, form) = (header.as_str(), header.form());
    let detail = format!(
        "The header {name} cannot be read: send it once, as {form}. Nothing was done; correct the \
         header and send the request again with the same key."
    );
    RequestRefusal::detailed(Problem::DeadlineMalformed, detail)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use semel::{MemoryStore, Semel};

    use super::*;

    /// 2026-11-18T16:00:00Z.
    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_017_600)
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            })
            .collect()
    }

    fn left(lines: &[(&'static str, &str)]) -> Result<Option<u128>, Problem> {
        let left = DeadlineRule::default().time_left(&headers(lines), now());
        left.map(|left| left.map(|left| left.as_millis())).map_err(|refusal| refusal.problem)
    }

    #[test]
    fn each_form_says_how_much_time_is_left() {
        for (name, value, millis) in [
            ("request-deadline", "@1795017605", 7000),
            ("request-deadline", "2026-11-18T16:00:05Z", 7000),
            ("request-deadline", "2026-11-18T17:00:05.25+01:00", 7250),
            ("request-deadline", "@1795017599", 1000),
            ("request-timeout", "5", 5000),
            ("request-timeout", "0.5", 500),
            ("request-timeout", "1.125", 1125),
            ("x-request-timeout-ms", "1500", 1500),
            ("grpc-timeout", "1500m", 1500),
            ("grpc-timeout", "2S", 2000),
            ("grpc-timeout", "1M", 60_000),
            ("grpc-timeout", "1H", 3_600_000),
            ("grpc-timeout", "99999999u", 99_999),
            ("x-envoy-expected-rq-timeout-ms", " 250 ", 250),
        ] {
            assert_eq!(left(&[(name, value)]), Ok(Some(millis)), "{name}: {value}");
        }
        assert_eq!(left(&[]), Ok(None));
    }

    #[test]
    fn the_earliest_deadline_counts() {
        let lines =
            [("grpc-timeout", "5S"), ("request-timeout", "2"), ("request-deadline", "@1795017609")];
        assert_eq!(left(&lines), Ok(Some(2000)));
    }

    #[test]
    fn a_deadline_that_has_passed_is_refused() {
        for (name, value) in [
            ("request-deadline", "@1795017597"),
            ("request-deadline", "1970-01-01T00:00:00Z"),
            ("request-timeout", "0"),
            ("x-request-timeout-ms", "0"),
            ("grpc-timeout", "0n"),
            ("x-envoy-expected-rq-timeout-ms", "0"),
        ] {
            assert_eq!(left(&[(name, value)]), Err(Problem::DeadlineExceeded), "{name}: {value}");
        }
    }

    #[test]
    fn a_deadline_that_cannot_be_read_is_refused() {
        for (name, value) in [
            ("request-deadline", ""),
            ("request-deadline", "tomorrow"),
            ("request-deadline", "1795017605"),
            ("request-deadline", "@1795017605.5"),
            ("request-deadline", "@99999999999999999999"),
            ("request-timeout", "-1"),
            ("request-timeout", "5s"),
            ("request-timeout", "1.2345"),
            ("request-timeout", "."),
            ("request-timeout", "9999999999999"),
            ("x-request-timeout-ms", "1.5"),
            ("x-request-timeout-ms", "+5"),
            ("grpc-timeout", "5"),
            ("grpc-timeout", "m"),
            ("grpc-timeout", "123456789m"),
            ("grpc-timeout", "5 m"),
            ("x-envoy-expected-rq-timeout-ms", "soon"),
        ] {
            assert_eq!(left(&[(name, value)]), Err(Problem::DeadlineMalformed), "{name}: {value}");
        }
        let twice = [("request-timeout", "5"), ("request-timeout", "5")];
        let mut lines = HeaderMap::new();
        for (name, value) in twice {
            lines.append(name, HeaderValue::from_static(value));
        }
        let refusal = DeadlineRule::default().time_left(&lines, now()).unwrap_err();
        assert_eq!(refusal.problem, Problem::DeadlineMalformed);
    }

    #[test]
    fn a_header_that_is_not_listed_is_not_read() {
        let rule = DeadlineRule::new([DeadlineHeader::GrpcTimeout]);
        assert_eq!(rule.time_left(&headers(&[("request-timeout", "nonsense")]), now()), Ok(None));
    }

    #[test]
    fn the_service_sees_its_own_time_limit() {
        let lines = [
            ("request-deadline", "@1795017605"),
            ("request-timeout", "1"),
            ("x-request-timeout-ms", "1000"),
            ("grpc-timeout", "1S"),
            ("x-envoy-expected-rq-timeout-ms", "1000"),
            ("accept", "*/*"),
        ];
        let rule = DeadlineRule::default().service_timeout(Duration::from_secs(60));
        let mut sent = headers(&lines);
        rule.rewrite(&mut sent, None, now());
        let expected = [
            ("request-deadline", "@1795017660"),
            ("request-timeout", "60"),
            ("x-request-timeout-ms", "60000"),
            ("grpc-timeout", "60000m"),
            ("x-envoy-expected-rq-timeout-ms", "60000"),
            ("accept", "*/*"),
        ];
        assert_eq!(sent, headers(&expected));
        let mut removed = headers(&lines);
        DeadlineRule::default().rewrite(&mut removed, None, now());
        assert_eq!(removed, headers(&[("accept", "*/*")]));
        let mut text = headers(&[("request-deadline", "2026-11-18T16:00:05Z")]);
        rule.rewrite(&mut text, None, now());
        assert_eq!(text, headers(&[("request-deadline", "2026-11-18T16:01:00Z")]));
    }

    #[test]
    fn a_deadline_is_handed_on_without_its_leeway_and_without_rounding_up() {
        let rule = DeadlineRule::default().propagate();
        let semel = Semel::new(MemoryStore::new());
        let handed_on = |lines: &[(&'static str, &str)]| {
            let mut sent = headers(lines);
            let left = rule.time_left(&sent, now()).unwrap().unwrap();
            rule.rewrite(&mut sent, Some(semel.deadline_in(left)), now());
            sent
        };
        for date in ["@1795017605", "2026-11-18T16:00:05Z", "@1795017599"] {
            assert_eq!(handed_on(&[("request-deadline", date)])["request-deadline"], date);
        }
        let earlier = handed_on(&[("request-deadline", "@1795017700"), ("request-timeout", "9.5")]);
        assert_eq!(earlier["request-deadline"], "@1795017609");
        assert_eq!(earlier["request-timeout"], "9");
        let short = handed_on(&[("request-timeout", "0.5")]);
        let seconds: f64 = short["request-timeout"].to_str().unwrap().parse().unwrap();
        assert!(seconds > 0.0 && seconds <= 0.5, "{seconds}");
    }

    #[test]
    fn the_service_never_sees_a_grpc_deadline_that_is_not_read() {
        let sent = [("grpc-timeout", "1S"), ("request-timeout", "1")];
        let limit = Duration::from_secs(60);
        for (rule, expected) in [
            (DeadlineRule::new([]), None),
            (DeadlineRule::new([]).service_timeout(limit), Some("60000m")),
            (DeadlineRule::new([DeadlineHeader::RequestDeadline]).propagate(), None),
        ] {
            let mut rewritten = headers(&sent);
            assert_eq!(rule.time_left(&rewritten, now()), Ok(None));
            rule.rewrite(&mut rewritten, None, now());
            let seen = rewritten.get("grpc-timeout").map(|value| value.to_str().unwrap());
            assert_eq!((seen, &rewritten["request-timeout"]), (expected, &"1".parse().unwrap()));
        }
    }
}
