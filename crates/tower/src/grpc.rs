//! gRPC support: whether a message is gRPC, its status, and a problem as a gRPC status.

use http::{HeaderMap, HeaderValue, Version, header};
use semel::core::{Problem, RetryContext};

use crate::header::{GRPC_STATUS, milliseconds};

/// Whether a request is gRPC, which needs HTTP/2: over HTTP/1.1 any client can claim the content
/// type. gRPC-Web is not gRPC.
pub fn is_grpc_request(version: Version, headers: &HeaderMap) -> bool {
    version >= Version::HTTP_2 && has_grpc_type(headers)
}

/// Whether the content type of a request or an answer is that of gRPC.
pub(crate) fn has_grpc_type(headers: &HeaderMap) -> bool {
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

/// The gRPC status of a problem, by the definitions of `google.rpc.Code`.
#[expect(clippy::wildcard_enum_match_arm, reason = "UNKNOWN is what a status not known here is")]
pub(crate) const fn code(problem: Problem) -> u16 {
    match problem {
        Problem::KeyMissing
        | Problem::KeyMalformed
        | Problem::DeadlineMalformed
        | Problem::ClaimMalformed
        | Problem::BodyMalformed
        | Problem::TokenInvalid => 3,
        Problem::DeadlineExceeded | Problem::DeadlineExceededInFlight => 4,
        Problem::PossibleDuplicate => 6,
        Problem::CallerUnidentified => 7,
        Problem::RateLimited | Problem::TooManyRecords => 8,
        Problem::KeyReused | Problem::OutcomeUnknown | Problem::ResultDiffers => 9,
        Problem::InProgress | Problem::ClaimLost => 10,
        Problem::BodyTooLarge => 11,
        Problem::OperationFailed => 13,
        Problem::UpstreamUnreachable
        | Problem::CallerUnavailable
        | Problem::StoreUnavailable
        | Problem::StoreFull
        | Problem::TooManyInFlight => 14,
        Problem::ResponseNotRetained => 15,
        Problem::SignatureInvalid | Problem::CallerUnverified => 16,
        // Includes `OutcomeUnrecorded` and `UpstreamTimeout`.
        _ => 2,
    }
}

/// `grpc-retry-pushback-ms`: the delay after which a client retries automatically; -1 is never.
pub(crate) fn pushback(problem: Problem, context: RetryContext) -> HeaderValue {
    match problem.retry_after(context) {
        Some(after) => milliseconds(after),
        None => HeaderValue::from_static("-1"),
    }
}

/// The text of a `grpc-message`: percent-encoded except for printable ASCII.
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
    use semel::core::OnUnknown;

    use super::*;

    #[test]
    fn a_content_type_is_grpc_or_only_looks_like_it() {
        let is = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
            let is_request = |version| is_grpc_request(version, &headers);
            assert!(!is_request(Version::HTTP_11) && !is_request(Version::HTTP_10), "{value}");
            assert_eq!(is_request(Version::HTTP_2), has_grpc_type(&headers), "{value}");
            has_grpc_type(&headers)
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
        for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail] {
            let context = RetryContext::guarded(on_unknown);
            for problem in Problem::ALL {
                assert!((2..=16).contains(&code(*problem)), "{problem:?}");
                let expected = problem.retry_after(context);
                let expected = expected.map_or("-1".to_owned(), |it| it.as_millis().to_string());
                assert_eq!(pushback(*problem, context), expected, "{problem:?}");
            }
        }
        let hold = RetryContext::guarded(OnUnknown::Hold);
        assert_eq!(pushback(Problem::KeyReused, hold), "-1");
        assert_eq!(pushback(Problem::UpstreamTimeout, hold), "-1");
        assert_eq!(pushback(Problem::OutcomeUnrecorded, hold), "1000");
        assert_eq!(code(Problem::OutcomeUnrecorded), 2);
        assert_eq!(code(Problem::OutcomeUnknown), 9);
    }

    #[test]
    fn problems_of_one_slug_have_different_codes_or_the_same_verdict() {
        for problem in Problem::ALL {
            for other in Problem::ALL.iter().filter(|other| *other != problem) {
                assert!(
                    problem.slug() != other.slug()
                        || code(*problem) != code(*other)
                        || problem.verdict() == other.verdict(),
                    "{problem:?} and {other:?} look the same to a client"
                );
            }
        }
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
