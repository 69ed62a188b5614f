//! The documents, statuses and codes of each dialect.

use serde_json::{Value as Json, json};

use super::*;
use crate::{OnUnknown, RetryContext, Verdict};

fn document(dialect: &Dialect, problem: Problem) -> Json {
    serde_json::from_str(&dialect.document(problem, None)).unwrap()
}

#[test]
fn every_document_has_the_members_of_rfc_9457_and_those_of_its_dialect() {
    for dialect in Dialect::ALL {
        for problem in Problem::ALL {
            let mut document = document(&dialect, *problem);
            let members = document.as_object_mut().unwrap();
            let mut take = |name: &str| members.remove(name).unwrap();
            assert_eq!(take("type"), json!(format!("urn:semel:problem:{}", problem.slug())));
            assert_eq!(take("title"), json!(problem.title()));
            assert_eq!(take("status"), json!(dialect.status(*problem)), "{problem:?}");
            assert_eq!(take("detail"), json!(problem.detail()));
            let own: &[&str] = match dialect.name() {
                "ietf" | "stripe" => &["error"],
                "paypal" => &["details", "message", "name"],
                "adyen" => &["errorCode", "errorType", "message"],
                _ => &["errors"],
            };
            assert_eq!(members.keys().collect::<Vec<_>>(), own, "{}", dialect.name());
        }
    }
}

#[test]
fn the_error_member_is_that_of_stripe() {
    for problem in Problem::ALL {
        let expected = json!({
            "type": problem.error_type().as_str(),
            "code": problem.slug().replace('-', "_"),
            "message": problem.detail(),
        });
        assert_eq!(document(&Dialect::IETF, *problem)["error"], expected);
    }
}

#[test]
fn a_problem_has_the_status_and_the_code_that_the_provider_documents() {
    for (dialect, problem, status, place, code) in [
        (Dialect::IETF, Problem::KeyReused, 422, "/error/code", "key_reused"),
        (Dialect::IETF, Problem::OutcomeUnknown, 423, "/error/code", "outcome_unknown"),
        (Dialect::STRIPE, Problem::KeyReused, 400, "/error/type", "idempotency_error"),
        (Dialect::STRIPE, Problem::OutcomeUnknown, 400, "/error/type", "idempotency_error"),
        (Dialect::STRIPE, Problem::InProgress, 409, "/error/code", "idempotency_key_in_use"),
        (Dialect::STRIPE, Problem::OutcomeUnrecorded, 504, "/error/type", "api_error"),
        (
            Dialect::PAYPAL,
            Problem::KeyReused,
            422,
            "/details/0/issue",
            "PAYPAL_REQUEST_ID_PREVIOUSLY_USED",
        ),
        (Dialect::PAYPAL, Problem::KeyMissing, 400, "/name", "PAYPAL_REQUEST_ID_REQUIRED"),
        (Dialect::PAYPAL, Problem::InProgress, 409, "/name", "PREVIOUS_REQUEST_IN_PROGRESS"),
        (Dialect::ADYEN, Problem::InProgress, 409, "/errorCode", "704"),
        (Dialect::ADYEN, Problem::StoreUnavailable, 503, "/errorCode", "703"),
        (Dialect::ADYEN, Problem::KeyReused, 422, "/errorType", "validation"),
        (Dialect::SQUARE, Problem::KeyReused, 400, "/errors/0/code", "IDEMPOTENCY_KEY_REUSED"),
        (Dialect::SQUARE, Problem::StoreUnavailable, 503, "/errors/0/category", "API_ERROR"),
        (Dialect::SQUARE, Problem::KeyMissing, 400, "/errors/0/code", "KEY_MISSING"),
    ] {
        let document = document(&dialect, problem);
        assert_eq!(dialect.status(problem), status, "{dialect:?} {problem:?}");
        assert_eq!(document.pointer(place), Some(&json!(code)), "{document}");
    }
}

#[test]
fn no_dialect_gives_a_final_problem_a_status_that_sdks_retry() {
    let hold = RetryContext::guarded(OnUnknown::Hold);
    for dialect in Dialect::ALL {
        let changed = |problem: &&Problem| dialect.status(**problem) != problem.status();
        for problem in Problem::ALL.iter().filter(changed) {
            assert!(!problem.should_retry(hold) && dialect.status(*problem) == 400, "{problem:?}");
        }
    }
}

#[test]
fn a_single_status_can_be_changed() {
    let changed = Dialect::STRIPE.with_status(Problem::KeyReused, 409).unwrap();
    let changed = changed.with_status(Problem::KeyReused, 422).unwrap();
    assert_eq!(changed.statuses(), [(Problem::KeyReused, 422)]);
    assert_eq!(document(&changed, Problem::KeyReused)["status"], json!(422));
    assert_eq!(changed.status(Problem::OutcomeUnknown), 400);
    assert_ne!(changed, Dialect::STRIPE);
    let two = |first, second| {
        let dialect = Dialect::IETF.with_status(first, 400).unwrap();
        dialect.with_status(second, 400).unwrap()
    };
    let (one, other) = (Problem::KeyReused, Problem::OutcomeUnknown);
    assert_eq!(two(one, other), two(other, one));
    for status in [200, 302, 399, 600] {
        let refused = Dialect::IETF.with_status(Problem::KeyReused, status);
        assert_eq!(refused, Err(StatusError::NoError), "{status}");
    }
    let refused = Dialect::IETF.with_status(Problem::ClaimLost, 400);
    assert_eq!(refused, Err(StatusError::ServiceApi));
}

#[test]
fn a_dialect_is_found_by_its_name() {
    for dialect in Dialect::ALL {
        assert_eq!(Dialect::from_name(dialect.name()), Some(dialect));
    }
    assert_eq!(Dialect::from_name("Stripe"), None);
    assert_eq!(Dialect::default().name(), "ietf");
}

#[test]
fn a_problem_is_known_by_its_document_in_every_dialect() {
    for dialect in Dialect::ALL {
        for problem in Problem::ALL {
            let status = dialect.status(*problem);
            let body = dialect.document(*problem, None);
            let known = Problem::with_slug(problem.slug()).unwrap();
            assert!(known.is_document(status, body.as_bytes()), "{dialect:?} {problem:?}");
            assert_eq!(known.verdict(), problem.verdict(), "{problem:?}");
            assert!(!known.is_document(status + 1, body.as_bytes()), "{dialect:?} {problem:?}");
        }
    }
    assert_eq!(Problem::KeyReused.verdict(), Verdict::Retry);
}

#[test]
fn a_detail_is_escaped_wherever_it_stands() {
    for dialect in Dialect::ALL {
        let detail = "a \"b\" \\ \n $code";
        let document = dialect.document(Problem::BodyMalformed, Some(detail));
        let parsed: Json = serde_json::from_str(&document).unwrap();
        assert_eq!(parsed["detail"], json!(detail), "{document}");
        assert!(document.matches(r#""a \"b\" \\ \u000a $code""#).count() >= 2, "{document}");
    }
}
