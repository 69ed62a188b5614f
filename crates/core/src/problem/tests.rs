//! Problem documents and their retry advice.

use std::collections::BTreeMap;

use super::*;
use crate::Dialect;

const HOLD: RetryContext = RetryContext::guarded(OnUnknown::Hold);

#[test]
fn a_slug_names_one_problem_except_unknown_outcomes_and_deadlines() {
    let mut slugs: BTreeMap<&str, Vec<Problem>> = BTreeMap::new();
    for problem in Problem::ALL {
        slugs.entry(problem.slug()).or_default().push(*problem);
    }
    assert_eq!(
        slugs.remove("outcome-unknown"),
        Some(vec![Problem::OutcomeUnknown, Problem::OutcomeUnrecorded])
    );
    assert_eq!(
        slugs.remove("deadline-exceeded"),
        Some(vec![Problem::DeadlineExceeded, Problem::DeadlineExceededInFlight])
    );
    assert!(slugs.values().all(|same| same.len() == 1));
}

#[test]
fn problems_that_share_a_slug_mean_the_same_for_a_record() {
    for problem in Problem::ALL {
        let found = Problem::with_slug(problem.slug()).unwrap();
        assert_eq!(found.verdict(), problem.verdict(), "{problem:?}");
    }
    assert_eq!(Problem::with_slug("outcome-unknown"), Some(Problem::OutcomeUnknown));
    assert_eq!(Problem::with_slug("no-such"), None);
}

#[test]
fn the_type_of_an_error_follows_from_the_status_or_from_what_is_at_fault() {
    for problem in Problem::ALL {
        let expected = match (problem.status(), problem) {
            (429, _) => ErrorType::RateLimit,
            (401 | 403, _) => ErrorType::Authentication,
            (500..=504, _) => ErrorType::Api,
            (
                _,
                Problem::BodyMalformed
                | Problem::BodyTooLarge
                | Problem::DeadlineMalformed
                | Problem::ClaimMalformed,
            ) => ErrorType::InvalidRequest,
            _ => ErrorType::Idempotency,
        };
        assert_eq!(problem.error_type(), expected, "{problem:?}");
        let by_status = ErrorType::for_status(problem.status());
        assert!(expected == ErrorType::Idempotency || expected == by_status, "{problem:?}");
    }
}

#[test]
fn only_problems_of_unexecuted_or_running_requests_advise_a_retry() {
    let retried: Vec<&str> = Problem::ALL
        .iter()
        .filter(|problem| problem.should_retry(HOLD))
        .map(|problem| problem.slug())
        .collect();
    let expected = [
        "in-progress",
        "outcome-unknown",
        "rate-limited",
        "too-many-records",
        "upstream-unreachable",
        "caller-unavailable",
        "store-unavailable",
        "store-full",
        "too-many-in-flight",
        "deadline-exceeded",
    ];
    assert_eq!(retried, expected);
    assert!(!Problem::OutcomeUnknown.should_retry(HOLD), "held: 423");
    assert!(Problem::OutcomeUnrecorded.should_retry(HOLD), "not recorded yet: 504");
    assert!(!Problem::DeadlineExceeded.should_retry(HOLD), "nothing began");
    assert_eq!(Problem::InProgress.retry_after(HOLD), Some(Duration::from_secs(1)));
    for quota in [Problem::TooManyRecords, Problem::StoreFull] {
        assert_eq!(quota.retry_after(HOLD), Some(Duration::from_secs(10)), "{quota:?}");
    }
}

#[test]
fn only_a_timeout_depends_on_what_a_retry_would_meet() {
    let contexts = [
        (RetryContext::guarded(OnUnknown::Hold), false),
        (RetryContext::guarded(OnUnknown::Fail), false),
        (RetryContext::guarded(OnUnknown::Rerun), true),
        (RetryContext::unguarded(false), false),
        (RetryContext::unguarded(true), true),
    ];
    for (context, retried) in contexts {
        assert_eq!(Problem::UpstreamTimeout.should_retry(context), retried, "{context:?}");
        for problem in Problem::ALL.iter().filter(|it| **it != Problem::UpstreamTimeout) {
            assert_eq!(problem.should_retry(context), problem.should_retry(HOLD), "{problem:?}");
        }
    }
}

#[test]
fn a_route_that_asks_the_upstream_advises_a_retry_after_the_next_read() {
    let next = Duration::from_secs(17);
    let reads = HOLD.with_next_read(Some(next));
    for problem in [Problem::OutcomeUnknown, Problem::UpstreamTimeout] {
        assert_eq!(problem.retry_after(reads), Some(next), "{problem:?}");
        assert_eq!(problem.retry_after(reads.with_next_read(None)), None, "{problem:?}");
    }
    for problem in Problem::ALL {
        let depends = [Problem::OutcomeUnknown, Problem::UpstreamTimeout].contains(problem);
        assert!(depends || problem.retry_after(reads) == problem.retry_after(HOLD), "{problem:?}");
    }
}

#[test]
fn a_document_is_known_by_its_type_and_status_however_it_is_written() {
    for problem in Problem::ALL {
        for other in Problem::ALL {
            let same = problem.slug() == other.slug();
            let body = Dialect::IETF.document(*other, None);
            assert_eq!(problem.is_document(other.status(), body.as_bytes()), same);
        }
    }
    let is_known = |body: &str| Problem::InProgress.is_document(409, body.as_bytes());
    assert!(is_known(r#"{ "status": 409, "type" : "urn:semel:problem:in\u002dprogress" }"#));
    for body in [
        "",
        "{}",
        "[]",
        "in-progress",
        r#"{"type":"in-progress","status":409}"#,
        r#"{"type":1,"status":409}"#,
        r#"{"type":"urn:semel:problem:in-progress"}"#,
        r#"{"type":"urn:semel:problem:in-progress","status":"409"}"#,
        r#"{"type":"urn:semel:problem:in-progress","status":502}"#,
    ] {
        assert!(!is_known(body), "{body}");
    }
}
