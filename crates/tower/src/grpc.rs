//! What of gRPC concerns the layer: whether a message is gRPC, its status, and a problem as one.

use http::{HeaderMap, HeaderValue, header};
use semel::core::Problem;

use crate::header::GRPC_STATUS;

/// Whether a request or an answer with these headers is gRPC. gRPC-Web is not.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return false };
    value.as_bytes().split_at_checked(GRPC.len()).is_some_and(|(essence, rest)| {
        essence.eq_ignore_ascii_case(GRPC)
            && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
    })
}

/// The `grpc-status` in headers or trailers.
pub(crate) fn status(fields: &HeaderMap) -> Option<u16> {
    fields.get(GRPC_STATUS)?.to_str().ok()?.trim().parse().ok()
}

/// The status of a problem, by the promises of `google.rpc.Code`.
#[expect(clippy::wildcard_enum_match_arm, reason = "UNKNOWN is what a status not known here is")]
pub(crate) const fn code(problem: Problem) -> u16 {
    match problem {
        Problem::KeyMissing
        | Problem::KeyMalformed
        | Problem::BodyMalformed
        | Problem::TokenInvalid => 3,
        Problem::DeadlineExceeded => 4,
        Problem::PossibleDuplicate => 6,
        Problem::CallerUnidentified => 7,
        Problem::RateLimited => 8,
        Problem::KeyReused | Problem::OutcomeUnknown => 9,
        Problem::InProgress => 10,
        Problem::BodyTooLarge => 11,
        Problem::OperationFailed => 13,
        Problem::UpstreamUnreachable | Problem::StoreUnavailable | Problem::TooManyInFlight => 14,
        Problem::ResponseNotRetained => 15,
        Problem::SignatureInvalid => 16,
        // Among them `OutcomeUnrecorded` and `UpstreamTimeout`.
        _ => 2,
    }
}

/// When a client may try again by itself: after a second, never, or as it likes.
#[expect(clippy::wildcard_enum_match_arm, reason = "a client stops at what it need not repeat")]
pub(crate) const fn pushback(problem: Problem) -> Option<HeaderValue> {
    match problem {
        Problem::OutcomeUnrecorded | Problem::UpstreamTimeout | Problem::UpstreamUnreachable => {
            None
        }
        problem if problem.retry_later() => Some(HeaderValue::from_static("1000")),
        _ => Some(HeaderValue::from_static("-1")),
    }
}

/// The text of a `grpc-message`: percent-encoded but for printable ASCII.
pub(crate) fn message(text: &str) -> HeaderValue {
    let mut encoded = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(byte);
        } else {
            let digit = |bits: u8| b"0123456789ABCDEF".get(usize::from(bits)).copied();
            encoded.push(b'%');
            encoded.extend(digit(byte >> 4).into_iter().chain(digit(byte & 0x0F)));
        }
    }
    HeaderValue::try_from(encoded).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_is_grpc_or_only_looks_like_it() {
        let is = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
            is_grpc(&headers)
        };
        for value in ["application/grpc", "Application/gRPC+proto", "application/grpc; x=y"] {
            assert!(is(value), "{value}");
        }
        for value in ["application/grpc-web", "application/grpcx", "application/grp", ""] {
            assert!(!is(value), "{value}");
        }
    }

    #[test]
    fn a_message_is_percent_encoded() {
        assert_eq!(message("100 % «ok»\n"), "100 %25 %C2%ABok%C2%BB%0A");
    }

    #[test]
    fn every_problem_has_a_code_and_says_when_to_come_back() {
        for problem in Problem::ALL {
            assert!((2..=16).contains(&code(*problem)), "{problem:?}");
            let asked_back = pushback(*problem) == Some(HeaderValue::from_static("1000"));
            assert_eq!(asked_back, problem.retry_later(), "{problem:?}");
        }
        assert_eq!(pushback(Problem::KeyReused), Some(HeaderValue::from_static("-1")));
        assert_eq!(code(Problem::OutcomeUnrecorded), 2);
        assert_eq!(code(Problem::OutcomeUnknown), 9);
    }

    #[test]
    fn a_status_is_a_number_or_not_there() {
        let mut trailers = HeaderMap::new();
        assert_eq!(status(&trailers), None);
        trailers.insert(GRPC_STATUS, HeaderValue::from_static("14"));
        assert_eq!(status(&trailers), Some(14));
        trailers.insert(GRPC_STATUS, HeaderValue::from_static("ok"));
        assert_eq!(status(&trailers), None);
    }
}
