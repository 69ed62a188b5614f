//! Problems and recorded answers as responses.

use http_body_util::{BodyExt, Full};
use semel::core::OnUnknown;

use super::*;
use crate::{Callers, capture::encode::problem_answer, config::LayerConfig};

type BuiltResponse = Response<Body<Full<Bytes>>>;

const HOLD: RetryContext = RetryContext::guarded(OnUnknown::Hold);

static IETF: Dialect = Dialect::IETF;

fn responder() -> Responder<'static> {
    Responder { docs: None, dialect: &IETF, grpc: false, is_webhook: false, retry: HOLD }
}

async fn text(response: BuiltResponse) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn a_problem_is_a_document_with_its_status() {
    for problem in Problem::ALL {
        let response: BuiltResponse = responder().refuse(&(*problem).into());
        assert_eq!(response.status().as_u16(), problem.status());
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert!(!response.headers().contains_key("link"));
        assert_eq!(text(response).await, Dialect::IETF.document(*problem, None));
    }
}

#[test]
fn every_problem_says_whether_to_retry_in_the_headers_that_sdks_obey() {
    for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail] {
        let retry = RetryContext::guarded(on_unknown);
        for problem in Problem::ALL {
            let response: BuiltResponse =
                Responder { retry, ..responder() }.refuse(&(*problem).into());
            let retried = problem.should_retry(retry);
            let expected = if retried { "true" } else { "false" };
            let header = |name| response.headers().get(name).map(HeaderValue::as_bytes);
            for name in ["x-should-retry", "stripe-should-retry"] {
                assert_eq!(header(name), Some(expected.as_bytes()), "{problem:?} {name}");
            }
            // A quota does not change within a second.
            let quota = matches!(problem, Problem::TooManyRecords | Problem::StoreFull);
            let (seconds, ms) = if quota { ("10", "10000") } else { ("1", "1000") };
            let expected = |text: &'static str| retried.then_some(text.as_bytes());
            assert_eq!(header("retry-after"), expected(seconds), "{problem:?}");
            assert_eq!(header("retry-after-ms"), expected(ms), "{problem:?}");
        }
    }
}

#[tokio::test]
async fn a_dialect_changes_the_form_of_a_problem_and_not_the_advice() {
    for dialect in &Dialect::ALL {
        for problem in Problem::ALL {
            let responder = Responder { dialect, ..responder() };
            let response: BuiltResponse = responder.refuse(&(*problem).into());
            assert_eq!(response.status().as_u16(), dialect.status(*problem));
            let headers = response.headers().clone();
            assert_eq!(headers["content-type"], dialect.media_type());
            assert_eq!(headers["idempotency-problem"], problem.slug());
            let advice = if problem.should_retry(HOLD) { "true" } else { "false" };
            assert_eq!(headers["x-should-retry"], advice);
            assert_eq!(headers["stripe-should-retry"], advice);
            let transient = (dialect.name() == "adyen").then_some(advice.as_bytes());
            let sent = headers.get("transient-error").map(HeaderValue::as_bytes);
            assert_eq!(sent, transient, "{dialect:?}");
            assert_eq!(text(response).await, dialect.document(*problem, None));
        }
    }
}

#[test]
fn retry_after_in_seconds_is_rounded_up() {
    let mut headers = HeaderMap::new();
    add_retry_advice(&mut headers, Some(Duration::from_millis(1200)));
    assert_eq!(
        (&headers["retry-after"], &headers["retry-after-ms"]),
        (&"2".parse().unwrap(), &"1200".parse().unwrap())
    );
}

#[tokio::test]
async fn a_specific_detail_replaces_the_default_detail() {
    let refusal = RequestRefusal::detailed(Problem::KeyMalformed, "no comma");
    let response: BuiltResponse = responder().refuse(&refusal);
    assert_eq!(
        text(response).await,
        Dialect::IETF.document(Problem::KeyMalformed, Some("no comma"))
    );
}

#[test]
fn a_problem_links_to_its_documentation() {
    let semel = semel::Semel::new(semel::MemoryStore::new());
    let scope = semel::core::Scope::new("test").unwrap();
    let mut config = LayerConfig::new(semel, scope, Callers::anonymous());
    config.set_docs("https://example.org/retries#keys");
    for grpc in [false, true] {
        let responder = Responder { docs: config.docs.as_ref(), grpc, ..responder() };
        let response: BuiltResponse = responder.refuse(&Problem::KeyMissing.into());
        let link = "<https://example.org/retries#keys>; rel=\"describedby\"";
        assert_eq!(response.headers()["link"], link);
    }
}

#[tokio::test]
async fn a_problem_for_a_grpc_client_is_a_trailers_only_response() {
    let responder = Responder { grpc: true, ..responder() };
    let response: BuiltResponse = responder.refuse(&Problem::KeyReused.into());
    assert_eq!(response.status(), 200);
    let headers = response.headers();
    assert_eq!(headers["content-type"], "application/grpc");
    assert_eq!(headers["grpc-status"], "9");
    assert_eq!(headers["grpc-message"], Problem::KeyReused.detail());
    assert_eq!(headers["idempotency-problem"], "key-reused");
    assert_eq!(headers["grpc-retry-pushback-ms"], "-1");
    assert_eq!(text(response).await, "");
}

#[tokio::test]
async fn a_recorded_answer_is_restored_and_marked() {
    let headers = [("link", "</a>"), ("etag", "\"1\""), ("link", "</b>")];
    let stored = StoredResponse {
        status: 201,
        headers: headers.map(|(name, value)| Field::new(name, value)).to_vec(),
        body: "ok".into(),
        trailers: vec![Field::new("grpc-status", "0")],
    };
    let answer = Answer::response(&stored);
    let joined: BuiltResponse = responder().answer(&answer, Origin::Execution, None).unwrap();
    assert!(!joined.headers().contains_key("idempotent-replayed"));
    let replayed: BuiltResponse = responder().answer(&answer, Origin::Record, None).unwrap();
    assert_eq!(replayed.status(), 201);
    assert_eq!(replayed.headers()["idempotent-replayed"], "true");
    let links: Vec<_> = replayed.headers().get_all("link").iter().collect();
    assert_eq!(links, ["</a>", "</b>"]);
    let body = replayed.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), "ok");
}

#[test]
fn an_answer_without_a_stored_response_is_replayed_as_a_problem() {
    for (answer, status) in [(Answer::not_retained(200), 410), (Answer::failed(), 500)] {
        let replayed: BuiltResponse = responder().answer(&answer, Origin::Record, None).unwrap();
        assert_eq!(replayed.status(), status);
        assert_eq!(replayed.headers()["idempotent-replayed"], "true");
        assert_eq!(replayed.headers()["stripe-should-retry"], "false");
    }
}

#[test]
fn a_joined_request_is_not_answered_as_completed_when_nothing_is_recorded() {
    for problem in [Problem::InProgress, Problem::OutcomeUnknown] {
        let joined: BuiltResponse =
            responder().answer(&problem_answer(problem), Origin::Execution, None).unwrap();
        assert_eq!(joined.status().as_u16(), problem.status());
        assert_eq!(joined.headers()["idempotency-problem"], problem.slug());
        assert_eq!(joined.headers()["content-type"], "application/problem+json");
        let grpc = Responder { grpc: true, ..responder() };
        let joined: BuiltResponse =
            grpc.answer(&problem_answer(problem), Origin::Execution, None).unwrap();
        assert_eq!(joined.headers()["grpc-status"], grpc::code(problem).to_string());
    }
}

#[test]
fn a_stored_field_that_is_not_a_valid_header_is_omitted() {
    let fields = vec![Field::new("a b", "1"), Field::new("c", "1\n2"), Field::new("d", "3")];
    let map = restore_fields(fields, 0);
    assert_eq!(map.len(), 1);
    assert_eq!(map["d"], "3");
}
