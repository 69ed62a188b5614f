//! What a record says about itself to people: what it is about, where it ran, which values the
//! route captured, and why it did not complete.
//!
//! Every text is bounded, because a client has a say in most of them.

use std::{fmt, sync::Arc};

use crate::Verdict;

/// The longest [`About`], in bytes.
pub const ABOUT_BYTES_MAX: usize = 200;

/// The longest [`NodeName`], in bytes.
pub const NODE_BYTES_MAX: usize = 64;

/// The longest text of a [`Reason`], in bytes.
pub const REASON_BYTES_MAX: usize = 120;

/// The longest encoding of [`Captured`], in bytes.
pub const CAPTURED_BYTES_MAX: usize = 256;

/// What an operation is about: `POST api.example.com/v1/charges`, say.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct About(Arc<str>);

impl About {
    /// The text, cut to [`ABOUT_BYTES_MAX`] bytes and freed of control characters.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(bounded(text, ABOUT_BYTES_MAX))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The process that claimed a record: a host name, unless the operator chose another name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// The name, cut to [`NODE_BYTES_MAX`] bytes and freed of control characters.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(bounded(name, NODE_BYTES_MAX))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Values of the request that the route captured, by name.
///
/// Stored as `name=value&name=value` with `%`, `&`, `=` and control characters percent-encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Captured(Arc<str>);

impl Captured {
    /// These names and values, in this order. A value that does not fit into
    /// [`CAPTURED_BYTES_MAX`] is left out as a whole: a shortened one could match another.
    pub fn new<'a>(values: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut text = String::new();
        for (name, value) in values {
            let mut pair = String::new();
            if !text.is_empty() {
                pair.push('&');
            }
            escape(name, &mut pair);
            pair.push('=');
            escape(value, &mut pair);
            if text.len().saturating_add(pair.len()) <= CAPTURED_BYTES_MAX {
                text.push_str(&pair);
            }
        }
        Self(text.into())
    }

    /// Reads what a store kept.
    #[must_use]
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The text to store.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether nothing was captured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names and values.
    pub fn iter(&self) -> impl Iterator<Item = (String, String)> + '_ {
        let pairs = self.0.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (unescape(name), unescape(value))
        })
    }
}

/// Why a record is held, was released or failed: a closed list with parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The service answered with this HTTP status.
    Answered(u16),
    /// The service answered with this gRPC status.
    GrpcStatus(u16),
    /// The service's gRPC answer had no status.
    GrpcStatusMissing,
    /// The service declared it in `Idempotency-Outcome`.
    Declared(Verdict),
    /// No byte of the request went out.
    NotSent,
    /// No answer came within this many milliseconds.
    TimedOut(u64),
    /// The connection broke after this many bytes of the answer.
    ConnectionLost(u64),
    /// The handler panicked.
    Panicked,
    /// The operation returned an error that says nothing about its effect.
    OperationError,
    /// The owner was silent for longer than its lease.
    LeaseExpired,
    /// No operator resolved it within the route's `hold_for`.
    HoldExpired,
    /// An operator resolved it.
    Resolved,
    /// The store was away when the request came, and it ran unguarded.
    Unguarded,
    /// What the caller of the API said.
    Text(ReasonText),
}

/// Free text of a [`Reason`], at most [`REASON_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReasonText(Arc<str>);

impl Reason {
    /// Every [`label`](Self::label) there is.
    pub const LABELS: [&'static str; 13] = [
        "answered",
        "grpc-status",
        "declared",
        "not-sent",
        "timed-out",
        "connection-lost",
        "panicked",
        "operation-error",
        "lease-expired",
        "hold-expired",
        "resolved",
        "unguarded",
        "text",
    ];

    /// A reason in free text, cut to [`REASON_BYTES_MAX`] bytes.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Text(ReasonText(bounded(text, REASON_BYTES_MAX)))
    }

    /// Reads what a store kept.
    #[must_use]
    pub fn from_stored(text: &str) -> Self {
        let number = |before: &str, after: &str| -> Option<u64> {
            text.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
        };
        let status =
            |before: &str| number(before, "").and_then(|number| u16::try_from(number).ok());
        let fixed = [
            Self::GrpcStatusMissing,
            Self::Declared(Verdict::Completed),
            Self::Declared(Verdict::Retry),
            Self::Declared(Verdict::Forget),
            Self::Declared(Verdict::Unknown),
            Self::NotSent,
            Self::Panicked,
            Self::OperationError,
            Self::LeaseExpired,
            Self::HoldExpired,
            Self::Resolved,
            Self::Unguarded,
        ];
        status("upstream answered ")
            .map(Self::Answered)
            .or_else(|| status("upstream answered grpc-status ").map(Self::GrpcStatus))
            .or_else(|| number("no answer within ", " ms").map(Self::TimedOut))
            .or_else(|| number("connection lost after ", " bytes").map(Self::ConnectionLost))
            .or_else(|| fixed.into_iter().find(|reason| reason.to_string() == text))
            .unwrap_or_else(|| Self::text(text))
    }

    /// The kind of reason, for metrics and filters: the same word for all parameters.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Answered(_) => "answered",
            Self::GrpcStatus(_) | Self::GrpcStatusMissing => "grpc-status",
            Self::Declared(_) => "declared",
            Self::NotSent => "not-sent",
            Self::TimedOut(_) => "timed-out",
            Self::ConnectionLost(_) => "connection-lost",
            Self::Panicked => "panicked",
            Self::OperationError => "operation-error",
            Self::LeaseExpired => "lease-expired",
            Self::HoldExpired => "hold-expired",
            Self::Resolved => "resolved",
            Self::Unguarded => "unguarded",
            Self::Text(_) => "text",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(status) => write!(f, "upstream answered {status}"),
            Self::GrpcStatus(code) => write!(f, "upstream answered grpc-status {code}"),
            Self::GrpcStatusMissing => f.write_str("upstream answered without grpc-status"),
            Self::Declared(Verdict::Completed) => f.write_str("service declared completed"),
            Self::Declared(Verdict::Retry) => f.write_str("service declared retry"),
            Self::Declared(Verdict::Forget) => f.write_str("service declared forget"),
            Self::Declared(Verdict::Unknown) => f.write_str("service declared unknown"),
            Self::NotSent => f.write_str("upstream not reached"),
            Self::TimedOut(millis) => write!(f, "no answer within {millis} ms"),
            Self::ConnectionLost(bytes) => write!(f, "connection lost after {bytes} bytes"),
            Self::Panicked => f.write_str("handler panicked"),
            Self::OperationError => f.write_str("operation returned an error"),
            Self::LeaseExpired => f.write_str("lease expired"),
            Self::HoldExpired => f.write_str("not resolved within hold_for"),
            Self::Resolved => f.write_str("resolved by an operator"),
            Self::Unguarded => f.write_str("ran unguarded while the store was away"),
            Self::Text(text) => f.write_str(&text.0),
        }
    }
}

/// At most `max` bytes of `text`, cut between characters, with control characters replaced.
fn bounded(text: &str, max: usize) -> Arc<str> {
    let end = text.floor_char_boundary(max);
    let text = text.get(..end).unwrap_or_default();
    if !text.chars().any(char::is_control) {
        return text.into();
    }
    // A control character takes one or two bytes, and so does its replacement.
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().into()
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        let mut bytes = [0; 4];
        if matches!(c, '%' | '&' | '=') || c.is_control() {
            for byte in c.encode_utf8(&mut bytes).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        } else {
            out.push(c);
        }
    }
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => {
                let digits = [*high, *low];
                str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok())
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { tail.get(2..).unwrap_or_default() } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_reason_is_read_back_from_its_text() {
        let reasons = [
            Reason::Answered(503),
            Reason::GrpcStatus(14),
            Reason::GrpcStatusMissing,
            Reason::Declared(Verdict::Completed),
            Reason::Declared(Verdict::Retry),
            Reason::Declared(Verdict::Forget),
            Reason::Declared(Verdict::Unknown),
            Reason::NotSent,
            Reason::TimedOut(60_000),
            Reason::ConnectionLost(312),
            Reason::Panicked,
            Reason::OperationError,
            Reason::LeaseExpired,
            Reason::HoldExpired,
            Reason::Resolved,
            Reason::Unguarded,
            Reason::text("the ledger was closed"),
        ];
        for reason in &reasons {
            let text = reason.to_string();
            assert!(text.len() <= REASON_BYTES_MAX, "{text}");
            assert_eq!(Reason::from_stored(&text), *reason, "{text}");
            assert!(Reason::LABELS.contains(&reason.label()), "{text}");
        }
        for label in Reason::LABELS {
            assert!(reasons.iter().any(|reason| reason.label() == label), "{label}");
        }
    }

    #[test]
    fn texts_are_cut_between_characters_and_hold_no_control_characters() {
        let about = About::new(&"ü".repeat(150));
        assert_eq!(about.as_str().len(), ABOUT_BYTES_MAX);
        assert_eq!(About::new(&format!("x{}", "ü".repeat(150))).as_str().len(), 199);
        assert_eq!(About::new("a\u{1b}[31m\nb\u{9b}").as_str(), "a [31m b ");
        assert_eq!(Reason::text(&"x".repeat(500)).to_string().len(), REASON_BYTES_MAX);
    }

    #[test]
    fn a_captured_value_that_does_not_fit_is_left_out_as_a_whole() {
        let long = "9".repeat(CAPTURED_BYTES_MAX);
        let captured = Captured::new([("order", "o-1"), ("long", &long), ("amount", "12.50")]);
        let expected = [("order", "o-1"), ("amount", "12.50")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(captured.iter().collect::<Vec<_>>(), expected);
        assert_eq!(captured.as_str(), "order=o-1&amount=12.50");
    }

    proptest! {
        #[test]
        fn captured_values_are_read_back(
            values in proptest::collection::vec((".{0,12}", ".{0,20}"), 0..4),
        ) {
            let pairs = values.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let captured = Captured::new(pairs);
            prop_assert!(captured.as_str().len() <= CAPTURED_BYTES_MAX);
            let again = Captured::from_stored(captured.as_str());
            let read: Vec<_> = again.iter().collect();
            let mut rest = values.iter();
            prop_assert!(read.iter().all(|pair| rest.any(|value| value == pair)));
        }
    }
}
