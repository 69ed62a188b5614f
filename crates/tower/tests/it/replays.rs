//! A repeat gets the first answer.

use axum::response::AppendHeaders;
use http::{HeaderName, StatusCode};
use semel::core::{Policy, StatusSet, Verdict};
use semel_tower::header::IDEMPOTENCY_OUTCOME;

use crate::bench::{Answer, Bench, ORDER, charge, send};

/// The lines of an answer that a replay must have too.
fn lines(answer: &Answer) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
    answer.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

#[tokio::test]
async fn a_replay_has_the_same_status_bytes_and_kept_headers_in_order_and_number() {
    let bench = Bench::new();
    let layer = bench.layer().keep_headers([HeaderName::from_static("x-charge")]);
    let app = bench.app_with(layer, |run| async move {
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
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn another_process_replays_it_from_the_store() {
    let bench = Bench::new();
    let answer = |run| async move { format!("charge {run}") };
    let first = send(&bench.app(answer), charge("k", ORDER)).await;
    let second = send(&bench.neighbour().app(answer), charge("k", ORDER)).await;
    assert!(second.is_replayed());
    assert_eq!(first.body, second.body);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn statuses_are_kept_released_or_unknown_as_the_policy_says() {
    for (status, again, runs) in [
        (200, 200, 1),
        (302, 302, 1),
        (404, 404, 1),
        (422, 422, 1),
        (401, 401, 2),
        (429, 429, 2),
        (500, 500, 2),
        (503, 503, 2),
        (502, 423, 1),
        (504, 423, 1),
    ] {
        let bench = Bench::new();
        let app = bench.app(move |_| async move { StatusCode::from_u16(status).unwrap() });
        let first = send(&app, charge("k", ORDER)).await;
        assert_eq!(first.status, status);
        let second = send(&app, charge("k", ORDER)).await;
        assert_eq!((second.status.as_u16(), bench.runs()), (again, runs), "{status}");
        if again == 423 {
            second.is_problem(423, "outcome-unknown");
        }
    }
}

#[tokio::test]
async fn a_500_that_proves_nothing_is_held() {
    let policy = Policy { release: StatusSet::new([503]), ..Policy::default() };
    let bench = Bench::new().policy(policy);
    let app = bench.app(|_| async { StatusCode::INTERNAL_SERVER_ERROR });
    assert_eq!(send(&app, charge("k", ORDER)).await.status, 500);
    send(&app, charge("k", ORDER)).await.is_problem(423, "outcome-unknown");
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn the_service_says_what_its_answer_makes_of_the_operation_in_a_header() {
    for (said, status, again, runs) in [
        ("completed", 500, 500, 1),
        ("retry", 200, 200, 2),
        ("unknown", 200, 423, 1),
        ("nonsense", 200, 423, 1),
    ] {
        let bench = Bench::new();
        let app = bench.app(move |_| async move {
            (StatusCode::from_u16(status).unwrap(), [(IDEMPOTENCY_OUTCOME, said)])
        });
        let first = send(&app, charge("k", ORDER)).await;
        assert_eq!(first.status, status);
        assert_eq!(first.header("idempotency-outcome"), None);
        let second = send(&app, charge("k", ORDER)).await;
        assert_eq!((second.status.as_u16(), bench.runs()), (again, runs), "{said}");
        assert_eq!(second.header("idempotency-outcome"), None);
    }
}

#[tokio::test]
async fn or_in_an_extension() {
    let bench = Bench::new();
    let app = bench.app(|_| async { axum::Extension(Verdict::Retry) });
    for runs in 1..=2 {
        assert_eq!(send(&app, charge("k", ORDER)).await.status, 200);
        assert_eq!(bench.runs(), runs);
    }
}

#[tokio::test]
async fn an_empty_answer_is_replayed_empty() {
    let bench = Bench::new();
    let app = bench.app(|_| async { StatusCode::NO_CONTENT });
    for replayed in [false, true] {
        let answer = send(&app, charge("k", ORDER)).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (204, ""));
        assert_eq!(answer.is_replayed(), replayed);
    }
}
