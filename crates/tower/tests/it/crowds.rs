//! Fifty concurrent requests under one key.

use std::time::Duration;

use http::StatusCode;
use semel_sqlite::SqliteStore;
use semel_testkit::flaky_store::FlakyStore;

use crate::harness::{Harness, ORDER, TestResponse, charge, send};

const REQUESTS: usize = 50;

/// Fifty concurrent requests; the handler is slow, so that all of them overlap.
async fn send_concurrently(harness: &Harness, status: StatusCode) -> Vec<TestResponse> {
    let app = harness.app(move |run| async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        (status, format!("run {run}"))
    });
    let request = |_| {
        let app = app.clone();
        tokio::spawn(async move { send(&app, charge("k", ORDER)).await })
    };
    let mut answers = Vec::new();
    for answer in (0..REQUESTS).map(request).collect::<Vec<_>>() {
        answers.push(answer.await.unwrap());
    }
    answers
}

async fn all_get_the_answer_of_one(harness: Harness) {
    let answers = send_concurrently(&harness, StatusCode::CREATED).await;
    for answer in &answers {
        assert_eq!((answer.status, answer.text()), (StatusCode::CREATED, "run 1"));
        assert_eq!(answer.headers.get("content-type"), answers[0].headers.get("content-type"));
    }
    assert_eq!(harness.runs(), 1);
}

/// No request that joined runs it again; a later request may.
async fn all_get_the_failure_of_one(harness: Harness) {
    let answers = send_concurrently(&harness, StatusCode::TOO_MANY_REQUESTS).await;
    for answer in answers {
        assert_eq!((answer.status.as_u16(), answer.text()), (429, "run 1"));
        assert!(!answer.is_replayed(), "nothing is recorded");
    }
    assert_eq!(harness.runs(), 1);
    let app = harness.app(|run| async move { format!("run {run}") });
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "run 2");
}

fn sqlite(folder: &tempfile::TempDir) -> Harness {
    Harness::on(FlakyStore::new(SqliteStore::open(folder.path().join("semel.db")).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory_fifty_requests_run_once_and_get_one_answer() {
    all_get_the_answer_of_one(Harness::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_fifty_requests_run_once_and_get_one_answer() {
    let folder = tempfile::tempdir().unwrap();
    all_get_the_answer_of_one(sqlite(&folder)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory_fifty_requests_get_the_failure_of_one_run() {
    all_get_the_failure_of_one(Harness::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_fifty_requests_get_the_failure_of_one_run() {
    let folder = tempfile::tempdir().unwrap();
    all_get_the_failure_of_one(sqlite(&folder)).await;
}
