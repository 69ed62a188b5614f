//! A repeat gets the first answer.

use axum::response::AppendHeaders;
use http::{HeaderName, StatusCode};
use semel::core::{
    Caller, Content, Key, Policy, RecordId, Scope, StateView, StatusList, Store as _, Verdict,
    canonical::Pointer,
};
use semel_tower::{
    RecordContent,
    header::{IDEMPOTENCY_EXPIRES, IDEMPOTENCY_OUTCOME},
};

use crate::harness::{Harness, ORDER, TestResponse, charge, send};

/// The lines of an answer that a replay must have too. The date of the record may be a second off.
fn lines(answer: &TestResponse) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
    let lines = answer.headers.iter().filter(|(name, _)| *name != IDEMPOTENCY_EXPIRES);
    lines.map(|(name, value)| (name.to_string(), text(value))).collect()
}

#[tokio::test]
async fn a_replay_has_the_same_status_bytes_and_kept_headers_in_order_and_number() {
    let harness = Harness::new();
    let layer = harness.layer().keep_headers([HeaderName::from_static("x-charge")]);
    let app = harness.app_with(layer, |run| async move {
        let headers = AppendHeaders([
            ("x-request-id", "r-1"),
            ("link", "</a>; rel=next"),
            ("set-cookie", "a=1"),
            ("x-charge", "c-1"),
            ("link", "</b>; rel=prev"),
            ("set-cookie", "b=2"),
            ("location", "/charges/1"),
            ("retry-after", "5"),
        ]);
        (StatusCode::CREATED, headers, format!("charge {run}"))
    });
    let first = send(&app, charge("k", ORDER)).await;
    assert!(!first.is_replayed());
    assert_eq!(first.headers.get_all("set-cookie").iter().count(), 2);
    assert_eq!(first.header("retry-after"), Some("5"));
    let second = send(&app, charge("\"k\"", ORDER)).await;
    assert_eq!((second.status, second.text()), (StatusCode::CREATED, "charge 1"));
    let kept = |name: &str| !matches!(name, "set-cookie" | "x-request-id" | "retry-after");
    let mut expected = lines(&first);
    expected.retain(|(name, _)| kept(name));
    let mut replayed = lines(&second);
    replayed.retain(|(name, _)| name != "idempotent-replayed");
    assert_eq!(replayed, expected);
    assert!(second.is_replayed());
    assert_eq!(second.headers.get_all("link").iter().count(), 2);
    assert_eq!(send(&app, charge("k", ORDER)).await, second, "and so does every other");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn another_process_replays_it_from_the_store() {
    let harness = Harness::new();
    let answer = |run| async move { format!("charge {run}") };
    let first = send(&harness.app(answer), charge("k", ORDER)).await;
    let second = send(&harness.second_process().app(answer), charge("k", ORDER)).await;
    assert!(second.is_replayed());
    assert_eq!(first.body, second.body);
    assert_eq!(harness.runs(), 1);
}

/// What the client of a held record gets.
const HELD: u16 = 423;

/// 408, 500 and 503 prove nothing: timeout middleware sends them while the work goes on.
#[tokio::test]
async fn statuses_are_kept_released_forgotten_or_unknown_as_the_policy_says() {
    for (status, again, runs) in [
        (200, 200, 1),
        (302, 302, 1),
        (404, 404, 1),
        (422, 422, 1),
        (307, 307, 2),
        (308, 308, 2),
        (421, 421, 2),
        (401, 401, 2),
        (405, 405, 2),
        (429, 429, 2),
        (501, 501, 2),
        (408, HELD, 1),
        (499, HELD, 1),
        (500, HELD, 1),
        (502, HELD, 1),
        (503, HELD, 1),
        (504, HELD, 1),
    ] {
        let harness = Harness::new();
        let app = harness.app(move |_| async move { StatusCode::from_u16(status).unwrap() });
        let first = send(&app, charge("k", ORDER)).await;
        assert_eq!(first.status, status);
        let second = send(&app, charge("k", ORDER)).await;
        assert_eq!((second.status.as_u16(), harness.runs()), (again, runs), "{status}");
        if again == HELD {
            second.assert_problem(HELD, "outcome-unknown");
        }
    }
}

/// A client that follows a 307 sends the same key to another path.
#[tokio::test]
async fn a_forgotten_key_is_free_for_another_request_and_a_released_one_is_not() {
    for (status, again) in [(307, 307), (429, 422)] {
        let harness = Harness::new();
        let app = harness.app(move |_| async move { StatusCode::from_u16(status).unwrap() });
        assert_eq!(send(&app, charge("k", ORDER)).await.status, status);
        let other = send(&app, charge("k", r#"{"cents":1}"#)).await;
        assert_eq!(other.status, again);
        if again == 422 {
            other.assert_problem(422, "key-reused");
        }
    }
}

#[tokio::test]
async fn a_500_frees_the_key_where_the_route_says_that_it_is_rolled_back() {
    let policy = Policy { release: StatusList::explicit([500]), ..Policy::default() };
    let harness = Harness::new().policy(policy);
    let app = harness.app(|_| async { StatusCode::INTERNAL_SERVER_ERROR });
    for runs in 1..=2 {
        assert_eq!(send(&app, charge("k", ORDER)).await.status, 500);
        assert_eq!(harness.runs(), runs);
    }
}

#[tokio::test]
async fn the_service_says_what_its_answer_makes_of_the_operation_in_a_header() {
    for (said, status, again, runs) in [
        ("completed", 500, 500, 1),
        ("retry", 503, 503, 2),
        ("forget", 500, 500, 2),
        ("unknown", 200, HELD, 1),
        ("nonsense", 200, HELD, 1),
        // The client got a success, so it cannot be taken back.
        ("retry", 200, HELD, 1),
        ("forget", 303, HELD, 1),
    ] {
        let harness = Harness::new();
        let app = harness.app(move |_| async move {
            (StatusCode::from_u16(status).unwrap(), [(IDEMPOTENCY_OUTCOME, said)])
        });
        let first = send(&app, charge("k", ORDER)).await;
        assert_eq!(first.status, status);
        assert_eq!(first.header("idempotency-outcome"), None);
        let second = send(&app, charge("k", ORDER)).await;
        assert_eq!((second.status.as_u16(), harness.runs()), (again, runs), "{said}");
        assert_eq!(second.header("idempotency-outcome"), None);
    }
}

#[tokio::test]
async fn or_in_an_extension() {
    let harness = Harness::new();
    let app = harness
        .app(|_| async { (StatusCode::SERVICE_UNAVAILABLE, axum::Extension(Verdict::Retry)) });
    for runs in 1..=2 {
        assert_eq!(send(&app, charge("k", ORDER)).await.status, 503);
        assert_eq!(harness.runs(), runs);
    }
}

#[tokio::test]
async fn a_route_may_store_the_status_alone() {
    let harness = Harness::new();
    let app = harness.app_with(harness.layer().record(RecordContent::Status), |_| async { "4242" });
    let first = send(&app, charge("k", ORDER)).await;
    assert_eq!((first.status.as_u16(), first.text()), (200, "4242"));
    send(&app, charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    let (scope, key) = (Scope::new("payments").unwrap(), Key::new("k").unwrap());
    let id = RecordId::new(scope, Caller::anonymous(), key);
    let stored = harness.store.get(&id).await.unwrap().unwrap();
    let StateView::Completed { answer, .. } = stored.state else { panic!("{stored:?}") };
    assert_eq!(answer.read(), Ok(Content::NotRetained { status: 200 }));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_redacted_answer_is_replayed_without_what_was_redacted_and_says_so() {
    let harness = Harness::new();
    let content = RecordContent::Redacted(vec![Pointer::parse("/card/number").unwrap()]);
    let body = r#"{"id":1,"card":{"number":"4242","brand":"visa"}}"#;
    let app = harness.app_with(harness.layer().record(content), move |_| async move {
        ([("content-type", "application/json")], body)
    });
    let first = send(&app, charge("k", ORDER)).await;
    assert_eq!((first.text(), first.header("idempotent-replayed")), (body, None));
    for app in [&app, &harness.second_process().app(|_| async { "never" })] {
        let second = send(app, charge("k", ORDER)).await;
        let redacted = r#"{"id":1,"card":{"number":"[redacted]","brand":"visa"}}"#;
        assert_eq!((second.status.as_u16(), second.text()), (200, redacted));
        assert_eq!(second.header("idempotent-replayed"), Some("redacted"));
        assert_eq!(second.header("content-type"), Some("application/json"));
        let length = redacted.len().to_string();
        assert!(second.header("content-length").is_none_or(|said| said == length));
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn an_empty_answer_is_replayed_empty() {
    let harness = Harness::new();
    let app = harness.app(|_| async { StatusCode::NO_CONTENT });
    for replayed in [false, true] {
        let answer = send(&app, charge("k", ORDER)).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (204, ""));
        assert_eq!(answer.is_replayed(), replayed);
    }
}
